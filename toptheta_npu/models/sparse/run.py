"""A `sparsify` context while it lasts: its statistics, and its k, which may change between two steps."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from torch import Tensor

from ...errors import TopThetaCombinationError, TopThetaValueError
from ...thresholds.lookup import Lookup
from ...thresholds.targets import Target
from ...thresholds.uniform import UniformLookup
from ..caches.visible_keys import ForwardRows
from .device_thresholds import DeviceThresholds
from .statistics import Recorder, Recording


class SparseRun(Recording):
    """What `sparsify` yields: the statistics of the run, and how many elements its rows aim at.

    :meth:`set_k` and :meth:`set_tau` write other thresholds into the
    tensors that the layers read. Nothing is calibrated, compiled or captured again. They hold from the next step on:
    the next token, if they are called between two tokens. Any thread may call them. A step that another thread runs at
    that moment may use old thresholds in some layers, heads or rows and new ones in others. Each of them is one that
    was calibrated, and nothing mixes within a number. No step that begins after the call has returned uses an old one.
    Let steps and calls share a lock of yours where a step must not mix. Rows that are in the statistics stay there.
    """

    def __init__(
        self,
        recorders: Sequence[Recorder] | None,
        thresholds: DeviceThresholds,
        lookup: Lookup,
        target: Target,
        layers: Sequence[int],
        rows: ForwardRows,
        tau: float | None,
    ) -> None:
        super().__init__(recorders)
        self._thresholds = thresholds
        self._lookup = lookup
        self._target = target
        self._layers = layers
        self._rows = rows
        self._tau = tau
        self._sparsified = False
        self._ended = False
        self._changing = threading.Lock()

    @property
    def k(self) -> int | None:
        """Elements to keep per row now; None with a probability."""
        return self._target.k if self._tau is None else None

    @property
    def tau(self) -> float | None:
        """The probability that a key must exceed to be kept, now; None with a table."""
        return self._tau

    @property
    def dense_below(self) -> int:
        """Rows of fewer keys are dense."""
        return self._target.dense_below

    def set_k(self, k: int) -> None:
        """Run the following steps with ``k``. ``dense_below`` stays as it is.

        The thresholds are those of ``ThresholdTable.at(k)``, bit for bit. For 32 x 32 heads and 8192 lengths this
        writes 32 MiB to each device and takes about 30 ms on two threads of a CPU.

        Raises:
            TopThetaTypeError: ``k`` is not an int.
            TopThetaValueError: ``k`` is outside the calibrated range, or the context has ended; nothing changes.

        Example:
            >>> import torch
            >>> from toptheta_npu.assets import load_tiny_llama, load_tiny_llama_thresholds
            >>> from toptheta_npu.models import sparsify
            >>> (model, _), table = load_tiny_llama(), load_tiny_llama_thresholds("pre_softmax")
            >>> with sparsify(model, table, k=64, statistics=True) as run:
            ...     for k in (64, 512):
            ...         run.set_k(k)
            ...         _ = model.generate(torch.arange(600)[None], max_new_tokens=2, min_new_tokens=2, do_sample=False)
            >>> small, large = run.statistics()[-1].kept.float().mean(-1)
            >>> bool(small < 150 < large)
            True
        """
        self._change(Target(k=k, dense_below=self._target.dense_below))

    def set_tau(self, tau: float) -> None:
        """Run the following steps with another probability, in a context that was entered with one.

        Raises:
            TopThetaTypeError: ``tau`` is no number.
            TopThetaValueError: it is no probability from 0 on and below 1; or the context was entered with a table, or
                with ``tau=0``, or has ended; nothing changes.

        Example:
            >>> import torch
            >>> from toptheta_npu.assets import load_tiny_llama
            >>> from toptheta_npu.models import sparsify
            >>> model, _ = load_tiny_llama()
            >>> with sparsify(model, tau=0.01, statistics=True) as run:
            ...     for tau in (0.01, 0.0001):
            ...         run.set_tau(tau)
            ...         _ = model.generate(torch.arange(600)[None], max_new_tokens=2, min_new_tokens=2, do_sample=False)
            >>> few, many = run.statistics()[-1].kept.float().mean(-1)
            >>> bool(few < many)
            True
        """
        with self._changing:
            if not isinstance(self._lookup, UniformLookup):
                raise TopThetaCombinationError("tau", "excludes", "thresholds", "enter sparsify with tau alone")
            self._replace(self._lookup.with_tau(tau), self._target)
            self._tau = tau

    def dense_up_to(self) -> int:
        """Compute the length of the longest row that is dense in all layers now."""
        limits = self._thresholds.current.dense_up_to
        return min(limits[layer] for layer in self._layers)

    def least_aim(self) -> int:
        """Find the least number of elements that a layer's rows aim at now: k, or more where every layer_k is."""
        targets = self._thresholds.current.layer_targets
        return min(targets[layer] for layer in self._layers)

    def left_nothing_out(self) -> bool:
        """Tell whether rows are in the statistics, and all of them kept all of their keys."""
        seen = False
        for recorder in self._recorders or ():
            layer = recorder.result()
            # a sum over the rows, or a number for each
            keys = int(layer.keys.sum() if isinstance(layer.keys, Tensor) else layer.keys) * layer.kept.shape[-1]
            if int(layer.kept.sum()) < keys:
                return False
            seen = seen or keys > 0
        return seen

    def sparsified(self) -> bool:
        """Tell whether some row was longer than the dense ones of its time."""
        return self._sparsified or int(self._rows.longest) > self.dense_up_to()

    def end(self) -> None:
        """Mark the context as left."""
        with self._changing:
            self._ended = True

    def _change(self, target: Target) -> None:
        with self._changing:
            if self._tau is not None:
                remedy = "change tau with set_tau, or enter sparsify with a table"
                raise TopThetaCombinationError("tau", "excludes", "a number of elements to keep", remedy)
            self._replace(self._lookup, target)
            self._target = target

    def _replace(self, lookup: Lookup, target: Target) -> None:
        if self._ended:
            raise TopThetaValueError("k", "a context that lasts", "one that has ended", "enter sparsify again")
        at_k = lookup.at(target)
        self._sparsified = self.sparsified()
        self._thresholds.replace(at_k)
