"""The kernel on the host model against the oracle, on drawn cases; HYPOTHESIS_PROFILE=explore draws new ones."""

from __future__ import annotations

from calls import statistics_of
from cases import Case
from helpers import assert_equals_oracle
from hypothesis import given
from hypothesis import strategies as st
from random_cases import inputs_or_reject, random_cases


@given(
    case=random_cases(for_kernel=True),
    cores=st.sampled_from([48, 48, 40, 20, 7, 1]),
    path=st.sampled_from(["auto", "auto", "gather", "dense"]),
)
def test_kernel_equals_the_oracle(case: Case, cores: int, path: str) -> None:
    poison = ("outside", "values") if path == "gather" else ("outside",)
    inputs = inputs_or_reject(case, poison)
    assert_equals_oracle(inputs, statistics_of(inputs, cores=cores, path=path))
