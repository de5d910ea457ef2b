"""An active `sparsify` context: its statistics, and its k, which may change between two steps."""

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
    """An active `sparsify` context: the statistics of the run, and the target of its rows.

    :meth:`set_k` and :meth:`set_tau` write other thresholds into the tensors that the layers read. Nothing is
    calibrated, compiled or captured again. The new thresholds apply from the next step, which is the next token if the
    call comes between two tokens. Rows that are already in the statistics stay there.

    Any thread may call these methods. A step that runs in another thread during the call may use old thresholds in some
    layers, heads or rows and new ones in others. Every single threshold is an old or a new one, never a mixture. Steps
    that begin after the call has returned use only new ones. If a step must not mix them, guard steps and calls with
    one lock.
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
        """The current number of elements to keep per row; None if the context uses tau."""
        return self._target.k if self._tau is None else None

    @property
    def tau(self) -> float | None:
        """The current probability that a key must exceed to be kept; None if the context uses a table."""
        return self._tau

    @property
    def dense_below(self) -> int:
        """Rows of fewer keys are dense."""
        return self._target.dense_below

    def set_k(self, k: int) -> None:
        """Run the following steps with ``k``. ``dense_below`` stays the same.

        The thresholds equal ``ThresholdTable.at(k)`` bit for bit. For 32 x 32 heads and 8192 lengths this writes 32 MiB
        to each device and takes about 30 ms on two threads of a CPU.

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
        """Run the following steps with another tau, in a context that was entered with ``tau``.

        Raises:
            TopThetaTypeError: ``tau`` is not a number.
            TopThetaValueError: ``tau`` is below 0, or 1 or more; or the context was entered with a table, or
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
        """Compute the length of the longest row that is currently dense in all layers."""
        limits = self._thresholds.current.dense_up_to
        return min(limits[layer] for layer in self._layers)

    def least_aim(self) -> int:
        """Find the smallest current target of a layer's rows: k, or more if every layer_k is larger."""
        targets = self._thresholds.current.layer_targets
        return min(targets[layer] for layer in self._layers)

    def left_nothing_out(self) -> bool:
        """Tell whether the statistics have rows, and every row kept all of its keys."""
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
        """Tell whether some row was too long to be dense at its time."""
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
