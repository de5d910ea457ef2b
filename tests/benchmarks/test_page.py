"""docs/performance.md shows the committed measurements."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import cpu_tables, page
from benchmarks.tables import Goal, figure_table, goal_table, renew
from toptheta_npu.timing.shapes import CPU_SHAPES, densities_sweep

_TEXT = page.PAGE.read_text()
_COMMANDS = {
    "cpu": "python -m benchmarks.cpu_tables --write", "gpu": "python -m benchmarks.gpu",
    "placements": "python -m benchmarks.placements --write",
    "whole": "python -m benchmarks.whole_models",
}  # fmt: skip
_TABLES = page.stored_tables()


@pytest.mark.parametrize("name", _TABLES)
def test_table(name: str) -> None:
    place = re.search(rf"<!-- table {name} -->\n(.*?)<!-- end -->", _TEXT, re.DOTALL)
    assert place is not None
    command = _COMMANDS.get(name.split()[0], "python -m benchmarks.page --write")
    assert place[1] == _TABLES[name].as_markdown(), f"renew it: {command}"


def test_every_table_has_its_place() -> None:
    assert sorted(re.findall(r"<!-- table (.*) -->", _TEXT)) == sorted([*_TABLES, "modelled"])


def test_results_are_of_the_default_tables() -> None:
    for name, shapes in (
        ("small_pages", CPU_SHAPES),
        ("huge_pages", CPU_SHAPES),
        ("densities", densities_sweep("cpu")),
    ):
        assert [result.shape for result in cpu_tables.results(cpu_tables.RESULTS, name)] == list(shapes)


@pytest.mark.parametrize("name", ["small_pages", "huge_pages"])
def test_pages_are_those_that_the_table_says(name: str) -> None:
    for result in cpu_tables.results(cpu_tables.RESULTS, name):
        assert str(result.pages).endswith(name.replace("_", " "))


def test_verdicts() -> None:
    goals = [
        Goal("time", 10.5, 10.0, " µs"), Goal("time", 9.5, 10.0, " µs"),
        Goal("gain", 1.5, 1.6, at_most=False), Goal("gain", 1.6, 1.6, at_most=False), Goal("only told", 3.0),
        Goal("counted", 450, 400, at_most=False), Goal("with an error", 1.0061, 1.0, error=0.0412),
    ]  # fmt: skip
    assert [row[1:] for row in goal_table(goals).rows] == [
        ["10.50 µs", "≤ 10 µs", "**missed**"], ["9.50 µs", "≤ 10 µs", "met"],
        ["1.500", "≥ 1.6", "**missed**"], ["1.600", "≥ 1.6", "met"], ["3.000", "", ""],
        ["450", "≥ 400", "met"], ["1.006 ± 0.041", "≤ 1", "**missed**"],
    ]  # fmt: skip
    assert figure_table(goals).rows == [row[:2] for row in goal_table(goals).rows]


def test_a_page_without_a_place_is_not_half_renewed(tmp_path: Path) -> None:
    file = tmp_path / "page.md"
    file.write_text("<!-- table goals -->\nold\n<!-- end -->\n")
    table = goal_table([Goal("gain", 1.5)])
    with pytest.raises(ValueError, match="expected one place for the table other, got 0"):
        renew(file, {"goals": table, "other": replace(table)})
    assert "old" in file.read_text()
    renew(file, {"goals": table})
    assert "| gain | 1.500 |" in file.read_text()
