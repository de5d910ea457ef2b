"""One decode step on the host model: made-up caches, thresholds that keep exactly k, and the modelled time.

Times are modelled and uncalibrated, never a latency of a device.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from emulator.ascendc import COLUMNS, Column, Kernel, Mode, Timeline, build_kernel
from emulator.ascendc.library import load
from emulator.cann import Platform
from toptheta_host_model import OperatorRun, kernel_for, run_operator
from toptheta_npu.fallback.antiquant import PER_TOKEN_AND_HEAD, quantise
from toptheta_npu.fallback.sampled import compared_lse
from toptheta_npu.timing.shapes import Shape

MODES: tuple[Mode, ...] = ("cold", "hot")
PIPES = ("MTE2", "V")
#: The column of a time that names none.
EXPECTED = COLUMNS.index("expected")
#: The copies of a cube core, which are K rows, among the busy shares.
CUBE_COPIES = "cube MTE2"


@dataclass(frozen=True)
class Step:
    """One decode step, BNSD. `extra` are further inputs of the operator, such as a block table."""

    query: Tensor
    key: Tensor
    value: Tensor
    lengths: Tensor | None = None
    extra: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def scale(self) -> float:
        return float(self.query.shape[3] ** -0.5)

    @property
    def row_bytes(self) -> int:
        return self.query.shape[3] * self.value.element_size()

    @property
    def attributes(self) -> dict[str, Any]:
        heads, kv_heads = self.query.shape[1], self.key.shape[1]
        modes = {
            name.replace("scale", "mode"): PER_TOKEN_AND_HEAD
            for name, scale in self.extra.items() if name.endswith("_antiquant_scale") and scale.dim() == 3
        }  # fmt: skip
        return {"num_heads": heads, "num_key_value_heads": kv_heads, "scale_value": self.scale, **modes}

    def rows(self, sequence: int) -> int:
        return self.key.shape[2] if self.lengths is None else int(self.lengths[sequence])

    def scores(self, sequence: int, kv_head: int) -> Tensor:
        """Compute scaled scores [heads of the group * Sq, rows], float32; -inf of keys that a token does not see."""
        group, tokens = self.query.shape[1] // self.key.shape[1], self.query.shape[2]
        query = self.query[sequence, kv_head * group : (kv_head + 1) * group].flatten(0, 1).float()
        key = self.key[sequence, kv_head, : self.rows(sequence)].float()
        if self.key.dtype is torch.int8:
            scale = self.extra["key_antiquant_scale"]
            key *= scale[kv_head] if scale.dim() == 2 else scale[sequence, kv_head, : len(key), None]
        scores: Tensor = query @ key.T * self.scale
        seen = len(key) - tokens + 1 + torch.arange(tokens).repeat(group)
        return scores.masked_fill_(torch.arange(len(key)) >= seen[:, None], -math.inf)


@dataclass(frozen=True)
class Selection:
    """Thresholds [B, Hq] or [B, Hq, Sq], and how many V rows all rows of a KV head need together."""

    threshold: Tensor
    rows: int
    of_rows: int


@dataclass(frozen=True)
class Measurement:
    """One run of the kernel. Times are in microseconds, modelled and uncalibrated, without the launch.

    Attributes:
        times: by mode, one for each column of constants (`COLUMNS`).
        launch: what comes on top, one for each column.
        bound: by mode, what reading all bytes of the inputs at the full rate would take.
        busy: by mode and pipe of a vector core, share of the time in which it works; the copies of a cube core too.
        rows_needed, rows_read, of_rows: V rows that a head keeps; that were read; that are valid.
    """

    times: Mapping[str, Sequence[float]]
    launch: Sequence[float]
    bound: Mapping[str, float]
    busy: Mapping[str, Mapping[str, float]]
    rows_needed: int
    rows_read: int
    of_rows: int

    @property
    def cold(self) -> float:
        """Expected time with all data in HBM."""
        return self.times["cold"][EXPECTED]

    @property
    def hot(self) -> float:
        """Expected time with all data in the L2."""
        return self.times["hot"][EXPECTED]


def make_step(shape: Shape, *, overlap: float = 0.0, lengths: Tensor | None = None) -> Step:
    """Draw normal q, K and V of a shape.

    Args:
        shape: its n is the capacity of the caches.
        overlap: the correlation of the queries of a group, whatever their tokens.
        lengths: keys of the sequences, which are as many.
    """
    generator = torch.Generator().manual_seed(0)
    batch, kv_heads, width = shape.batch, shape.num_key_value_heads, shape.head_dim
    own = torch.randn(batch, kv_heads, shape.group * shape.query_tokens, width, generator=generator)
    common = torch.randn(batch, kv_heads, 1, width, generator=generator)
    query = (overlap**0.5 * common + (1 - overlap) ** 0.5 * own).to(shape.torch_dtype)
    key, value = (
        torch.randn(batch, kv_heads, shape.n, width, generator=generator).to(shape.torch_dtype) for _ in range(2)
    )
    return Step(query.reshape(batch, shape.num_heads, shape.query_tokens, width), key, value, lengths)


def as_int8(step: Step, caches: Sequence[str] = ("key", "value"), *, by_token: bool = False) -> Step:
    """Quantise K, or K and V, with a scale for each channel or for each token and head."""
    extra, rows = dict(step.extra), {"key": step.key, "value": step.value}
    for name in caches:
        largest = rows[name].float().abs()
        scale = largest.amax(-1) / 127 if by_token else largest.amax((0, 2)) / 127
        rows[name] = quantise(rows[name], scale[..., None] if by_token else scale[:, None])
        extra[f"{name}_antiquant_scale"] = scale
    return replace(step, key=rows["key"], value=rows["value"], extra=extra)


def select(step: Step, density: float, *, placement: str = "pre_softmax") -> Selection:
    """Choose thresholds that keep exactly density * n elements of each head."""
    threshold = torch.empty(_rows_of(step))
    rows = of_rows = 0
    for sequence in range(step.query.shape[0]):
        n = step.rows(sequence)
        kept = max(1, round(density * n))
        for kv_head, own in enumerate(threshold[sequence].view(step.key.shape[1], -1)):
            scores = step.scores(sequence, kv_head)
            largest = scores.topk(kept + 1).values
            limit = largest[:, kept - 1 :].mean(1)
            rows += int((scores > limit[:, None]).any(0).sum())
            of_rows += n
            counts = torch.tensor([n])
            lse = compared_lse(placement, scores[None], counts, torch.zeros_like(counts))
            own[:] = limit if lse is None else (limit - lse[0]).exp()
    return Selection(threshold, rows, of_rows)


def everything(step: Step) -> Selection:
    """Keep everything by theta = -inf: the same kernel as dense attention."""
    rows = step.key.shape[1] * sum(step.rows(sequence) for sequence in range(step.query.shape[0]))
    return Selection(torch.full(_rows_of(step), -math.inf), rows, rows)


def _rows_of(step: Step) -> tuple[int, ...]:
    """Give the shape of a number for each query row: [B, Hq], or [B, Hq, Sq] with several tokens."""
    batch, heads, tokens, _ = step.query.shape
    return (batch, heads) if tokens == 1 else (batch, heads, tokens)


def run(
    step: Step, selection: Selection, *, cores: int = 48, cube: bool = True, kernel: Kernel | None = None,
    **attributes: Any,
) -> OperatorRun:  # fmt: skip
    """Call the operator once, with all checks of the host model on.

    Args:
        cube: False: on the vector cores alone.
        kernel: another build of the kernel.
    """
    tensors = {"query": step.query, "key": step.key, "value": step.value, "threshold": selection.threshold}
    tensors.update(step.extra)
    if step.lengths is not None:
        tensors["actual_seq_lengths"] = step.lengths
    platform = Platform(vector_cores=cores, cube_cores=cores // 2 if cube else 0)
    result = run_operator(tensors, step.attributes | attributes, platform=platform, kernel=kernel)
    result.run.require_clean()
    return result


def constants(column: Column = "expected") -> dict[str, float]:
    """Read a column of the constants of the timeline, which emulator/ascendc/machine/cost.h explains."""
    cost = load(build_kernel(kernel_for(torch.float16))).cost({}, column)
    return {name: getattr(cost, name) for name, *_ in cost._fields_}


def measure(step: Step, selection: Selection, **options: Any) -> Measurement:
    """Run the operator once and ask for its times; the options are those of `run`."""
    result = run(step, selection, **options)
    traffic = {name: entry for name, entry in result.run.traffic.items() if entry.bytes_read}
    total = sum(entry.bytes_read for name, entry in traffic.items() if name != "workspace")
    times = {mode: [result.run.timeline(mode, column=column) for column in COLUMNS] for mode in MODES}
    return Measurement(
        times={mode: [timeline.microseconds for timeline in own] for mode, own in times.items()},
        launch=[timeline.launch_microseconds for timeline in times["cold"]],
        bound={mode: traffic_bound(total, mode) for mode in MODES},
        busy={mode: _busy(own[EXPECTED]) for mode, own in times.items()},
        rows_needed=selection.rows,
        rows_read=traffic["value"].bytes_read // step.row_bytes,
        of_rows=selection.of_rows,
    )


def _busy(timeline: Timeline) -> dict[str, float]:
    shares = {pipe: timeline.busy_share(pipe) for pipe in PIPES}
    return shares | {CUBE_COPIES: timeline.busy_share("MTE2", kind="cube")}


def traffic_bound(count: int, mode: str) -> float:
    """Compute the microseconds in which all cores together can read ``count`` bytes."""
    cost = constants()
    return count / (cost[f"shared_{mode}"] * cost["gigahertz"] * 1e3)


def paged(step: Step, rows: int) -> Step:
    """Put the same caches into pages of `rows` rows, in a random order."""
    batch, _, n, _ = step.key.shape
    pages = n // rows
    order = torch.randperm(batch * pages, generator=torch.Generator().manual_seed(0))
    caches = [cache.unflatten(2, (pages, rows)).transpose(1, 2).flatten(0, 1) for cache in (step.key, step.value)]
    key, value = (torch.empty_like(cache, memory_format=torch.contiguous_format) for cache in caches)
    key[order], value[order] = caches
    table = order.to(torch.int32).view(batch, pages)
    lengths = torch.full((batch,), n, dtype=torch.int32) if step.lengths is None else step.lengths
    return Step(step.query, key, value, lengths, {**step.extra, "block_table": table})
