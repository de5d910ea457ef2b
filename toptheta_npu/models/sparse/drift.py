"""Keeping k̃ at k on text unlike the calibration text: an integral controller per sequence, layer and query head.

The control error is k̃/k - 1, not its logarithm, so that it is the mean of the heavy-tailed k̃ that comes out right. What
is integrated is the logarithm of the factor by which k̃ is to fall; the table's own curves of θ over k tell how far θ
has to move for that, so that one gain serves all heads. The gain falls as 1/steps to a floor: quick at first, calm
later. A sum of errors is also what makes the mean over any few hundred steps right: what one row keeps too much, the
next ones keep too little.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from transformers.cache_utils import StaticLayer

from ..._checks import check_int, check_number
from ...errors import TopThetaNotImplementedError, TopThetaTypeError, TopThetaValueError, shown
from ...thresholds import ThresholdsAtK, ThresholdTable
from ..caches.value_mean import DRIFT, CachedLayer, CacheState
from ..hook.attention import AttentionCall

#: ln k̃ per unit of θ where a table has a single k: about the middle of what the heads of a model have.
_TYPICAL_SLOPE = 0.5
_SLOPES = (0.1, 10.0)
_TINY = torch.finfo(torch.float32).tiny
#: Up to here float32 counts the steps one by one.
_MOST_STEPS = 2**24


@dataclass(frozen=True)
class DriftControl:
    """How `sparsify` brings k̃ back to k while a sequence is decoded: it shifts the thresholds of each layer and head.

    Args:
        gain: share of the relative error k̃/k - 1 by which a step changes ln k̃, in (0, 1]. More follows the text faster
            and lets the thresholds waver more.
        start: step t of a sequence has the gain 1 / (start + t) as long as that is more; from 1 to 2**24.
        most: the largest factor by which a shift may be expected to change k̃, up or down.

    Raises:
        TopThetaTypeError, TopThetaValueError: a number is unusable.

    Example:
        >>> DriftControl(gain=0.02)
        DriftControl(gain=0.02, start=8, most=8.0)
    """

    gain: float = 0.04
    start: int = 8
    most: float = 8.0

    def __post_init__(self) -> None:
        check_number("gain", self.gain)
        if not 0 < self.gain <= 1:
            raise TopThetaValueError("gain", "more than 0 and at most 1", shown(self.gain), "pass 0.04, for example")
        check_int("start", self.start, 1, _MOST_STEPS)
        check_number("most", self.most)
        if self.most <= 1:
            raise TopThetaValueError("most", "more than 1", shown(self.most), "pass 8, for example")


def check_drift_control(drift_control: object, prefill: str) -> None:
    """Raise a typed error unless `sparsify` can control drift with these arguments.

    Raises:
        TopThetaTypeError: neither a DriftControl nor None.
        TopThetaNotImplementedError: prompts are thresholded, too.
    """
    if drift_control is None:
        return
    if not isinstance(drift_control, DriftControl):
        raise TopThetaTypeError("drift_control", "a DriftControl or None", shown(drift_control), "pass DriftControl()")
    if prefill == "thresholded":
        raise TopThetaNotImplementedError(
            "drift_control", "None with prefill='thresholded'", "a DriftControl",
            "it watches one decode step after the other; leave prefill='dense'",
        )  # fmt: skip


class DriftState(CacheState):
    """The shifts of one cache layer.

    Attributes:
        shift: float32 [B, Hq], ln of the factor by which k̃ is expected to fall.
        steps: float32 [B, Hq], decode steps that counted.
        count: int64 [B], keys of each sequence.
        drafts: what several tokens kept, which counts once it is known which of them were accepted.
    """

    def __init__(
        self, shift: Tensor, steps: Tensor, count: Tensor, values: Tensor, owner: object, drafts: _Drafts | None = None
    ) -> None:
        super().__init__(values, owner)
        self.shift = shift
        self.steps = steps
        self.count = count
        self.drafts = drafts

    def tensors(self) -> list[Tensor]:
        """List what it consists of."""
        return [self.shift, self.steps, self.count, *(self.drafts or ())]

    def follow(self, control: DriftControl, past: Tensor) -> tuple[Tensor, Tensor]:
        """Compute shift and steps for a call with ``past`` [B] keys before it; 0 for sequences that are other ones."""
        shift, steps, first = self.shift, self.steps, self.count
        if self.drafts is not None:
            kept, aim, counted = self.drafts
            first = self.count - kept.shape[2]
            for token in range(kept.shape[2]):
                accepted = counted[..., token] & (past - first > token)[:, None]
                learnt = integrated(control, shift, steps, kept[..., token], aim[..., token])
                shift, steps = torch.where(accepted, learnt, shift), steps + accepted
        follows = ((past >= first) & (past <= self.count))[:, None]
        return torch.where(follows, shift, 0.0), torch.where(follows, steps, 0.0)


class _Drafts(NamedTuple):
    """Kept elements [B, Hq, Q] of several tokens, what they aimed at, and which rows count."""

    kept: Tensor
    aim: Tensor
    counted: Tensor


class Slopes:
    """By how much ln k̃ falls per unit of θ, post-softmax of ln θ, in each layer and head: between every two k knots.

    The table does not tell where it holds one k or its layer the same one everywhere. There a typical slope is taken.
    """

    def __init__(self, table: ThresholdTable) -> None:
        self._knots: list[list[float]] = []
        self._slopes: list[Tensor] = []
        for layer in range(table.num_layers):
            targets: list[int] = table.calibrated_targets[:, layer].tolist()
            pairs = [index for index in range(len(targets) - 1) if targets[index] < targets[index + 1]]
            known = [_slope(table, layer, index, targets[index], targets[index + 1]) for index in pairs]
            typical = torch.full((table.num_heads,), _TYPICAL_SLOPE, dtype=torch.float32, device="cpu")
            self._slopes.append(torch.stack(known or [typical]))
            self._knots.append([float(targets[index]) for index in pairs[1:]])
        self._devices: dict[torch.device, list[tuple[Tensor, Tensor]]] = {}

    def at(self, layer: int, aim: Tensor) -> Tensor:
        """Look up the slopes [B, Hq] for rows that aim at ``aim`` [B, Hq] elements."""
        device = aim.device
        if device not in self._devices:
            pairs = zip(self._knots, self._slopes, strict=True)
            self._devices[device] = [
                (torch.tensor(knots, dtype=torch.float32, device=device), slopes.to(device)) for knots, slopes in pairs
            ]
        knots, slopes = self._devices[device][layer]
        return slopes.gather(0, torch.bucketize(aim, knots, right=True))


def _slope(table: ThresholdTable, layer: int, index: int, low: int, high: int) -> Tensor:
    """Compute slopes [Hq] from the k knot ``index`` to the next: the median over the row lengths well above both."""
    lines = table.theta[index : index + 2, layer]
    if table.placement == "post_softmax":
        lines = lines.clamp_min(_TINY).log()
    fall = lines[0] - lines[1]  # [Hq, R]
    usable = (table.lengths > 2 * high) & fall.isfinite() & (fall > 0)
    slopes = torch.where(usable, math.log(high / low) / fall, torch.nan).nanmedian(-1).values
    return slopes.nan_to_num(_TYPICAL_SLOPE).clamp(*_SLOPES)


class LayerDrift:
    """The controller of one layer. Its state is with the cache."""

    def __init__(self, control: DriftControl, layer: int, slopes: Slopes) -> None:
        self._control = control
        self._layer = layer
        self._slopes = slopes

    def step(self, call: AttentionCall, thresholds: ThresholdsAtK, theta: Tensor) -> DriftStep:
        """Begin a decode step with the table's thresholds ``theta`` [B, Hq], of several tokens [B, Hq, Q].

        Raises:
            TopThetaNotImplementedError: there is no cache, or one that does not hold a state.
        """
        cached = _checked_cache(call)
        known: DriftState | None = cached.known(DRIFT)
        if known is None or known.shift.shape != theta.shape[:2]:
            _check_no_capture(theta)
            known, shift = None, torch.zeros_like(theta if theta.dim() == 2 else theta[..., 0])
            steps = torch.zeros_like(shift)
        else:
            shift, steps = known.follow(self._control, call.rows.before_call.counts[:, 0])
        aim = thresholds.aim_rows(self._layer, call.rows.counts).float()  # [B, Q, Hq]
        slope = self._slopes.at(self._layer, aim.flatten(0, 1)).view_as(aim)
        aim, slope = (each.transpose(1, 2).reshape(theta.shape) for each in (aim, slope))
        return DriftStep(self._control, call, known, shift, steps, theta, aim, slope)

    def carry(self, call: AttentionCall) -> None:
        """Take the state past several new tokens, which were dense. The text is still the same."""
        cached = call.cached
        known = None if cached is None else cached.known(DRIFT)
        if cached is None or known is None or len(known.shift) != len(call.query):
            return
        _keep(call, known, *known.follow(self._control, call.rows.before_call.counts[:, 0]))


@dataclass(frozen=True)
class DriftStep:
    """One decode step of one layer: its shifted thresholds, and what it learns from them.

    Attributes:
        shift, steps: [B, Hq].
        original, aim, slope: [B, Hq], of several tokens [B, Hq, Q].
    """

    control: DriftControl
    call: AttentionCall
    known: DriftState | None
    shift: Tensor
    steps: Tensor
    original: Tensor
    aim: Tensor
    slope: Tensor

    def threshold(self, placement: str) -> Tensor:
        """Compute the shifted thresholds, of the shape of the original ones. Dense rows stay dense."""
        shift = self.shift if self.original.dim() == 2 else self.shift[..., None]
        return shifted(self.original, shift / self.slope, placement)

    def learn(self, kept: Tensor, placement: str) -> None:
        """Integrate the error of ``kept`` [B, Hq], of several tokens [B, Hq, Q] those that are accepted later.

        Dense rows do not count, nor do heads that aim at nothing.
        """
        counted = ~dense_rows(self.original, placement) & (self.aim > 0)
        if kept.dim() == 3:
            _keep(self.call, self.known, self.shift, self.steps, _Drafts(kept, self.aim, counted))
            return
        shift = integrated(self.control, self.shift, self.steps, kept, self.aim)
        _keep(self.call, self.known, torch.where(counted, shift, self.shift), self.steps + counted)


def integrated(control: DriftControl, shift: Tensor, steps: Tensor, kept: Tensor, aim: Tensor) -> Tensor:
    """Compute the shifts [B, Hq] after a row that kept ``kept`` elements where ``aim`` [B, Hq] were wanted."""
    gain = (1 / (control.start + steps)).clamp_min(control.gain)
    bound = math.log(control.most)
    return (shift + gain * (kept / aim.clamp_min(1) - 1)).clamp(-bound, bound)


def dense_rows(theta: Tensor, placement: str) -> Tensor:
    """Tell where thresholds keep everything."""
    return theta <= 0 if placement == "post_softmax" else theta == -torch.inf


def shifted(theta: Tensor, by: Tensor, placement: str) -> Tensor:
    """Move thresholds ``by`` units of the score, post-softmax of ln θ. A probability stays one and above 0.

    What keeps everything or nothing stays.
    """
    if placement == "pre_softmax":
        return theta + by
    return torch.where((theta > 0) & (theta <= 1), (theta * by.exp()).clamp(_TINY, 1.0), theta)


def _checked_cache(call: AttentionCall) -> CachedLayer:
    if call.cached is None:
        raise TopThetaNotImplementedError(
            "drift_control", "a cache, with which its state lives", "a decode step without one", "set use_cache=True"
        )
    if call.cached.moves:
        raise TopThetaNotImplementedError(
            "drift_control", "a cache that stays on its device", "one that is offloaded", "pass DynamicCache()"
        )
    return call.cached


def _check_no_capture(theta: Tensor) -> None:
    """Refuse to be captured in a sequence's first step. The graph would start from shift 0 in every replay."""
    if torch.compiler.is_compiling():
        return
    is_capturing = getattr(getattr(torch, theta.device.type, None), "is_current_stream_capturing", None)
    if is_capturing is not None and is_capturing():
        raise TopThetaNotImplementedError(
            "drift_control", "a state before a graph is captured", "the capture of a cache's first step",
            "run one decode step with this cache, then capture",
        )  # fmt: skip


def _keep(
    call: AttentionCall, known: DriftState | None, shift: Tensor, steps: Tensor, drafts: _Drafts | None = None
) -> None:
    """Put the state on the cache layer. Reuse the tensors that are there where the cache itself keeps its tensors."""
    cached, rows = call.cached, call.rows
    assert cached is not None
    # all layers of a pass have the same counts
    count = (rows.counts[:, -1] if rows.lengths is None else rows.lengths).clone()
    values = cached.layer.values
    state = DriftState(shift, steps, count, values, cached.owner, drafts)
    if known is not None and isinstance(cached.layer, StaticLayer) and _is_writable(known.shift):
        held, new = known.tensors(), state.tensors()
        if [each.shape for each in held] == [each.shape for each in new]:
            for tensor, value in zip(held, new, strict=True):
                tensor.copy_(value)
            state = DriftState(known.shift, known.steps, known.count, values, cached.owner, known.drafts)
        else:
            _check_no_capture(shift)
    cached.keep(DRIFT, state)


def _is_writable(tensor: Tensor) -> bool:
    """Tell whether a tensor can be written to. Tensors of inference mode cannot outside of it."""
    return torch.compiler.is_compiling() or torch.is_inference_mode_enabled() or not tensor.is_inference()
