"""Several query tokens in the native backend: each row is, bit for bit, what it would be in a step of its token alone.

Against the oracle they are tested wherever one token is: with the other cases, drawn ones, and in the driver.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

import toptheta_npu
from tests.cases import TOKEN_CASES, Case
from tests.cpu.columns import with_columns
from tests.cpu.native import ELEMENTS, OWN_LEVELS, keys_of_part, operator_arguments, operators, same_bits, using
from tests.helpers import Inputs, assert_equals_oracle, make_inputs
from tests.random_cases import inputs_or_reject, random_cases
from tests.tiers import product
from toptheta_npu import TopThetaValueError, use_backend
from toptheta_npu.fallback import Arguments

#: Two granules of keys, the second of which only the last tokens see, and rows that are computed 32 at a time.
_LONG = Case(
    "long", dtype="bfloat16", heads=5, kv_heads=1, head_dim=128, query_tokens=16, lengths=(1030, 40),
    query_lengths=(16, 0), keep=0.05, vmc=True,
)  # fmt: skip
_LONGS = (
    _LONG,
    replace(_LONG, query_tokens=3, query_lengths=(3, 2), layout="BSND", theta="mixed", heads=12, head_dim=80),
    replace(_LONG, query_tokens=4, query_lengths=(4, 1), paged="4d", block_size=48, layout="BSH", sink=True),
    replace(_LONG, query_tokens=5, query_lengths=(5, 4), int8="both", scales="token", theta="nothing"),
    replace(_LONG, query_tokens=3, query_lengths=(3, 2), int8="key", placement="post_softmax"),
    replace(_LONG, query_tokens=5, query_lengths=(5, 4), int8="both", scales="token", placement="sampled_softmax"),
    replace(_LONG, query_tokens=2, query_lengths=(2, 1), theta="dense", heads=1, head_dim=512),
)  # fmt: skip


@functools.cache
def inputs_of(case: Case, dtype: str) -> Inputs:
    return make_inputs(replace(case, dtype=dtype), poison=("outside",))


@pytest.fixture
def native() -> Iterator[None]:
    with use_backend("native", device="cpu"):
        yield


def results_of(arguments: dict[str, Any], path: str = "auto") -> tuple[Tensor, ...]:
    return operators.incremental_attention_with_stats(Arguments(**arguments, path=path))  # type: ignore[no-any-return]


def of_token(inputs: Inputs, arguments: dict[str, Any], token: int) -> dict[str, Any]:
    """The step of one token alone, which sees the keys up to its own."""
    axis = 2 if inputs.case.layout == "BNSD" else 1
    alone = {name: given for name, given in arguments.items() if name != "actual_query_lengths"}
    alone["query"] = arguments["query"].narrow(axis, token, 1)
    alone["actual_seq_lengths"] = keys_of_part(inputs)[:, token].contiguous()
    for name in ("threshold", "discarded_mass", "value_mean"):
        given = arguments.get(name)
        if given is not None and given.dim() > 2:
            alone[name] = given[:, :, token].contiguous()
    return alone


def assert_each_token_is_as_alone(inputs: Inputs, arguments: dict[str, Any]) -> None:
    axis = 2 if inputs.case.layout == "BNSD" else 1
    out, lse, kept, value_rows = results_of(arguments)
    fewest = torch.zeros_like(value_rows)
    for token in range(inputs.case.query_tokens):
        alone = results_of(of_token(inputs, arguments, token))
        rows = (out.narrow(axis, token, 1), lse[:, :, token], kept[:, :, token])
        assert same_bits(tuple(each.clone(memory_format=torch.contiguous_format) for each in rows), alone[:3]), token
        fewest = fewest.maximum(alone[3])
    assert (value_rows >= fewest).all()


@pytest.mark.parametrize("columns", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize(("dtype", "level"), product(ELEMENTS, OWN_LEVELS))
def test_each_token_is_as_alone_bit_for_bit(dtype: str, level: str, columns: bool) -> None:
    for case in (*TOKEN_CASES, *_LONGS):
        if case.query_tokens > 1:
            inputs = inputs_of(case, dtype)
            arguments = operator_arguments(inputs)
            with using(level, threads=2):
                assert_each_token_is_as_alone(inputs, with_columns(arguments) if columns else arguments)


@pytest.mark.drawn
@pytest.mark.parametrize("level", OWN_LEVELS)
@given(case=random_cases(for_kernel=False, query_tokens=True).filter(lambda case: case.query_tokens > 1))
@settings(max_examples=settings().max_examples)
def test_each_token_of_a_drawn_step_is_as_alone(level: str, case: Case) -> None:
    inputs = inputs_or_reject(case)
    with using(level):
        assert_each_token_is_as_alone(inputs, operator_arguments(inputs))


@pytest.mark.parametrize(("case", "level"), product(_LONGS, OWN_LEVELS))
def test_long_rows_equal_the_oracle_on_any_number_of_threads(case: Case, level: str) -> None:
    for path in ("auto", "gather"):
        inputs = make_inputs(case, poison=("outside", "values") if path == "gather" else ("outside",))
        found = []
        for threads in (1, 3):
            with using(level, threads=threads):
                found.append(results_of(operator_arguments(inputs), path))
        assert same_bits(*found)
        assert_equals_oracle(inputs, found[0])


@pytest.mark.usefixtures("native")
def test_what_later_tokens_hold_changes_nothing_for_earlier_ones() -> None:
    inputs = make_inputs(replace(_LONG, lengths=(1030,), query_lengths=(16,), dtype="float32", vmc=False))
    arguments = dict(inputs.arguments)
    out, lse, kept, _ = toptheta_npu.incremental_attention_with_stats(**arguments)
    for name in ("key", "value"):
        arguments[name] = arguments[name].clone()
        arguments[name][:, :, 1022:1030] = 1e4 if name == "key" else torch.nan
    arguments["query"] = arguments["query"].clone()
    arguments["query"][:, :, 8:] = 1e3
    spoilt = toptheta_npu.incremental_attention_with_stats(**arguments)
    assert torch.equal(lse[:, :, :8], spoilt[1][:, :, :8])
    assert torch.equal(kept[:, :, :8], spoilt[2][:, :, :8])
    assert not spoilt[0][:, :, 8:].isfinite().all()
    assert out.isfinite().all()


@pytest.mark.usefixtures("native")
def test_a_sequence_without_real_tokens_is_not_read() -> None:
    inputs = make_inputs(
        Case("unread", paged="4d", block_size=16, query_tokens=2, lengths=(40, 30), query_lengths=(2, 0))
    )
    arguments = inputs.arguments | {"block_table": inputs.arguments["block_table"].clone()}
    arguments["block_table"][1] = 2**31 - 1
    assert_equals_oracle(inputs, toptheta_npu.incremental_attention_with_stats(**arguments))
    arguments["actual_query_lengths"] = torch.tensor([2, 1])
    with pytest.raises(TopThetaValueError, match=r"^block_table\[1\]: "):
        toptheta_npu.incremental_attention_with_stats(**arguments)
