"""docs/performance.md shows the committed results, and the modelled ones are those of the kernel as it is."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks import cpu_tables, page
from benchmarks.modelled import decode
from benchmarks.tables import Goal, goal_table, renew
from toptheta_npu.benchmark.shapes import CPU_SHAPES, SHAPES, Shape, densities_sweep

_TEXT = page.PAGE.read_text()
_FIGURES = json.loads(page.FIGURES.read_text())


_COMMANDS = {"cpu": "python -m benchmarks.cpu_tables --write"}
_TABLES = page.stored_tables()


@pytest.mark.parametrize("name", re.findall(r"<!-- table (.*) -->", _TEXT))
def test_table(name: str) -> None:
    place = re.search(rf"<!-- table {name} -->\n(.*?)<!-- end -->", _TEXT, re.DOTALL)
    assert place is not None
    command = _COMMANDS.get(name.split()[0], "python -m benchmarks.page --write")
    assert place[1] == _TABLES[name].as_markdown(), f"renew it: {command}"


def test_every_table_has_its_place() -> None:
    assert sorted(re.findall(r"<!-- table (.*) -->", _TEXT)) == sorted(_TABLES)


def test_results_are_of_the_default_tables() -> None:
    left_out = set(_FIGURES["model_left_out"])
    assert [Shape(**row["shape"]) for row in _FIGURES["model"]] == [
        shape for shape in SHAPES if str(shape) not in left_out
    ]
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


@pytest.mark.parametrize("number", [0, 2, 3])
def test_modelled_figures_are_those_of_the_kernel(number: int) -> None:
    then = _FIGURES["model"][number]
    (now,) = decode.as_json([decode.model(Shape(**then["shape"]))])
    for name in ("gain", "limit", "gain_over_any_dense", "gain_hot"):
        assert now[name] == pytest.approx(then[name], rel=0.01), name
    for form in ("kept", "dense"):
        for name in ("cold", "hot", "cold_bound"):
            assert now[form][name] == pytest.approx(then[form][name], rel=0.01), (form, name)


def test_the_model_alone_can_be_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    small = Shape(1, 4, 4, n=256, k=16, head_dim=64)
    monkeypatch.setattr(page.shapes, "SHAPES", (small,))
    results = json.loads(page.kernel_page.RESULTS.read_text())
    figures = page.with_model(_FIGURES, results, Console(width=200, quiet=True))
    assert [Shape(**row["shape"]) for row in figures["model"]] == [small]
    assert figures["model_left_out"] == []
    ours = [goal for goal in figures["goals"] if goal["name"].startswith("kernel, modelled: ")]
    assert len(ours) == len(page.kernel_tables.goals(results))
    others = [goal for goal in _FIGURES["goals"] if not goal["name"].startswith("kernel, modelled: ")]
    assert figures["goals"] == [*ours, *others]
    assert figures["environment"] == _FIGURES["environment"]


def test_verdicts() -> None:
    goals = [
        Goal("time", 10.5, 10.0, " µs"), Goal("time", 9.5, 10.0, " µs"),
        Goal("gain", 1.5, 1.6, at_most=False), Goal("gain", 1.6, 1.6, at_most=False), Goal("only told", 3.0),
    ]  # fmt: skip
    assert [row[1:] for row in goal_table(goals).rows] == [
        ["10.50 µs", "≤ 10 µs", "**missed**"], ["9.50 µs", "≤ 10 µs", "met"],
        ["1.500", "≥ 1.6", "**missed**"], ["1.600", "≥ 1.6", "met"], ["3.000", "", ""],
    ]  # fmt: skip


def test_a_page_without_a_place_is_not_half_renewed(tmp_path: Path) -> None:
    file = tmp_path / "page.md"
    file.write_text("<!-- table goals -->\nold\n<!-- end -->\n")
    table = goal_table([Goal("gain", 1.5)])
    with pytest.raises(ValueError, match="expected one place for the table other, got 0"):
        renew(file, {"goals": table, "other": replace(table)})
    assert "old" in file.read_text()
    renew(file, {"goals": table})
    assert "| gain | 1.500 |" in file.read_text()
