"""The rows of one sequence in one layer, block by block: their scores, and attention over their k largest.

`fallback.prefill` has the same attention for any rule and any batch, in readable form. Here blocks are computed in
parallel, hidden keys are masked only if there are any, and one top-k search serves the thresholds too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Lock
from types import TracebackType
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from ...calibration.row_statistics import kth_largest, take_rows
from ...fallback.compensation import compensate, sink_mass
from ...fallback.reference import weighted_values
from ..hook.attention import AttentionCall

Item = TypeVar("Item")
Found = TypeVar("Found")

#: Held while PyTorch uses one thread.
_ONE_CORE = Lock()
#: Bounds the memory of a thread on a CPU, or of a block on another device, for sequences of any length.
_SCORES_PER_BLOCK, _SCORES_ON_DEVICE = 1 << 20, 1 << 24


class TopK(NamedTuple):
    """A layer passes on its attention over the k largest scores of each row, with these compensations."""

    k: int
    sdc: str
    vmc: bool


class BlockThreads:
    """As many threads as PyTorch has, each with its own blocks and one core per operator.

    Whole blocks run in parallel, and the result of a block does not depend on the number of threads. PyTorch's number
    of threads belongs to the process, so only one `BlockThreads` at a time works on its blocks.
    """

    def __init__(self) -> None:
        with _ONE_CORE:
            self._count = _threads_of_new_threads()
        self._pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> BlockThreads:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def map(self, work: Callable[[Item], Found], blocks: list[Item]) -> list[Found]:
        """Run ``work`` on every block; results keep the order of the blocks."""
        # threads of the pool do not inherit the caller's autocast
        with torch.autocast("cpu", enabled=False), _ONE_CORE:
            try:
                torch.set_num_threads(1)
                if self._count == 1 or len(blocks) == 1:
                    return [work(block) for block in blocks]
                # later blocks are wider: first come those that take longest
                return list(self._threads().map(work, blocks[::-1]))[::-1]
            finally:
                torch.set_num_threads(self._count)

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._count, "toptheta")
            all_there = Barrier(self._count)

            def use_one_core(_: int) -> None:
                torch.set_num_threads(1)
                # a thread that came later would set the number for the process again
                all_there.wait()

            list(self._pool.map(use_one_core, range(self._count)))
        return self._pool


def _threads_of_new_threads() -> int:
    """Ask a new thread for PyTorch's number of threads. One that began while blocks were worked on has its own, 1."""
    with ThreadPoolExecutor(1) as new:
        return new.submit(torch.get_num_threads).result()


class SequenceRows:
    """Query, key and value of a prompt of one sequence without padding: row i sees the keys up to its own.

    Attributes:
        query: float32 [Hq, S, D], scaled.
        key, value: float32 [Hkv, S, D].
        value_mean: float32 [Hkv, S, D], the mean of the V rows up to each, if VMC asks for it.
        learnable_sink: float32 [Hq], one more logit of every row; None where the model has none.
    """

    def __init__(self, call: AttentionCall, vmc: bool = False) -> None:
        key, value = call.prompt["key"][0], call.prompt["value"][0]
        scale = 1 / math.sqrt(key.shape[-1]) if call.scaling is None else call.scaling
        self.learnable_sink = call.learnable_sink
        self.query = scale * call.query[0].float()
        self.key, self.value = key.float(), value.float()
        count = torch.arange(1, key.shape[1] + 1, device=key.device)
        self.value_mean = self.value.cumsum(1) / count[:, None] if vmc else None

    def blocks(self, rows: Tensor) -> list[Tensor]:
        """Split ``rows``, ascending, into parts whose scores take a few MiB each."""
        most = _SCORES_PER_BLOCK if self.query.is_cpu else _SCORES_ON_DEVICE
        size = max(1, most // (len(self.query) * self.key.shape[1]))
        return list(rows.split(size)) if len(rows) else []

    def lengths(self, rows: Tensor) -> Tensor:
        """Count the visible keys of each row."""
        return 1 + rows

    def scores(self, rows: Tensor, here: Tensor | None = None) -> Tensor:
        """Compute scores of ascending rows: float32 [Hq, rows, S], -inf where hidden. S is the last length.

        Args:
            rows: int64 [rows], on the CPU, so that the host need not fetch them.
            here: the same rows on the device; None: they are copied to it.
        """
        lengths = self.lengths(rows)
        shortest, span = int(lengths[0]), int(lengths[-1])
        here = rows.to(self.query.device) if here is None else here
        query: Tensor = take_rows(self.query, rows, here).unflatten(0, (len(self.key), -1)).flatten(1, 2)
        scores: Tensor = (query @ self.key[:, :span].mT).view(-1, len(rows), span)
        hidden = torch.arange(shortest, span, device=here.device) >= self.lengths(here)[:, None]
        end = scores[:, :, shortest:]
        torch.minimum(end, torch.where(hidden, -torch.inf, torch.inf).float(), out=end)
        return scores

    def attend(self, rows: Tensor, scores: Tensor, keep: Tensor, sdc: str, here: Tensor | None = None) -> Tensor:
        """Compute [Hq, rows, D] from the kept elements, as `fallback.prefill.select_and_attend`. Overwrite ``keep``."""
        maximum = scores.amax(-1, keepdim=True)
        exponentials = (scores - maximum).exp_()
        weights = keep.mul_(exponentials)
        kept_mass, exact = weights.sum(-1), exponentials.sub_(weights).sum(-1)
        estimate = exact if sdc == "exact" else torch.zeros_like(exact)
        numerator = weighted_values(weights[None], self.value[None, :, : scores.shape[-1]])
        mean = None if self.value_mean is None else take_rows(self.value_mean, rows, here)[None]
        sink = sink_mass(self.learnable_sink, maximum[None, :, :, 0])
        out: Tensor = compensate(numerator, kept_mass[None], estimate[None], mean, sink)[0]
        return out


class RowsOnDevice:
    """The scores of chosen rows on another device than a CPU, as `ScoreBlocks` that are computed whenever asked for.

    Args:
        sequence: of the layer.
        rows: int64 [rows], ascending, on the CPU.
        here: the same on the device; None: they are copied to it, at once.
    """

    ranked: Tensor | None = None

    def __init__(self, sequence: SequenceRows, rows: Tensor, here: Tensor | None = None) -> None:
        self.lengths, self.device = sequence.lengths(rows), sequence.query.device
        self._sequence, self._rows = sequence, rows
        self._here = rows.to(self.device) if here is None else here

    def __iter__(self) -> Iterator[tuple[slice, Tensor]]:
        start = 0
        for rows in self._sequence.blocks(self._rows):
            here = slice(start, start + len(rows))
            yield here, self._sequence.scores(rows, self._here[here])
            start = here.stop

    def longer_than(self, length: int) -> RowsOnDevice:
        """Take only the rows of more than ``length`` keys."""
        first = int((self.lengths <= length).sum())
        return RowsOnDevice(self._sequence, self._rows[first:], self._here[first:])


def keep_largest(scores: Tensor, k: int) -> tuple[Tensor, Tensor | None]:
    """Find the k largest of every row, and on a CPU the (k+1)-th largest.

    Args:
        scores: float32 [Hq, rows, S].
        k: at least 1.

    Returns:
        float32 [Hq, rows, S], 1 for what is kept and 0 elsewhere; float32 [Hq, rows, 1], None on other devices.

    Raises:
        TopThetaValueError: on a CPU, a score is NaN or +inf.
    """
    if scores.device.type != "cpu":
        return _mask_of_largest(scores, k), None
    last_kept, ranked = kth_largest(scores, [k - 1, k]).split(1, dim=-1)
    # into numbers: booleans take four times as long, here and as factors
    keep = torch.gt(scores, ranked, out=torch.empty_like(scores))
    tied = ((last_kept == ranked) & (ranked > -torch.inf)).squeeze(-1)
    if bool(tied.any()):
        keep[tied] = _mask_of_largest(scores[tied], k)
    return keep, ranked


def _mask_of_largest(scores: Tensor, k: int) -> Tensor:
    largest = scores.topk(min(k, scores.shape[-1]), dim=-1).indices
    return torch.zeros_like(scores).scatter_(-1, largest, 1.0).masked_fill_(scores == -torch.inf, 0.0)
