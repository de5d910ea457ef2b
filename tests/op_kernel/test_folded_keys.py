"""K rows that a cube core copies as one: the same bits as rows by themselves, and fewer, wider rows of the copies."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.cases import Case
from tests.helpers import Inputs, assert_equals_oracle, make_inputs
from tests.op_kernel.calls import call, statistics

_POST = {"placement": "post_softmax"}
_CASE = Case("folded", dtype="float16", heads=4, kv_heads=1, head_dim=128, lengths=(2300,), keep=0.04)
_CASES = (
    _CASE,
    *(replace(_CASE, id=f"n{n}", lengths=(n,)) for n in (511, 512, 513, 767, 768, 1000, 1025)),
    replace(_CASE, id="bf16", dtype="bfloat16", heads=2, sink=True),
    replace(_CASE, id="three-heads", heads=3, vmc=True),
    replace(_CASE, id="two-sequences", lengths=(1900, 700), kv_heads=2, heads=8),
    replace(_CASE, id="start", lengths=(1900, 700), starts=(301, 7)),
    replace(_CASE, id="nothing", theta="nothing"),
    replace(_CASE, id="dense", theta="dense"),
    replace(_CASE, id="mixed", theta="mixed"),
    replace(_CASE, id="locally-dense", keep=0.2),
    replace(_CASE, id="pages", paged="4d", block_size=16),
    replace(_CASE, id="descending-pages", paged="4d", block_size=128, blocks="descending", lengths=(2300, 900)),
    replace(_CASE, id="post", lengths=(2300, 600), **_POST),
    replace(_CASE, id="post-room", lengths=(700,), heads=2, dtype="bfloat16", **_POST),
)
_INT8 = replace(_CASE, id="int8", int8="both", lengths=(2900,))
_TOKEN = {"int8": "both", "scales": "token"}
_INT8_CASES = (
    _INT8,
    *(replace(_INT8, id=f"int8-n{n}", lengths=(n,)) for n in (1023, 2047, 2048, 3071, 3072, 4100)),
    replace(_INT8, id="int8-key", int8="key", vmc=True),
    replace(_INT8, id="int8-token", **_TOKEN),
    replace(_INT8, id="int8-bf16", dtype="bfloat16", heads=2, sink=True, **_TOKEN),
    replace(_INT8, id="int8-three-heads", heads=3),
    replace(_INT8, id="int8-five-heads", heads=5),
    replace(_INT8, id="int8-two-sequences", lengths=(3900, 1400), kv_heads=2, heads=8),
    replace(_INT8, id="int8-start", lengths=(3900, 1400), starts=(301, 7), **_TOKEN),
    replace(_INT8, id="int8-nothing", theta="nothing"),
    replace(_INT8, id="int8-dense", theta="dense", **_TOKEN),
    replace(_INT8, id="int8-locally-dense", keep=0.2),
    replace(_INT8, id="int8-pages", paged="4d", block_size=16, **_TOKEN),
    replace(_INT8, id="int8-odd-pages", paged="4d", block_size=48, blocks="descending", lengths=(3900, 1400)),
    replace(_INT8, id="int8-post", lengths=(3900, 600), **_POST),
    replace(_INT8, id="int8-post-token", int8="key", scales="token", heads=2, dtype="bfloat16", **_POST),
)


def _with_gaps(cache: Tensor) -> Tensor:
    """The same numbers with 32 more elements between two rows, so that no two of them can be copied as one."""
    wide = torch.zeros(*cache.shape[:-1], cache.shape[-1] + 32, dtype=cache.dtype)
    wide[..., : cache.shape[-1]] = cache
    return wide[..., : cache.shape[-1]]


def _apart(inputs: Inputs) -> dict[str, object]:
    return inputs.arguments | {"key": _with_gaps(inputs.arguments["key"])}


@pytest.mark.parametrize("case", [*_CASES, *_INT8_CASES], ids=lambda case: case.id)
def test_rows_as_one_change_no_bit(case: Case) -> None:
    inputs = make_inputs(case, poison=("outside",))
    as_one = call(inputs.arguments, cores=2)
    as_one.run.require_clean()
    assert_equals_oracle(inputs, statistics(as_one))
    one_by_one = call(_apart(inputs), cores=2)
    one_by_one.run.require_clean()
    for got, expected in zip(statistics(as_one), statistics(one_by_one), strict=True):
        assert torch.equal(got, expected)


def _commands(case: Case) -> tuple[int, int]:
    """Copies of K with rows that follow one another, and with gaps."""
    inputs = make_inputs(case)
    runs = [call(arguments, cores=2).run for arguments in (inputs.arguments, _apart(inputs))]
    assert runs[0].traffic["key"].bytes_read == runs[1].traffic["key"].bytes_read
    return runs[0].traffic["key"].read_commands, runs[1].traffic["key"].read_commands


def test_a_round_in_pairs_is_one_copy_and_the_last_two_are_not() -> None:
    # two cores with 1152 and 1148 rows: three rounds in pairs each, then two, of which each is copied in two halves
    assert _commands(_CASE) == (2 * (3 + 2 * 2), 2 * (3 * 2 + 2 * 2))


def test_a_round_of_int8_rows_in_fours_is_one_copy_and_the_last_two_are_not() -> None:
    # two cores with 1408 and 1492 rows: a round in fours each, then two, of which each is copied in two halves
    assert _commands(_INT8) == (2 * (1 + 2 * 2), 2 * (2 + 2 * 2))


@pytest.mark.parametrize(
    "case",
    [
        replace(_CASE, id="rows-of-256-elements", head_dim=256),
        replace(_CASE, id="rows-of-64-elements", head_dim=64),
        replace(_CASE, id="many-heads", heads=5),
        replace(_CASE, id="few-rows", lengths=(700,)),
        replace(_INT8, id="int8-rows-of-256-elements", head_dim=256),
        replace(_INT8, id="int8-many-heads", heads=6),
        replace(_INT8, id="int8-few-rows", lengths=(1900,)),
    ],
    ids=lambda case: case.id,
)
def test_rows_are_copied_one_by_one_where_more_do_not_pay(case: Case) -> None:
    as_one, one_by_one = _commands(case)
    assert as_one == one_by_one
