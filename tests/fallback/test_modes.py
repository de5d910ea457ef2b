"""Every pair and triple of modes of a call, on each backend: see tests/modes.py."""

from __future__ import annotations

import pytest

from tests.helpers import assert_equals_oracle, make_inputs
from tests.modes import AXES, case_of, covering
from tests.random_cases import largest_score
from tests.tiers import full
from toptheta_npu import incremental_attention_with_stats


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=full)], ids=["pairs", "triples"])
@pytest.mark.parametrize("scales", AXES["scales of K"])
def test_modes_that_meet_equal_the_oracle(scales: str, size: int, device: str) -> None:
    for modes in covering(size, for_kernel=False):
        if modes[1] == scales:
            inputs = make_inputs(case_of(modes, heads=3, head_dim=32, lengths=(450, 20)), device)
            result = incremental_attention_with_stats(**inputs.arguments)
            assert_equals_oracle(inputs, result, largest_score(inputs))
