"""The modelled figures of the pages: their file, and what the kernel was to reach."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.tables import Goal, rounded
from emulator.ascendc import COLUMNS
from toptheta_npu.timing.report import one_row_a_line

from .calls import (
    CALLS,
    INT8_VARIANTS,
    LENGTHS,
    MODE_CALLS,
    PAPER_CALL,
    UNEVEN,
    Call,
    Modelled,
    grouped_call,
    model,
    run_call,
)  # fmt: skip
from .step import MODES, Measurement, constants, trace_of
from .timeline import Event, ledger, vector_work

FILE = Path(__file__).resolve().parents[2] / "docs" / "results" / "modelled_kernel.json"


@dataclass(frozen=True)
class Figures:
    """What the tables show. Times are in microseconds, modelled and uncalibrated.

    Attributes:
        constants: those in which the columns differ, one value for each column.
        ledger, vector_work: of the slowest core at the paper's point, cold.
        calls: the results of `CALLS`.
    """

    constants: Mapping[str, Sequence[float]]
    ledger: Mapping[str, float]
    vector_work: Mapping[str, float]
    calls: Mapping[Call, Modelled]

    @property
    def paper(self) -> Modelled:
        return self.calls[PAPER_CALL]

    def share_of_dense(self, kept: Measurement) -> float:
        """Divide the bytes that a call at the paper's point reads by those of dense attention in 16 bits."""
        return float(kept.bound["cold"] / self.paper.dense.bound["cold"])

    def goals(self) -> dict[str, list[Goal]]:
        """List what the kernel was to reach in the model: expected column, without the launch.

        The keys say what a group of goals is about.
        """
        kept = self.paper.kept
        longest = next(call for call in LENGTHS if (call.shape.n, call.shape.k) == (32768, 2048))
        four = {n: self.calls[grouped_call(n, 4)].kept.cold for n in (2048, 8192, 32768)}
        apart, alike = (self.calls[grouped_call(32768, 8, alike=alike)].kept.cold for alike in (False, True))
        int8 = [self.calls[MODE_CALLS[f"{dtype}, int8"]].kept for dtype in INT8_VARIANTS]
        four_int8, four_of_512, eight_int8 = (
            self.calls[grouped_call(32768, group, k=k, variant="int8")].kept.cold
            for group, k in ((4, 2048), (4, 512), (8, 2048))
        )
        uneven = self.calls[UNEVEN].kept.cold / kept.cold
        return {
            "the-papers-point": [
                Goal("48 heads, n = 2048, k = 128, cold", kept.cold, 19.5, " µs"),
                Goal("the same, hot", kept.hot, 9.5, " µs"),
                Goal("V bytes read there over those of the kept rows", kept.rows_read / kept.rows_needed, 1.1),
            ],
            "by-mode": [
                *(Goal(f"the same with int8 caches, {dtype} queries, cold", own.cold, 12.0, " µs")
                  for dtype, own in zip(INT8_VARIANTS, int8, strict=True)),
                Goal("bytes read there over those of dense attention in 16 bits", self.share_of_dense(int8[0]), 0.30),
            ],
            "by-length": [
                Goal("gain at n = 32768, k = 2048, cold", self.calls[longest].gain("cold"), 1.8, at_most=False),
            ],
            "heads-that-do-not-fill-the-cores": [Goal("32 heads over 48 heads, SyncAll 1.5 µs, cold", uneven, 0.85)],
            "grouped-heads": [
                *(Goal(f"4 heads per KV head, n = {n}, independent, cold", four[n], limit, " µs")
                  for n, limit in ((2048, 10.5), (8192, 24.0), (32768, 70.0))),
                Goal("8 heads per KV head, n = 32768, independent, cold", apart, 90.0, " µs"),
                Goal("8 heads per KV head, n = 32768, independent, cold: stretch", apart, 82.0, " µs"),
                Goal("8 heads per KV head, n = 32768, alike, cold", alike, 72.0, " µs"),
                Goal("8 heads per KV head, n = 32768, alike, cold: stretch", alike, 65.0, " µs"),
                Goal("4 heads per KV head, n = 32768, k = 2048, independent, int8, cold", four_int8, 55.0, " µs"),
                Goal("the same, k = 512", four_of_512, 38.0, " µs"),
                Goal("8 heads per KV head, n = 32768, k = 2048, independent, int8, cold", eight_int8, 83.5, " µs"),
                Goal("the same: stretch", eight_int8, 76.0, " µs"),
            ],
            "several-query-tokens-1": [
                Goal(f"4 query tokens, {words}, cold", self.calls[call].kept.cold, limit, " µs")
                for call, words, limit in _token_goals()
            ],
        }  # fmt: skip


def _token_goals() -> list[tuple[Call, str, float]]:
    """List calls of several tokens, what they are in words, and the most they were to take."""
    long = "4 heads per KV head, n = 32768, k = 2048"
    alike, apart = (grouped_call(32768, 4, alike=alike).add_token_axis(4) for alike in (True, False))
    return [
        (PAPER_CALL.add_token_axis(4), "48 heads, n = 2048, k = 128", 30.0),
        (apart, f"{long}, independent", 150.0), (apart, f"{long}, independent: stretch", 110.0),
        (alike, f"{long}, alike", 125.0), (alike, f"{long}, alike: stretch", 90.0),
    ]  # fmt: skip


def collect(calls: Sequence[Call] = CALLS) -> tuple[Figures, dict[str, list[dict[str, Any]]]]:
    """Model everything; the second is a trace of the slowest core at the paper's point for each mode."""
    paper = run_call(PAPER_CALL).run
    traces: dict[str, list[dict[str, Any]]] = {mode: trace_of(paper, mode) for mode in MODES}
    cold: Sequence[Event] = traces["cold"]
    results = {call: model(call) for call in calls}
    return Figures(differing_constants(), ledger(cold), vector_work(cold), results), traces


def differing_constants() -> dict[str, list[float]]:
    """Find the constants of the model in which its columns differ."""
    columns = [constants(column) for column in COLUMNS]
    values = {name: [column[name] for column in columns] for name in columns[0]}
    return {name: own for name, own in values.items() if len(set(own)) > 1}


def load() -> Figures:
    """Read the file."""
    stored = json.loads(FILE.read_text())
    results = {
        row["call"]: (Measurement(**row["kept"]), Measurement(**row["dense"]), row["others"]) for row in stored["calls"]
    }
    calls = {call: Modelled(call, *results[str(call)]) for call in CALLS}
    return Figures(stored["constants"], **stored["trace"], calls=calls)


def save(figures: Figures) -> None:
    """Write the file, floats to six digits."""
    stored = {
        "times": "modelled, uncalibrated",
        "constants": figures.constants, "trace": {"ledger": figures.ledger, "vector_work": figures.vector_work},
        "calls": [as_row(result) for result in figures.calls.values()],
    }  # fmt: skip
    FILE.write_text(one_row_a_line(rounded(stored)) + "\n")


def as_row(result: Modelled) -> dict[str, Any]:
    """Convert a result to plain values. The traffic of the paper's point alone is shown."""
    forms = {form: asdict(getattr(result, form)) for form in ("kept", "dense")}
    if result.call != PAPER_CALL:
        for form in forms.values():
            del form["traffic"]
    return {"call": str(result.call), **forms, "others": dict(result.others)}
