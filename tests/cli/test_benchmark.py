"""``toptheta benchmark`` as a user types it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from toptheta_npu import cli

ROOT = Path(__file__).parents[2]
COMMAND = ("-m", "toptheta_npu", "benchmark")
TINY = ["--device", "cpu", "--rounds", "2"]


def run(*arguments: str, program: tuple[str, ...] = COMMAND, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *program, *arguments], capture_output=True, text=True, cwd=folder)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("benchmark")
    shapes = [f"heads=4/2,n={n},k={k},dtype=float32" for n, k in ((256, 16), (512, 32), (512, 64), (512, 512))]
    options = [word for shape in shapes for word in ("--shape", shape)]
    done = run(*TINY, *options, "--json", str(folder / "results.json"), "--plots", str(folder / "plots"))
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def test_writes_what_it_says(results: tuple[Path, str]) -> None:
    folder, text = results
    for name in ("speedup_length", "speedup_density", "roofline"):
        assert (folder / "plots" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert "not drawn" not in text
    assert "Speed of a decode step" in text
    assert text.count("p10 to p90") == 2 * 4


def test_json_has_ratios_only(results: tuple[Path, str]) -> None:
    stored = json.loads((results[0] / "results.json").read_text())
    assert stored["unit"] == "time of the best dense row, same shape and cache"
    assert stored["settings"] == {"rounds": 2, "cache": "both"}
    assert {"name", "torch", "threads", "cache_bytes"} <= set(stored["environment"])
    for result in stored["results"]:
        medians = {row["name"]: row["calls"] for row in result["rows"]}
        for cache in ("cold", "hot"):
            assert min(medians[name][cache]["median"] for name in medians if name.startswith("SDPA")
                       and cache in medians[name]) == 1  # fmt: skip
        assert result["gains"]["cold"]["sparse"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--device: expected one of cpu, cuda, npu, got nothing"),
        (["--device", "tpu"], "--device: expected one of cpu, cuda, npu, got 'tpu'"),
        ([*TINY, "--shape", "heads=8/2,n=64,k=65"], "k: expected at most n = 64, got 65"),
        ([*TINY, "--k", "4096"], "k: expected at most n = 2048, got 4096"),
        ([*TINY, "--shape", "heads=64,n=1048576,batch=4096"], "shape: expected at most the"),
        ([*TINY, "--cache", "warm"], "--cache: expected one of both, cold, hot"),
        ([*TINY, "--sweep", "depths"], "--sweep: expected one of lengths, densities"),
        ([*TINY, "--sweep", "lengths", "--shape", "heads=8,n=64"], "--sweep: expected no --shape"),
        ([*TINY, "--n", "64"], "--config: expected a config with --n and --batch"),
        ([*TINY, "--config", "./none"], "--config: expected a config.json or a folder with one"),
        ([*TINY, "--json", "/no/such/folder/file.json"], "--json: expected a file in a folder that is there"),
        (["--device", "npu", "--shape", "heads=8,n=64"], "--device: expected torch_npu"),
        (["--device", "cuda", "--shape", "heads=8,n=64"], "--device: expected a CUDA device that torch can use"),
    ],
)
def test_wrong_use(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if "cuda" in arguments and torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    if "npu" in arguments and hasattr(torch, "npu"):
        pytest.skip("there is an NPU")
    monkeypatch.setattr(sys, "argv", ["toptheta", "benchmark", *arguments])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2
    assert message in re.sub(r"\s+", " ", capsys.readouterr().err)


def test_script_and_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "dtype": "float32"})
    )
    script = ("benchmarks/incremental_attention.py",)
    done = run(*TINY, "--config", str(tmp_path), "--n", "128", "--n", "256", "--cache", "hot", program=script)
    assert done.returncode == 0, done.stderr
    assert "heads=4/2,n=128,k=8,head_dim=32" in done.stdout
    assert "heads=4/2,n=256,k=16,head_dim=32" in done.stdout
    assert "cold, µs" not in done.stdout


def test_the_command_line_starts_without_the_benchmark() -> None:
    code = "import sys, toptheta_npu.cli; print([m for m in sys.modules if m.startswith('toptheta_npu.benchmark')])"
    assert run(program=("-c", code)).stdout.strip() == "[]"
