"""Keys by columns in the native backend: against the oracle, and against the same keys by rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.cases import CASES, SAMPLED_CASES, TOKEN_CASES, Case
from tests.cpu.columns import with_columns
from tests.cpu.native import (
    ELEMENTS,
    OWN_LEVELS,
    keys_of_part,
    operator_arguments,
    operators,
    partial_arguments,
    same_bits,
    using,
)
from tests.helpers import assert_equals_oracle, assert_parts_merge, make_inputs
from tests.tiers import product
from toptheta_npu.fallback import Arguments

_SIZES = [
    (page, head_dim, heads)
    for page in (1, 7, 16, 32, 40, 48, 128)
    for head_dim in (17, 64, 130)
    for heads in (1, 3, 11)
]


def results_of(arguments: dict[str, Any], part: dict[str, Any], path: str) -> tuple[Any, Any, Any]:
    return (
        operators.incremental_attention(Arguments(**arguments, path=path)),
        operators.incremental_attention_with_stats(Arguments(**arguments, path=path)),
        operators.incremental_attention_partial(Arguments(**part, path=path)),
    )


@pytest.mark.parametrize(("dtype", "level"), product(ELEMENTS, OWN_LEVELS))
def test_every_case_equals_the_oracle(dtype: str, level: str) -> None:
    for case in (*CASES, *SAMPLED_CASES, *TOKEN_CASES):
        inputs = make_inputs(replace(case, dtype=dtype), poison=("outside",))
        arguments = with_columns(operator_arguments(inputs))
        with using(level, threads=1):
            plain, statistics, partial = results_of(arguments, partial_arguments(inputs, arguments), "auto")
        assert same_bits((plain,), statistics[:1])
        assert_equals_oracle(inputs, statistics)
        assert_parts_merge(inputs, [partial], [keys_of_part(inputs)])


@pytest.mark.parametrize(("size", "dtype", "level"), product(_SIZES, ELEMENTS, OWN_LEVELS))
def test_pages_of_all_sizes_equal_those_by_rows(size: tuple[int, int, int], dtype: str, level: str) -> None:
    page, head_dim, heads = size
    case = Case(
        "sizes", dtype, paged="4d", block_size=page, heads=heads, kv_heads=1, head_dim=head_dim, lengths=(300, 0, 33)
    )
    inputs = make_inputs(case, poison=("outside",))
    arguments = operator_arguments(inputs)
    with using(level, threads=1):
        by_rows = operators.incremental_attention_with_stats(Arguments(**arguments))
        found = operators.incremental_attention_with_stats(Arguments(**with_columns(arguments)))
    assert_equals_oracle(inputs, found)
    assert torch.equal(found[2], by_rows[2])
    assert torch.equal(found[3], by_rows[3])
    torch.testing.assert_close(found[1], by_rows[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("dtype", "level"), product(ELEMENTS, OWN_LEVELS))
def test_bits_do_not_depend_on_pages_threads_or_the_batch_beside_a_row(dtype: str, level: str) -> None:
    case = Case("bits", dtype, heads=8, head_dim=128, lengths=(3000, 700, 0, 2500), vmc=True)
    inputs = make_inputs(case)
    whole = with_columns(operator_arguments(inputs))
    with using(level, threads=1):
        expected = operators.incremental_attention_with_stats(Arguments(**whole))
        for page in (32, 25, 8):
            paged = with_columns(operator_arguments(make_inputs(replace(case, paged="4d", block_size=page))))
            assert same_bits(operators.incremental_attention_with_stats(Arguments(**paged)), expected)
        for sequence in range(4):
            alone = {
                name: given[sequence : sequence + 1] if isinstance(given, torch.Tensor) else given
                for name, given in whole.items()
            }
            found = operators.incremental_attention_with_stats(Arguments(**alone))
            assert same_bits(found, tuple(part[sequence : sequence + 1] for part in expected))
    for threads in (2, 3):
        with using(level, threads=threads):
            assert same_bits(operators.incremental_attention_with_stats(Arguments(**whole)), expected)


@pytest.mark.parametrize("level", OWN_LEVELS)
def test_a_nan_key_is_told_as_by_rows(level: str) -> None:
    inputs = make_inputs(Case("nan", lengths=(100, 60), paged="4d", block_size=32))
    arguments = operator_arguments(inputs)
    arguments["key"][int(arguments["block_table"][0, 1]), 0, 3, 5] = torch.nan
    with using(level, threads=1):
        by_rows = operators.incremental_attention_with_stats(Arguments(**arguments))
        found = operators.incremental_attention_with_stats(Arguments(**with_columns(arguments)))
    assert torch.equal(found[0].isnan(), by_rows[0].isnan())
    assert found[0][0, :2].isnan().all()
    assert not found[0][0, 2:].isnan().any()
    assert not found[0][1].isnan().any()
