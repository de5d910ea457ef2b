"""The tables of the study, from the results that were written last."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks.evaluation_study import masses
from benchmarks.evaluation_study.commands import EQUAL_POST, EQUAL_PRE, SHIPPED, WITH_MASS
from benchmarks.tables import Goal
from toptheta_npu._tables import Table
from toptheta_npu.evaluation.measurement import Measurement
from toptheta_npu.evaluation.results import Point, read_results
from toptheta_npu.evaluation.summary import change, key_value_share, score

Points = Mapping[Point, Measurement]
#: So many times fewer V rows than dense attention at least, and at most so many points of right answers less.
FEWER, POINTS = 8.0, 2.0
PLAIN = "top-theta:sdc=none"
#: What Top-θ is compared with directly.
RIVALS = ("top-k", "pages", "blasst")
#: The file of the discarded masses among the results.
MASSES = "masses.json"


def all_tables(folder: Path) -> dict[str, Table]:
    """Make every table, by its name."""
    perplexity, retrieval, language = (
        read_results(folder / f"{name}.jsonl").measurements for name in ("perplexity", "retrieval", "lm_eval")
    )
    return {
        "study tradeoff": tradeoff(perplexity),
        "study pairs": pairs(perplexity),
        "study compensations": compensations(perplexity),
        "study masses": masses.as_table(folder / MASSES),
        "study layers": first_layers(perplexity),
        "study union": union(perplexity),
        "study retrieval": answers(retrieval),
        "study lm-eval": answers(language),
    }


def dense_of(points: Points, task: str) -> Measurement:
    """Find what the others of a task are compared with: dense attention."""
    return next(found for point, found in points.items() if (point.task, point.method) == (task, "dense"))


def tradeoff(points: Points) -> Table:
    """Tabulate perplexity against what is read, of the methods as they are meant to be used."""
    rows = [
        [point.label, _k(point), *_figures(found, dense_of(points, point.task)), _ratio(point, found)]
        for point, found in points.items() if _is_compared(point)
    ]  # fmt: skip
    columns = ("method", "k", "perplexity against dense", "V rows: mean / p95 / max", "K+V", "k̃/k")
    return Table("Perplexity against what is read", columns, rows)


def pairs(points: Points) -> Table:
    """Compare Top-θ with its rivals themselves, window by window."""
    labels = {point.method: point.label for point in points}
    rows = []
    for point, found in points.items():
        if point.method == "top-theta" and point.table in SHIPPED:
            rivals = [_found(points, method, None, point.k) for method in RIVALS]
            changes = ["" if rival is None else str(change(found, rival)) for rival in rivals]
            rows.append([point.label, _k(point), *changes])
    columns = ("method", "k", *(f"against {labels[method]}" for method in RIVALS))
    return Table("Perplexity against that of rivals", columns, rows)


def compensations(points: Points) -> Table:
    """Tabulate SDC x VMC, at the smallest k."""
    k = min(point.k for point in points if point.k)

    def cell(method: str, table: str | None) -> str:
        found = _found(points, method, table, k)
        return "" if found is None else str(change(found, dense_of(points, "perplexity")))

    def theta(sdc: str) -> list[str]:
        return [cell(_method("top-theta", sdc, vmc), WITH_MASS) for vmc in (False, True)]

    rows = [
        ["Top-θ pre", "none", cell(PLAIN, WITH_MASS), ""],
        *(["Top-θ pre", name, *theta(sdc)] for sdc, name in (
            ("offline", "offline, geometric mean"), ("exp_threshold", "exp-threshold, gamma 0.05"), ("exact", "exact"),
        )),
        ["Top-θ post", "exact by construction", cell("top-theta:vmc=false", SHIPPED[1]), cell("top-theta", SHIPPED[1])],
        ["Top-k", "none", cell("top-k:sdc=none", None), ""],
        ["Top-k", "exact", cell("top-k:vmc=false", None), cell("top-k", None)],
    ]  # fmt: skip
    return Table(f"Compensations, k = {k}", ("method", "SDC", "without VMC", "with VMC"), rows)


def first_layers(points: Points) -> Table:
    """Compare denser first layers with an equal k in all layers, without compensation."""
    dense = dense_of(points, "perplexity")
    pairs = (
        ("Top-θ pre", (PLAIN, SHIPPED[0]), (PLAIN, EQUAL_PRE)),
        ("Top-θ post", ("top-theta:vmc=false", SHIPPED[1]), ("top-theta:vmc=false", EQUAL_POST)),
        ("Top-k", ("top-k:sdc=none", None), ("top-k:sdc=none,layer_k=equal", None)),
    )
    rows = []
    for name, *ways in pairs:
        for k in sorted({point.k for point in points if point.k and _found(points, *ways[1], point.k)}):
            found = [_found(points, *way, k) for way in ways]
            cells = [str(change(each, dense)) if each else "" for each in found]
            reads = [f"{each.reads_all.value_rows_mean:.0f}" if each else "" for each in found]
            rows.append([name, str(k), *cells, *reads])
    columns = ("method", "k", "denser first two", "equal", "V rows, all layers: denser", "equal")
    return Table("Perplexity without compensation", columns, rows)


def union(points: Points) -> Table:
    """Compare heads that use their own selection with heads that use that of their KV group."""
    dense, rows = dense_of(points, "perplexity"), []
    for point, found in points.items():
        if point.method.endswith("selection=union"):
            own = _found(points, point.method.partition(":")[0], point.table, point.k)
            for name, each in (("own", own), ("union", found)):
                if each is not None:
                    label = point.label.partition(", group")[0]
                    rows.append([label, _k(point), name, *_figures(each, dense)[:2], f"{each.reads.kept_mean:.0f}"])
    return Table("Selections", ("method", "k", "selection", "perplexity against dense", "V rows", "kept"), rows)


def answers(points: Points) -> Table:
    """Tabulate right answers with the 95 % interval of the difference."""
    rows = []
    for point, found in points.items():
        dense = dense_of(points, point.task)
        difference = change(found, dense)
        low, high = difference.interval or (0.0, 0.0)
        apart = "" if found is dense else f"{difference.value:+.1f} ({low:+.1f} to {high:+.1f})"
        reads = found.reads
        rows.append([
            point.task, point.label, _k(point), score(found), apart,
            f"{reads.value_rows_mean:.0f} of {reads.keys_mean:.0f}", f"{reads.value_row_saving:.1f}x", _share(found),
        ])  # fmt: skip
    columns = ("task", "method", "k", "right", "points to dense (95 %)", "V rows", "fewer", "K+V")
    return Table("Right answers", columns, rows)


def goals(perplexity: Points, retrieval: Points) -> list[Goal]:
    """List what the study is to show."""
    tasks = dict.fromkeys(point.task for point in retrieval)
    prompts = sum(len(dense_of(retrieval, task).scores) for task in tasks)
    lowest = [
        (change(found, dense_of(retrieval, point.task)).interval or (0.0, 0.0))[0]
        for point, found in retrieval.items()
        if point.method == "top-theta" and found.reads.value_row_saving >= FEWER
    ]  # fmt: skip
    title = f"points to dense, lower end of the 95 % interval, Top-θ with {FEWER:g} times fewer V rows"
    return [
        Goal("methods on perplexity", len(perplexity), 60),
        Goal("windows", len(dense_of(perplexity, "perplexity").scores), 32, at_most=False),
        Goal("prompts of retrieval", prompts, 400, at_most=False),
        Goal(title, min(lowest, default=-100.0), -POINTS, at_most=False),
    ]  # fmt: skip


def _is_compared(point: Point) -> bool:
    return ":" not in point.method and point.table in (None, *SHIPPED)


def _found(points: Points, method: str, table: str | None, k: int | None) -> Measurement | None:
    return next(
        (found for point, found in points.items() if (point.method, point.table, point.k) == (method, table, k)), None
    )


def _method(name: str, sdc: str, vmc: bool) -> str:
    """Name a method as a point does. Options that are the defaults are left out."""
    options = ([] if sdc == "exact" else [f"sdc={sdc}"]) + ([] if vmc else ["vmc=false"])
    return f"{name}:{','.join(options)}" if options else name


def _figures(found: Measurement, dense: Measurement) -> list[str]:
    reads = found.reads
    spread = f"{reads.value_rows_mean:.0f} / {reads.value_rows_p95:.0f} / {reads.value_rows_max:.0f}"
    return ["" if found is dense else str(change(found, dense)), spread, _share(found)]


def _share(found: Measurement) -> str:
    share = key_value_share(found)
    return "" if share is None else f"{100 * share:.0f} %"


def _ratio(point: Point, found: Measurement) -> str:
    return f"{found.reads.kept_mean / point.k:.2f}" if found.spread and point.k else ""


def _k(point: Point) -> str:
    return "" if point.k is None else str(point.k)
