"""Drawn calls have every pair and triple of modes that a backend takes, and the table that counts them."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.cases import Case
from tests.modes import covering, legal_meetings, meetings_of, modes_of, table_of
from tests.op_kernel.test_kernel_random_cases import tokens_for_the_kernel
from tests.random_cases import random_cases
from tests.tiers import full

#: What the tests of each backend draw, and whether it is the NPU kernel.
_DRAWS = {
    "npu kernel": (random_cases(for_kernel=True) | tokens_for_the_kernel(), True),
    "cpu": (random_cases(for_kernel=False, query_tokens=True), False),
    "triton": (random_cases(for_kernel=False, query_tokens=True, work=60_000, rows=12), False),
}


#: How often calls are drawn at most: hypothesis repeats itself, so that a rare triple may be missing once.
_ROUNDS = 5


def _draw(cases: st.SearchStrategy[Case], count: int, number: int) -> list[Case]:
    """So many calls, the same every time for a ``number``."""
    found: list[Case] = []

    @seed(number)
    @settings(max_examples=count, phases=[Phase.generate], database=None, derandomize=False, deadline=None,
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(cases)
    def collect(case: Case) -> None:
        found.append(case)

    collect()
    return found


@pytest.mark.parametrize(
    ("backend", "size", "count"),
    [
        ("npu kernel", 2, 1000),
        *(pytest.param(backend, 3, 4000, marks=full) for backend in _DRAWS),
    ],
)
def test_draws_have_every_pair_and_triple(backend: str, size: int, count: int) -> None:
    """`pytest -s` shows the table."""
    cases, for_kernel = _DRAWS[backend]
    legal, seen, rounds = legal_meetings(size, for_kernel=for_kernel), Counter[object](), 0
    while not seen.keys() >= legal and rounds < _ROUNDS:
        rounds += 1
        seen.update(each for case in _draw(cases, count, rounds) for each in meetings_of(modes_of(case), size))
    print(f"\n{rounds * count} calls for the {backend}:\n{table_of(seen, size, for_kernel=for_kernel)}")
    assert seen.keys() == legal


@pytest.mark.parametrize("for_kernel", [True, False])
@pytest.mark.parametrize(("size", "most"), [(2, 25), (3, 70)])
def test_few_calls_have_every_pair_and_triple(size: int, most: int, for_kernel: bool) -> None:
    listed = covering(size, for_kernel=for_kernel)
    assert len(listed) <= most
    assert {each for modes in listed for each in meetings_of(modes, size)} == legal_meetings(
        size, for_kernel=for_kernel
    )
