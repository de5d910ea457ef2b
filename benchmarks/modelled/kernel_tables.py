"""Tables, plots and docs/kernel.md from the results of kernel_page.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.tables import Goal, Table, goal_table, renew
from emulator.ascendc import COLUMNS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "kernel.md"
Event = Mapping[str, Any]
Results = Mapping[str, Any]
#: Parts of the kernel by the source file that issues an instruction.
_PARTS = {
    "query_key_product.h": "scores: q · k",
    "chunk.h": "threshold test, softmax",
    "chunk_selection.h": "threshold test, softmax",
    "list_entries.h": "threshold test, softmax",
    "reductions.h": "threshold test, softmax",
    "weighted_sum.h": "weighted sum of V rows",
    "own_rows.h": "weighted sum of V rows",
}
_OTHER = "parameters, output"
_COLOURS = {
    "K tiles": "tab:blue",
    "V rows": "tab:orange",
    "scores: q · k": "tab:cyan",
    "threshold test, softmax": "tab:red",
    "weighted sum of V rows": "gold",
    "reads of the row list": "tab:brown",
    _OTHER: "tab:gray",
}
_DENSITIES = {1 / 64: "1/64", 1 / 32: "1/32", 1 / 16: "1/16", 1 / 8: "1/8", 1 / 4: "1/4", 3 / 8: "3/8", 1 / 2: "1/2",
              5 / 8: "5/8", 3 / 4: "3/4", 1: "1"}  # fmt: skip


#: What differs between the columns: name, unit, where it comes from. emulator/ascendc/machine/cost.h has the rest.
_BANDS = {
    "launch_microseconds": ("launch of vector cores", " µs", "profiles in the vendor's examples; page on profiles"),
    "launch_mixed_microseconds": ("launch with cube cores", " µs", "the same"),
    "workspace_in_l2": ("workspace in the L2 (1) or in HBM (0)", "", "pages on the L2; what is copied again there"),
    "scattered_row_bytes": (
        "a single V row, bytes beyond its own, at most the rest of 512", "", "copies past the L2 there; line of the L2"
    ),
    "same_address_read": ("a line that many cores read, cycles per core", "", "the same rows in two orders there"),
    "read_latency_cold": ("latency of HBM, cycles", "", "the vendor's simulator; assumed"),
    "read_latency_hot": ("latency of the L2, cycles", "", "the vendor's simulator; assumed"),
    "write_latency": ("latency of a write, cycles", "", "the vendor's simulator; assumed"),
    "sync_all_microseconds": ("SyncAll", " µs", "assumed"),
    "cross_core_flag": ("flag between cores, cycles", "", "assumed"),
}  # fmt: skip
#: Rows of the table of columns that are grouped: keys, query heads per KV head, correlation.
_BANDED_GROUPS = ((2048, 4, 0.0), (8192, 4, 0.0), (32768, 4, 0.0), (32768, 8, 0.0), (32768, 8, 0.9))


def goals(results: Results) -> list[Goal]:
    """What the kernel was to reach in the model: expected column, without the launch."""
    kept = results["paper"]["kept"]
    longest = next(row for row in results["lengths"] if (row["n"], row["k"]) == (32768, 2048))
    uneven = next(row for row in results["uneven_heads"] if row["sync_all"] == 1.5)
    four = {n: grouped_row(results, n, 4, 0.0)["kept"]["cold"] for n in (2048, 8192, 32768)}
    apart, alike = (grouped_row(results, 32768, 8, overlap)["kept"]["cold"] for overlap in (0.0, 0.9))
    return [
        Goal("48 heads, n = 2048, k = 128, cold", kept["cold"], 19.5, " µs"),
        Goal("the same, hot", kept["hot"], 9.5, " µs"),
        Goal("V bytes read there over those of the kept rows", kept["rows_read"] / kept["rows_needed"], 1.1),
        Goal("gain at n = 32768, k = 2048, cold", _gain(longest, "cold"), 1.8, at_most=False),
        Goal("32 heads over 48 heads, SyncAll 1.5 µs, cold", uneven["cold_32"] / uneven["cold_48"], 0.85),
        *(Goal(f"4 heads per KV head, n = {n}, independent, cold", four[n], limit, " µs")
          for n, limit in ((2048, 10.5), (8192, 24.0), (32768, 70.0))),
        Goal("8 heads per KV head, n = 32768, independent, cold", apart, 90.0, " µs"),
        Goal("8 heads per KV head, n = 32768, independent, cold: stretch", apart, 82.0, " µs"),
        Goal("8 heads per KV head, n = 32768, alike, cold", alike, 72.0, " µs"),
        Goal("8 heads per KV head, n = 32768, alike, cold: stretch", alike, 65.0, " µs"),
    ]  # fmt: skip


def grouped_row(results: Results, n: int, group: int, overlap: float) -> Results:
    """The row of the grouped results for so many keys, query heads per KV head and so much correlation."""
    rows: Sequence[Results] = results["grouped"]
    return next(row for row in rows if (row["n"], row["group"], row["overlap"]) == (n, group, overlap))


def tables(results: Results) -> dict[str, Table]:
    """The tables of docs/kernel.md by the names of their places there."""
    paper = results["paper"]
    return {
        "goals": goal_table(goals(results), figure="modelled"), "columns": column_table(results),
        "constants": constant_table(results["constants"]), "paper": paper_table(paper),
        "traffic": traffic_table(paper), "ledger": ledger_table(paper), "vector": vector_table(paper),
        "lengths": length_table(results["lengths"]), "densities": density_table(results["densities"]),
        "crossover": crossover_table(results["densities"]), "uneven": uneven_table(results["uneven_heads"]),
        "grouped": grouped_table(results["grouped"], results["ragged"]), "modes": mode_table(results["modes"]),
    }  # fmt: skip


def column_table(results: Results) -> Table:
    """Each column of constants, for the kernel and for the same kernel at theta = -inf, with and without the launch."""
    calls = [(f"48 heads, n = 2048, k = 128, {mode}", results["paper"], mode) for mode in ("cold", "hot")]
    calls += [
        (f"{group} per KV head, n = {n}, {'alike' if overlap else 'independent'}, cold",
         grouped_row(results, n, group, overlap), "cold")
        for n, group, overlap in _BANDED_GROUPS
    ]  # fmt: skip
    columns = ("", "column", "µs", "dense", "gain", "launch, µs", "with it, µs", "dense", "gain")
    return Table("Three columns", columns, [
        [name if column == COLUMNS[0] else "", column, *_column_cells(row, column, mode)]
        for name, row, mode in calls for column in COLUMNS
    ])  # fmt: skip


def _column_cells(row: Results, column: str, mode: str) -> list[str]:
    kept, dense = (row[form]["columns"][column][mode] for form in ("kept", "dense"))
    launch = row["kept"]["columns"][column]["launch"]
    return [
        f"{kept:.1f}", f"{dense:.1f}", f"{dense / kept:.2f}", f"{launch:g}", f"{kept + launch:.1f}",
        f"{dense + launch:.1f}", f"{(dense + launch) / (kept + launch):.2f}",
    ]  # fmt: skip


def constant_table(columns: Results) -> Table:
    """The constants in which the columns differ."""
    differ = [name for name in columns["expected"] if len({columns[column][name] for column in COLUMNS}) > 1]
    return Table("What the columns differ in", ("", *COLUMNS, "from"), [
        [_BANDS[name][0], *(f"{columns[column][name]:g}{_BANDS[name][1]}" for column in COLUMNS), _BANDS[name][2]]
        for name in sorted(differ, key=list(_BANDS).index)
    ])  # fmt: skip


def paper_table(paper: Results) -> Table:
    kept, dense = paper["kept"], paper["dense"]

    def row(name: str, form: str, cold: float, hot: float) -> list[str]:
        return [name, form.format(cold), form.format(hot)]

    return Table("48 heads, 2048 keys, 128 kept", ("", "cold", "hot"), [
        row("time, µs", "{:.2f}", kept["cold"], kept["hot"]),
        row("with estimated bank conflicts, µs", "{:.2f}", kept["cold_conflicts"], kept["hot_conflicts"]),
        row("at θ = -inf (dense), µs", "{:.2f}", dense["cold"], dense["hot"]),
        row("gain over θ = -inf", "{:.2f}", _gain(paper, "cold"), _gain(paper, "hot")),
        row("traffic bound, µs", "{:.2f}", kept["cold_bound"], kept["hot_bound"]),
        row("share of the bound reached", "{:.0%}", kept["cold_bound"] / kept["cold"], kept["hot_bound"] / kept["hot"]),
        *(row(f"{name} busy", "{:.0%}", kept["cold_busy"][pipe], kept["hot_busy"][pipe])
          for pipe, name in (("MTE2", "copies in (MTE2)"), ("V", "vector unit (V)"), ("S", "scalar unit (S)"))),
    ])  # fmt: skip


def traffic_table(paper: Results) -> Table:
    kept, dense = paper["kept"], paper["dense"]
    rows = [
        [f"`{name}`", f"{count:,}", f"{kept['read_commands'][name]:,}", f"{dense['bytes_read'][name]:,}",
         f"{dense['read_commands'][name]:,}"]
        for name, count in kept["bytes_read"].items()
    ]  # fmt: skip
    columns = ("tensor", "bytes", "copies", "dense: bytes", "copies")
    return Table("Bytes that all cores read", columns, rows)


def ledger(events: Sequence[Event]) -> dict[str, float]:
    """Where a core's time goes when the copies of a whole unit set the pace, in microseconds from its trace."""
    copies = sorted((event for event in events if "buffer" in event["args"]), key=lambda event: float(event["ts"]))
    stream = [event for event in copies if event["args"]["buffer"] in ("key", "value")]
    last, output = stream[-1], copies[-1]
    begin, end = float(stream[0]["ts"]), float(last["ts"]) + float(last["dur"])
    busy = sum(float(event["dur"]) for event in stream)
    return {
        "tiling data, parameters, first K copy issued": begin,
        "K tiles and V rows": busy,
        "no copy under way: scores and test of the last chunk": max(0.0, end - begin - busy),
        "the last V rows arrive": float(last["args"]["done"]) - end,
        "their weighted sum, compensation, division": float(output["ts"]) - float(last["args"]["done"]),
        "output row written": float(output["args"]["done"]) - float(output["ts"]),
    }


def ledger_table(paper: Results) -> Table:
    rows = [[name, f"{value:.2f}"] for name, value in paper["cold_ledger"].items()]
    rows.append(["together", f"{sum(paper['cold_ledger'].values()):.2f}"])
    return Table("Where the cold time goes, slowest core", ("", "µs"), rows)


def vector_work(events: Sequence[Event]) -> dict[str, float]:
    """Microseconds of the vector unit by part of the kernel; the same cold and hot."""
    work = dict.fromkeys([*dict.fromkeys(_PARTS.values()), _OTHER], 0.0)
    for event in events:
        if event["tid"] == 1:
            work[part_of(event)] += event["dur"]
    return work


def part_of(event: Event) -> str:
    """The part of the kernel that an instruction belongs to."""
    if "buffer" in event["args"]:
        return {"key": "K tiles", "value": "V rows"}.get(event["args"]["buffer"], _OTHER)
    source = event["args"]["at"].split(":")[0]
    if event["name"] == "CreateVecIndex":  # once for each core
        return _OTHER
    return "reads of the row list" if source in ("value_fetch.h", "cache_rows.h") else _PARTS.get(source, _OTHER)


def vector_table(paper: Results) -> Table:
    total = sum(paper["vector_work"].values())
    rows = [[name, f"{value:.2f}", f"{value / total:.0%}"] for name, value in paper["vector_work"].items()]
    return Table("What the vector unit does, slowest core", ("", "µs", "share"), rows)


def length_table(lengths: Sequence[Results]) -> Table:
    columns = ("n", "k", "cold, µs", "dense", "gain", "byte bound", "hot, µs", "dense", "gain")
    rows = [
        [str(row["n"]), str(row["k"]), f"{row['kept']['cold']:.1f}", f"{row['dense']['cold']:.1f}",
         f"{_gain(row, 'cold'):.2f}", f"{_byte_bound(row):.2f}", f"{row['kept']['hot']:.1f}",
         f"{row['dense']['hot']:.1f}", f"{_gain(row, 'hot'):.2f}"]
        for row in lengths
    ]  # fmt: skip
    return Table("48 heads against the same kernel at θ = -inf", columns, rows)


def density_table(rows: Sequence[Results]) -> Table:
    columns = ("k/n", "V rows read", "cold, µs", "gain", "byte bound", "hot, µs", "gain", "forced: gain, cold", "hot")
    return Table("48 heads, 8192 keys, by share kept", columns, [
        [_DENSITIES[row["density"]], f"{row['kept']['rows_read'] / row['kept']['of_rows']:.1%}",
         f"{row['kept']['cold']:.1f}", f"{_gain(row, 'cold'):.2f}", f"{_byte_bound(row):.2f}",
         f"{row['kept']['hot']:.1f}", f"{_gain(row, 'hot'):.2f}",
         *(f"{row['dense'][mode] / row['gathered'][mode]:.2f}" for mode in ("cold", "hot"))]
        for row in rows
    ])  # fmt: skip


def crossover(rows: Sequence[Results], mode: str) -> float | None:
    """Share kept from which fetching single V rows takes longer than theta = -inf; None if it never does."""
    points = [(row["density"], row["dense"][mode] / row["gathered"][mode]) for row in rows]
    for (low, above), (high, below) in pairwise(points):
        if above >= 1 > below:
            return float(low + (high - low) * (above - 1) / (above - below))
    return None


def crossover_table(rows: Sequence[Results]) -> Table:
    places = [crossover(rows, mode) for mode in ("cold", "hot")]
    cells = ["never" if place is None else f"{place:.2f}" for place in places]
    return Table("Single V rows against all", ("", "cold", "hot"), [["crossover at k/n", *cells]])


def uneven_table(rows: Sequence[Results]) -> Table:
    columns = ("SyncAll, µs", "32 heads, cold, µs", "over 48 heads", "32 heads, hot, µs", "over 48 heads")
    return Table("32 heads over 48 cores", columns, [
        [f"{row['sync_all']:g}", f"{row['cold_32']:.2f}", f"{row['cold_32'] / row['cold_48']:.3f}",
         f"{row['hot_32']:.2f}", f"{row['hot_32'] / row['hot_48']:.3f}"]
        for row in rows
    ])  # fmt: skip


def grouped_table(rows: Sequence[Results], ragged: Results) -> Table:
    columns = ("n", "heads per KV head", "union", "cold, µs", "dense", "gain", "byte bound", "V busy",
               "cube copies busy", "without cube, µs", "dense traffic, µs", "hot, µs", "gain")  # fmt: skip
    named = [*((str(row["n"]), row) for row in rows), ("16 ragged", ragged)]
    return Table("8 KV heads, k = n/16", columns, [
        [n, _group(row), f"{row['kept']['rows_needed'] / row['kept']['of_rows']:.1%}", f"{row['kept']['cold']:.1f}",
         f"{row['dense']['cold']:.1f}", f"{_gain(row, 'cold'):.2f}", f"{_byte_bound(row):.2f}",
         f"{row['kept']['cold_busy']['V']:.0%}", f"{row['kept']['cold_busy']['cube MTE2']:.0%}",
         f"{row['vector']['cold']:.1f}", f"{row['dense']['cold_bound']:.1f}", f"{row['kept']['hot']:.1f}",
         f"{_gain(row, 'hot'):.2f}"]
        for n, row in named
    ])  # fmt: skip


def _group(row: Results) -> str:
    return str(row["group"]) if row["group"] == 1 else f"{row['group']}, {'alike' if row['overlap'] else 'independent'}"


def mode_table(rows: Sequence[Results]) -> Table:
    columns = ("call", "cold, µs", "hot, µs", "V busy, cold", "V busy, hot", "with conflicts: cold, µs", "hot, µs")
    return Table("48 heads, 2048 keys, 128 kept, by mode", columns, [
        [row["name"], f"{row['kept']['cold']:.1f}", f"{row['kept']['hot']:.1f}",
         f"{row['kept']['cold_busy']['V']:.0%}", f"{row['kept']['hot_busy']['V']:.0%}",
         f"{row['kept']['cold_conflicts']:.1f}", f"{row['kept']['hot_conflicts']:.1f}"]
        for row in rows
    ])  # fmt: skip


def renew_page(results: Results) -> None:
    """Puts the tables into docs/kernel.md."""
    renew(PAGE, tables(results))


def plot_timeline(traces: Mapping[str, Sequence[Event]], path: Path) -> None:
    """The pipes of one core at the paper's point, cold above hot."""
    from matplotlib import pyplot
    from matplotlib.patches import Patch

    figure, panels = pyplot.subplots(2, 1, figsize=(11, 4.6), layout="constrained", sharex=True)
    for axes, (mode, events) in zip(panels, traces.items(), strict=True):
        for event in events:
            if event["tid"] <= 2:
                bar = [(event["ts"], event["dur"])]
                axes.broken_barh(bar, (event["tid"] - 0.4, 0.8), facecolors=_COLOURS[part_of(event)], linewidth=0)
        axes.set_yticks([2, 1, 0], ["copies in (MTE2)", "vector (V)", "scalar (S)"])
        axes.set_xlim(0)
        axes.set_title(f"{mode}: data in {'HBM' if mode == 'cold' else 'the L2'}", loc="left", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    panels[-1].set_xlabel("µs, modelled, uncalibrated (48 heads, 2048 keys, 128 kept; one core)")
    patches = [Patch(color=colour, label=name) for name, colour in _COLOURS.items()]
    figure.legend(handles=patches, loc="outside upper center", ncols=len(patches), fontsize=8, frameon=False)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def plot_gains(results: Results, path: Path) -> None:
    """Gain over theta = -inf against the length and against the share kept."""
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4), layout="constrained")
    sixteenth = [row for row in results["lengths"] if row["n"] == 16 * row["k"]]
    for axes, rows, x in ((left, sixteenth, "n"), (right, results["densities"], "density")):
        places = [row[x] for row in rows]
        for mode, colour in (("cold", "tab:blue"), ("hot", "tab:red")):
            axes.plot(places, [_gain(row, mode) for row in rows], color=colour, marker="o", label=mode)
        axes.plot(places, [_byte_bound(row) for row in rows], color="tab:gray", linestyle="--", label="byte bound")
        axes.set_xscale("log", base=2)
        axes.set_ylim(0.7, 2.4)
        axes.axhline(1, color="black", linewidth=0.6)
    for mode, colour in (("cold", "tab:blue"), ("hot", "tab:red")):
        rows = [row for row in results["densities"] if row["density"] >= 3 / 8]
        gains = [row["dense"][mode] / row["gathered"][mode] for row in rows]
        right.plot([row["density"] for row in rows], gains, color=colour, linestyle=":", label=f"{mode}, gather forced")
    left.set_xticks([row["n"] for row in sixteenth], [str(row["n"]) for row in sixteenth])
    left.set_xlabel("keys n; 48 heads, k = n/16")
    left.set_ylabel("gain over θ = -inf (modelled, uncalibrated)")
    right.set_xlabel("share kept; 48 heads, 8192 keys")
    right.set_xticks(list(_DENSITIES), list(_DENSITIES.values()), fontsize=7)
    right.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _gain(row: Results, mode: str) -> float:
    return float(row["dense"][mode] / row["kept"][mode])


def _byte_bound(row: Results) -> float:
    """Gain if bytes of K and V alone set the time and only the needed V rows were read: 2 / (1 + their share)."""
    return 2 / (1 + float(row["kept"]["rows_needed"] / row["kept"]["of_rows"]))
