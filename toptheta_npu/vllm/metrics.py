"""Counts the kept elements of an engine's rows on the device, and reports them to the log and to Prometheus."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import cache

import torch
from torch import Tensor

from ..thresholds import ThresholdsAtK
from .logs import logger

#: Seconds between two exports from a device, which wait for it.
_DEVICE_SECONDS = 1.0
#: k~/k outside of which thresholds do not fit the text, and decoded tokens from which on that is said.
_FITTING, _MIN_TOKENS = (0.5, 2.0), 100
_NAMES = ("rows", "elements", "kept", "available_value_rows", "value_rows", "sparse_aims", "sparse_kept")


def _sum(meaning: str) -> int:
    """Make a field of `Totals` that begins at 0. Prometheus shows what it means."""
    return field(default=0, metadata={"meaning": meaning})


@dataclass(frozen=True)
class Totals:
    """Sums over the rows of all layers of one rank; each field says what it is."""

    rows: int = _sum("Rows that decoded by thresholds: one for every sequence, layer and step.")
    elements: int = _sum("Scores of these rows: their keys times the query heads.")
    kept: int = _sum("Scores of these rows above their thresholds.")
    available_value_rows: int = _sum("V rows that dense attention would have read for them: keys times KV heads.")
    value_rows: int = _sum("V rows that were read for them.")
    sparse_aims: int = _sum("Scores that the rows of more than k keys were to keep: k times the query heads.")
    sparse_kept: int = _sum("Scores that the rows of more than k keys kept.")
    decode_tokens: int = _sum(
        "Tokens that decoded by thresholds, drafts included, counted once per step and not per layer."
    )
    prompt_tokens: int = _sum("Tokens of prompts.")
    draft_tokens: int = _sum("Tokens of sequences with drafts: the drafts, and the last accepted token before them.")
    thresholded_tokens: int = _sum("Tokens of prompts and drafts that followed the thresholds; the others were dense.")
    short_tokens: int = _sum("Tokens that decoded densely, in steps without a row of dense_below keys.")

    @property
    def kept_over_k(self) -> float | None:
        """k̃/k of the rows of more than k keys; None if there were none."""
        return self.sparse_kept / self.sparse_aims if self.sparse_aims else None

    def __str__(self) -> str:
        def share(part: int, whole: int) -> str:
            return f"{part / whole:.1%}" if whole else "none"

        over = "" if self.kept_over_k is None else f", k~/k {self.kept_over_k:.2f}"
        several = self.prompt_tokens + self.draft_tokens
        how = f", {self.thresholded_tokens} of them by thresholds" if self.thresholded_tokens else ", all dense"
        told = [
            f"{self.decode_tokens} decoded tokens kept {share(self.kept, self.elements)} of their elements and read "
            f"{share(self.value_rows, self.available_value_rows)} of the V rows{over}"
            if self.decode_tokens else "no token decoded by thresholds",
            f"{self.prompt_tokens} tokens of prompts and {self.draft_tokens} with drafts{how if several else ''}",
        ]  # fmt: skip
        if self.short_tokens:
            told.append(f"{self.short_tokens} decoded densely in steps of short rows")
        return "; ".join(told)

    def __sub__(self, other: Totals) -> Totals:
        return Totals(*(getattr(self, each.name) - getattr(other, each.name) for each in fields(self)))


class Aims:
    """How many elements the rows of some layers aim at.

    Args:
        thresholds: of this rank's heads.
        layers: indices of the layers.
    """

    def __init__(self, thresholds: ThresholdsAtK, layers: Sequence[int]) -> None:
        self._thresholds = thresholds
        self._rows = torch.stack([thresholds.aims[layer] for layer in layers])
        dense = [thresholds.dense_up_to[layer] for layer in layers]
        self._dense_up_to = torch.tensor(dense, dtype=torch.int64, device=self._rows.device)[:, None]

    def __call__(self, lengths: Tensor) -> Tensor:
        """Compute the aims of rows of ``lengths`` [S] keys, int [layers, S]; 0 for dense rows."""
        aims = self._rows[:, self._thresholds.places(lengths)]
        return aims * ((lengths > self._dense_up_to) & (lengths > aims))


class Counters:
    """Sums of a group of layers, on its device. Nothing waits for them. A captured graph goes on counting.

    Args:
        num_layers, num_heads, num_key_value_heads: of the group, on this rank.
        aims: gives the elements that rows of [S] keys aim at, int [num_layers, S]; 0 where they are dense.
        device: of the layers.
    """

    def __init__(
        self, num_layers: int, num_heads: int, num_key_value_heads: int, aims: Callable[[Tensor], Tensor],
        device: torch.device | str = "cpu",
    ) -> None:  # fmt: skip
        self._layers, self._heads = num_layers, (num_heads, num_key_value_heads)
        self._aims = aims
        with torch.inference_mode(False):
            self._sums = torch.zeros(len(_NAMES), dtype=torch.int64, device=device)

    def add(self, lengths: Tensor, kept: Tensor, value_rows: Tensor) -> None:
        """Add the rows of a step.

        Args:
            lengths: int [S], their keys; 0 for padding.
            kept: int32 [layers, S, Hq].
            value_rows: int32 [layers, S, Hkv].
        """
        aims = self._aims(lengths)
        heads, kv_heads = self._heads
        rows, keys = (lengths > 0).sum() * self._layers, lengths.sum() * self._layers
        self._sums += torch.stack([
            rows, keys * heads, kept.sum(), keys * kv_heads, value_rows.sum(), aims.sum() * heads,
            (kept * (aims > 0)[..., None]).sum(),
        ])  # fmt: skip

    def totals(self) -> dict[str, int]:
        """Read the sums so far, by their names in `Totals`. This waits for the device."""
        return dict(zip(_NAMES, self._sums.tolist(), strict=True))

    @property
    def on_cpu(self) -> bool:
        return self._sums.device.type == "cpu"


class Metrics:
    """The sums of all layers of an engine in one process, and what happens to them.

    Each step exports what those before it kept. On a device, for which that waits, it does so once a second. Others
    than the engine's thread may ask for a report.

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
        self._groups: list[Counters] = []
        self._interval = interval
        self._export = export
        self._clock = clock
        self._reporting = threading.RLock()
        self._logged_at = self._exported_at = clock()
        self._logged = self._exported = Totals()
        self._tokens = dict.fromkeys((each.name for each in fields(Totals) if each.name.endswith("_tokens")), 0)

    def add_group(self, counters: Counters) -> Counters:
        """Add the counters of one more group of layers."""
        self._groups.append(counters)
        return counters

    def step(self, **tokens: int) -> None:
        """Note the tokens of a step; log and export what earlier ones kept when it is time.

        Args:
            tokens: decode, prompt, draft, thresholded and short ones, as in `Totals`.
        """
        for name, count in tokens.items():
            self._tokens[f"{name}_tokens"] += count
        now = self._clock()
        live = all(group.on_cpu for group in self._groups)
        if now - self._logged_at >= self._interval:
            self.report()
        elif self._export is not None and (live or now - self._exported_at >= _DEVICE_SECONDS):
            self._export_added()

    def totals(self) -> Totals:
        """Add up all layers."""
        groups = [group.totals() for group in self._groups]
        return Totals(**{name: sum(group[name] for group in groups) for name in _NAMES}, **self._tokens)

    def report(self) -> None:
        """Log what has been added since the last time, if anything was, and export."""
        with self._reporting:
            self._logged_at = self._clock()
            totals = self._export_added()
            if totals != self._logged:
                _log(totals - self._logged)
            self._logged = totals

    def _export_added(self) -> Totals:
        """Export what has been added since the last time, if anything was. Return all sums."""
        with self._reporting:
            self._exported_at = self._clock()
            totals = self.totals()
            if self._export is not None and totals != self._exported:
                self._export(totals - self._exported)
            self._exported = totals
            return totals


def _log(added: Totals) -> None:
    logger.info("Top-Theta: %s", added)
    over, (low, high) = added.kept_over_k, _FITTING
    if over is not None and not low <= over <= high and added.decode_tokens >= _MIN_TOKENS:
        logger.warning(
            "Top-Theta: k~/k is %.2f, outside of %g to %g: the text is unlike that of the calibration, so %s is read "
            "than asked for; calibrate on text like it", over, low, high, "less" if over < low else "more",
        )  # fmt: skip


@cache  # a name can be registered once in a process
def prometheus_export() -> Callable[[Totals], None] | None:
    """Make counters ``toptheta_<name>_total`` in prometheus_client.

    They belong to its default registry in this process. vLLM's HTTP server is another process. It shows them if
    ``PROMETHEUS_MULTIPROC_DIR`` is set before it starts.

    Returns:
        A function that adds to them; None if prometheus_client is missing.
    """
    try:
        from prometheus_client import Counter
    except ImportError:
        return None
    shown = {each.name: Counter(f"toptheta_{each.name}", each.metadata["meaning"]) for each in fields(Totals)}

    def export(added: Totals) -> None:
        for name, counter in shown.items():
            counter.inc(getattr(added, name))

    return export
