"""What the rows of an engine kept: counted on the device, written to the log and to Prometheus from time to time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from .._value_checks import are_seen

#: Below vLLM's own logger, whose handler and level it takes.
logger = logging.getLogger("vllm.toptheta_npu")

#: Steps that are added up together where that is cheaper.
_AT_ONCE = 64
_NAMES = ("rows", "elements", "kept", "available_value_rows", "value_rows", "sparse_aims", "sparse_kept")


@dataclass(frozen=True)
class Totals:
    """Sums over the rows of all layers of one rank.

    Attributes:
        rows: one for every sequence, layer and decode step.
        elements: their keys times the query heads.
        kept: of these the ones above their thresholds.
        available_value_rows: their keys times the KV heads.
        value_rows: of these the ones that were read.
        sparse_aims: k times the query heads, over the rows with more than k keys.
        sparse_kept: what these rows kept.
        decode_tokens: new tokens that were computed by thresholds, per step and not per layer.
        prompt_tokens: tokens of prompts.
        draft_tokens: tokens of steps in which drafts were verified.
        thresholded_tokens: those among the last two that followed the thresholds; the others were dense.
    """

    rows: int = 0
    elements: int = 0
    kept: int = 0
    available_value_rows: int = 0
    value_rows: int = 0
    sparse_aims: int = 0
    sparse_kept: int = 0
    decode_tokens: int = 0
    prompt_tokens: int = 0
    draft_tokens: int = 0
    thresholded_tokens: int = 0

    def __str__(self) -> str:
        def share(part: int, whole: int) -> str:
            return f"{part / whole:.1%}" if whole else "none"

        over = f"{self.sparse_kept / self.sparse_aims:.2f}" if self.sparse_aims else "none"
        several = self.prompt_tokens + self.draft_tokens
        how = f", {self.thresholded_tokens} of them by thresholds" if self.thresholded_tokens else ", all dense"
        return (
            f"{self.decode_tokens} decoded tokens kept {share(self.kept, self.elements)} of their elements and read "
            f"{share(self.value_rows, self.available_value_rows)} of the V rows, k~/k {over}; "
            f"{self.prompt_tokens} tokens of prompts and {self.draft_tokens} with drafts{how if several else ''}"
        )

    def __sub__(self, other: Totals) -> Totals:
        return Totals(*(getattr(self, each.name) - getattr(other, each.name) for each in fields(self)))


class LayerCounters:
    """The sums of one layer, on its device: nothing waits for them, and a captured graph goes on counting.

    On a CPU, where every small operation costs as much as a look at a tensor, steps are added up some at a time.

    Args:
        num_heads, num_key_value_heads: of this rank.
        device: of the layer.
    """

    def __init__(self, num_heads: int, num_key_value_heads: int, device: torch.device | str = "cpu") -> None:
        self._heads = (num_heads, num_key_value_heads)
        self._waiting: list[tuple[Tensor, Tensor, Tensor]] = []
        self._aims: Callable[[Tensor], Tensor] | None = None
        with torch.inference_mode(False):
            self._sums = torch.zeros(len(_NAMES), dtype=torch.int64, device=device)

    def add(self, lengths: Tensor, kept: Tensor, value_rows: Tensor, aims: Callable[[Tensor], Tensor]) -> None:
        """Adds the rows of a step.

        Args:
            lengths: int [B], their keys; 0 for padding.
            kept: int32 [B, Hq].
            value_rows: int32 [B, Hkv].
            aims: gives the elements that rows of so many keys aim at, int [B]; 0 where they are dense. The same
                function in all calls.
        """
        self._aims = aims
        if not are_seen(kept):
            self._add_up(lengths, kept, value_rows)
            return
        # an engine may write the next lengths into the same tensor
        self._waiting.append((lengths.clone(), kept, value_rows))
        if len(self._waiting) == _AT_ONCE:
            self._add_waiting()

    def _add_waiting(self) -> None:
        if self._waiting:
            self._add_up(*(torch.cat(tensors) for tensors in zip(*self._waiting, strict=True)))
            self._waiting.clear()

    def _add_up(self, lengths: Tensor, kept: Tensor, value_rows: Tensor) -> None:
        assert self._aims is not None
        aims = self._aims(lengths)
        heads, kv_heads = self._heads
        keys, sparse = lengths.sum(), aims > 0
        kept_of_row = kept.sum(1)
        self._sums += torch.stack([
            (lengths > 0).sum(), keys * heads, kept_of_row.sum(), keys * kv_heads, value_rows.sum(),
            aims.sum() * heads, (kept_of_row * sparse).sum(),
        ])  # fmt: skip

    def totals(self) -> dict[str, int]:
        """The sums so far, by their names in `Totals`; waits for the device."""
        self._add_waiting()
        return dict(zip(_NAMES, self._sums.tolist(), strict=True))


class Metrics:
    """The sums of all layers of an engine in one process, and what happens to them.

    Args:
        interval: seconds between two lines in the log.
        export: takes what has been added since the last time.
        clock: seconds, for tests.
    """

    def __init__(
        self,
        interval: float,
        export: Callable[[Totals], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._layers: list[LayerCounters] = []
        self._interval = interval
        self._export = export
        self._clock = clock
        self._last = clock()
        self._reported = Totals()
        self._tokens = {"decode_tokens": 0, "prompt_tokens": 0, "draft_tokens": 0, "thresholded_tokens": 0}

    def layer(self, num_heads: int, num_key_value_heads: int, device: torch.device | str = "cpu") -> LayerCounters:
        """Counters for one more layer."""
        counters = LayerCounters(num_heads, num_key_value_heads, device)
        self._layers.append(counters)
        return counters

    def step(self, *, decode: int, prompt: int = 0, draft: int = 0, thresholded: int = 0) -> None:
        """Notes the tokens of a step; writes to the log when it is time."""
        added = {"decode_tokens": decode, "prompt_tokens": prompt, "draft_tokens": draft}
        for name, count in {**added, "thresholded_tokens": thresholded}.items():
            self._tokens[name] += count
        if self._clock() - self._last >= self._interval:
            self.report()

    def totals(self) -> Totals:
        """All sums so far."""
        sums = dict.fromkeys(_NAMES, 0)
        for layer in self._layers:
            for name, count in layer.totals().items():
                sums[name] += count
        return Totals(**sums, **self._tokens)

    def report(self) -> None:
        """Writes what has been added since the last time to the log, and exports it; nothing where nothing was."""
        self._last = self._clock()
        totals = self.totals()
        added = totals - self._reported
        if added == Totals():
            return
        self._reported = totals
        logger.info("Top-Theta: %s", added)
        if self._export is not None:
            self._export(added)


def prometheus_export() -> Callable[[Totals], None] | None:
    """Adds to counters ``toptheta_<name>_total`` of prometheus_client's default registry; None where it is missing.

    The counters are those of this process. vLLM's HTTP server is another one: it shows them where
    ``PROMETHEUS_MULTIPROC_DIR`` is set before it starts.
    """
    try:
        from prometheus_client import Counter
    except ImportError:
        return None
    if not _COUNTERS:
        for each in fields(Totals):
            text = f"Top-Theta attention: {each.name.replace('_', ' ')}"
            _COUNTERS[each.name] = Counter(f"toptheta_{each.name}", text)

    def export(added: Totals) -> None:
        for name, counter in _COUNTERS.items():
            counter.inc(getattr(added, name))

    return export


# a name can be registered once in a process
_COUNTERS: dict[str, Any] = {}
