"""The tables of docs/results.md and docs/performance.md have the figures that are stored."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from benchmarks import demo_tables
from benchmarks.modelled import figures, tables
from benchmarks.real_model_study import tables as study
from benchmarks.real_model_study.__main__ import OF_GEMMA, RESULTS
from benchmarks.serving.tables import as_tables
from tests.markdown import ROOT
from toptheta_npu._tables import Table

_DOCS = ROOT / "docs"
_FIGURE = re.compile(r"[+-]?\d[\d.]*( |$)|not measured there")
_POST, _PRE = "post-softmax, ", "pre-softmax, "


def rows_of(page: Path, *header: str) -> list[list[str]]:
    """Give the rows of all tables of a page whose header ends with these columns."""
    found, inside = [], False
    for line in page.read_text().splitlines():
        cells = [cell.strip().strip("`") for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|"):
            inside = False
        elif inside:
            found.append(cells)
        else:
            inside = tuple(cells[-len(header) :]) == header
    return [cells for cells in found if not set("".join(cells)) <= set("-:")]


def stored(found: Iterable[Table]) -> list[list[str]]:
    return [[str(cell).removesuffix(" %").strip("*") for cell in row] for table in found for row in table.rows]


def stands_in(cells: Sequence[str], kept: Sequence[Sequence[str]]) -> bool:
    """Whether one stored row has all figures of a row, and ends its name as that does."""
    wanted = [cell for cell in cells if _FIGURE.match(cell)]
    (name,) = [cell for cell in cells if re.search(r"tau=|k = \d", cell)] or [""]
    known = name.removeprefix(_POST).removeprefix(_PRE).removeprefix("exact top-").removeprefix("calibrated, ")
    assert wanted
    return any(set(wanted) <= set(row) and any(cell.endswith(known) for cell in row) for row in kept)


def missing(rows: Sequence[Sequence[str]], kept: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    assert rows
    return [cells for cells in rows if not stands_in(cells, kept)]


@pytest.fixture(scope="module")
def losses() -> dict[str, list[list[str]]]:
    return {"SmolLM2": stored(study.of_smollm2(RESULTS)), "Gemma 3": stored(study.of_gemma(OF_GEMMA))}


def test_losses_of_real_models_are_those_stored(losses: dict[str, list[list[str]]]) -> None:
    page, change = _DOCS / "results.md", "perplexity change, %"
    for columns in ((change,), (change, "against exact top-k, %")):
        rows = rows_of(page, *columns)
        named = {model: [cells[1:] for cells in rows if cells[0].startswith(model)] for model in losses}
        assert not [line for model in losses if named[model] for line in missing(named[model], losses[model])]
    rest = [cells for cells in rows_of(page, change) if not cells[0].startswith(tuple(losses))]
    # other texts and lengths; last-k and pages; compensations
    assert len(rest) == 7 + 2 + 5
    assert not missing(rest, losses["SmolLM2"])


def test_losses_of_the_embedded_model_are_those_stored() -> None:
    rows = rows_of(_DOCS / "results.md", "perplexity change, %", "V rows read: mean / p95 / max")
    of_demo = [cells[2:] for cells in rows if cells[1] == "8"]
    assert len(of_demo) == 6
    assert not missing(of_demo, stored([demo_tables.table(demo_tables.committed())]))


def test_gains_of_the_modelled_kernel_are_those_stored() -> None:
    rows = rows_of(_DOCS / "performance.md", "over all of V", "with launch", "over any dense")
    kept = tables.gain_table(figures.load()).rows
    assert [cells[0] for cells in rows[:8]] == ["tau"] * 4 + ["tau, lse=sampled"] * 4
    assert not [cells for cells in rows if cells not in [[*row[:5], *row[7:]] for row in kept]]


def test_gains_of_generating_are_those_stored() -> None:
    rows = rows_of(_DOCS / "performance.md", "same kernel, all of V", "of which threshold")
    runs = json.loads((_DOCS / "results/generate_smollm2.json").read_text())["runs"]
    kept = []
    for run in runs:
        seconds = {name: timing["median"] for name, timing in run["seconds_per_token"].items()}
        dense, tau, every_row = seconds["dense"], seconds["tau=0.0005"], seconds.get("same kernel, all of V")
        gains = [dense / tau, dense / seconds["dense, GrowingCache"]]
        gains += [dense / every_row, every_row / tau] if every_row else []
        cells = [run["dtype"], str(run["batch"]), str(run["keys"]), *(f"{gain:.2f}" for gain in gains)]
        kept.append(cells + [""] * (7 - len(cells)))
    assert rows == kept


def test_gains_of_vllm_are_those_stored() -> None:
    kept = stored(as_tables(json.loads((_DOCS / "results/serving.json").read_text())).values())
    rows = [cells[2:3] for cells in rows_of(_DOCS / "performance.md", "speed-up", "against") if "to" in cells[2]]
    assert len(rows) == 4
    assert not missing(rows, kept)
