"""The tables of docs/results.md on SmolLM2 and Gemma 3, from the stored results."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.real_model_study import task_tables
from benchmarks.real_model_study.analysis import Runs
from benchmarks.real_model_study.comparisons import EQUAL_TOP_K, beside, change_text, difference, loss_of, runs_of, tail
from benchmarks.real_model_study.settings import (
    COMPENSATIONS,
    GEMMA_POST,
    GEMMA_PRE,
    GEMMA_TAU,
    HEADLINE,
    LONGER,
    POST,
    TAU,
    TAU_ELSEWHERE,
    Arm,
    Part,
    label,
)
from toptheta_npu._tables import Table


def of_smollm2(folder: Path) -> Iterator[Table]:
    """Make the tables of what has been measured of SmolLM2."""
    yield from _one_probability(folder, TAU, HEADLINE, EQUAL_TOP_K)
    if any((folder / f"{part.name}.jsonl").exists() for part in TAU_ELSEWHERE):
        yield elsewhere(folder)
    if (questions := task_tables.retrieval(folder)) is not None:
        yield questions
    yield from _tradeoffs(folder, (HEADLINE, POST, COMPENSATIONS, LONGER))


def of_gemma(folder: Path) -> Iterator[Table]:
    """Make the tables of what has been measured of Gemma 3."""
    yield from _one_probability(folder, GEMMA_TAU, GEMMA_PRE, [arm.name for arm in GEMMA_PRE.arms if arm.k])
    yield from _tradeoffs(folder, (GEMMA_PRE, GEMMA_POST))


def _tradeoffs(folder: Path, parts: Sequence[Part]) -> Iterator[Table]:
    for part in parts:
        if (runs := runs_of(folder, part)) is not None:
            yield tradeoff(part, runs)


def tradeoff(part: Part, runs: Runs) -> Table:
    """Tabulate the loss of every arm and what it reads."""
    rows = []
    for arm in part.arms:
        if arm.name not in runs.losses:
            continue
        lines, value_rows = runs.lines[arm.name], float(runs.value_rows[arm.name].mean())
        key_rows = float(np.mean([line["key_rows"] for line in lines]))
        loss = "" if arm.method == "dense" else loss_of(runs, arm.name)
        both = 100 * (key_rows + value_rows) / (2 * runs.keys)
        rows.append([label(arm), *_reads(runs, arm), f"{both:.0f} %", loss])
    columns = ("method", "V rows", "of dense", "K+V", "perplexity against dense")
    title = f"{part.text}, {part.length} keys, {part.placement}, {len(runs.dense)} windows, perplexity"
    return Table(f"{title} {math.exp(runs.dense.mean()):.2f}", columns, rows)


def _one_probability(folder: Path, part: Part, other: Part, top_k: Sequence[str]) -> Iterator[Table]:
    if (pair := beside(folder, part, other)) is not None:
        yield probabilities(part, *pair, [name for name in top_k if name.startswith("top-k")])


def probabilities(part: Part, ours: Runs, theirs: Runs, top_k: Sequence[str]) -> Table:
    """Compare one probability for all heads with exact Top-k, in the same windows at the same V rows."""
    arms = [arm for arm in part.arms if arm.name in ours.losses and arm.method != "dense"]
    tails = [[tail(ours, arm.name)] for arm in arms]
    known = any(each != [""] for each in tails)  # the percentiles of some runs were not kept
    rows = []
    for arm, own in zip(arms, tails, strict=True):
        other = difference(ours, arm.name, theirs, top_k)
        cell = "not measured there" if other is None else change_text(other)
        value_rows, share = _reads(ours, arm)
        rows.append([label(arm), value_rows, *(own if known else ()), share, loss_of(ours, arm.name), cell])
    columns = ("method", "V rows", *(["p95 over mean"] if known else ()), "of dense", "perplexity against dense",
               "against Top-k with one k at these V rows")  # fmt: skip
    return Table(f"One probability for all heads, {len(ours.dense)} windows", columns, rows)


def elsewhere(folder: Path) -> Table:
    """Tabulate one probability for all heads on other texts and at another length."""
    rows = [
        [part.text, str(part.length), label(arm), *_reads(runs, arm), loss_of(runs, arm.name)]
        for part in (TAU, *TAU_ELSEWHERE) if (runs := runs_of(folder, part)) is not None
        for arm in TAU_ELSEWHERE[0].arms[1:] if arm.name in runs.losses
    ]  # fmt: skip
    columns = ("text", "keys", "method", "V rows", "of dense", "perplexity against dense")
    return Table("One probability, other texts and lengths", columns, rows)


def _reads(runs: Runs, arm: Arm) -> tuple[str, str]:
    value_rows = float(runs.value_rows[arm.name].mean())
    return f"{value_rows:.0f}", f"{100 * value_rows / runs.keys:.1f} %"
