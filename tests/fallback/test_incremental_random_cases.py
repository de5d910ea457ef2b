"""Both CPU backends against the oracle, on drawn cases; HYPOTHESIS_PROFILE=explore draws new ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import Case
from tests.helpers import assert_equals_oracle
from tests.random_cases import inputs_or_reject, largest_score, random_cases
from toptheta_npu import incremental_attention_with_stats, use_backend


@pytest.mark.drawn
@given(case=random_cases(for_kernel=False), path=st.sampled_from(["auto", "auto", "gather", "dense"]))
@pytest.mark.parametrize("backend", ["native", "fallback"])
def test_backend_equals_the_oracle(backend: str, case: Case, path: str) -> None:
    inputs = inputs_or_reject(case, path)
    with use_backend(backend, device="cpu"):
        result = incremental_attention_with_stats(**inputs.arguments, _path=path)
    assert_equals_oracle(inputs, result, largest_score(inputs))
