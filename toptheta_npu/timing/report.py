"""Results as tables for people and JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from .._tables import Table
from .contenders import Role
from .measure import Row, ShapeResult
from .shapes import Shape

_COMPARED: tuple[Role, ...] = ("own dense", "sparse", "compensated", "top-k", "fallback")
#: What Top-θ over an int8 cache is compared with, all of it our operator: what the column says, and the role.
_INT8_OVER: dict[str, Role] = {
    "θ=-inf": "own dense", "top-θ": "sparse", "θ=-inf in int8": "own dense int8",
}  # fmt: skip
_SHORT = {"float16": "f16", "bfloat16": "bf16", "float32": "f32"}
_RATIOS = ("own gain", "bound", "share", "V rows")
_ON_DEVICES = ("shape", "cache", "best dense", "θ=-inf", "top-θ", "+SDC+VMC", "top-k", *_RATIOS, "k̃/k")
_COLUMNS = {
    "cpu": ("shape", "cache", "best dense", "top-θ", "+SDC+VMC", "top-k", "fallback", "over SDPA", *_RATIOS,
            "θ=-inf rate", "top-θ rate", "stream, GB/s"),
    "npu": (*_ON_DEVICES, "fallback", "limit"),
    "cuda": (*_ON_DEVICES, "limit"),
}  # fmt: skip
#: Characters of a row of a JSON file, beyond which it takes several lines.
_LONGEST_LINE = 4000
CAPTION = (
    "θ=-inf, top-θ, +SDC+VMC, top-k, fallback: times as fast as the best dense row, θ=-inf among them, in the same "
    "rounds.\n"
    "own gain: top-θ over itself at θ=-inf. V rows: share that any head and token needs.\n"
    "bound: 2/(1 + that share), the most that fewer bytes allow. share: of that bound, above 100 % where θ=-inf is not "
    "held up by bytes."
)
_LIMIT = (
    " k̃/k: kept over asked for.\n"
    "limit: K and the V rows needed, moved at the rate of the floor, over the best dense row."
)
_CAPTIONS = {
    "cpu": " over SDPA: top-θ over the best form of SDPA.\nstream: the rate at which as many threads read K, as a sum "
    "of integers. rate: of the bytes that must be moved, over that of stream.",
    "npu": _LIMIT,
    "cuda": _LIMIT,
}


def summary(results: Sequence[ShapeResult], device: str) -> Table:
    """Tabulate the results, one line per shape and cache state."""
    columns = _COLUMNS[device]
    rows = []
    for result in results:
        for cache in _caches(result):
            cells = {**_shape_cells(result, cache), **_ratio_cells(result, cache), **_floor_cells(result, cache)}
            rows.append([cells[column] for column in columns])
    return Table("Speed of a decode step", columns, rows, CAPTION + _CAPTIONS[device], keys=2)


def int8_summary(results: Sequence[ShapeResult]) -> Table | None:
    """Tabulate Top-θ over int8 caches against our operator's other rows; None where no shape has such a cache."""
    columns = ("shape", "cache", *(part for name in _INT8_OVER for part in (f"over {name}", "bytes")), "rate")
    rows = [
        [short_name(result.shape), cache, *_int8_cells(result, cache)]
        for result in results
        if result.shape.cache
        for cache in _caches(result)
    ]
    caption = (
        "Times as fast as our operator over caches of the query's dtype at θ=-inf and with Top-θ, and over int8 "
        "at θ=-inf.\nbytes: how many times as many bytes that row must read, the most that int8 top-θ can gain. rate: "
        "as above."
    )
    return Table("Top-θ over int8 caches", columns, rows, caption, keys=2) if rows else None


def _int8_cells(result: ShapeResult, cache: str) -> Iterator[str]:
    row = result.fastest(cache, "sparse int8")
    for role in _INT8_OVER.values():
        other = result.fastest(cache, role)
        yield _ratio(result.gain("sparse int8", cache, role))
        yield _ratio(result.bytes_moved(other) / result.bytes_moved(row) if other and row else None)
    yield _percent(result.roofline_share(row, cache))


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
    """Name a shape in short, such as "32/8 n=8192 k=512 bf16, batch 4, paged"."""
    parts = [f"{shape.heads} n={shape.n} k={shape.k} {_SHORT[shape.dtype]}"]
    parts += [f"head_dim {shape.head_dim}"] if shape.head_dim != 128 else []
    parts += [f"batch {shape.batch}"] if shape.batch > 1 else []
    parts += ["paged"] if shape.block_size else []
    parts += [shape.cache] if shape.cache else []
    parts += [f"{shape.query_tokens} tokens"] if shape.query_tokens > 1 else []
    return ", ".join(parts)


def _ratio_cells(result: ShapeResult, cache: str) -> dict[str, str]:
    own, share = result.gain("sparse", cache, "own dense"), result.bound_share(cache)
    return {
        "θ=-inf": _ratio(result.gain("own dense", cache)),
        "top-θ": _ratio(result.gain("sparse", cache)),
        "+SDC+VMC": _ratio(result.gain("compensated", cache)),
        "top-k": _ratio(result.gain("top-k", cache)),
        "fallback": _ratio(result.gain("fallback", cache)),
        "own gain": _ratio(own),
        "bound": _ratio(result.traffic.bound if result.traffic else None),
        "share": _percent(share),
        "over SDPA": _ratio(result.gain("sparse", cache, "dense")),
        "V rows": f"{result.traffic.density:.3f}" if result.traffic else "",
    }


def _floor_cells(result: ShapeResult, cache: str) -> dict[str, str]:
    rate = result.floor_rate(cache)
    return {
        "limit": _ratio(result.limit(cache)),
        "θ=-inf rate": _percent(result.roofline_share(result.fastest(cache, "own dense"), cache)),
        "top-θ rate": _percent(result.roofline_share(result.fastest(cache, "sparse"), cache)),
        "stream, GB/s": "" if rate is None else f"{rate / 1e9:.1f}",
    }


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def details(result: ShapeResult) -> Table:
    """Tabulate all rows of a shape with their spread, and why a row is missing."""
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
        yield "-" if timing is None else f"{1e6 * timing.median:.1f}"
        yield "" if timing is None else f"{1e6 * timing.p10:.1f} to {1e6 * timing.p90:.1f}"
        if tasks:
            yield "" if task is None else f"{1e6 * task.median:.1f}"
        yield _ratio(row.over(base, cache) if base else None)
        yield _percent(result.roofline_share(row, cache))


def notes(result: ShapeResult) -> list[str]:
    """List what a reader must know besides the figures."""
    missing = [f"{row.name}: not run: {row.missing}" for row in result.rows if row.missing]
    read = []
    if result.traffic is not None:
        mib = [count / 2**20 for count in (result.traffic.key_bytes, result.traffic.value_bytes)]
        row = "head and token" if result.shape.query_tokens > 1 else "head"
        read = [
            f"{result.kept:.1f} kept per {row}; reads {mib[0]:.2f} MiB of K, needs {mib[1]:.2f} MiB of V "
            f"({result.traffic.density:.1%} of its rows); {result.copies} copies of the cache"
        ]
    return [*read, *missing]


def as_json(results: Sequence[ShapeResult], environment: Mapping[str, object], settings: Mapping[str, object]) -> str:
    """Write everything as JSON; times in seconds."""
    return one_row_a_line({
        "unit": "seconds", "settings": dict(settings), "environment": dict(environment),
        "results": [_result_as_json(result) for result in results],
    })  # fmt: skip


def _result_as_json(result: ShapeResult) -> dict[str, Any]:
    return {
        "shape": str(result.shape),
        "skipped": result.skipped,
        "kept": result.kept,
        "copies": result.copies,
        "traffic": result.traffic and result.traffic._asdict(),
        "gains": {cache: _gains(result, cache) for cache in _caches(result)},
        "rows": [
            asdict(row) | {
                name: {cache: timing._asdict() for cache, timing in timings.items()}
                for name, timings in (("calls", row.calls), ("tasks", row.tasks))
            }
            for row in result.rows
        ],
    }  # fmt: skip


def _gains(result: ShapeResult, cache: str) -> dict[str, object]:
    base = result.baseline(cache)
    return {
        "best_dense": base and base.name,
        **{role: result.gain(role, cache) for role in _COMPARED},
        "over_own_dense": result.gain("sparse", cache, "own dense"),
        "over_vendor_dense": result.gain("sparse", cache, "dense"),
        "bound_share": result.bound_share(cache),
        "limit": result.limit(cache),
        "of_floor": {row.name: result.roofline_share(row, cache) for row in result.rows if cache in row.calls},
        "floor_bytes_per_second": result.floor_rate(cache),
    }


def one_row_a_line(content: Mapping[str, Any]) -> str:
    """Write JSON with one line for each entry of a list or mapping at its top.

    Example:
        >>> print(one_row_a_line({"unit": "s", "rows": [{"a": 1}, {"a": 2}]}))
        {
         "unit": "s",
         "rows": [
          {"a": 1},
          {"a": 2}
         ]
        }
    """
    return _lines(content, 2, "")


def _lines(value: Any, levels: int, indent: str) -> str:
    """Write the value in one line below so many levels, unless the line would be too long."""
    text = json.dumps(value, default=str)
    if not isinstance(value, (Mapping, list)) or not value or (levels <= 0 and len(text) <= _LONGEST_LINE):
        return text
    inner = indent + " "
    if isinstance(value, Mapping):
        entries = [f"{json.dumps(name)}: {_lines(item, levels - 1, inner)}" for name, item in value.items()]
    else:
        entries = [_lines(item, levels - 1, inner) for item in value]
    first, last = "{}" if isinstance(value, Mapping) else "[]"
    return f"{first}\n{inner}" + f",\n{inner}".join(entries) + f"\n{indent}{last}"
