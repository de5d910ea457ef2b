"""``toptheta inspect``: what a file of thresholds holds."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from ..._outputs import check_output_folder, require_matplotlib
from ..._tables import Table
from ..common import printing

_MAX_LENGTHS_NAMED = 6


def inspect(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Table of thresholds to show.")],
    k: Annotated[
        int | None, typer.Option("--k", metavar="INT", help="The k to show thresholds of. Default: the middle one.")
    ] = None,
    layer: Annotated[
        int | None, typer.Option(metavar="INT", help="Layer to show head by head. Default: all layers.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where to write a plot of theta over the length.")
    ] = None,
) -> None:
    """Show what a table of thresholds holds."""
    from ...thresholds import ThresholdTable
    from ...thresholds.plots import FILE, save_plot
    from ...thresholds.summary import in_words, summarise

    if plot is not None:
        require_matplotlib()
        check_output_folder("--plot", plot, FILE)
    table = ThresholdTable.load(file)
    found = summarise(table, k, layer)
    console = printing.console()
    if as_json:
        print(json.dumps({"file": str(file), **found}, indent=1))
    else:
        _show(console, f"{file}: {in_words(table)}", found)
    if plot is not None:
        written = save_plot(table, found["shown_k"], layer, plot)
        if not as_json:
            console.print(f"{written} written.", markup=False)


def _show(console: Console, title: str, found: dict[str, Any]) -> None:
    head = found["header"]
    console.print(escape(title))
    console.print(_named(_summary(found)), width=console.width)
    tables = _layer_tables(found) if "layers" in found else _head_tables(found)
    if why := _why_dense(head, found.get("layer")):
        console.print(f"layer {found['layer']} is dense: {why}.\n", markup=False)
        tables = []
    for table in (table for table in tables if table.rows):
        printing.print_table(console, table)
        console.print()
    if head["provenance"]:
        console.print("Settings and origin")
        console.print(_named(head["provenance"].items()), width=console.width)


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


def _summary(found: dict[str, Any]) -> list[tuple[str, str]]:
    head = found["header"]
    lengths = head["lengths"]
    mass = f"yes ({head['discarded_statistic'] or 'statistic not known'})" if head["has_discarded_mass"] else "no"
    return [
        ("k", ", ".join(map(str, head["k"]))),
        ("row lengths", f"{lengths[0]} to {lengths[-1]}, stored at {len(lengths)} of them"),
        ("size", f"{head['layers']} layers x {head['heads']} heads"),
        ("layer_k", ", ".join(map(str, head["layer_k"]))),
        *_dense(head),
        ("placement", f"{head['placement']}, theta in units of the {head['unit']}"),
        ("estimator", head["estimator"] + (f", alpha {head['alpha']:g}" if head["estimator"] == "algorithm1" else "")),
        ("discarded mass", mass),
        *([("int8 cache", "scales per channel, for keys and values")] if head["has_cache_scales"] else []),
        *((name, text) for name, text in head["provenance"].items() if name == "model"),
        ("fingerprint", head["fingerprint"]),
    ]


def _dense(head: dict[str, Any]) -> list[tuple[str, str]]:
    groups = (f"{printing.layers_in_words(group['layers'])}: {group['why']}" for group in head["dense_layers"])
    return [("dense", "; ".join(groups))] if head["dense_layers"] else []


def _layer_tables(found: dict[str, Any]) -> list[Table]:
    head, form = found["header"], _form(found["header"])
    rows = []
    for entry in found["layers"]:
        if not _why_dense(head, entry["layer"]):
            cells = [_spread(each, form) for each in entry["theta"]]
            rows.append([str(entry["layer"]), str(entry["target"]), *cells, _gap_cell(entry["gaps"])])
    return [
        Table(
            f"theta at k = {found['shown_k']}: mean over heads (least to most)",
            ("layer", "keeps", *(f"n = {length}" for length in found["shown_lengths"]), "filled lengths"),
            rows,
            "filled lengths: stored lengths without calibration rows, whose theta is that of their neighbours; of the "
            "stored lengths of all heads.",
        )
    ]


def _head_tables(found: dict[str, Any]) -> list[Table]:
    layer, form, rows = found["layer"], _form(found["header"]), []
    for entry in found["heads"]:
        theta = ("dense" if value is None else f"{value:{form}}" for value in entry["theta"])
        rows.append([str(entry["head"]), *theta, str(entry["rows"])])
    lengths = (f"n = {length}" for length in found["shown_lengths"])
    return [Table(f"layer {layer}: theta at k = {found['shown_k']}", ("head", *lengths, "calibration rows"), rows)]


def _form(head: dict[str, Any]) -> str:
    return ".1e" if head["placement"] == "post_softmax" else ".2f"


def _spread(values: dict[str, Any] | None, form: str) -> str:
    if values is None:
        return "dense"
    dense = f", {values['dense_heads']} dense" if values["dense_heads"] else ""
    return f"{values['mean']:{form}} ({values['min']:{form}} to {values['max']:{form}}{dense})"


def _gap_cell(gaps: dict[str, Any]) -> str:
    if not gaps["filled"]:
        return "none"
    named = gaps["lengths"][:_MAX_LENGTHS_NAMED]
    more = len(gaps["lengths"]) - len(named)
    rest = f" and {more} more" if more else ""
    return f"{gaps['filled']} of {gaps['of']}: n = {', '.join(map(str, named))}{rest}"
