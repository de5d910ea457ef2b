"""What int8 caches cost: how they are compared, and the table of what is kept."""

from __future__ import annotations

import math

import pytest

from benchmarks import int8_caches
from benchmarks.int8_caches import CACHES, METHODS, OWN, PER_ROW, changes


def test_windows_are_compared_with_themselves() -> None:
    nats = {(OWN, METHODS[0]): 0.0, (OWN, METHODS[1]): 0.02, (PER_ROW, METHODS[0]): 0.01, (PER_ROW, METHODS[1]): 0.05}
    lines = [
        {"window": window, "cache": cache, "method": method, "nats": window + nats.get((cache, method), 0.0)}
        for window in range(3) for cache in CACHES for method in METHODS
    ]  # fmt: skip
    found = changes(lines, PER_ROW)
    assert found.dense.value == pytest.approx(100 * math.expm1(0.01))
    assert found.sparse.value == pytest.approx(100 * math.expm1(0.03))
    assert found.beyond.value == pytest.approx(2.0)
    assert changes(lines[:-2], PER_ROW).beyond.value == pytest.approx(2.0)  # a window that was begun is left out


def test_the_table_has_both_models_and_both_kinds_of_scales(capsys: pytest.CaptureFixture[str]) -> None:
    int8_caches.main(stored=True)
    rows = [line for line in capsys.readouterr().out.splitlines() if "windows of" in line]
    assert len(rows) == len(int8_caches.SETTINGS) * (len(CACHES) - 1)
