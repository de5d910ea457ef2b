"""Plans the points of an evaluation, every method at every k on every task, and measures them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, as_completed
from dataclasses import dataclass

from transformers import PreTrainedModel

from .._warnings import warn_of_sdc_without_vmc
from ..calibration.settings import default_layer_k
from ..errors import TopThetaValueError
from ..thresholds import ThresholdTable
from .measurement import Measurement, Task
from .methods.method import DENSER_LAYERS, Method
from .methods.spec import MethodSpec, make_method
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

    Raises:
        TopThetaValueError: a method needs a table or a k, and there is none.
    """

    tasks: tuple[str, ...]
    methods: tuple[MethodSpec, ...]
    ks: tuple[int, ...]
    tables: Mapping[str, ThresholdTable]
    layers: int

    def __post_init__(self) -> None:
        for spec in self.methods:
            if spec.needs_table and not self.tables:
                raise TopThetaValueError(
                    "TABLE", f"thresholds for {spec.text}", "none", "toptheta calibrate makes some"
                )
            if spec.has_k and not self.ks:
                raise TopThetaValueError("--k", f"at least one number, for {spec.text}", "none")
            self._check_options(spec)

    def _check_options(self, spec: MethodSpec) -> None:
        """Raises for a k that was not calibrated, and for options that a table does not allow."""
        for table in self._tables_of(spec):
            for k in self._ks_of(spec):
                self.method(spec, table, k)

    def _tables_of(self, spec: MethodSpec) -> tuple[str | None, ...]:
        return tuple(self.tables) if spec.needs_table else (None,)

    def _ks_of(self, spec: MethodSpec) -> tuple[int | None, ...]:
        return self.ks if spec.has_k else (None,)

    def method(self, spec: MethodSpec, table: str | None, k: int | None) -> Method:
        """Make the method of a point."""
        thresholds = None if table is None else self.tables[table]
        return make_method(spec, k, thresholds, None if k is None else self.layer_targets(k))

    def points(self, task: str) -> Iterator[tuple[Point, MethodSpec]]:
        """Yield the points of one task."""
        for spec in self.methods:
            for k in self._ks_of(spec):
                for table in self._tables_of(spec):
                    yield self._point(task, spec, table, k), spec

    def _point(self, task: str, spec: MethodSpec, table: str | None, k: int | None) -> Point:
        placement, first = None, None
        if table is not None:
            placement = self.tables[table].placement
        elif k is not None:
            first = ", ".join(map(str, self.layer_targets(k)[:DENSER_LAYERS]))
        return Point(task, spec.text, spec.label_with(placement), table, k, first)

    def layer_targets(self, k: int) -> list[int]:
        """Give the k of each layer: at least what the first table has there, else 512 in the first two."""
        table = next(iter(self.tables.values()), None)
        layer_k = default_layer_k(self.layers) if table is None else table.layer_k
        return [max(k, least) for least in layer_k]


class Sweep:
    """Measure the points of a plan that a file of results lacks.

    Args:
        plan: what is compared.
        tasks: what makes each task of the plan from a model; called only if some of its points are missing.
        workers: run the points, one each at a time.
        results: open; a point is in the file as soon as it is measured.
        progress: called, in the threads, with a point and how many of its samples are finished.

    Warns:
        SdcWithoutVmcWarning: a method of the plan has exact SDC without VMC.
    """

    def __init__(
        self, plan: Plan, tasks: Mapping[str, MakeTask], workers: ModelWorkers,
        results: ResultsFile, progress: Callable[[Point, int], None] = lambda point, done: None,
    ) -> None:  # fmt: skip
        for spec in plan.methods:
            warn_of_sdc_without_vmc(spec.compensation.sdc, spec.compensation.vmc)
        self._plan = plan
        self._tasks = tasks
        self._workers = workers
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
            futures[point] = self._workers.submit(self._work(point, spec, task))
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

    def _work(self, point: Point, spec: MethodSpec, task: Future[Task]) -> Callable[[PreTrainedModel], Measurement]:
        method = self._plan.method(spec, point.table, point.k)

        def progress(done: int) -> None:
            self._workers.check()
            self._progress(point, done)

        def measure(model: PreTrainedModel) -> Measurement:
            return task.result().measure(method, model, progress)

        return measure


def table_digest(table: ThresholdTable) -> str:
    """Digest what a table makes of scores, by SHA-256; where it comes from does not matter."""
    digest = hashlib.sha256(f"{table.placement} {list(table.layer_k)}".encode())
    for tensor in (table.k, table.lengths, table.theta, table.discarded_mass):
        if tensor is not None:
            digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()
