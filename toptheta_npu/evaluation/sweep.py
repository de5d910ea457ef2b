"""Plans the points of an evaluation, every method at every k on every task, and measures them.

A method without a k of its own, such as a window of the last keys, is matched to what Top-θ reads: its point waits for
that of the first Top-θ method with the first table, at the same k and on the same task.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, as_completed
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from .._warnings import warn_of_sdc_without_vmc
from ..calibration.settings import default_layer_k
from ..errors import TopThetaValueError
from ..thresholds import ThresholdTable
from .measurement import Measurement, Task
from .methods.method import DENSER_LAYERS, Method
from .methods.spec import MethodSpec, make_method, matched_method
from .results import Point, ResultsFile
from .workers import ModelWorkers

MakeTask = Callable[[PreTrainedModel], Task]


@dataclass(frozen=True)
class Plan:
    """Say what is compared with what.

    Attributes:
        tasks: their names.
        methods: in the order of the tables; dense is always among them, as the one to compare with.
        ks: elements to keep.
        tables: thresholds by name; the first one gives methods without thresholds the least k of their layers.
        layers: of the model.
        only: of methods by their text, the name of the one table that they are measured with; others are with all.

    Raises:
        TopThetaValueError: a method needs a table or a k, and there is none; or there is nothing to match it to.
    """

    tasks: tuple[str, ...]
    methods: tuple[MethodSpec, ...]
    ks: tuple[int, ...]
    tables: Mapping[str, ThresholdTable]
    layers: int
    only: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for spec in self.methods:
            if spec.needs_table and not self.tables:
                raise TopThetaValueError(
                    "TABLE", f"thresholds for {spec.text}", "none", "toptheta calibrate makes some"
                )
            if spec.has_k and not self.ks:
                raise TopThetaValueError("--k", f"at least one number, for {spec.text}", "none")
            if spec.is_matched and self.reference is None:
                remedy = "add --method top-theta and a TABLE"
                raise TopThetaValueError("--method", f"a Top-θ method to match {spec.text} to", "none", remedy)
            self._check_options(spec)

    def _check_options(self, spec: MethodSpec) -> None:
        """Raises for a k that was not calibrated, and for options that a table does not allow."""
        for table in map(self.tables.__getitem__, self._tables_of(spec)):
            for k in self.ks if spec.has_k else (None,):
                make_method(spec, k, table, self.layer_targets(k) if k is None else table.layer_targets(k))

    def _tables_of(self, spec: MethodSpec) -> tuple[str, ...]:
        if not spec.needs_table:
            return ()
        return (self.only[spec.text],) if spec.text in self.only else tuple(self.tables)

    @property
    def reference(self) -> MethodSpec | None:
        """The method that others are matched to."""
        return next((spec for spec in self.methods if spec.kind.needs_table and spec.has_k), None)

    def points(self, task: str) -> Iterator[tuple[Point, MethodSpec]]:
        """Yield the points of one task; what is matched comes after what it is matched to."""
        later = []
        for spec in self.methods:
            for k in self.ks if spec.has_k else (None,):
                for table in self._tables_of(spec) or (None,):
                    pair = self.point(task, spec, table, k), spec
                    if spec.is_matched:
                        later.append(pair)
                    else:
                        yield pair
        yield from later

    def point(self, task: str, spec: MethodSpec, table: str | None, k: int | None) -> Point:
        """Make one of them."""
        matched_to = None
        if spec.is_matched and self.reference is not None:
            matched_to = f"{self.reference.text}, {next(iter(self.tables))}"
        placement, first = None, None
        if table is not None:
            placement = self.tables[table].placement
        elif spec.name != "dense":
            first = ", ".join(map(str, self.layer_targets(k)[:DENSER_LAYERS]))
        return Point(task, spec.text, spec.label_with(placement), table, k, matched_to, first)

    def layer_targets(self, k: int | None) -> list[int]:
        """Give the k of each layer: at least what the first table has there, else 512 in the first two."""
        wanted = k if k is not None else min(self.ks, default=0)
        table = next(iter(self.tables.values()), None)
        layer_k = default_layer_k(self.layers) if table is None else table.layer_k
        return [max(wanted, least) for least in layer_k]

    def reference_point(self, task: str, k: int | None) -> Point:
        """Find what the matched points of a task are matched to at one k."""
        assert self.reference is not None
        return self.point(task, self.reference, next(iter(self.tables)), k)


class Sweep:
    """Measure the points of a plan that a file of results lacks.

    Args:
        plan: what is compared.
        tasks: what makes each task of the plan from a model; called only if some of its points are missing.
        workers: run the points, one each at a time.
        calibration_windows: gives int64 [W, T] tokens of text that no task scores, to methods that calibrate by
            themselves.
        results: open; a point is in the file as soon as it is measured.
        progress: called, in the threads, with a point and how many of its samples are finished.

    Warns:
        SdcWithoutVmcWarning: a method of the plan has exact SDC without VMC.
    """

    def __init__(
        self, plan: Plan, tasks: Mapping[str, MakeTask], workers: ModelWorkers,
        calibration_windows: Callable[[], Tensor], results: ResultsFile,
        progress: Callable[[Point, int], None] = lambda point, done: None,
    ) -> None:  # fmt: skip
        for spec in plan.methods:
            warn_of_sdc_without_vmc(spec.compensation.sdc, spec.compensation.vmc)
        self._plan = plan
        self._tasks = tasks
        self._workers = workers
        self._windows = calibration_windows
        self._results = results
        self._progress = progress

    def missing(self) -> list[Point]:
        """List the points that are not in the file yet."""
        return [
            point for task in self._plan.tasks for point, _ in self._plan.points(task)
            if point not in self._results.measurements
        ]  # fmt: skip

    def run(self) -> Iterator[tuple[Point, Measurement]]:
        """Yield the missing points as they come, task after task; in the end the file is in the order of the plan."""
        for task in self._plan.tasks:
            yield from self._run_task(task)
        self._results.sort(point for task in self._plan.tasks for point, _ in self._plan.points(task))

    def _run_task(self, name: str) -> Iterator[tuple[Point, Measurement]]:
        points = [pair for pair in self._plan.points(name) if pair[0] not in self._results.measurements]
        if not points:
            return
        task = self._workers.submit(self._tasks[name])
        futures: dict[Point, Future[Measurement]] = {}
        for point, spec in points:
            futures[point] = self._workers.submit(self._work(point, spec, task, dict(futures)))
        of_future = {future: point for point, future in futures.items()}
        try:
            for future in as_completed(of_future):
                point, measurement = of_future[future], future.result()
                self._results.add(point, measurement)
                yield point, measurement
        except BaseException:
            self._keep_finished(futures)
            raise

    def _keep_finished(self, futures: Mapping[Point, Future[Measurement]]) -> None:
        """Keep what is finished: an error in one point, or an interrupt, does not cost another."""
        for point, future in futures.items():
            done = future.done() and not future.cancelled() and future.exception() is None
            if done and point not in self._results.measurements:
                self._results.add(point, future.result())

    def _work(
        self, point: Point, spec: MethodSpec, task: Future[Task], before: Mapping[Point, Future[Measurement]]
    ) -> Callable[[PreTrainedModel], Measurement]:
        def progress(done: int) -> None:
            self._workers.check()
            self._progress(point, done)

        def measure(model: PreTrainedModel) -> Measurement:
            method = self._method(point, spec, before, model)
            measurement = task.result().measure(method, model, progress)
            if not method.settings:
                return measurement
            return replace(measurement, details={**measurement.details, "settings": dict(method.settings)})

        return measure

    def _method(
        self, point: Point, spec: MethodSpec, before: Mapping[Point, Future[Measurement]], model: PreTrainedModel
    ) -> Method:
        layer_targets = self._plan.layer_targets(point.k)
        if spec.is_matched:
            reference = self._plan.reference_point(point.task, point.k)
            known = self._results.measurements.get(reference) or before[reference].result()
            assert point.k is not None
            # text is read, and has to be there, for those alone that look at it
            windows = self._windows() if spec.calibrates else torch.empty(0, 0, dtype=torch.long, device="cpu")
            return matched_method(spec, point.k, known.reads, model, windows, layer_targets)
        table = None if point.table is None else self._plan.tables[point.table]
        return make_method(spec, point.k, table, layer_targets)


def table_digest(table: ThresholdTable) -> str:
    """Digest what a table makes of scores, by SHA-256; where it comes from does not matter."""
    digest = hashlib.sha256(f"{table.placement} {list(table.layer_k)}".encode())
    for tensor in (table.k, table.lengths, table.theta, table.discarded_mass):
        if tensor is not None:
            digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()
