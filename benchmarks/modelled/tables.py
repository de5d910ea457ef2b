"""The modelled figures as tables of the pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from benchmarks.tables import Table
from emulator.ascendc import COLUMNS, Mode

from .calls import (
    DEFAULT,
    DENSITIES,
    GROUPED,
    GROUPED_INT8,
    LENGTHS,
    MODE_CALLS,
    SYNC_ALL_MICROSECONDS,
    TOKENS,
    UNEVEN,
    Call,
    Modelled,
)
from .cells import SHAPE_COLUMNS, TIME_COLUMNS, band_cell, launch_cell, shape_cells, time_cells
from .figures import Figures
from .layouts import layout_table
from .step import EXPECTED, MODES

_SHARES = {1 / 64: "1/64", 1 / 32: "1/32", 1 / 16: "1/16", 1 / 8: "1/8", 1 / 4: "1/4", 3 / 8: "3/8", 1 / 2: "1/2",
           5 / 8: "5/8", 3 / 4: "3/4", 1: "1"}  # fmt: skip
#: The gain that the paper measured over the vendor's dense kernel.
_PAPERS_GAIN = 1.17
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


def kernel_tables(figures: Figures) -> list[Table]:
    """Make the tables of docs/kernel.md, in its order."""
    calls = figures.calls
    return [
        layout_table(), constant_table(figures.constants), paper_table(figures.paper), traffic_table(figures.paper),
        ledger_table(figures.ledger), vector_table(figures.vector_work),
        length_table([calls[call] for call in LENGTHS]), density_table([calls[call] for call in DENSITIES]),
        crossover_table([calls[call] for call in DENSITIES]), uneven_table(calls[UNEVEN], figures.paper),
        grouped_table([calls[call] for call in GROUPED]), grouped_table([calls[call] for call in GROUPED_INT8]),
        token_table([(calls[call], calls[one]) for call, one in TOKENS.items()]), mode_table(figures),
    ]  # fmt: skip


def performance_table(figures: Figures) -> Table:
    """Make the table of docs/performance.md."""
    rows = [[*shape_cells(call.shape), *time_cells(figures.calls[call])] for call in DEFAULT]
    return Table("The kernel on the host model", (*SHAPE_COLUMNS, *TIME_COLUMNS), rows)


def constant_table(constants: Mapping[str, Sequence[float]]) -> Table:
    """Tabulate the constants in which the columns differ."""
    return Table("What the columns differ in", ("", *COLUMNS, "from"), [
        [name, *(f"{value:g}{unit}" for value in constants[constant]), source]
        for constant, (name, unit, source) in _BANDS.items() if constant in constants
    ])  # fmt: skip


def paper_table(paper: Modelled) -> Table:
    """Tabulate the paper's point, cold and hot."""
    kept, dense = paper.kept, paper.dense
    share = {mode: kept.bound[mode] / kept.times[mode][EXPECTED] for mode in MODES}
    lines = {
        "time, µs": {"cold": f"{kept.cold:.2f}", "hot": f"{kept.hot:.2f}"},
        "optimistic to pessimistic": {mode: band_cell(paper, mode) for mode in MODES},
        "with estimated bank conflicts, µs": {mode: f"{kept.conflicts[mode]:.2f}" for mode in MODES},
        "at θ = -inf (dense), µs": {"cold": f"{dense.cold:.2f}", "hot": f"{dense.hot:.2f}"},
        "gain over θ = -inf": {mode: f"{paper.gain(mode):.2f}" for mode in MODES},
        "gain with the launch": {mode: launch_cell(paper, mode) for mode in MODES},
        f"launch with which it would be {_PAPERS_GAIN}, µs": {
            mode: f"{launch_for(paper, mode, _PAPERS_GAIN):.0f}" for mode in MODES
        },
        "traffic bound, µs": {mode: f"{kept.bound[mode]:.2f}" for mode in MODES},
        "share of the bound reached": {mode: f"{share[mode]:.0%}" for mode in MODES},
        **{
            f"{name} busy": {mode: f"{kept.busy[mode][pipe]:.0%}" for mode in MODES}
            for pipe, name in (("MTE2", "copies in (MTE2)"), ("V", "vector unit (V)"), ("S", "scalar unit (S)"))
        },
    }
    rows = [[name, *(cells[mode] for mode in MODES)] for name, cells in lines.items()]
    return Table("48 heads, 2048 keys, 128 kept", ("", *MODES), rows)


def launch_for(result: Modelled, mode: Mode, gain: float) -> float:
    """Compute the launch, in microseconds on both sides, at which the gain would be ``gain``."""
    kept, dense = (getattr(form, mode) for form in (result.kept, result.dense))
    return float((dense - gain * kept) / (gain - 1))


def traffic_table(paper: Modelled) -> Table:
    """Tabulate the bytes and copies of all cores together."""
    kept, dense = paper.kept.traffic, paper.dense.traffic
    rows = [[f"`{name}`", *(f"{count:,}" for count in (*kept[name], *dense[name]))] for name in kept]
    return Table("Bytes that all cores read", ("tensor", "bytes", "copies", "dense: bytes", "copies"), rows)


def ledger_table(ledger: Mapping[str, float]) -> Table:
    """Tabulate where the cold time of the slowest core goes."""
    rows = [[name, f"{value:.2f}"] for name, value in ledger.items()]
    rows.append(["together", f"{sum(ledger.values()):.2f}"])
    return Table("Where the cold time goes, slowest core", ("", "µs"), rows)


def vector_table(work: Mapping[str, float]) -> Table:
    """Tabulate what the vector unit of the slowest core does."""
    rows = [[name, f"{value:.2f}", f"{value / sum(work.values()):.0%}"] for name, value in work.items()]
    return Table("What the vector unit does, slowest core", ("", "µs", "share"), rows)


def length_table(results: Sequence[Modelled]) -> Table:
    """Tabulate 48 heads by the number of keys."""
    columns = ("n", "k", "cold, µs", "dense", "gain", "byte bound", "hot, µs", "dense", "gain")
    return Table("48 heads against the same kernel at θ = -inf", columns, [
        [str(result.shape.n), str(result.shape.k), *_against_dense(result, "cold"), f"{result.byte_bound:.2f}",
         *_against_dense(result, "hot")]
        for result in results
    ])  # fmt: skip


def _against_dense(result: Modelled, mode: Mode) -> list[str]:
    kept, dense = (getattr(form, mode) for form in (result.kept, result.dense))
    return [f"{kept:.1f}", f"{dense:.1f}", f"{result.gain(mode):.2f}"]


def density_table(results: Sequence[Modelled]) -> Table:
    """Tabulate 48 heads by the share of keys that they keep."""
    columns = ("k/n", "V rows read", "cold, µs", "gain", "byte bound", "hot, µs", "gain", "forced: gain, cold", "hot")
    return Table("48 heads, 8192 keys, by share kept", columns, [
        [_SHARES[result.shape.k / result.shape.n], f"{result.kept.rows_read / result.kept.of_rows:.1%}",
         f"{result.kept.cold:.1f}", f"{result.gain('cold'):.2f}", f"{result.byte_bound:.2f}",
         f"{result.kept.hot:.1f}", f"{result.gain('hot'):.2f}", *(f"{_forced(result)[mode]:.2f}" for mode in MODES)]
        for result in results
    ])  # fmt: skip


def _forced(result: Modelled) -> dict[str, float]:
    """Compute the gains of fetching single V rows, whatever the kernel would choose."""
    times = dict(zip(MODES, result.others["single V rows"], strict=True))
    return {"cold": result.dense.cold / times["cold"], "hot": result.dense.hot / times["hot"]}


def crossover(results: Sequence[Modelled], mode: str) -> float | None:
    """Find the share kept from which fetching single V rows takes longer than θ = -inf. None if it never does."""
    points = [(result.shape.k / result.shape.n, _forced(result)[mode]) for result in results]
    for (low, above), (high, below) in pairwise(points):
        if above >= 1 > below:
            return low + (high - low) * (above - 1) / (above - below)
    return None


def crossover_table(results: Sequence[Modelled]) -> Table:
    """Tabulate where single V rows cross over, cold and hot."""
    places = [crossover(results, mode) for mode in MODES]
    cells = ["never" if place is None else f"{place:.2f}" for place in places]
    return Table("Single V rows against all", ("", *MODES), [["crossover at k/n", *cells]])


def uneven_table(uneven: Modelled, even: Modelled) -> Table:
    """Compare 32 heads over 48 cores with 48 heads, for several times of a SyncAll."""
    columns = ("", "48 heads, µs", "32 heads, µs", *(f"SyncAll {time:g} µs" for time in SYNC_ALL_MICROSECONDS))
    rows = []
    for place, mode in enumerate(MODES):
        own, other = (
            [result.others[f"SyncAll {microseconds:g}"][place] for microseconds in SYNC_ALL_MICROSECONDS]
            for result in (uneven, even)
        )
        ratios = [f"{mine / theirs:.3f}" for mine, theirs in zip(own, other, strict=True)]
        rows.append(
            [mode, f"{even.kept.times[mode][EXPECTED]:.2f}", f"{uneven.kept.times[mode][EXPECTED]:.2f}", *ratios]
        )
    return Table("32 heads over 48 cores", columns, rows)


def grouped_table(results: Sequence[Modelled]) -> Table:
    """Tabulate several query heads per KV head."""
    columns = ("n", "k", "heads per KV head", "union", "cold, µs", "dense", "gain", "byte bound", "V busy",
               "cube copies busy", "without cube, µs", "dense traffic, µs", "hot, µs", "gain")  # fmt: skip
    return Table("8 KV heads", columns, [
        [*(("16 ragged", "n/16") if result.call.ragged else (str(result.shape.n), str(result.shape.k))),
         _group(result.call),
         f"{result.kept.rows_needed / result.kept.of_rows:.1%}", *_against_dense(result, "cold"),
         f"{result.byte_bound:.2f}", f"{result.kept.busy['cold']['V']:.0%}",
         f"{result.kept.busy['cold']['cube MTE2']:.0%}", f"{result.others['without cube'][0]:.1f}",
         f"{result.dense.bound['cold']:.1f}", f"{result.kept.hot:.1f}", f"{result.gain('hot'):.2f}"]
        for result in results
    ])  # fmt: skip


def token_table(results: Sequence[tuple[Modelled, Modelled]]) -> Table:
    """Tabulate steps of several query tokens, each with that of one token."""
    columns = ("call", "tokens", "union", "cold, µs", "dense", "gain", "as steps of one token, µs", "V busy",
               "cube copies busy", "hot, µs")  # fmt: skip
    return Table("Several query tokens", columns, [
        [_token_call(result.call), str(result.shape.query_tokens),
         f"{result.kept.rows_needed / result.kept.of_rows:.1%}",
         *_against_dense(result, "cold"), f"{result.shape.query_tokens * one.kept.cold:.1f}",
         f"{result.kept.busy['cold']['V']:.0%}", f"{result.kept.busy['cold']['cube MTE2']:.0%}",
         f"{result.kept.hot:.1f}"]
        for result, one in results
    ])  # fmt: skip


def _token_call(call: Call) -> str:
    shape, words = call.shape, [call.variant] if call.variant else []
    if shape.group > 1:
        words.append("alike" if call.alike else "independent")
    return ", ".join([f"heads {shape.heads}", f"n {shape.n}", f"k {shape.k}", *words])


def _group(call: Call) -> str:
    group = call.shape.group
    return str(group) if group == 1 else f"{group}, {'alike' if call.alike else 'independent'}"


def mode_table(figures: Figures) -> Table:
    """Tabulate the ways to call the kernel at the paper's point."""
    columns = ("call", "bytes of dense in 16 bits", "cold, µs", "hot, µs", "V busy, cold", "V busy, hot",
               "with conflicts: cold, µs", "hot, µs")  # fmt: skip
    results = {name: figures.calls[call] for name, call in MODE_CALLS.items()}
    return Table("48 heads, 2048 keys, 128 kept, by mode", columns, [
        [name, f"{figures.share_of_dense(result.kept):.1%}", f"{result.kept.cold:.1f}", f"{result.kept.hot:.1f}",
         *(f"{result.kept.busy[mode]['V']:.0%}" for mode in MODES),
         *(f"{result.kept.conflicts[mode]:.1f}" for mode in MODES)]
        for name, result in results.items()
    ])  # fmt: skip
