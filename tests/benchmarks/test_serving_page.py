"""The page on serving against the results that are kept."""

from __future__ import annotations

import json

import pytest

from benchmarks.serving.tables import as_tables
from tests.markdown import ROOT

DOCS = ROOT / "docs"

FOUND = json.loads((DOCS / "results" / "serving.json").read_text())
TABLES = as_tables(FOUND)


def test_all_parts_that_need_no_other_model_are_kept() -> None:
    assert {"equality", "load", "memory", "schedules"} <= set(TABLES)


@pytest.mark.parametrize("name", TABLES)
def test_the_page_shows_what_is_kept(name: str) -> None:
    assert f"<!-- table {name} -->\n{TABLES[name].as_markdown()}<!-- end -->" in (DOCS / "serving.md").read_text()


def test_no_token_of_two_hundred_schedules_was_wrong() -> None:
    assert {"plain", "mixed", "drafts"} <= {drawn["name"] for drawn in FOUND["schedules"]["engines"]}
    for drawn in FOUND["schedules"]["engines"]:
        assert drawn["count"] >= 200
        assert drawn["preemptions"] > 0
        assert drawn["wrong_tokens"] == 0


def test_no_token_of_the_answers_was_wrong() -> None:
    compared = FOUND["equality"]["answers"]
    assert len(compared) == 4
    assert all(each["tokens"] > 90 and each["wrong_tokens"] == 0 for each in compared)
    assert compared[0]["kept_share"] == 1.0


def test_the_sums_take_what_the_formula_says() -> None:
    for each in FOUND["memory"]["engines"]:
        assert each["sum_bytes"] == each["formula_bytes"]


def test_speeds_are_ratios_of_several_rounds() -> None:
    for each in (FOUND["load"]["load"], *FOUND["load"]["decoding"]):
        assert len(each["over_dense"]["sparse"]) == FOUND["load"]["rounds"] >= 3
