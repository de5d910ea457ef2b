"""Results as tables for people and JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table as RichTable

from .clocks import Timing
from .inputs import make_traffic
from .measure import Row, ShapeResult
from .shapes import Shape, parse_shape

#: Cold gain over the best SDPA that the PyTorch path was to reach on a CPU: heads, n, dtype, with k = 128.
GOALS = {
    ("48/48", 2048, "float32"): 2.2,
    ("48/48", 2048, "bfloat16"): 4.5,
    ("32/8", 8192, "float32"): 1.1,
    ("32/8", 8192, "bfloat16"): 1.5,
}
_SHORT = {"float16": "f16", "bfloat16": "bf16", "float32": "f32"}
_COMMON = ("shape", "cache", "best dense", "θ=-inf", "top-θ", "+SDC+VMC", "top-k")
_RATIOS = ("own gain", "bound", "share", "V rows", "k̃/k")
CAPTION = (
    "θ=-inf, top-θ, +SDC+VMC, top-k, fallback: times as fast as the best dense row in the same rounds.\n"
    "own gain: top-θ over itself at θ=-inf. V rows: share that is needed. bound: 2/(1 + that share), the most that "
    "fewer bytes allow.\nshare: of that bound, above 100 % where θ=-inf is not held up by bytes. k̃/k: kept over asked "
    "for. scores: share of top-θ\nthat the product of query and K takes. limit: K and the V rows needed, moved at the "
    "rate of the floor, over the best dense row."
)


@dataclass(frozen=True)
class Table:
    """A table for the terminal and for a page; cells may be Markdown's bold or code."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""

    def as_rich(self) -> RichTable:
        table = RichTable(title=self.title, box=SIMPLE_HEAD, title_justify="left", caption=self.caption or None,
                          caption_justify="left", padding=(0, 1))  # fmt: skip
        for number, column in enumerate(self.columns):
            table.add_column(column, justify="right" if number else "left", no_wrap=number > 0)
        for row in self.rows:
            table.add_row(*(cell.strip("*`") for cell in row))
        return table

    def as_markdown(self) -> str:
        lines = [self.columns, ["---"] + ["---:"] * (len(self.columns) - 1), *self.rows]
        return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


def summary(results: Sequence[ShapeResult], device: str) -> Table:
    """One line per shape and cache state, ratios only."""
    extra = {"cpu": ("scores", "limit", "goal", "met"), "npu": ("fallback", "limit")}.get(device, ("limit",))
    rows = []
    for result in results:
        for cache in _caches(result):
            cells = {**_shape_cells(result, cache), **_ratio_cells(result, cache), **_goal_cells(result, cache)}
            rows.append([cells[column] for column in (*_COMMON, *_RATIOS, *extra)])
    return Table("Speed of a decode step", (*_COMMON, *_RATIOS, *extra), rows, CAPTION)


def _caches(result: ShapeResult) -> list[str]:
    return list(dict.fromkeys(cache for row in result.rows for cache in row.calls))


def _shape_cells(result: ShapeResult, cache: str) -> dict[str, str]:
    shape, base = result.shape, result.baseline(cache)
    return {
        "shape": short_name(shape),
        "cache": cache,
        "best dense": base.name if base else "",
        "k̃/k": f"{result.kept / shape.k:.3f}",
    }


def short_name(shape: Shape) -> str:
    """Such as "32/8 n=8192 k=512 bf16, batch 4, paged"."""
    parts = [f"{shape.heads} n={shape.n} k={shape.k} {_SHORT[shape.dtype]}"]
    parts += [f"head_dim {shape.head_dim}"] if shape.head_dim != 128 else []
    parts += [f"batch {shape.batch}"] if shape.batch > 1 else []
    parts += ["paged"] if shape.block_size else []
    return ", ".join(parts)


def _ratio_cells(result: ShapeResult, cache: str) -> dict[str, str]:
    own, share = result.gain("sparse", cache, over="own dense"), result.bound_share(cache)
    return {
        "θ=-inf": _ratio(result.gain("own dense", cache)),
        "top-θ": _ratio(result.gain("sparse", cache)),
        "+SDC+VMC": _ratio(result.gain("compensated", cache)),
        "top-k": _ratio(result.gain("top-k", cache)),
        "fallback": _ratio(result.gain("fallback", cache)),
        "own gain": _ratio(own),
        "bound": _ratio(result.traffic.bound if result.traffic else None),
        "share": f"{share:.0%}" if share else "",
        "V rows": f"{result.traffic.density:.3f}" if result.traffic else "",
    }


def _goal_cells(result: ShapeResult, cache: str) -> dict[str, str]:
    scores, gain = result.gain("sparse", cache, over="part"), result.gain("sparse", cache)
    goal = goal_of(result.shape) if cache == "cold" else None
    return {
        # gain is the time of the scores over that of the whole step
        "scores": f"{scores:.0%}" if scores else "",
        "limit": _ratio(result.limit(cache)),
        "goal": f"{goal:.1f}" if goal else "",
        "met": "" if goal is None or gain is None else "yes" if gain >= goal else "no",
    }


def goal_of(shape: Shape) -> float | None:
    """The goal of a shape on a CPU, or None."""
    asked = (shape.batch, shape.k, shape.head_dim, shape.block_size) == (1, 128, 128, 0)
    return GOALS.get((shape.heads, shape.n, shape.dtype)) if asked else None


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def details(result: ShapeResult) -> Table:
    """All rows of a shape with their spread, and why a row is missing."""
    caches = _caches(result)
    tasks = any(row.tasks for row in result.rows)
    columns = ["", "error"]
    for cache in caches:
        columns += [f"{cache}, µs", "p10 to p90", *(["task, µs"] if tasks else []), "ratio", "of floor"]
    rows = [[row.name, *_detail_cells(result, row, caches, tasks)] for row in result.rows]
    return Table(str(result.shape), columns, rows, "\n".join(notes(result)))


def _detail_cells(result: ShapeResult, row: Row, caches: Sequence[str], tasks: bool) -> Iterator[str]:
    yield "" if row.error is None else f"{row.error:.1e}"
    for cache in caches:
        timing, task, base = row.calls.get(cache), row.tasks.get(cache), result.baseline(cache)
        share = result.roofline_share(row, cache)
        yield "-" if timing is None else f"{1e6 * timing.median:.1f}"
        yield "" if timing is None else f"{1e6 * timing.p10:.1f} to {1e6 * timing.p90:.1f}"
        if tasks:
            yield "" if task is None else f"{1e6 * task.median:.1f}"
        yield _ratio(row.over(base, cache) if base else None)
        yield f"{share:.0%}" if share else ""


def notes(result: ShapeResult) -> list[str]:
    """What a reader must know besides the figures."""
    missing = [f"{row.name}: not run: {row.missing}" for row in result.rows if row.missing]
    read = []
    if result.traffic is not None:
        mib = [count / 2**20 for count in (result.traffic.key_bytes, result.traffic.value_bytes)]
        read = [
            f"{result.kept:.1f} kept per head; reads {mib[0]:.2f} MiB of K, needs {mib[1]:.2f} MiB of V "
            f"({result.traffic.density:.1%} of its rows); {result.copies} copies of the cache"
        ]
    template = [f"npu_incre_flash_attention: {result.template}"] if result.template else []
    return [*read, *template, *missing]


def as_json(
    results: Sequence[ShapeResult], environment: Mapping[str, object], settings: Mapping[str, object], device: str
) -> str:
    """Everything, for `from_json`. On a CPU times are relative to the best dense row of the shape and cache state."""
    relative = device == "cpu"
    return json.dumps(
        {
            "unit": "time of the best dense row, same shape and cache" if relative else "seconds",
            "settings": dict(settings),
            "environment": dict(environment),
            "results": [_result_as_json(result, relative) for result in results],
        },
        indent=1,
        default=str,
    )


def _result_as_json(result: ShapeResult, relative: bool) -> dict[str, Any]:
    caches = _caches(result)
    units = {cache: _unit(result, cache) if relative else 1.0 for cache in caches}
    return {
        "shape": str(result.shape),
        "skipped": result.skipped,
        "kept": result.kept,
        "copies": result.copies,
        "traffic": result.traffic and result.traffic._asdict(),
        "template": result.template,
        "gains": {cache: _gains(result, cache) for cache in caches},
        "rows": [
            asdict(row)
            | {
                name: {cache: _in_units(timing, units[cache]) for cache, timing in timings.items()}
                for name, timings in (("calls", row.calls), ("tasks", row.tasks))
            }
            for row in result.rows
        ],
    }


def _unit(result: ShapeResult, cache: str) -> float:
    base = result.baseline(cache)
    return base.calls[cache].median if base and cache in base.calls else 1.0


def _in_units(timing: Timing, unit: float) -> dict[str, float]:
    return {name: value / unit for name, value in timing._asdict().items()}


def _gains(result: ShapeResult, cache: str) -> dict[str, object]:
    base = result.baseline(cache)
    return {
        "best_dense": base and base.name,
        **{role: result.gain(role, cache) for role in ("own dense", "sparse", "compensated", "top-k", "fallback")},
        "over_own_dense": result.gain("sparse", cache, over="own dense"),
        "bound_share": result.bound_share(cache),
        "limit": result.limit(cache),
    }


def from_json(text: str) -> list[ShapeResult]:
    """The results that `as_json` wrote; times in its unit, so that all ratios are as measured."""

    def row(stored: Mapping[str, Any]) -> Row:
        timings = [{cache: Timing(**timing) for cache, timing in stored[name].items()} for name in ("calls", "tasks")]
        return Row(stored["name"], stored["role"], stored["missing"], stored["error"], *timings)

    results = []
    for stored in json.loads(text)["results"]:
        shape = parse_shape(stored["shape"])
        traffic = stored["traffic"] and make_traffic(shape, stored["traffic"]["value_bytes"] // shape.row_bytes)
        rows = [row(each) for each in stored["rows"]]
        results.append(
            ShapeResult(shape, stored["skipped"], stored["kept"], stored["copies"], traffic, stored["template"], rows)
        )
    return results
