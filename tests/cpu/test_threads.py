"""Rows of many granules on many threads: no races, and the same bits whoever works and whatever is beside a row."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.cases import CASES, Case
from tests.cpu.driver_cases import DriverCase, assert_driver_equals_the_oracle
from tests.cpu.native import ELEMENTS, OWN_LEVELS, operator_arguments, operators, partial_arguments, same_bits, using
from tests.helpers import Inputs, assert_equals_oracle, make_inputs
from tests.tiers import full, product, sample
from toptheta_npu.cpu import library
from toptheta_npu.fallback import Arguments

_BY_ID = {case.id: case for case in CASES}
_POST = {"placement": "post_softmax"}
_SAMPLED = {"placement": "sampled_softmax"}
#: 3 to 16 granules of 256 KiB of K per row, next to rows of one granule, of part of one and of none.
_LONG = (
    Case("pre", heads=6, kv_heads=2, head_dim=512, lengths=(2000, 0, 300, 1), vmc=True, theta="mixed"),
    Case("post", heads=12, kv_heads=1, head_dim=256, lengths=(3000, 17), vmc=True, **_POST),
    Case("post, more heads than are scored ahead", heads=8, kv_heads=8, head_dim=256, lengths=(1100, 0, 700), **_POST),
    Case("sampled", heads=12, kv_heads=1, head_dim=128, lengths=(3000, 17), vmc=True, theta="mixed", **_SAMPLED),
    Case("sampled ahead", heads=4, kv_heads=2, head_dim=128, lengths=(4200, 401, 0), vmc=True, keep=0.05, **_SAMPLED),
    Case(
        "sampled ahead, int8", heads=4, kv_heads=2, paged="4d", block_size=48, lengths=(4100, 500), int8="both",
        scales="token", sink=True, keep=0.05, **_SAMPLED,
    ),
    Case("int8", heads=8, kv_heads=2, head_dim=128, lengths=(5000, 700, 0), int8="both", keep=0.05, vmc=True),
    Case("paged", heads=4, kv_heads=4, head_dim=320, paged="4d", block_size=48, lengths=(2500, 400), theta="nothing"),
)  # fmt: skip
_PER_SEQUENCE = (
    "query", "key", "value", "threshold", "actual_seq_lengths", "key_start", "block_table", "lse", "discarded_mass",
    "value_mean",
)  # fmt: skip


@full
@pytest.mark.parametrize("level", OWN_LEVELS)
@pytest.mark.parametrize("dtype", sample(ELEMENTS, 3))
def test_threads_do_not_race(dtype: str, level: str, tmp_path: Path) -> None:
    cases = [DriverCase.of(replace(case, dtype=dtype), ("auto",), ("outside",), (1, 8)) for case in _LONG]
    assert_driver_equals_the_oracle(cases, level, "thread", tmp_path)


def results(level: str, inputs: Inputs, threads: int, **changes: Any) -> tuple[Tensor, ...]:
    """Of both operators that return several tensors, over PyTorch's own threads."""
    whole = operator_arguments(inputs)
    part = partial_arguments(inputs, whole)
    whole, part = ({**given, **{n: v for n, v in changes.items() if n in given}} for given in (whole, part))
    with using(level, threads=threads):
        return (
            *operators.incremental_attention_with_stats(Arguments(**whole)),
            *operators.incremental_attention_partial(Arguments(**part)),
        )  # fmt: skip


@pytest.mark.parametrize("case", _LONG, ids=lambda case: case.id)
@pytest.mark.parametrize(("dtype", "level"), product(ELEMENTS, OWN_LEVELS))
def test_bits_do_not_depend_on_threads(case: Case, dtype: str, level: str) -> None:
    assert library.RUN_IN_PARALLEL != 0
    inputs = make_inputs(replace(case, dtype=dtype), poison=("outside",))
    one = results(level, inputs, 1)
    assert_equals_oracle(inputs, one[:4])
    for threads in (2, 3, 8, 8):
        assert same_bits(results(level, inputs, threads), one)


@pytest.mark.parametrize("level", OWN_LEVELS)
@pytest.mark.parametrize(
    "case_id", ["ragged", "short-dense-beside-long", "g7", "paged-post-vmc", "start-bf16-bsh-post"]
)
def test_bits_of_a_row_do_not_depend_on_the_batch(case_id: str, level: str) -> None:
    _assert_rows_alone_have_the_same_bits(_BY_ID[case_id], level)


@pytest.mark.parametrize("level", OWN_LEVELS)
@pytest.mark.parametrize("case", _LONG, ids=lambda case: case.id)
def test_bits_of_a_long_row_do_not_depend_on_the_batch(case: Case, level: str) -> None:
    _assert_rows_alone_have_the_same_bits(replace(case, dtype="bfloat16"), level)


def _assert_rows_alone_have_the_same_bits(case: Case, level: str) -> None:
    inputs = make_inputs(case, poison=("outside",))
    batch = results(level, inputs, 2)
    given = partial_arguments(inputs, operator_arguments(inputs)) | inputs.arguments
    shared = ("key", "value") if case.paged else ()
    for row in range(len(case.lengths)):
        alone = {n: given[n][row : row + 1] for n in _PER_SEQUENCE if given.get(n) is not None and n not in shared}
        assert same_bits(results(level, inputs, 3, **alone), tuple(part[row : row + 1] for part in batch))


@pytest.mark.parametrize("level", OWN_LEVELS)
@pytest.mark.parametrize("dtype", ELEMENTS)
def test_bits_do_not_depend_on_how_a_cache_is_stored(dtype: str, level: str) -> None:
    """Pages, a longer cache, elements and rows far apart: all are read where they lie or copied row by row."""
    case = Case("stored", dtype, heads=8, head_dim=72, lengths=(2300, 77), vmc=True, lengths_as="int64")
    contiguous = make_inputs(case, poison=("outside",))
    expected = results(level, contiguous, 2)
    for form, block_size in (("4d", 7), ("3d", 1), ("4d", 128), ("3d", 512)):
        inputs = make_inputs(replace(case, paged=form, block_size=block_size), poison=("outside",))
        assert torch.equal(inputs.rows.key, contiguous.rows.key)
        assert same_bits(results(level, inputs, 2), expected)
    caches = {name: contiguous.arguments[name] for name in ("key", "value")}
    for order in ((2, 0, 1, 3), (0, 1, 3, 2), (3, 2, 1, 0), (1, 2, 0, 3)):
        back = [order.index(axis) for axis in range(4)]
        moved = {name: cache.permute(order).contiguous().permute(back) for name, cache in caches.items()}
        if moved["key"].stride(2) == 1:
            del moved["key"]  # keys by columns have an order of their own (test_columns)
        assert same_bits(results(level, contiguous, 2, **moved), expected)
    for axis in range(4):
        spread = {name: cache.repeat_interleave(3, axis) for name, cache in caches.items()}
        steps = tuple(slice(None, None, 3) if axis == other else slice(None) for other in range(4))
        thinned = {name: cache[steps] for name, cache in spread.items()}
        assert same_bits(results(level, contiguous, 2, **thinned), expected)
