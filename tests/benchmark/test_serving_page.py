"""The page on serving against the results that are kept."""

from __future__ import annotations

import json

from benchmarks.serving.tables import as_tables
from tests.pages import ROOT

DOCS = ROOT / "docs"

FOUND = json.loads((DOCS / "results" / "serving.json").read_text())


def test_the_page_shows_what_is_kept() -> None:
    (table,) = as_tables(FOUND).values()
    assert f"<!-- table serving -->\n{table.as_markdown()}<!-- end -->" in (DOCS / "serving.md").read_text()


def test_no_token_of_two_hundred_schedules_was_wrong() -> None:
    drawn = FOUND["schedules"]
    assert drawn["count"] >= 200
    assert drawn["preemptions"] > 0
    assert drawn["wrong_tokens"] == 0
