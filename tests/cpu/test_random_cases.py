"""The native operators against the oracle, on drawn cases; HYPOTHESIS_PROFILE=explore draws new ones."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cases import Case
from tests.cpu.columns import with_columns
from tests.cpu.native import (
    OWN_LEVELS,
    keys_of_part,
    operator_arguments,
    operators,
    partial_arguments,
    same_bits,
    using,
)
from tests.helpers import assert_equals_oracle, assert_parts_merge
from tests.random_cases import inputs_or_reject, largest_score, random_cases
from toptheta_npu.fallback import Arguments


@pytest.mark.drawn
@pytest.mark.parametrize("level", OWN_LEVELS)
@settings(max_examples=4 * settings().max_examples)
@given(
    case=random_cases(for_kernel=False, query_tokens=True),
    path=st.sampled_from(["auto", "gather", "dense"]),
    threads=st.integers(1, 3),
    columns=st.booleans(),
)
def test_operators_equal_the_oracle(level: str, case: Case, path: str, threads: int, columns: bool) -> None:
    inputs = inputs_or_reject(case, path)
    arguments = operator_arguments(inputs)
    arguments = with_columns(arguments) if columns else arguments
    part = partial_arguments(inputs, arguments)
    with using(level, threads=threads):
        plain = operators.incremental_attention(Arguments(**arguments, path=path))
        statistics = operators.incremental_attention_with_stats(Arguments(**arguments, path=path))
        partial = operators.incremental_attention_partial(Arguments(**part, path=path))
    assert same_bits((plain,), statistics[:1])
    largest = largest_score(inputs)
    assert_equals_oracle(inputs, statistics, largest)
    assert_parts_merge(inputs, [partial], [keys_of_part(inputs)], largest)
