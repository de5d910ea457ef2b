"""Draws the figures of an evaluation from its files of results. It needs the extra ``plot``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ..._outputs import Drawing, require_matplotlib, save_figures
from ...errors import TopThetaValueError, nearest
from ..measurement import Measurement
from ..methods.names import parse_method
from ..results import Point, Results
from ..summary import has_finite_score
from .reads import draw_kept, draw_kept_over_target, draw_traffic
from .scores import draw_ablation, draw_prompts, draw_tradeoff
from .style import Measured


def joined(results: Mapping[str, Results]) -> dict[Point, Measurement]:
    """Join the points of several files of one model.

    Args:
        results: by the name of the file.

    Raises:
        TopThetaValueError: the files are of different models, or a task has other settings or a point other scores in
            one of them.
    """
    first_name, first = next(iter(results.items()))
    points: dict[Point, Measurement] = {}
    settings: dict[str, object] = {}
    digests: dict[str, str] = {}
    for name, each in results.items():
        if each.header.fingerprint != first.header.fingerprint:
            raise TopThetaValueError(
                "FILE", f"results of {first.header.model}, as {first_name} has", f"{name} of {each.header.model}",
                "plot each model into a folder of its own",
            )  # fmt: skip
        for table, digest in each.header.tables.items():
            if digests.setdefault(table, digest) != digest:
                raise TopThetaValueError(
                    "FILE", f"the same thresholds {table} in all files", f"others in {name}",
                    "plot the files into folders of their own",
                )  # fmt: skip
        for task in each.tasks:
            if settings.setdefault(task, each.header.settings.get(task)) != each.header.settings.get(task):
                raise TopThetaValueError(
                    "FILE", f"{task} with the same settings in all files", f"other settings in {name}",
                    "plot the files into folders of their own",
                )  # fmt: skip
        for point, measurement in each.measurements.items():
            if points.setdefault(point, measurement).scores != measurement.scores:
                raise TopThetaValueError(
                    "FILE", f"one result for {point.name}", f"another in {name}", "plot one of the files"
                )
    return points


def chosen(
    points: Mapping[Point, Measurement], methods: Sequence[str], tables: Sequence[str]
) -> dict[Point, Measurement]:
    """Choose dense, and the points of some methods with some tables; all of them where none is named.

    Raises:
        TopThetaValueError: no point has one of the methods or tables.
    """
    texts = {parse_method(method).text for method in methods}
    for option, wanted, known in (
        ("--method", texts, {point.method for point in points}),
        ("--table", set(tables), {point.table for point in points if point.table}),
    ):
        for name in sorted(wanted - known):
            expected = f"one of {', '.join(sorted(known)) or 'none'}, which were measured"
            raise TopThetaValueError(option, expected, name, nearest(name, known) if known else None)

    def is_chosen(point: Point) -> bool:
        by_method = not texts or point.method in texts
        return point.method == "dense" or (by_method and (not tables or point.table in (None, *tables)))

    return {point: measurement for point, measurement in points.items() if is_chosen(point)}


def save_plots(points: Mapping[Point, Measurement], k: int | None, folder: Path) -> tuple[list[Path], list[str]]:
    """Draw what the points allow, each figure as PNG and SVG with its data as CSV.

    Args:
        points: of one model.
        k: of the figures that show one k; None: the middle one of each task.
        folder: where the files go.

    Returns:
        The files, and a sentence for each figure that the points do not allow.

    Raises:
        TopThetaValueError: there is no such k, or a file cannot be written.
    """
    require_matplotlib()
    if not points:
        raise TopThetaValueError("FILE", "at least one finished point", "none", "let toptheta evaluate finish one")
    known = sorted({point.k for point in points if point.k is not None})
    if k is not None and k not in known:
        raise TopThetaValueError("--k", f"one of {', '.join(map(str, known)) or 'none'}, which were measured", str(k))
    finite = {point: measurement for point, measurement in points.items() if has_finite_score(measurement)}
    files, left_out = save_figures(folder, _drawings(finite, k))
    return files, [
        *(f"{point.name} not drawn: its score is not finite." for point in points if point not in finite),
        *left_out,
    ]


def _drawings(points: Mapping[Point, Measurement], k: int | None) -> Iterator[Drawing]:
    for task in dict.fromkeys(point.task for point in points):
        of_task = [(point, measurement) for point, measurement in points.items() if point.task == task]
        shown = _shown_k(of_task) if k is None else k
        yield draw_tradeoff(task, of_task)
        yield draw_ablation(task, of_task)
        yield draw_prompts(task, of_task, shown)
        yield draw_traffic(task, of_task, shown)
        yield draw_kept_over_target(task, of_task, shown)
        yield draw_kept(task, of_task, shown)


def _shown_k(points: Sequence[Measured]) -> int | None:
    known = sorted({point.k for point, _ in points if point.k is not None})
    return known[(len(known) - 1) // 2] if known else None
