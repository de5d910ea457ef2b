"""What a cap at k elements, and keys that every row keeps, make of Top-θ.

Top-θ with its compensations on the embedded model, the same with CAPK (at most k of the elements that passed: the most
recent, or half of the first and half of the last), and the same with the first s and the last r keys of every row
besides: at the same k, and at so small a k that as many V rows are read.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import asdict
from typing import Any

from rich.console import Console
from transformers import PreTrainedModel

from toptheta_npu._tables import Table
from toptheta_npu.assets import load_tiny_llama, load_tiny_llama_thresholds
from toptheta_npu.evaluation import corpus
from toptheta_npu.evaluation.methods import kinds
from toptheta_npu.evaluation.methods.method import Method
from toptheta_npu.evaluation.summary import change
from toptheta_npu.evaluation.tasks.perplexity import PerplexityTask
from toptheta_npu.evaluation.workers import ModelWorkers
from toptheta_npu.thresholds import ThresholdTable

LENGTH = 2560
PLACEMENTS = ("pre_softmax", "post_softmax")
KS = (32, 64)
MATCHED_K = 64
FIRST_AND_LAST = ((4, 0), (0, 16), (4, 16), (4, 64))


class Study:
    """All methods on the windows of a task, against dense attention on them."""

    def __init__(self, task: PerplexityTask, search: PerplexityTask, workers: ModelWorkers) -> None:
        self._task = task
        self._search = search
        self._workers = workers
        self.dense = task.evaluate(kinds.dense())

    def rows(self) -> list[Future[dict[str, Any]]]:
        """Evaluate each method. Return one future per method, in the order of the table."""
        found = []
        for placement in PLACEMENTS:
            table = load_tiny_llama_thresholds(placement)
            for k in KS:
                found.append(self._row("Top-θ", table, k, kinds.top_theta(table, k, compensated=True)))
                for keep in ("recent", "first_and_last"):
                    found.append(self._row(f"capped, {keep}", table, k, kinds.top_theta_capped(table, k, keep)))
            for ends in FIRST_AND_LAST:
                name = "first {} and last {}".format(*ends)
                method = kinds.top_theta_with_first_and_last(table, MATCHED_K, *ends)
                found.append(self._row(name, table, MATCHED_K, method))
                found.append(self._matched_row(f"{name}, as many V rows as k = {MATCHED_K}", table, ends))
        return found

    def _row(self, name: str, table: ThresholdTable, k: int, method: Method) -> Future[dict[str, Any]]:
        return self._workers.submit(lambda model: self._measured(name, table, k, method, model))

    def _matched_row(self, name: str, table: ThresholdTable, ends: tuple[int, int]) -> Future[dict[str, Any]]:
        def work(model: PreTrainedModel) -> dict[str, Any]:
            k = self._matched_k(table, ends, model)
            method = kinds.top_theta_with_first_and_last(table, k, *ends)
            return self._measured(name, table, k, method, model)

        return self._workers.submit(work)

    def _matched_k(self, table: ThresholdTable, ends: tuple[int, int], model: PreTrainedModel) -> int:
        """Find the k that reads about as many V rows as Top-θ alone at `MATCHED_K`. They are linear in k."""

        def value_rows(k: int, ends: tuple[int, int]) -> float:
            method = kinds.top_theta_with_first_and_last(table, k, *ends)
            return self._search.evaluate(method, model).reads.value_rows_mean

        low, high = int(table.k[0]), MATCHED_K
        wanted, below, above = value_rows(high, (0, 0)), value_rows(low, ends), value_rows(high, ends)
        return round(max(low, low + (wanted - below) / (above - below) * (high - low)))

    def _measured(
        self, name: str, table: ThresholdTable, k: int, method: Method, model: PreTrainedModel
    ) -> dict[str, Any]:
        result = self._task.evaluate(method, model)
        above = change(result.measurement, self.dense.measurement)
        return {
            "method": name, "placement": table.placement, "k": k, "perplexity": result.perplexity,
            "change_percent": above.value, "standard_error": above.standard_error,
            "kept_over_k": result.kept_over_k, "reads": asdict(result.reads), "nats": result.nats,
        }  # fmt: skip


def as_table(rows: list[dict[str, Any]]) -> Table:
    """Tabulate the results for a page."""
    head = ("placement", "k", "method", "change of perplexity", "k̃/k", "V rows", "empty rows")
    cells = []
    for row in rows:
        reads = row["reads"]
        spread = f"{reads['value_rows_mean']:.0f} / {reads['value_rows_p95']:.0f} / {reads['value_rows_max']:.0f}"
        above = f"{row['change_percent']:+.2f} ± {row['standard_error']:.2f} %"
        cells.append([
            row["placement"].replace("_", "-"), str(row["k"]), row["method"].replace("_", " "), above,
            f"{row['kept_over_k']:.2f}", spread, f"{100 * reads['empty_share']:.1f} %",
        ])  # fmt: skip
    return Table("Caps and keys that are always kept", head, cells)


def measure(console: Console, windows: int = 8, positions: int = 512) -> dict[str, Any]:
    """Evaluate all methods.

    Args:
        windows: held-out ones.
        positions: last tokens of each that are predicted.
    """
    model, tokenizer = load_tiny_llama()
    text = corpus.token_windows(tokenizer, "evaluation", LENGTH, windows)
    task, search = (PerplexityTask(model, part, positions) for part in (text, text[::4]))
    with ModelWorkers(model) as workers:
        study = Study(task, search, workers)
        futures = study.rows()
        results = []
        for future in futures:
            results.append(future.result())
            console.print(f"selectors: {len(results)} of {len(futures)} methods")
    settings = {"windows": windows, "length": LENGTH, "positions": positions, "sdc": "exact", "vmc": True}
    return {"settings": settings, "dense_perplexity": study.dense.perplexity, "results": results}
