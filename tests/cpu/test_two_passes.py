"""Where a step that goes twice through its scores keeps them: nobody writes over what is still to be read."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cpu.native import OWN_LEVELS, compiled

_PROBE = Path(__file__).with_name("probes") / "two_passes.cpp"


@pytest.mark.parametrize("level", OWN_LEVELS)
@pytest.mark.parametrize("threads", [1, 2, 7])
@pytest.mark.parametrize("key_value_heads", [1, 3, 8])
@pytest.mark.parametrize("lengths", [(1100, 0, 700), (0, 0, 900, 1), (300, 2000, 1), (0, 0), (513, *[0] * 40, 513, 0)])
def test_scores_stay_until_they_are_read(
    lengths: tuple[int, ...], key_value_heads: int, threads: int, level: str
) -> None:
    """However long a thread is held up in a second pass, and however many rows have no keys."""
    probe = compiled("two_passes", level, (), (_PROBE,))
    words = [str(number) for number in (threads, key_value_heads, *lengths)]
    done = subprocess.run([str(probe), *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    with_keys = sum(length > 0 for length in lengths) * key_value_heads
    assert int(done.stdout) <= min(with_keys, threads + 2)
