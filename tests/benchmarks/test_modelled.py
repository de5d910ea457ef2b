"""Decode steps on the host model: ``python -m benchmarks.modelled``."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.modelled import decode
from benchmarks.modelled.__main__ import app
from benchmarks.modelled.calls import Call, Modelled, model
from benchmarks.modelled.step import EXPECTED
from tests.tiers import full
from toptheta_npu import cli
from toptheta_npu.errors import TopThetaValueError
from toptheta_npu.timing.shapes import Shape, parse_shape

ROOT = Path(__file__).parents[2]
_SMALL = Shape(1, 4, 4, n=256, k=16, head_dim=64)


@full
def test_bytes_bounds_and_gains() -> None:
    result = model(Call(_SMALL))
    row = 2 * 64
    assert result.kept.traffic["key"][0] == 4 * 256 * row
    assert result.kept.rows_read == result.kept.rows_needed == 4 * 16
    assert result.kept.traffic["value"][0] == 4 * 16 * row
    assert result.dense.traffic["value"][0] == 4 * 256 * row
    assert result.limit == pytest.approx(2 / (1 + 1 / 16))
    assert result.gain("cold") == result.dense.cold / result.kept.cold
    best, expected, worst = result.kept.times["cold"]
    assert best < expected < worst
    assert (expected, result.kept.times["hot"][EXPECTED]) == (result.kept.cold, result.kept.hot)
    assert result.kept.launch == sorted(set(result.kept.launch))
    launch = result.kept.launch[EXPECTED]
    assert result.gain_with_launch() == (result.dense.cold + launch) / (result.kept.cold + launch) < result.gain()
    assert result.gain_over_any_dense == result.dense.bound["cold"] / result.kept.cold < result.gain()


@pytest.mark.parametrize(
    "text",
    [
        "heads=8/2,n=1000,block_size=128,batch=2,head_dim=64",  # the last block of each sequence is not full
        "heads=4/4,n=256,k=256,dtype=bfloat16",
        "heads=4/1,n=512,k=5,head_dim=32,batch=3",
        "heads=4/2,n=250,k=5,head_dim=32,query_tokens=3",
    ],
)
def test_exactly_the_asked_for_rows_are_needed(text: str) -> None:
    shape = parse_shape(text)
    result = model(Call(shape))
    valid = shape.batch * shape.num_key_value_heads * shape.n
    assert result.kept.of_rows == result.dense.rows_needed == valid
    assert shape.k * shape.batch * shape.num_key_value_heads <= result.kept.rows_needed
    assert result.kept.rows_needed <= min(valid, shape.k * shape.batch * shape.num_heads * shape.query_tokens)
    assert result.kept.rows_read >= result.kept.rows_needed


def test_printed_page(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    results, left_out = decode.run([_SMALL], Console(width=200), trace=trace, own=True)
    shown = capsys.readouterr().out
    assert "modelled, uncalibrated microseconds, not a device's" in shown
    kept = results[0].kept
    best, _, worst = kept.times["cold"]
    assert f"{kept.cold:.1f}" in shown
    assert f"{best:.1f} to {worst:.1f}" in shown
    assert f"{results[0].gain_with_launch():.2f}" in shown
    assert "MTE2 (reads)" in shown
    assert left_out == []
    events = json.loads(trace.read_text())["traceEvents"]
    assert {event["ph"] for event in events} >= {"X"}


def test_large_shapes_of_a_table_are_left_out_with_a_reason(capsys: pytest.CaptureFixture[str]) -> None:
    large = replace(_SMALL, batch=4096, n=4096)
    results, left_out = decode.run([_SMALL, large], Console(width=200))
    assert [result.shape for result in results] == [_SMALL]
    assert left_out == [(large, "16.0 GiB of cache would run for minutes here; --shape runs it")]
    assert f"left out: {large}: 16.0 GiB" in capsys.readouterr().out.replace("\n", " ")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": "float32"}, "dtype in batch=1,.*: expected float16 or bfloat16 on an NPU, got float32"),
        ({"head_dim": 40}, "head_dim in batch=1,.*: expected a multiple of 16 on an NPU, got 40"),
        ({"block_size": 24}, "block_size in batch=1,.*: expected 0 or a multiple of 16 up to 512 on an NPU, got 24"),
    ],
)
def test_shapes_that_the_kernel_does_not_take(change: dict[str, object], message: str) -> None:
    with pytest.raises(TopThetaValueError, match=f"^{message}"):
        decode.run([_SMALL, replace(_SMALL, **change)], Console())  # type: ignore[arg-type]


def test_a_trace_is_of_one_shape() -> None:
    with pytest.raises(TopThetaValueError, match=r"^--trace: expected one shape, got 2; name it with --shape"):
        decode.run([_SMALL, _SMALL], Console(), trace=Path("trace.json"))


def test_command(tmp_path: Path) -> None:
    shape, file = "heads=2,n=64,k=8,head_dim=32", tmp_path / "results.json"
    command = [sys.executable, "-m", "benchmarks.modelled", "--shape", shape, "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "modelled, uncalibrated microseconds" in done.stdout
    assert json.loads(file.read_text())["results"][0]["shape"]["n"] == 64


@full
def test_wrong_use_of_the_command() -> None:
    command = [sys.executable, "-m", "benchmarks.modelled", "--shape", "heads=2,n=64,dtype=float32"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2
    wanted = "error: dtype in batch=1,heads=2/2,.*: expected float16 or bfloat16 on an NPU, got float32"
    assert re.search(wanted, done.stderr.replace("\n", " "))


@pytest.mark.parametrize("option", ["--json", "--trace"])
def test_outputs_are_tried_before_the_kernel_runs(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_model(call: Call) -> Modelled:
        raise AssertionError("modelled before the outputs were tried")

    monkeypatch.setattr(decode, "model", no_model)
    monkeypatch.setattr(sys, "argv", ["modelled", "--shape", "heads=2,n=64", option, str(tmp_path)])
    with pytest.raises(SystemExit, match="2"):
        cli.main(app)
    assert f"error: {option}: expected the name of a file, got a folder" in capsys.readouterr().err
