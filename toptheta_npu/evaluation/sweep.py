"""Plans the points of an evaluation, every method at every k on every task, and measures them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import Cache

from .._warnings import warn_of_sdc_without_vmc
from ..calibration.settings import default_layer_k
from ..errors import TopThetaValueError
from ..thresholds import ThresholdTable
from .measurement import Measurement, Task
from .methods.dense import KIND as DENSE
from .methods.method import DENSER_LAYERS, Method
from .methods.spec import MethodSpec
from .results import Point, ResultsFile

MakeTask = Callable[[PreTrainedModel], Task]
CacheOf = Callable[[ThresholdTable | None, DynamicCache], Cache]


@dataclass(frozen=True)
class Plan:
    """The plan of a comparison.

    Attributes:
        tasks: names of the tasks.
        methods: methods in the order of the tables; always includes dense, the baseline.
        ks: numbers of elements to keep.
        tables: thresholds by name; the first one gives methods without thresholds the least k of their layers.
        layers: number of layers of the model.
        cache_of: makes the cache that every method except dense reads, from a table, if any, and the dense cache of
            a text; None: all methods read the dense cache.

    Raises:
        TopThetaValueError: a method needs a table or a k, and none is given.
    """

    tasks: tuple[str, ...]
    methods: tuple[MethodSpec, ...]
    ks: tuple[int, ...]
    tables: Mapping[str, ThresholdTable]
    layers: int
    cache_of: CacheOf | None = None

    def __post_init__(self) -> None:
        for spec in self.methods:
            if spec.kind.needs_table and not self.tables:
                raise TopThetaValueError(
                    "TABLE", f"thresholds for {spec.text}", "none", "toptheta calibrate makes some"
                )
            if spec.kind.has_k and not self.ks:
                raise TopThetaValueError("--k", f"at least one number, for {spec.text}", "none")
            self._check_options(spec)

    def _check_options(self, spec: MethodSpec) -> None:
        """Raise for a k that was not calibrated, and for options that a table does not allow."""
        for table in self._tables_of(spec):
            for k in self._ks_of(spec):
                try:
                    self.method(spec, table, k)
                except TopThetaValueError as error:
                    if table is None:
                        raise
                    raise error.located(f"for {spec.text} with table {table}") from error

    def _tables_of(self, spec: MethodSpec) -> tuple[str | None, ...]:
        return tuple(self.tables) if spec.kind.needs_table else (None,)

    def _ks_of(self, spec: MethodSpec) -> tuple[int | None, ...]:
        return self.ks if spec.kind.has_k else (None,)

    def method(self, spec: MethodSpec, table: str | None, k: int | None) -> Method:
        """Make the method of a point."""
        thresholds = None if table is None else self.tables[table]
        made = spec.make(k, thresholds, None if k is None else self.layer_targets(k))
        if self.cache_of is None or spec.kind is DENSE:
            return made
        return replace(made, cache_of=partial(self.cache_of, thresholds))

    def points(self, task: str) -> Iterator[tuple[Point, MethodSpec]]:
        """Yield the points of one task."""
        for spec in self.methods:
            for k in self._ks_of(spec):
                for table in self._tables_of(spec):
                    yield self._point(task, spec, table, k), spec

    def missing(self, measured: Container[Point]) -> list[tuple[Point, MethodSpec]]:
        """List the points of all tasks that are not among the measured ones."""
        return [pair for task in self.tasks for pair in self.points(task) if pair[0] not in measured]

    def _point(self, task: str, spec: MethodSpec, table: str | None, k: int | None) -> Point:
        placement, first = None, None
        if table is not None:
            placement = self.tables[table].placement
        elif k is not None:
            first = ", ".join(map(str, self.layer_targets(k)[:DENSER_LAYERS]))
        return Point(task, spec.text, spec.label_with(placement), table, k, first)

    def layer_targets(self, k: int) -> list[int]:
        """Return the k of each layer: at least the first table's layer_k, or 512 in the first two without a table."""
        table = next(iter(self.tables.values()), None)
        layer_k = default_layer_k(self.layers) if table is None else table.layer_k
        return [max(k, least) for least in layer_k]


def sweep(
    plan: Plan, tasks: Mapping[str, MakeTask], model: PreTrainedModel, results: ResultsFile,
    progress: Callable[[Point, int], None] = lambda point, done: None,
) -> Iterator[tuple[Point, Measurement]]:  # fmt: skip
    """Measure the points that a file of results lacks, task by task, and finally sort the file as in the plan.

    Args:
        plan: the points to measure.
        tasks: makes each task by name, once a point of it is missing.
        model: the model, in evaluation mode.
        results: the open file. A point is written as soon as it is measured, and then yielded.
        progress: called with a point and the number of its finished samples.

    Warns:
        SdcWithoutVmcWarning: a method of the plan has exact SDC without VMC.
    """
    for spec in plan.methods:
        warn_of_sdc_without_vmc(spec.compensation.sdc, spec.compensation.vmc)
    missing = plan.missing(results.measurements)
    for name in plan.tasks:
        if points := [pair for pair in missing if pair[0].task == name]:
            task = tasks[name](model)
        for point, spec in points:
            found = task.measure(plan.method(spec, point.table, point.k), model, partial(progress, point))
            results.add(point, found)
            yield point, found
    results.sort(point for task in plan.tasks for point, _ in plan.points(task))


def table_digest(table: ThresholdTable) -> str:
    """Compute a SHA-256 digest of a table's effect on scores; its origin does not matter."""
    digest = hashlib.sha256(f"{table.placement} {list(table.layer_k)}".encode())
    for tensor in (table.k, table.lengths, table.theta, table.discarded_mass):
        if tensor is not None:
            digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()
