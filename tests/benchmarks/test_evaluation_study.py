"""The evaluation study: the page against the results that are kept, these against what ships and what is asked for."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cache

import pytest

from benchmarks.evaluation_study.__main__ import PAGE, RESULTS, SHOWN
from benchmarks.evaluation_study.commands import FULL, SHIPPED, Command, commands
from benchmarks.evaluation_study.tables import all_tables, goals
from toptheta_npu.assets import load_tiny_llama, load_tiny_llama_thresholds
from toptheta_npu.evaluation.methods.names import parse_method
from toptheta_npu.evaluation.results import Results, read_results
from toptheta_npu.evaluation.sweep import table_digest
from toptheta_npu.models.fingerprint.model import model_fingerprint

FILES = sorted({command.file for command in commands(FULL)})


@cache
def kept(name: str) -> Results:
    return read_results(RESULTS / f"{name}.jsonl")


def test_the_page_shows_what_is_kept() -> None:
    text = PAGE.read_text()
    for name, table in all_tables(RESULTS).items():
        assert f"<!-- table {name} -->\n{table.as_markdown()}<!-- end -->" in text


@pytest.mark.parametrize("figure", [*itertools.chain(*SHOWN.values())])
def test_the_page_shows_every_figure_that_is_kept(figure: str) -> None:
    assert (RESULTS / f"{figure}.png").stat().st_size > 10_000
    assert f"](results/evaluation/{figure}.png)" in PAGE.read_text()


@pytest.mark.parametrize("name", FILES)
def test_results_are_of_the_model_and_the_thresholds_that_ship(name: str) -> None:
    header = kept(name).header
    assert header.fingerprint == model_fingerprint(load_tiny_llama()[0])
    for placement in set(SHIPPED) & set(header.tables):
        assert header.tables[placement] == table_digest(load_tiny_llama_thresholds(placement))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "command", commands(FULL), ids=lambda command: f"{command.file}-{'-'.join(command.methods)}"[:60]
)
def test_every_point_of_a_command_is_kept(command: Command) -> None:
    points = kept(command.file).measurements
    for task, method in itertools.product(command.tasks, command.methods):
        text = parse_method(method).text
        found = {(point.table, point.k) for point in points if (point.task, point.method) == (task, text)}
        assert set(asked_for(command, method)) <= found or found == {(None, None)}


def asked_for(command: Command, method: str) -> Iterator[tuple[str | None, int | None]]:
    tables = command.tables if method.startswith("top-theta") else (None,)
    yield from itertools.product(tables, command.ks)


def test_the_study_is_as_large_as_its_goals() -> None:
    sizes = goals(kept("perplexity").measurements, kept("retrieval").measurements)[:3]
    assert all(goal.met for goal in sizes)
