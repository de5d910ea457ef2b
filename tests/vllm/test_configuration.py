"""What cannot be right stops the engine at its start, with a message that names it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.serving.engines import TABLE, make_engine
from toptheta_npu.assets import TINY_LLAMA
from toptheta_npu.errors import TopThetaNotImplementedError, TopThetaTypeError, TopThetaValueError

START = """
import json, sys
from vllm import LLM
options = json.loads(sys.argv[1])
engine = LLM(options.pop("model"), dtype="float32", enforce_eager=True, max_model_len=256,
             kv_cache_memory_bytes=1 << 24, **options)
print("STARTED", [layer.impl.__class__.__name__ for layer in
      engine.llm_engine.vllm_config.compilation_config.static_forward_context.values()][:1])
"""


def start(environment: dict[str, str], **options: Any) -> subprocess.CompletedProcess[str]:
    """A fresh process that starts an engine: what it prints, and whether it came up."""
    variables = {
        name: value for name, value in os.environ.items() if not name.startswith(("TOPTHETA_VLLM_", "_TOPTHETA_"))
    }
    arguments = json.dumps({"model": str(TINY_LLAMA), **options})
    return subprocess.run(
        [sys.executable, "-c", START, arguments],
        capture_output=True,
        text=True,
        env=variables | environment,
        timeout=300,
    )


def told_last(done: subprocess.CompletedProcess[str]) -> str:
    """The reason why an engine did not start, which comes after every traceback."""
    place = done.stderr.rfind("Top-Theta: the engine did not start: ")
    assert place > done.stderr.rfind("Traceback (most recent call last)"), done.stderr[-3000:]
    return done.stderr[place:].splitlines()[0]


def test_without_settings_vllm_runs_its_own_classes() -> None:
    done = start({})
    assert "STARTED ['CPUAttentionBackendImpl']" in done.stdout, done.stderr[-3000:]
    assert "Top-Theta" not in done.stdout + done.stderr


def test_the_environment_configures_it() -> None:
    done = start({"TOPTHETA_VLLM_TABLE": str(TABLE), "TOPTHETA_VLLM_K": "64", "TOPTHETA_VLLM_DENSE_LAYERS": "0"})
    assert "STARTED ['Impl']" in done.stdout, done.stderr[-3000:]
    log = done.stdout + done.stderr
    assert "Top-Theta: layers 1-5 decode by the thresholds of" in log
    assert "; dense: layers 0 (dense_layers), rows of fewer than" in log


def test_pipeline_stages_with_which_vllm_itself_fails_stop_the_start() -> None:
    done = start({"TOPTHETA_VLLM_TABLE": str(TABLE)}, pipeline_parallel_size=2)
    assert done.returncode != 0
    assert "pipeline_parallel_size: expected none of it with Top-Theta, got 2; vLLM 0.32" in told_last(done)


def test_a_wrong_variable_stops_the_start() -> None:
    done = start({"TOPTHETA_VLLM_TABLE": str(TABLE), "TOPTHETA_VLLM_KK": "64"})
    assert done.returncode != 0
    assert "TOPTHETA_VLLM_KK: expected the name of a setting, got another; did you mean k?" in told_last(done)


def test_variables_without_a_table_leave_vllm_as_it_is() -> None:
    done = start({"TOPTHETA_VLLM_TABEL": str(TABLE)})
    assert "STARTED ['CPUAttentionBackendImpl']" in done.stdout, done.stderr[-3000:]
    told = done.stdout + done.stderr
    assert "TOPTHETA_VLLM_TABEL without TOPTHETA_VLLM_TAU or TOPTHETA_VLLM_TABLE: vLLM stays as it is" in told


@pytest.mark.parametrize(
    ("settings", "options", "error", "message"),
    [
        ({"k": "64"}, {}, TopThetaTypeError, r"\['toptheta'\]\['k'\]: expected a whole number, got '64'"),
        ({"table": "missing.theta"}, {}, TopThetaValueError, r"missing\.theta"),
        ({"k": 4096}, {}, TopThetaValueError, "k: expected .* got 4096"),
        ({"dense_layers": [6]}, {}, TopThetaValueError, "dense_layers: expected 0 to 5, got 6"),
        ({}, {"kv_cache_dtype": "fp8"}, TopThetaNotImplementedError, "kv_cache_dtype: expected none of it"),
        ({}, {"kv_transfer_config": {"kv_connector": "ExampleConnector", "kv_role": "kv_both"}},
         TopThetaNotImplementedError, "kv_transfer_config: expected none of it with Top-Theta"),
    ],
)  # fmt: skip
def test_wrong_settings_stop_the_start(
    settings: dict[str, Any], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make_engine(settings, **options)


def test_a_table_of_another_model_stops_the_start(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    other = tmp_path / "other"
    shutil.copytree(TINY_LLAMA, other)
    model = AutoModelForCausalLM.from_pretrained(TINY_LLAMA)
    model.model.layers[3].self_attn.q_proj.weight.data.mul_(1.01)
    model.save_pretrained(other)
    with pytest.raises(
        TopThetaValueError, match="which differs in weights; calibrate this model, or name its own table"
    ):
        make_engine({"k": 64}, model=str(other))


def test_a_version_that_was_not_tried_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    import vllm

    monkeypatch.setattr(vllm, "__version__", "0.40.0")
    with pytest.raises(TopThetaNotImplementedError, match=r"vllm \(cpu\): expected version 0\.32\.0, got 0\.40\.0"):
        make_engine({"k": 64})
