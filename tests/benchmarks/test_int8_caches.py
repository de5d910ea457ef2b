"""What int8 caches cost: the committed results, as the page shows them, and how they are compared."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from benchmarks import int8_caches
from benchmarks.int8_caches import CACHES, METHODS, OWN, PER_CHANNEL, PER_ROW, changes
from benchmarks.real_model_study.results import read


def test_the_page_shows_the_results() -> None:
    table = int8_caches.table_of().as_markdown()
    expected = f"<!-- table int8 caches -->\n{table}<!-- end -->"
    assert expected in int8_caches.PAGE.read_text(), "renew it: python -m benchmarks.int8_caches --stored"


@pytest.mark.parametrize("setting", int8_caches.SETTINGS, ids=lambda setting: setting.title)
def test_thresholds_lose_no_more_by_int8_than_dense_attention_does(setting: int8_caches.Setting) -> None:
    _, lines = read(int8_caches.RESULTS / setting.file)
    windows = len({line["window"] for line in lines})
    if windows < 32:
        pytest.skip(f"only {windows} windows are measured so far")
    for cache in (PER_ROW, PER_CHANNEL):
        assert changes(lines, cache).beyond.value <= 0.05


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


def test_results_are_of_the_settings() -> None:
    for setting in int8_caches.SETTINGS:
        header, _ = read(Path(int8_caches.RESULTS / setting.file))
        assert (header["length"], header["positions"], header["k"]) == (setting.length, setting.positions, setting.k)
