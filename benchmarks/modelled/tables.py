"""The modelled figures as tables of the pages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from benchmarks.tables import Table
from emulator.ascendc import COLUMNS, Mode

from .calls import DEFAULT, GROUPS, PROBABILITIES, Call, Modelled
from .figures import Figures
from .step import CUBE_COPIES, EXPECTED, MODES

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
#: The modes of users, by the variant of the call.
_MODE_NAMES = {"": "pre-softmax", "post-softmax": "tau", "sampled-softmax": "tau, lse=sampled"}
_COLUMNS = (
    "call", "V rows needed", "cold", "band", "θ=-inf", "gain", "limit", "over any dense", "gain with launch", "hot",
    "gain, hot", "V busy", "cube copies busy", "without cube", "dense traffic",
)  # fmt: skip


def tables_of(figures: Figures) -> Iterator[Table]:
    """Make all tables."""
    yield constant_table(figures.constants)
    yield paper_table(figures.paper)
    yield gain_table(figures)
    for title, calls in GROUPS.items():
        yield call_table(title, [figures.calls[call] for call in calls])


def constant_table(constants: Mapping[str, Sequence[float]]) -> Table:
    """Tabulate the constants in which the columns differ."""
    return Table("What the columns differ in", ("", *COLUMNS, "from"), [
        [name, *(f"{value:g}{unit}" for value in constants[constant]), source]
        for constant, (name, unit, source) in _BANDS.items() if constant in constants
    ])  # fmt: skip


def paper_table(paper: Modelled) -> Table:
    """Tabulate the paper's point, cold and hot."""
    kept, dense = paper.kept, paper.dense
    lines = {
        "time, µs": {"cold": f"{kept.cold:.2f}", "hot": f"{kept.hot:.2f}"},
        "optimistic to pessimistic": {mode: _band(paper, mode) for mode in MODES},
        "at θ = -inf (dense), µs": {"cold": f"{dense.cold:.2f}", "hot": f"{dense.hot:.2f}"},
        "gain over θ = -inf": {mode: f"{paper.gain(mode):.2f}" for mode in MODES},
        "gain with the launch": {mode: _with_launch(paper, mode) for mode in MODES},
        "traffic bound, µs": {mode: f"{kept.bound[mode]:.2f}" for mode in MODES},
        "copies in (MTE2) busy": {mode: f"{kept.busy[mode]['MTE2']:.0%}" for mode in MODES},
        "vector unit (V) busy": {mode: f"{kept.busy[mode]['V']:.0%}" for mode in MODES},
    }
    rows = [[name, *(cells[mode] for mode in MODES)] for name, cells in lines.items()]
    return Table("48 heads, 2048 keys, 128 kept", ("", *MODES), rows)


def gain_table(figures: Figures) -> Table:
    """Tabulate what users gain, by `tau` first, over the fastest form of the kernel that reads all of V."""
    columns = ("mode", "heads", "batch", "keys", "k", "cold, µs", "band", "over all of V", "with launch",
               "over any dense")  # fmt: skip
    contiguous = [call for call in DEFAULT if call.shape.dtype == "float16" and not call.shape.block_size]
    rows = [_gains(figures, call) for call in (*PROBABILITIES, *contiguous)]
    return Table("Gains by mode, float16", columns, rows)


def _gains(figures: Figures, call: Call) -> list[str]:
    shape, result, plain = call.shape, figures.calls[call], figures.calls[replace(call, variant="")]
    gains = [
        (plain.dense.times["cold"][column] + plain.dense.launch[column])
        / (result.kept.times["cold"][column] + result.kept.launch[column])
        for column in range(len(COLUMNS))
    ]
    return [
        _MODE_NAMES[call.variant], f"{shape.num_heads}/{shape.num_key_value_heads}", str(shape.batch), str(shape.n),
        str(shape.k), f"{result.kept.cold:.1f}", _band(result, "cold"), f"{plain.dense.cold / result.kept.cold:.2f}",
        f"{gains[EXPECTED]:.2f} ({min(gains):.2f} to {max(gains):.2f})",
        f"{plain.dense.bound['cold'] / result.kept.cold:.2f}",
    ]  # fmt: skip


def call_table(title: str, results: Sequence[Modelled]) -> Table:
    """Tabulate calls: times in microseconds, expected and cold unless said otherwise."""
    return Table(title, _COLUMNS, [_cells(result) for result in results])


def _cells(result: Modelled) -> list[str]:
    kept, dense = result.kept, result.dense
    return [
        str(result.call), f"{kept.rows_needed / kept.of_rows:.1%}", f"{kept.cold:.1f}", _band(result, "cold"),
        f"{dense.cold:.1f}", f"{result.gain('cold'):.2f}", f"{result.limit:.2f}", f"{result.gain_over_any_dense:.2f}",
        _with_launch(result, "cold"), f"{kept.hot:.1f}", f"{result.gain('hot'):.2f}", f"{kept.busy['cold']['V']:.0%}",
        f"{kept.busy['cold'][CUBE_COPIES]:.0%}", "" if result.without_cube is None else f"{result.without_cube:.1f}",
        f"{dense.bound['cold']:.1f}",
    ]  # fmt: skip


def _band(result: Modelled, mode: Mode) -> str:
    """Format the time with the optimistic and with the pessimistic constants."""
    best, _, worst = result.kept.times[mode]
    return f"{best:.1f} to {worst:.1f}"


def _with_launch(result: Modelled, mode: Mode) -> str:
    """Format the gain with the launch on both sides: expected, and least and most over the columns of constants."""
    gains = [result.gain_with_launch(mode, column) for column in range(len(COLUMNS))]
    return f"{gains[EXPECTED]:.2f} ({min(gains):.2f} to {max(gains):.2f})"
