"""Runs the comparison of ``toptheta demo``: its methods side by side on a few threads, in a fixed order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, as_completed
from dataclasses import dataclass

from torch import Tensor
from transformers import PreTrainedModel

from ..thresholds import ThresholdTable
from .methods import kinds
from .methods.method import Method
from .tasks.perplexity import PerplexityTask, Result
from .workers import ModelWorkers

KS = (32, 64, 128, 256, 512)
RANDOM_KS = (32, 64, 128)  # more random keys make no difference
LIVE_K = 64
MATCHED = "Top-θ post + VMC"  # the controls read as many V rows


@dataclass(frozen=True)
class ComparedKs:
    """Say which k are compared: of the methods that select k elements, and of the control by random keys."""

    ks: tuple[int, ...]
    random_ks: tuple[int, ...]

    @property
    def rows(self) -> int:
        """Methods in all: five that select and last-k, random-k, and dense, live and V mean only."""
        return 6 * len(self.ks) + len(self.random_ks) + 3


SHORT = ComparedKs((LIVE_K,), (LIVE_K,))
FULL = ComparedKs(KS, RANDOM_KS)


class Comparison:
    """Run all methods on the windows of a task.

    Args:
        workers: run the methods; their work is queued at once.
        windows: int64 [W, T], held-out text.
        positions: how many of the last positions are predicted.
        tables: stored thresholds by placement.
        live: calibrates thresholds at `LIVE_K` with the model it is given.
        progress: called after each window of each method, in the threads.
    """

    def __init__(
        self, workers: ModelWorkers, compared: ComparedKs, windows: Tensor, positions: int,
        tables: Mapping[str, ThresholdTable], live: Callable[[PreTrainedModel], ThresholdTable],
        progress: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self._workers, self._tables, self._progress = workers, tables, progress
        self._results: dict[tuple[str, int | None], Future[Result]] = {}
        self._task = workers.submit(lambda model: PerplexityTask(model, windows, positions))
        if workers.count == 1:  # a first figure soon
            self.dense = self._add("dense", None, kinds.dense)
        self.live = workers.submit(live)
        if workers.count > 1:
            self.dense = self._add("dense", None, kinds.dense)
        for k in compared.ks:
            self._add_at(k, random=k in compared.random_ks)
        self._add("V mean only", None, lambda: kinds.value_mean_only(self._targets(compared.ks[0])))
        self._add("Top-θ post + VMC, live", LIVE_K, lambda: kinds.top_theta(
            self.live.result(), LIVE_K, compensated=True, family="Top-θ post + VMC, live"
        ))  # fmt: skip

    @property
    def rows(self) -> list[tuple[str, int | None]]:
        """Family and k of the methods in the order of the table."""
        order = {family: number for number, family in enumerate(FAMILIES)}
        return sorted(self._results, key=lambda row: (order[row[0]], row[1] or 0))

    def finished(self) -> Iterator[Result]:
        """Yield the results as they come, the dense one first."""
        yield self.dense.result()
        for future in as_completed(self._results.values()):
            if future is not self.dense:
                yield future.result()

    def results(self) -> list[Result]:
        """Give all results in the order of the table."""
        return [self._results[row].result() for row in self.rows]

    def _add_at(self, k: int, *, random: bool) -> None:
        def rows() -> int:
            return round(self._results[MATCHED, k].result().reads.value_rows_mean)

        def add_theta(placement: str, compensated: bool) -> None:
            method = kinds.top_theta(self._tables[placement], k, compensated=compensated)
            self._add(method.family, k, lambda: method)

        add_theta("post_softmax", True)
        self._add("Top-k + SDC + VMC", k, lambda: kinds.top_k(k, self._targets(k)))
        add_theta("post_softmax", False)
        add_theta("pre_softmax", True)
        add_theta("pre_softmax", False)
        self._add("last-k", k, lambda: kinds.last_k(k, rows(), self._targets(k)))
        if random:
            self._add("random-k + SDC + VMC", k, lambda: kinds.random_k(
                k, rows(), self._group(), self._targets(k), round(self.dense.result().reads.keys_mean)
            ))  # fmt: skip

    def _add(self, family: str, k: int | None, make: Callable[[], Method]) -> Future[Result]:
        future = self._workers.submit(lambda model: self._task.result().evaluate(make(), model, self._step))
        self._results[family, k] = future
        return future

    def _step(self, _: int) -> None:
        self._workers.check()
        self._progress()

    def _targets(self, k: int) -> list[int]:
        return list(self._tables["post_softmax"].layer_targets(k))

    def _group(self) -> int:
        config = self._task.result().model.config
        return int(config.num_attention_heads // config.num_key_value_heads)


#: The order of the table.
FAMILIES = (
    "dense", "Top-k + SDC + VMC", "Top-θ post + VMC", "Top-θ post", "Top-θ pre + SDC + VMC", "Top-θ pre",
    "Top-θ post + VMC, live", "V mean only", "last-k", "random-k + SDC + VMC",
)  # fmt: skip
