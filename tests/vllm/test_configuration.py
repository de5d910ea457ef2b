"""What cannot be right stops the engine at its start, with a message that names it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

import toptheta_npu.vllm as plug_in
from benchmarks.serving.engines import TABLE, make_engine
from toptheta_npu.assets import TINY_LLAMA
from toptheta_npu.errors import TopThetaNotImplementedError, TopThetaValueError

START = """
import json, sys
from vllm import LLM
options = json.loads(sys.argv[1])
engine = LLM(options.pop("model"), dtype="float32", enforce_eager=True, max_model_len=256,
             kv_cache_memory_bytes=1 << 24, **options)
print("STARTED", [layer.impl.__class__.__name__ for layer in
      engine.llm_engine.vllm_config.compilation_config.static_forward_context.values()][:1])
"""


def start(settings: dict[str, Any] | None, **options: Any) -> subprocess.CompletedProcess[str]:
    """A fresh process that starts an engine: what it prints, and whether it came up."""
    config = {} if settings is None else {"additional_config": {"top_theta": settings}}
    arguments = json.dumps({"model": str(TINY_LLAMA), **config, **options})
    return subprocess.run([sys.executable, "-c", START, arguments], capture_output=True, text=True, timeout=300)


def test_without_settings_vllm_runs_its_own_classes() -> None:
    done = start(None)
    assert "STARTED ['CPUAttentionBackendImpl']" in done.stdout, done.stderr[-3000:]
    assert "Top-Theta" not in done.stdout + done.stderr


def test_its_log_says_what_is_sparse() -> None:
    done = start({"table": str(TABLE), "k": 64, "dense_layers": [0]})
    assert "STARTED ['Impl']" in done.stdout, done.stderr[-3000:]
    log = done.stdout + done.stderr
    assert "Top-Theta: layers 1-5 decode by the thresholds of" in log
    assert "; dense: layers 0 (dense_layers), rows of fewer than" in log


def test_pipeline_stages_with_which_vllm_itself_fails_stop_the_start() -> None:
    done = start({"table": str(TABLE)}, pipeline_parallel_size=2)
    assert done.returncode != 0
    assert "pipeline_parallel_size: expected none of it with Top-Theta, got 2; vLLM 0.32" in done.stdout + done.stderr


def test_a_platform_without_a_shim_refuses_settings_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.engine.arg_utils import EngineArgs
    from vllm.platforms import current_platform
    from vllm.plugins import load_general_plugins

    load_general_plugins()  # other tests need the shim
    platform = type(current_platform)
    # undone after the test
    monkeypatch.setattr(platform, "check_and_update_config", classmethod(platform.check_and_update_config.__func__))
    monkeypatch.setattr(plug_in, "_SHIMS", {"npu": "ascend"})
    plug_in.register()
    assert EngineArgs(model=str(TINY_LLAMA)).create_engine_config()
    asked = EngineArgs(model=str(TINY_LLAMA), additional_config={"top_theta": {"tau": 0.001}})
    with pytest.raises(TopThetaNotImplementedError, match=r"^vllm: expected one of its platforms npu, got cpu; leave"):
        asked.create_engine_config()


@pytest.mark.parametrize(
    ("settings", "options", "error", "message"),
    [
        ({"kk": 64}, {}, TopThetaValueError, r"\['kk'\]: expected the name of a setting, got another; did you mean k"),
        ({"table": "missing.theta"}, {}, TopThetaValueError, r"missing\.theta"),
        ({"dense_layers": [6]}, {}, TopThetaValueError, "dense_layers: expected 0 to 5, got 6"),
        ({}, {"kv_cache_dtype": "fp8"}, TopThetaNotImplementedError, "kv_cache_dtype: expected none of it"),
        ({}, {"kv_cache_dtype": "int8_per_token_head"}, TopThetaNotImplementedError, "kv_cache_dtype: expected none"),
        ({}, {"kv_transfer_config": {"kv_connector": "ExampleConnector", "kv_role": "kv_both"}},
         TopThetaNotImplementedError, "kv_transfer_config: expected none of it with Top-Theta"),
        ({}, {"enable_lora": True}, TopThetaNotImplementedError, "^lora_config: expected none of it with Top-Theta"),
    ],
)  # fmt: skip
def test_wrong_settings_stop_the_start(
    settings: dict[str, Any], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make_engine(settings, **options)


def test_a_version_that_was_not_tried_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    import vllm

    monkeypatch.setattr(vllm, "__version__", "0.40.0")
    with pytest.raises(TopThetaNotImplementedError, match=r"vllm \(cpu\): expected version 0\.32\.0, got 0\.40\.0"):
        make_engine({"k": 64})
