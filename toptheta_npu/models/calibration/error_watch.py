"""What the rows of a calibration lose under thresholds: looked at head by head, or under budgets of all heads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...calibration.error_sums import ErrorSums, HeadErrors, PathErrors
from ...thresholds import ThresholdTable
from ...thresholds.lookup import Lookup
from ..hook.attention import AttentionCall
from ..hook.residual import ResidualStream, output_projection
from .error_rows import Compensated, ErrorRows
from .observe import ChosenRows, naming_layer
from .rows import BlockThreads, SequenceRows


class ErrorWatch:
    """One of the two passes: of single heads, or of budgets where ``path`` [P, L, Hq] holds their levels."""

    def __init__(self, table: ThresholdTable, sums: ErrorSums, stream: ResidualStream, path: Tensor | None) -> None:
        self.sums, self.stream, self.path = sums, stream, path
        self.compensated = Compensated(sums.settings.sdc, sums.settings.vmc)
        self.placement: str = table.placement
        self._lookup, self._knots = Lookup(table), len(table.k)

    def rule(self, layer: int, chosen: ChosenRows, threads: BlockThreads) -> _ErrorRule:
        return _ErrorRule(layer, chosen, threads, self)

    def held_against(self, before: Tensor, added: Tensor) -> Tensor:
        """Compute what errors are relative to: the stream behind the layer, from that before it and what it adds."""
        return before + added

    def thresholds(self, layer: int, lengths: Tensor) -> Tensor:
        """Look up the thresholds of all levels: float32 [1 + K, Hq, R]; +inf for the largest element only."""
        found = [self._lookup.calibrated_rows(knot, layer, lengths.cpu().numpy()) for knot in range(self._knots)]
        return torch.from_numpy(np.stack([np.full_like(found[0], np.inf), *found])).to(lengths.device)


@dataclass(frozen=True)
class _ErrorRule:
    """Shows what the chosen rows lose, and attends densely."""

    layer: int
    chosen: ChosenRows
    threads: BlockThreads
    watch: ErrorWatch

    def attend(self, call: AttentionCall) -> Tensor:
        sequence = SequenceRows(call, self.watch.compensated.vmc)
        before = self.watch.stream.before(self.layer)[0]
        projection = output_projection(call.module)
        look = self._heads(projection) if self.watch.path is None else self._budgets(projection)

        def work(rows: Tensor) -> HeadErrors | PathErrors:
            errors = ErrorRows(sequence, rows, self.watch.compensated, self.watch.placement)
            theta = self.watch.thresholds(self.layer, errors.lengths)
            added = errors.dense.transpose(0, 1).flatten(1) @ projection.T
            return look(errors, theta, self.watch.held_against(before[rows].float(), added).square().sum(-1))

        with naming_layer(self.layer):
            for seen in self.threads.map(work, sequence.blocks(self.chosen.within(sequence)), call.query.device):
                self.watch.sums.add(seen)
        return call.dense()

    def _heads(self, projection: Tensor) -> Callable[[ErrorRows, Tensor, Tensor], HeadErrors]:
        heads = projection.unflatten(1, (self.watch.sums.settings.num_heads, -1))
        with torch.autocast(heads.device.type, enabled=False):
            gram = torch.einsum("ehd,ehc->hdc", heads, heads)

        def look(rows: ErrorRows, theta: Tensor, norms: Tensor) -> HeadErrors:
            found = []
            for threshold in theta:
                off = rows.error(rows.keep(threshold), threshold)
                found.append((off @ gram).mul_(off).sum(-1).clamp_min_(0.0) / norms)
            return HeadErrors(self.layer, torch.stack(found).cpu(), rows.lengths.cpu())

        return look

    def _budgets(self, projection: Tensor) -> Callable[[ErrorRows, Tensor, Tensor], PathErrors]:
        path = self.watch.path
        assert path is not None

        def look(rows: ErrorRows, theta: Tensor, norms: Tensor) -> PathErrors:
            errors, value_rows = [], []
            for levels in path[:, self.layer].to(theta.device):
                threshold = theta.gather(0, levels[None, :, None].expand(1, -1, theta.shape[2]))[0]
                keep = rows.keep(threshold)
                off = rows.error(keep, threshold).transpose(0, 1).flatten(1)
                errors.append((off @ projection.T).square().sum(-1) / norms)
                value_rows.append(rows.value_rows(keep))
            return PathErrors(self.layer, torch.stack(errors).cpu(), torch.stack(value_rows).cpu(), rows.lengths.cpu())

        return look
