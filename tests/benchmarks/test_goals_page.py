"""Goals stand on one page, docs/goals.md, and all of them; the pages of users have figures alone."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from benchmarks import goals_page
from benchmarks.tables import Table
from tests.markdown import PAGES, ROOT, name_of

#: Where goals are set, and what brings them to the page. One command keeps no file; the page names its goal in words.
_GOALS_FROM = {
    "goals_page": {"calibration_prefill", "cpu_tables", "modelled/figures", "query_tokens", "evaluation_study/tables"},
    "cpu_tables": {"decode_step_1b"},
    "page": {"adapter_overhead", "calibration_rows", "call_overhead", "generation"},
    "real_model_study/page": {"real_model_study/cost", "real_model_study/goals"},
    "nothing": {"set_k"},
}
_USERS_PAGES = [page for page in PAGES if name_of(page) not in ("docs/goals.md", "CHANGELOG.md")]


@cache
def stored() -> dict[str, Table]:
    return goals_page.tables()


def test_the_page_shows_what_is_stored() -> None:
    places = dict(re.findall(r"<!-- table (.*?) -->\n(.*?)<!-- end -->", goals_page.PAGE.read_text(), re.DOTALL))
    for name, table in stored().items():
        assert places.pop(name) == table.as_markdown(), "renew it: python -m benchmarks.goals_page"
    assert not places


def test_every_goal_with_a_limit_is_on_the_page_and_no_other_figure() -> None:
    for name, found in goals_page.sections().items():
        asked = [goal.name for goals in found.values() for goal in goals if goal.asked]
        assert asked
        assert [row[0] for row in stored()[name].rows] == asked


def test_whatever_sets_goals_is_gathered() -> None:
    folder = ROOT / "benchmarks"
    setting = {
        file.relative_to(folder).with_suffix("").as_posix()
        for file in folder.rglob("*.py")
        if re.search(r"^ *def goals\(", file.read_text(), re.MULTILINE)
    }
    assert setting == set().union(*_GOALS_FROM.values())
    assert "`python -m benchmarks.set_k`" in goals_page.PAGE.read_text()


@pytest.mark.parametrize("page", _USERS_PAGES, ids=name_of)
def test_a_page_of_users_has_no_goals(page: Path) -> None:
    text = page.read_text()
    cells = [cell.strip() for line in text.splitlines() if line.startswith("|") for cell in line.split("|")]
    verdict = re.compile(r"met|goal|.*\*\*missed\*\*.*|[-\d.]+ [≤≥] [-\d.]+")
    assert not [cell for cell in cells if verdict.fullmatch(cell)]
    assert not re.search(r"\bgoals?\b", re.sub(r"\[[^\]]*\]\([^)]*goals\.md[^)]*\)", "", text))
