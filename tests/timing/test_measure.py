"""Contenders against their answers, ratios by hand, and results through JSON."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import toptheta_npu
from toptheta_npu import TopThetaValueError
from toptheta_npu.cpu import cache, library
from toptheta_npu.timing import contenders, measure, report
from toptheta_npu.timing.clocks import Timing
from toptheta_npu.timing.contenders import COPY, Contender, list_contenders
from toptheta_npu.timing.environment import container_room, free_bytes
from toptheta_npu.timing.inputs import Inputs, make_inputs, make_traffic
from toptheta_npu.timing.measure import (
    Row,
    ShapeResult,
    TopThetaWrongResultError,
    check_answer,
    compare,
    compare_one,
    relative_error,
)
from toptheta_npu.timing.shapes import PAPER, Shape

SMALL = Shape(2, 8, 2, 256, 16, head_dim=64, dtype="float32")
SHAPES = [
    SMALL,
    replace(SMALL, dtype="bfloat16"),
    replace(SMALL, dtype="float16", num_key_value_heads=8),
    replace(SMALL, block_size=32, n=250),
    replace(SMALL, cache="int8", dtype="bfloat16", block_size=32, n=250),
    replace(SMALL, query_tokens=4, cache="int8", dtype="bfloat16"),
    replace(SMALL, query_tokens=16, num_key_value_heads=8),
    replace(SMALL, query_tokens=3, block_size=32, n=250, dtype="float16"),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_contender_of_a_cpu_is_right(shape: Shape) -> None:
    result = compare_one(shape, "cpu", copies=2, rounds=1)
    assert result.kept == shape.k
    for row in result.rows:
        assert (row.missing is None) == (set(row.calls) == {"cold", "hot"})
    missing = {row.name for row in result.rows if row.missing}
    if shape.block_size:
        assert missing == {"SDPA enable_gqa", "SDPA folded", "top-k (torch.topk)"}
    else:
        assert missing == ({"SDPA folded"} if shape.group == 1 else set())
    assert {"int8 at θ=-inf", "int8 top-θ"} <= {row.name for row in result.rows} or not shape.cache


NATIVE = ["stream", "native at θ=-inf", "native top-θ", "native top-θ + SDC + VMC"]


def test_without_the_native_kernel_its_rows_say_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/no/such/compiler")
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(library, "_LIBRARIES", {})
    with toptheta_npu.use_backend("auto", device="cpu"):
        result = compare_one(SMALL, "cpu", copies=2, rounds=1)
    assert [row.name for row in result.rows if row.missing] == NATIVE
    for row in result.rows:
        if row.missing:
            assert row.missing.startswith("not available: compiler: expected")
            assert "/no/such/compiler" in row.missing
    assert result.gain("fallback", "cold") is not None
    assert report.summary([result], "cpu").rows[0][-1] == ""


def test_the_fallback_is_not_timed_under_the_name_of_the_native_kernel() -> None:
    with toptheta_npu.use_backend("fallback", device="cpu"):
        result = compare_one(SMALL, "cpu", copies=2, rounds=1)
    reasons = {row.name: row.missing for row in result.rows if row.missing}
    assert reasons == dict.fromkeys(NATIVE, "not available: the PyTorch fallback is chosen")


@pytest.mark.parametrize("tokens", [1, 4])
@pytest.mark.parametrize("device", ["cuda", "npu"])
def test_rows_of_accelerators(device: str, tokens: int) -> None:
    listed = list_contenders(device)
    roles = [contender.role for contender in listed]
    assert {"floor", "dense", "own dense", "sparse", "compensated", "top-k"} <= set(roles)
    assert len({contender.name for contender in listed}) == len(listed)
    inputs = make_inputs(replace(SMALL, dtype="float16", query_tokens=tokens), "cpu", copies=1)
    run = set()
    for contender in listed:
        row = Row(contender.name, contender.role)
        if check_answer(contender, inputs, row) is not None:
            run.add(row.name)
        else:
            assert contender.foreign
            assert row.missing
    assert run >= {contender.name for contender in listed if not contender.foreign}
    if device == "cuda":
        assert {"SDPA enable_gqa", "SDPA folded"} <= run


def _vendor(name: str) -> Contender:
    return next(contender for contender in list_contenders("npu") if contender.name == name)


def test_what_the_vendor_takes_of_several_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contenders, "is_emulated", lambda device: False)
    shape = replace(SMALL, dtype="float16", query_tokens=4)
    assert _vendor("npu_incre_flash_attention").reason(replace(shape, query_tokens=1)) is None
    assert _vendor("npu_incre_flash_attention").reason(shape) == "takes one query token per sequence"
    reason = _vendor("npu_fused_infer_attention_score").reason
    for rows in (0, 128, 512):
        assert reason(replace(shape, block_size=rows)) is None
    for rows in (16, 64, 640):
        assert reason(replace(shape, block_size=rows)) == (
            "takes blocks of a multiple of 128 rows up to 512 with several query tokens"
        )
    assert reason(replace(shape, block_size=16, query_tokens=1)) is None
    assert reason(replace(shape, n=300000)) is None
    assert reason(replace(shape, n=300000, query_tokens=1)) == "takes up to 262144 keys"


@pytest.mark.parametrize("tokens", [1, 4])
def test_the_mask_that_the_vendor_is_given(tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of its operator one that does what its documentation says of sparse_mode 3."""

    def documented(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, None]:
        seen = torch.ones(tokens, key.shape[2], dtype=torch.bool)
        if tokens > 1:
            mask = options["atten_mask"]
            assert (mask.shape, mask.dtype, options["sparse_mode"]) == ((2048, 2048), torch.bool, 3)
            assert torch.equal(~mask, torch.ones_like(mask).tril())  # True is left out
            seen = seen.tril(key.shape[2] - tokens)
        assert options["num_heads"] == query.shape[1]
        assert (options["num_key_value_heads"], options["input_layout"]) == (key.shape[1], "BNSD")
        return torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=seen, scale=options["scale"], enable_gqa=True
        ), None

    monkeypatch.setitem(sys.modules, "torch_npu", SimpleNamespace(npu_fused_infer_attention_score=documented))
    inputs = make_inputs(replace(SMALL, query_tokens=tokens), "cpu", copies=1)
    row = Row("it", "dense")
    assert check_answer(_vendor("npu_fused_infer_attention_score"), inputs, row) is not None
    assert row.error is not None


def _contender(out: Tensor | Exception, foreign: bool = False) -> Contender:
    def make(_: Inputs):  # type: ignore[no-untyped-def]
        def call(_: int) -> Tensor:
            if isinstance(out, Exception):
                raise out
            return out

        return call

    return Contender("it", "sparse", make, foreign=foreign)


@pytest.mark.parametrize("wrong", ["dense", "nan", "zero"])
def test_a_wrong_answer_is_an_error(wrong: str) -> None:
    inputs = make_inputs(SMALL, "cpu", copies=1)
    out = {"dense": inputs.answers["dense"], "nan": inputs.answers["kept"] * torch.nan}.get(
        wrong, torch.zeros_like(inputs.query)
    )
    with pytest.raises(TopThetaWrongResultError, match=r"it: expected the float32 answer within 0\.001, got"):
        check_answer(_contender(out), inputs, Row("it", "sparse"))


def test_a_missing_vendor_operator_is_a_reason() -> None:
    inputs = make_inputs(SMALL, "cpu", copies=1)
    row = Row("it", "sparse")
    assert check_answer(_contender(RuntimeError("no kernel\nmore"), foreign=True), inputs, row) is None
    assert row.missing == "not available: no kernel"
    with pytest.raises(RuntimeError, match="no kernel"):
        check_answer(_contender(RuntimeError("no kernel")), inputs, Row("it", "sparse"))


def test_relative_error() -> None:
    assert relative_error(torch.tensor([3.0, 5.0]), torch.tensor([3.0, 4.0])) == pytest.approx(0.2)


def _result() -> ShapeResult:
    """The paper's point with K read in 1 unit of time."""
    seconds = {
        "floor": 1.0, "dense": 3.0, "slow dense": 9.0, "own dense": 2.5, "sparse": 1.25, "compensated": 1.5,
    }  # fmt: skip
    rows = [
        Row(role, role.removeprefix("slow "), calls={"cold": Timing(time, 0.9 * time, 1.1 * time)})
        for role, time in seconds.items()
    ]
    shape = replace(PAPER, dtype="float32")
    return ShapeResult(shape, None, 128.0, 2, make_traffic(shape, 48 * 128), rows=rows)


def test_ratios_by_hand() -> None:
    result = _result()
    base = result.baseline("cold")
    assert base is not None
    assert base.name == "own dense"
    assert result.gain("sparse", "cold") == pytest.approx(2.5 / 1.25)
    assert result.gain("sparse", "cold", "own dense") == pytest.approx(2.5 / 1.25)
    assert result.gain("sparse", "cold", "dense") == pytest.approx(3 / 1.25)
    assert result.bound_share("cold") == pytest.approx(2 / (32 / 17))
    assert result.limit("cold") == pytest.approx(2.5 / (1 + 1 / 16))
    assert result.roofline_share(result.rows[1], "cold") == pytest.approx(2 / 3)
    assert result.roofline_share(result.rows[4], "cold") == pytest.approx((1 + 1 / 16) / 1.25)
    assert result.floor_rate("cold") == 48 * 2048 * 128 * 4
    assert result.gain("sparse", "hot") is None
    result.rows[3].calls["cold"] = Timing(3.5, 3, 4)
    assert result.gain("sparse", "cold") == pytest.approx(3 / 1.25)


def test_a_copy_moves_twice_the_bytes() -> None:
    result = _result()
    result.rows[0].name = COPY
    assert result.limit("cold") == pytest.approx(2 * 2.5 / (1 + 1 / 16))
    assert result.roofline_share(result.rows[0], "cold") == pytest.approx(1)


def test_tasks_outrank_events() -> None:
    result = _result()
    for row in result.rows:
        row.tasks["cold"] = Timing(0.5 if row.role == "sparse" else 2.0, 0, 0)
    assert result.gain("sparse", "cold") == 4


def test_tasks_are_not_compared_with_calls() -> None:
    result = _result()
    result.rows[4].tasks["cold"] = Timing(0.001, 0, 0)  # top-θ alone
    assert result.gain("sparse", "cold") == pytest.approx(2.5 / 1.25)
    result.rows[2].tasks["cold"] = Timing(0.001, 0, 0)  # one of the dense rows
    base = result.baseline("cold")
    assert base is not None
    assert base.name == "own dense"


def test_int8_by_hand() -> None:
    result = _result()
    assert report.int8_summary([result]) is None
    result.shape = replace(PAPER, dtype="bfloat16", cache="int8")
    result.traffic = make_traffic(result.shape, 48 * 128)
    for role, time in (("own dense int8", 1.0), ("sparse int8", 0.625)):
        result.rows.append(Row(role, role, calls={"cold": Timing(time, time, time)}))
    table = report.int8_summary([result])
    assert table is not None
    assert table.rows == [
        ["48/48 n=2048 k=128 bf16, int8", "cold", "4.00", "3.76", "2.00", "2.00", "1.60", "1.88", "85%"]
    ]


def test_summary_of_a_cpu() -> None:
    result = _result()
    table = report.summary([result], "cpu")
    cells = dict(zip(table.columns, table.rows[0], strict=True))
    assert cells == {
        "shape": "48/48 n=2048 k=128 f32", "cache": "cold", "best dense": "own dense", "top-θ": "2.00",
        "+SDC+VMC": "1.67", "top-k": "", "fallback": "", "over SDPA": "2.40", "own gain": "2.00", "bound": "1.88",
        "share": "106%", "V rows": "0.062", "θ=-inf rate": "80%", "top-θ rate": "85%", "stream, GB/s": "0.1",
    }  # fmt: skip
    assert table.title == "Speed of a decode step"
    assert table.as_markdown().splitlines()[1].count("---:") == len(table.columns) - 1
    assert report.notes(result)[0].endswith("2 copies of the cache")


def test_several_tokens_are_named() -> None:
    one, four = _result(), _result()
    four.shape = replace(four.shape, query_tokens=4)
    assert report.summary([four], "cpu").rows[0][0] == "48/48 n=2048 k=128 f32, 4 tokens"
    assert report.notes(one)[0].startswith("128.0 kept per head; ")
    assert report.notes(four)[0].startswith("128.0 kept per head and token; ")


@pytest.mark.parametrize("device", ["cuda", "npu"])
def test_summary_of_an_accelerator(device: str) -> None:
    table = report.summary([_result()], device)
    cells = dict(zip(table.columns, table.rows[0], strict=True))
    assert table.title == "Speed of a decode step"
    assert (cells["θ=-inf"], cells["top-θ"], cells["limit"], cells["k̃/k"]) == ("1.00", "2.00", "2.35", "1.000")


def test_json_has_times_and_gains() -> None:
    result = _result()
    text = report.as_json([result], {"name": "it"}, {"rounds": 1})
    stored = json.loads(text)
    assert stored["unit"] == "seconds"
    (first,) = stored["results"]
    assert first["rows"][1]["calls"]["cold"]["median"] == 3
    assert first["gains"]["cold"]["over_vendor_dense"] == pytest.approx(3 / 1.25)
    assert first["gains"]["cold"]["of_floor"]["dense"] == pytest.approx(2 / 3)


def test_large_shapes_are_skipped_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "free_bytes", lambda device: 1 << 20)
    monkeypatch.setattr(measure, "make_inputs", lambda *_: pytest.fail("allocated"))
    (result,) = compare([PAPER], "cpu", rounds=1, skip_large=True)
    assert result.skipped is not None
    assert "GiB that are free on the device" in result.skipped
    with pytest.raises(TopThetaValueError, match="shape: expected at most"):
        compare([PAPER], "cpu", rounds=1)


def test_memory_limit_of_a_container(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("700\n")
    (tmp_path / "memory.stat").write_text("anon 5\ninactive_file 50\ninactive_file_other 7\n")
    assert container_room(tmp_path) == 350
    (tmp_path / "memory.max").write_text("max\n")
    assert container_room(tmp_path) == float("inf")


def test_no_container(tmp_path: Path) -> None:
    assert container_room(tmp_path) == float("inf")
    assert 0 < free_bytes("cpu") < float("inf")
