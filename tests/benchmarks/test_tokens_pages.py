"""Several query tokens: the pages show the figures that are stored."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from benchmarks import drafts, query_tokens
from benchmarks.tables import Table


def _assert_shown(page: Path, name: str, table: Table) -> None:
    assert f"<!-- table {name} -->\n{table.as_markdown()}<!-- end -->" in page.read_text()


@pytest.mark.parametrize("name", ["drafts union", "drafts speed"])
def test_the_page_shows_what_drafts_share_and_gain(name: str) -> None:
    found = json.loads(drafts.RESULTS.read_text())
    table = drafts.tables(found)[name]
    assert len(table.rows) == 2, "of SmolLM2 and of the embedded model"
    _assert_shown(drafts.PAGE, name, table)


def test_answers_with_drafts_are_those_without() -> None:
    for model in json.loads(drafts.RESULTS.read_text())["models"].values():
        assert all(model["speed"]["same_tokens"].values())


def test_the_page_shows_steps_of_several_tokens() -> None:
    results = json.loads(query_tokens.RESULTS.read_text())
    assert list(results["levels"]) == list(query_tokens.LEVELS)
    for name, table in query_tokens.tables().items():
        _assert_shown(query_tokens.PAGE, name, table)
