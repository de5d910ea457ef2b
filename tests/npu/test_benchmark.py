"""The comparison's NPU branch over emulated devices, as far as timing, which is refused there."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from emulator.acl.environment import in_emulator
from emulator.acl.settings import VARIABLE
from tests.tiers import full
from toptheta_npu import TopThetaNotImplementedError
from toptheta_npu.cli.common.devices import check_device
from toptheta_npu.npu.environment import EMULATOR_VARIABLE
from toptheta_npu.timing.clocks import EventTimer, is_emulated, make_timer
from toptheta_npu.timing.contenders import list_contenders
from toptheta_npu.timing.environment import cache_bytes, environment, free_bytes
from toptheta_npu.timing.inputs import make_inputs
from toptheta_npu.timing.measure import compare_one
from toptheta_npu.timing.shapes import parse_shape

pytestmark = pytest.mark.skipif(not in_emulator(), reason="on hardware the command itself is the test")
SHAPES = [
    "heads=4,n=96,k=8,head_dim=32",
    "heads=4/2,n=130,k=16,head_dim=64,dtype=bfloat16,batch=2",
    "heads=4/2,n=130,k=16,head_dim=64,block_size=32,batch=2",
    "heads=4/2,n=130,k=16,head_dim=64,batch=2,query_tokens=3",
    "heads=8/2,n=300,k=16,head_dim=64,dtype=bfloat16,block_size=128,query_tokens=4,cache=int8",
]


@pytest.mark.parametrize("text", SHAPES)
def test_answers_are_checked_and_nothing_is_timed(text: str) -> None:
    shape = parse_shape(text)
    result = compare_one(shape, "npu", copies=2, rounds=1)
    assert result.kept == shape.k
    rows = {row.role: row for row in result.rows}
    int8 = ("own dense int8", "sparse int8") if shape.cache else ()
    for role in ("own dense", "sparse", "compensated", "fallback", *int8):
        assert rows[role].missing is None
        assert rows[role].error is not None
    vendor = [row for row in result.rows if row.role == "dense"]
    assert [row.name for row in vendor] == ["npu_incre_flash_attention", "npu_fused_infer_attention_score"]
    none = "not available: the emulator has no fused operators of torch_npu"
    of_one = "takes one query token per sequence" if shape.query_tokens > 1 else none
    assert [row.missing for row in vendor] == [of_one, none]
    assert not any(row.calls or row.tasks for row in result.rows)


@pytest.mark.parametrize("text", SHAPES)
def test_arguments_of_the_vendor_operators(text: str) -> None:
    """On meta tensors torch_npu checks names, types and shapes; nothing is run."""
    inputs = make_inputs(parse_shape(text), "cpu", copies=2)
    table = None if inputs.block_table is None else inputs.block_table.to("meta")
    layers = [(key.to("meta"), value.to("meta")) for key, value in inputs.layers]
    inputs = replace(inputs, query=inputs.query.to("meta"), layers=layers, block_table=table)
    for contender in list_contenders("npu"):
        of_one = contender.name == "npu_incre_flash_attention"
        if contender.role == "dense" and not (of_one and inputs.shape.query_tokens > 1):
            out = contender.make(inputs)(1)
            assert (out.shape, out.dtype) == (inputs.query.shape, inputs.query.dtype)


@pytest.mark.parametrize("reheat", [False, True])
def test_events_stand_around_the_call(reheat: bool) -> None:
    calls: list[int] = []
    timer = EventTimer("npu", occupying_rows=16)
    assert timer(lambda: calls.append(1), reheat) >= 0
    assert len(calls) == 1 + reheat


def test_times_are_refused() -> None:
    assert is_emulated("npu")
    assert EMULATOR_VARIABLE == VARIABLE
    with pytest.raises(TopThetaNotImplementedError, match="times are refused"):
        make_timer("npu")


def test_device() -> None:
    assert check_device("npu") == "npu"
    assert free_bytes("npu") > 1 << 20
    assert cache_bytes("npu") == 192 << 20
    stamp = environment("npu")
    assert str(stamp["name"]).endswith("(emulated)")


@full
def test_command_prints_no_time(run_python: Callable[..., str], tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    arguments = ["benchmark", "--device", "npu", "--shape", SHAPES[0], "--cache", "hot", "--json", str(file)]
    code = f"""
import sys
from toptheta_npu.cli import main
sys.argv[1:] = {arguments!r}
sys.stderr = sys.stdout
try:
    main()
except SystemExit as end:
    print("status", end.code)
"""
    text = re.sub(r"\s+", " ", run_python(code))
    assert "times are refused" in text
    assert text.strip().endswith("status 2")
    assert "npu_incre_flash_attention: not run: not available" in text
    assert "µs" not in text
    assert "Speed of a decode step" not in text
    stored = json.loads(file.read_text())
    assert stored["results"][0]["gains"] == {}
    assert all(row["calls"] == {} == row["tasks"] for row in stored["results"][0]["rows"])


@full
def test_tokens_per_second_are_refused_too(run_python: Callable[..., str]) -> None:
    code = """
from toptheta_npu.cli import app
from typer.testing import CliRunner
done = CliRunner().invoke(app, ["benchmark-generate", "--device", "npu"])
print(type(done.exception).__name__, done.exception)
"""
    assert "TopThetaNotImplementedError --device npu: expected a device whose time means something" in run_python(code)
