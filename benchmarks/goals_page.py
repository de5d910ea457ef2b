"""What the project set itself to reach, met and missed: docs/goals.md.

    python -m benchmarks.goals_page

It measures nothing and renews the page from docs/results, so it follows whatever measured anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import calibration_prefill, cpu_tables, query_tokens
from benchmarks.evaluation_study.__main__ import RESULTS as EVALUATION
from benchmarks.evaluation_study.tables import goals as evaluation_goals
from benchmarks.modelled import figures as modelled
from benchmarks.real_model_study.__main__ import RESULTS as REAL_MODEL
from benchmarks.real_model_study.page import all_goals as real_model_goals
from benchmarks.tables import Goal, Judged, goal_table, renew
from toptheta_npu._tables import Table
from toptheta_npu.evaluation.results import read_results

PAGE = Path(__file__).resolve().parents[1] / "docs" / "goals.md"
#: What `python -m benchmarks.page` measured of the parts around the kernel.
PARTS = PAGE.parent / "results" / "performance.json"
#: The goals of one table, by the section of a page that shows their figures.
Sections = Mapping[str, Sequence[Judged]]


def of_parts(figures: Mapping[str, Any]) -> list[Goal]:
    """Restore the figures of the parts around the kernel, with their goals."""
    return [Goal(**goal) for goal in figures["goals"]]


def sections() -> dict[str, Sections]:
    """List the goals of all parts from the committed results, by the places of their tables."""
    perplexity, retrieval = (read_results(EVALUATION / f"{name}.jsonl").measurements
                             for name in ("perplexity", "retrieval"))  # fmt: skip
    return {
        "parts": {"performance.md#around-the-kernel": of_parts(json.loads(PARTS.read_text()))},
        "calibration": {"performance.md#calibration": calibration_prefill.goals(calibration_prefill.stored())},
        "cpu": {f"performance.md#{section}": goals for section, goals in cpu_tables.goals().items()},
        "query tokens": {"performance.md#several-query-tokens": query_tokens.goals(query_tokens.stored())},
        "kernel": {f"kernel.md#{section}": goals for section, goals in modelled.load().goals().items()},
        "real model": {"real-model.md": real_model_goals(REAL_MODEL)},
        "evaluation": {"reproduction.md#retrieval": evaluation_goals(perplexity, retrieval)},
    }


def tables() -> dict[str, Table]:
    """Make the tables of the page, by the names of their places: what was asked for, linked to where it is shown."""
    return {name: _linked(found) for name, found in sections().items()}


def with_goal(figures: Iterable[Judged]) -> list[Judged]:
    """Leave out figures that are only told."""
    return [figure for figure in figures if figure.asked]


def _linked(found: Sections) -> Table:
    table = goal_table(with_goal(figure for figures in found.values() for figure in figures))
    places = [place for place, figures in found.items() for _ in with_goal(figures)]
    rows = [[name, f"[{figure}]({place})", *rest]
            for place, (name, figure, *rest) in zip(places, table.rows, strict=True)]  # fmt: skip
    return Table(table.title, table.columns, rows)


def main() -> None:
    """Renew the tables of docs/goals.md."""
    renew(PAGE, tables())


if __name__ == "__main__":
    main()
