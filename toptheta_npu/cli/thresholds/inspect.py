"""``toptheta inspect``: what a file of thresholds holds."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from ..._outputs import check_output_folder, require_matplotlib
from ..._tables import Table
from ..calibrate.report import layers_in_words
from ..common import printing

if TYPE_CHECKING:
    from ...thresholds import ThresholdTable

_FINGERPRINT_SHOWN = 48
_MAX_LENGTHS_NAMED = 6
_CHECKSUM = re.compile(r"\b[0-9a-f]{64}\b")
_KEPT_CAPTION = "Bounds of the mean over the calibration rows that are not dense."


def inspect(
    file: Annotated[Path, typer.Argument(help="A table of thresholds.")],
    k: Annotated[int | None, typer.Option("--k", help="Show thresholds of this k. Default: the middle one.")] = None,
    layer: Annotated[int | None, typer.Option(help="Show the heads of this layer one by one.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Folder for plots of theta over length and over k.")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show checksums, of texts and of the model, too.")] = False,
) -> None:
    """Tell what a file of thresholds holds: its summary, theta, elements kept, gaps, how well the fit fits."""
    from ...thresholds import ThresholdTable
    from ...thresholds.summary import in_words, summarise

    if plot is not None:
        _prepare(plot)
    table = ThresholdTable.load(file)
    found = summarise(table, k, layer)
    console = printing.console()
    if as_json:
        print(json.dumps({"file": str(file), **found}, indent=1))
    else:
        _show(console, f"{file}: {in_words(table)}", found, verbose)
    if plot is not None:
        for line in _draw(table, found["shown_k"], layer, plot):
            (Console(stderr=True, soft_wrap=True) if as_json else console).print(line, markup=False)


def _prepare(folder: Path) -> None:
    from ...thresholds.plots import FILES

    require_matplotlib()
    check_output_folder("--plot", folder, *FILES)


def _draw(table: ThresholdTable, k: int, layer: int | None, folder: Path) -> list[str]:
    from ...thresholds.plots import save_plots

    files, left_out = save_plots(table, k, layer, folder)
    return [*(f"{file} written." for file in files), *left_out]


def _show(console: Console, title: str, found: dict[str, Any], verbose: bool) -> None:
    head = found["header"]
    console.print(escape(title))
    console.print(_named(_summary(found, verbose)), width=console.width)
    tables = _layer_tables(found) if "layers" in found else _head_tables(found)
    if why := _why_dense(head, found.get("layer")):
        console.print(f"layer {found['layer']} is dense: {why}.\n", markup=False)
        tables = []
    for table in (table for table in tables if table.rows):
        printing.print_table(console, table)
        console.print()
    if not head["has_bracket"]:
        console.print(f"k̃: not in the file; the estimator {head['estimator']} keeps no counts of it.\n")
    if head["provenance"]:
        console.print("Settings and origin")
        console.print(_named(_origin(head["provenance"], verbose)), width=console.width)


def _why_dense(head: dict[str, Any], layer: int | None) -> str:
    """Say why a layer has no thresholds; nothing where it has some."""
    return next((group["why"] for group in head["dense_layers"] if layer in group["layers"]), "")


def _named(rows: Iterable[tuple[str, str]]) -> RichTable:
    table = RichTable(box=SIMPLE_HEAD, show_header=False, padding=(0, 1))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in rows:
        table.add_row(escape(name), escape(text))
    return table


def _origin(provenance: Mapping[str, str], verbose: bool) -> list[tuple[str, str]]:
    """Tell how the table was made; with ``verbose``, add the checksums of texts and windows."""
    shown = {name: text for name, text in provenance.items() if verbose or not _CHECKSUM.search(text)}
    left_out = len(provenance) - len(shown)
    more = [("checksums", f"{left_out}, shown by --verbose")] if left_out else []
    return [*shown.items(), *more]


def _summary(found: dict[str, Any], verbose: bool) -> list[tuple[str, str]]:
    head = found["header"]
    lengths, fingerprint = head["lengths"], head["fingerprint"]
    if len(fingerprint) > _FINGERPRINT_SHOWN and not verbose:
        fingerprint = fingerprint[:_FINGERPRINT_SHOWN] + "…"
    mass = f"yes ({head['discarded_statistic'] or 'statistic not known'})" if head["has_discarded_mass"] else "no"
    return [
        ("k", ", ".join(map(str, head["k"]))),
        ("k̃/k", _ratio(found)),
        ("row lengths", f"{lengths[0]} to {lengths[-1]}, {len(lengths)} knots"),
        ("size", f"{head['layers']} layers x {head['heads']} heads"),
        ("layer_k", _runs(head["layer_k"])),
        *_dense(head),
        ("placement", f"{head['placement']}, theta in units of the {head['unit']}"),
        ("estimator", head["estimator"] + (f", alpha {head['alpha']:g}" if head["estimator"] == "algorithm1" else "")),
        ("discarded mass", mass),
        *([("int8 cache", "scales per channel, for keys and values")] if head["has_cache_scales"] else []),
        *((name, text) for name, text in head["provenance"].items() if name == "model"),
        ("fingerprint", fingerprint),
    ]


def _dense(head: dict[str, Any]) -> list[tuple[str, str]]:
    groups = (f"{layers_in_words(group['layers'])}: {group['why']}" for group in head["dense_layers"])
    return [("dense", "; ".join(groups))] if head["dense_layers"] else []


def _ratio(found: dict[str, Any]) -> str:
    """Tell the bounds of k̃/k at the shown k, if the file has them: of the calibration rows, not of held-out text."""
    k, ks = found["shown_k"], found["header"]["k"]
    entries = found.get("layers") or found["heads"]
    kept = [entry["kept"][ks.index(k)] for entry in entries] if k in ks else []
    ratios = [bounds[end] / bounds["target"] for bounds in kept if bounds for end in ("low", "high")]
    if not ratios:
        return f"not in the file at k = {k}"
    return f"{min(ratios):.2f} to {max(ratios):.2f} at k = {k}, on calibration rows"


def _runs(layer_k: Sequence[int]) -> str:
    """Write k by runs of layers, such as "512 in 0 to 1, 0 in 2 to 5"."""
    parts = []
    for value, group in groupby(enumerate(layer_k), lambda pair: pair[1]):
        layers = [layer for layer, _ in group]
        parts.append(f"{value} in " + (f"layer {layers[0]}" if len(layers) == 1 else f"{layers[0]} to {layers[-1]}"))
    return ", ".join(parts)


def _layer_tables(found: dict[str, Any]) -> list[Table]:
    head, lengths, ks = found["header"], found["shown_lengths"], found["header"]["k"]
    form = _form(head)
    theta, kept, quality = [], [], []
    for entry in found["layers"]:
        if _why_dense(head, entry["layer"]):
            continue
        layer = str(entry["layer"])
        gaps = entry["gaps"]
        cells = [_spread(each, form) for each in entry["theta"]]
        theta.append([layer, str(entry["target"]), *cells, _gap_cell(gaps)])
        least = head["layer_k"][entry["layer"]]
        kept.append([layer, *_by_k(ks, least, map(_kept, entry["kept"]))])
        quality.append([layer, *_by_k(ks, least, map(_quality, entry["r_squared"]))])
    tables = [
        Table(
            f"theta at k = {found['shown_k']}: mean over heads (least to most)",
            ("layer", "keeps", *(f"n = {length}" for length in lengths), "filled knots"),
            theta,
            "filled knots: had no calibration rows, and took theta from the neighbouring lengths; of all knots of all "
            "heads.",
        )
    ]
    if head["has_bracket"]:
        by_k = ("layer", *(f"k = {k}" for k in ks))
        tables.append(Table("k̃, the elements that a row keeps", by_k, kept, _KEPT_CAPTION))
    caption = "1: the function of the row length explains all of the variance of theta between lengths."
    title = "R² of the fitted function: mean over heads (lowest, its head)"
    return [*tables, Table(title, ("layer", *(f"k = {k}" for k in ks)), quality, caption)]


def _head_tables(found: dict[str, Any]) -> list[Table]:
    head, layer, ks, form = found["header"], found["layer"], found["header"]["k"], _form(found["header"])
    theta, kept, quality = [], [], []
    least = head["layer_k"][layer]
    for entry in found["heads"]:
        name = str(entry["head"])
        theta.append([name, *("dense" if value is None else f"{value:{form}}" for value in entry["theta"])])
        theta[-1].append(str(entry["rows"]))
        kept.append([name, *_by_k(ks, least, map(_kept, entry["kept"]))])
        pairs = zip(entry["r_squared"], entry["rms_residual"], strict=True)
        fits = ("" if square is None else f"{square:.3f}, {rms:.2g}" for square, rms in pairs)
        quality.append([name, *_by_k(ks, least, fits)])
    lengths = (f"n = {length}" for length in found["shown_lengths"])
    by_k = ("head", *(f"k = {k}" for k in ks))
    tables = [Table(f"layer {layer}: theta at k = {found['shown_k']}", ("head", *lengths, "calibration rows"), theta)]
    if head["has_bracket"]:
        tables.append(Table(f"layer {layer}: k̃, the elements that a row keeps", by_k, kept, _KEPT_CAPTION))
    unit = "log theta" if head["placement"] == "post_softmax" else "theta"
    title = f"layer {layer}: R² of the fitted function, and its root mean square residual of {unit}"
    return [*tables, Table(title, by_k, quality)]


def _by_k(ks: Sequence[int], least: int, cells: Iterable[str]) -> list[str]:
    """Write the cells of a layer; say once what its least k makes the same at two k."""
    same = printing.covered(ks, least)
    return [f"as k = {same[k]}" if cell and k in same else cell for k, cell in zip(ks, cells, strict=True)]


def _form(head: dict[str, Any]) -> str:
    return ".1e" if head["placement"] == "post_softmax" else ".2f"


def _spread(values: dict[str, Any] | None, form: str) -> str:
    if values is None:
        return "dense"
    dense = f", {values['dense_heads']} dense" if values["dense_heads"] else ""
    return f"{values['mean']:{form}} ({values['min']:{form}} to {values['max']:{form}}{dense})"


def _kept(bounds: dict[str, float] | None) -> str:
    if bounds is None:
        return ""
    low, high = f"{bounds['low']:.1f}", f"{bounds['high']:.1f}"
    return low if low == high else f"{low} to {high}"


def _quality(values: dict[str, Any] | None) -> str:
    return "" if values is None else f"{values['mean']:.3f} ({values['min']:.3f}, {values['worst_head']})"


def _gap_cell(gaps: dict[str, Any]) -> str:
    if not gaps["filled"]:
        return "none"
    named = gaps["lengths"][:_MAX_LENGTHS_NAMED]
    more = len(gaps["lengths"]) - len(named)
    rest = f" and {more} more" if more else ""
    return f"{gaps['filled']} of {gaps['of']}: n = {', '.join(map(str, named))}{rest}"
