"""Reading memory as fast as a decode step could: no byte may be left out, or the bound would be too high."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.cpu.builds import best_level
from toptheta_npu.cpu import library

CHUNK = 256 << 8  # float32 numbers in the chunk that a thread takes


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.usefixtures("each_level", "threads")
def test_every_number_is_read() -> None:
    @given(st.integers(1, 3 * CHUNK), st.floats(0, 1, exclude_max=True))
    def check(count: int, place: float) -> None:
        numbers = torch.full((count,), -2.0)
        numbers[int(place * count)] = -1.0
        assert library.read(numbers) == -1.0

    check()


@pytest.mark.parametrize("count", [CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK])
@pytest.mark.usefixtures("each_level", "threads")
def test_the_ends_of_chunks(count: int) -> None:
    for place in {0, CHUNK - 1, CHUNK, count - 1} & set(range(count)):
        numbers = torch.full((count,), -2.0)
        numbers[place] = -1.0
        assert library.read(numbers) == -1.0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.usefixtures("each_level")
def test_halves_are_read_in_pairs(dtype: torch.dtype) -> None:
    pairs = torch.randn(CHUNK + 3).abs()
    assert library.read(pairs.view(dtype)) == pairs.max().item()


def test_nothing_is_read_of_nothing() -> None:
    best_level()
    assert library.read(torch.zeros(0)) == -torch.inf
