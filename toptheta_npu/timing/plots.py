"""Plots of a comparison; they need the extra ``plot``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import groupby, pairwise
from math import exp, log
from pathlib import Path
from typing import Any

from .._outputs import Drawing, new_figure, require_matplotlib, save_figures
from .contenders import Role
from .measure import ShapeResult
from .report import short_name

#: What `save_plots` may write.
FILES = ("speedup_length.png", "speedup_density.png", "roofline.png")
_COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple", "tab:brown")
_BARS: tuple[tuple[Role, str, str], ...] = (
    ("dense", "best vendor dense", "tab:gray"),
    ("own dense", "θ = -inf", "tab:cyan"),
    ("sparse", "top-θ", "tab:blue"),
)
_LINES: tuple[tuple[Role, str, str], ...] = (
    ("sparse", "-", "top-θ: {}"),
    ("own dense", "--", "  the same at θ = -inf"),
)


def save_plots(results: Sequence[ShapeResult], folder: Path, title: str) -> tuple[list[Path], list[str]]:
    """Draw what the shapes allow: gain against length, gain against density, share of the roofline.

    Returns:
        The files, and a sentence for each plot that the shapes do not allow.
    """
    require_matplotlib()
    timed = [result for result in results if any(row.calls for row in result.rows)]
    drawings = zip(
        FILES,
        (_draw_lengths, _draw_densities, _draw_roofline),
        ("shapes that differ in n alone, with the same share kept (--sweep lengths)",
         "three shapes that differ in k alone (--sweep densities)", "a shape with a floor"),
        strict=True,
    )  # fmt: skip
    return save_figures(folder, (Drawing(file, draw(timed, title), needs) for file, draw, needs in drawings))


def _groups(
    results: Sequence[ShapeResult], key: Callable[[ShapeResult], tuple[Any, ...]], least: int
) -> Iterator[tuple[str, list[ShapeResult]]]:
    """Yield the results that agree in ``key``, sorted by length and k, with what they have in common in words."""
    ordered = sorted(results, key=lambda result: (key(result), result.shape.n, result.shape.k))
    for _, group in groupby(ordered, key):
        members = list(group)
        if len(members) >= least:
            shape = members[0].shape
            paged = ", paged" if shape.block_size else ""
            tokens = f", {shape.query_tokens} tokens" if shape.query_tokens > 1 else ""
            yield f"{shape.heads} heads, batch {shape.batch}, {shape.dtype}{paged}{tokens}", members


def _common(result: ShapeResult) -> tuple[Any, ...]:
    shape = result.shape
    heads = shape.num_heads, shape.num_key_value_heads
    return (*heads, shape.batch, shape.head_dim, shape.dtype, shape.block_size, shape.query_tokens)


def _caches(results: Sequence[ShapeResult]) -> list[str]:
    return [cache for cache in ("cold", "hot") if any(cache in row.calls for r in results for row in r.rows)]


def _panels(count: int) -> tuple[Any, list[Any]]:
    return new_figure(1, count, (1.5 + 4.8 * count, 4.6), sharey=True)


def _draw_lengths(results: Sequence[ShapeResult], title: str) -> Any:
    """Draw the gain over the best dense row against the length, one colour per kind of shape."""

    def key(result: ShapeResult) -> tuple[Any, ...]:
        return (*_common(result), result.shape.k / result.shape.n)

    groups = list(_groups(results, key, 2))[: len(_COLOURS)]
    if not groups:
        return None
    caches = _caches(results)
    figure, panels = _panels(len(caches))
    for axes, cache in zip(panels, caches, strict=True):
        for colour, (label, members) in zip(_COLOURS, groups, strict=False):
            share = f"{label}, k = n/{members[0].shape.n / members[0].shape.k:g}"
            places = [member.shape.n for member in members]
            for role, style, name in _LINES:
                gains = [member.gain(role, cache) for member in members]
                axes.plot(
                    places, gains, color=colour, linestyle=style, marker="o", markersize=4, label=name.format(share)
                )
        lengths = sorted({member.shape.n for _, members in groups for member in members})
        axes.set_xscale("log", base=2)
        axes.set_xticks(lengths, [f"{n // 1024}k" if n % 1024 == 0 else str(n) for n in lengths])
        axes.set_xlabel("keys n")
        _finish(axes, cache)
    _add_legend(figure, panels, title, "times as fast as the best dense attention")
    return figure


def _draw_densities(results: Sequence[ShapeResult], title: str) -> Any:
    """Draw the gain against the share kept, with the place where dense attention becomes faster."""
    groups = [
        (f"{label}, n = {members[0].shape.n}", members)
        for label, members in _groups(results, lambda result: (*_common(result), result.shape.n), 3)
    ][:4]
    if not groups:
        return None
    caches = _caches(results)
    figure, panels = _panels(len(caches))
    for axes, cache in zip(panels, caches, strict=True):
        verdicts: list[str] = []
        for colour, (label, members) in zip(_COLOURS, groups, strict=False):
            places = [member.shape.k / member.shape.n for member in members]
            over_dense = [member.gain("sparse", cache) or 0.0 for member in members]
            over_own = [member.gain("sparse", cache, "own dense") for member in members]
            bounds = [member.traffic.bound if member.traffic else None for member in members]
            axes.plot(places, over_dense, color=colour, marker="o", markersize=4, label=f"over best dense: {label}")
            axes.plot(places, over_own, color=colour, linestyle="--", marker="s", markersize=3, label="  over θ = -inf")
            axes.plot(places, bounds, color="tab:gray", linestyle=":", label="  byte bound over θ = -inf")
            place = crossover(places, over_dense)
            if place is not None:
                axes.axvline(place, color=colour, linewidth=0.7, linestyle="-.")
            verdicts.append(_verdict(place, over_dense))
        axes.set_xscale("log", base=2)
        shares = sorted({member.shape.k / member.shape.n for _, members in groups for member in members})
        axes.set_xticks(shares, [str(Fraction(share).limit_denominator(256)) for share in shares], fontsize=8)
        axes.set_xlabel("share kept per head, k/n")
        _finish(axes, f"{cache}; dense attention is faster {', '.join(verdicts)}")
    _add_legend(figure, panels, title, "top-θ, times as fast")
    return figure


def _verdict(place: float | None, gains: Sequence[float]) -> str:
    if place is None:
        return "nowhere" if gains[-1] >= 1 else "everywhere"
    return f"from {place:.2g} kept"


def crossover(densities: Sequence[float], gains: Sequence[float]) -> float | None:
    """Find the density at which the gain last falls through 1, between points on a logarithmic axis; None if never.

    Example:
        >>> crossover([0.25, 0.5, 1.0], [1.5, 1.5, 0.5])
        0.7071067811865476
    """
    for (left, above), (right, below) in reversed(list(pairwise(zip(densities, gains, strict=True)))):
        if above >= 1 > below:
            share = (above - 1) / (above - below)
            return exp(log(left) + share * (log(right) - log(left)))
    return None


def _draw_roofline(results: Sequence[ShapeResult], title: str) -> Any:
    """Draw per shape the rate at which a row moves the bytes it must, over that of the floor."""
    caches = _caches(results)[:1]
    shown = [result for result in results if caches and result.fastest(caches[0], "floor")]
    if not shown:
        return None
    cache = caches[0]
    figure, (axes,) = new_figure(1, 1, (9, 1.6 + 0.5 * len(shown)))
    for place, (role, label, colour) in enumerate(_BARS):
        shares = []
        for result in shown:
            shares.append(result.roofline_share(result.fastest(cache, role), cache) or 0.0)
        heights = [number + 0.27 * (place - 1) for number in range(len(shown))]
        bars = axes.barh(heights, [100 * share for share in shares], 0.25, color=colour, label=label)
        axes.bar_label(bars, fmt="%.0f", fontsize=7, padding=2)
    axes.set_yticks(range(len(shown)), [short_name(result.shape) for result in shown], fontsize=8)
    axes.invert_yaxis()
    axes.axvline(100, color="black", linewidth=0.7)
    axes.margins(x=0.06)
    floor = shown[0].fastest(cache, "floor")
    axes.set_xlabel(f"rate of the bytes that must be moved, % of that of {floor.name if floor else ''}, {cache}")
    figure.legend(loc="outside lower center", ncols=len(_BARS), fontsize=8, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(title, fontsize=9, loc="left")
    return figure


def _finish(axes: Any, title: str) -> None:
    axes.axhline(1, color="black", linewidth=0.7)
    axes.set_title(title, loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)


def _add_legend(figure: Any, panels: Sequence[Any], title: str, measure: str) -> None:
    panels[0].set_ylabel(measure)
    panels[0].set_ylim(bottom=0)  # shared, so not before all panels are drawn
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    figure.suptitle(title, fontsize=9)
