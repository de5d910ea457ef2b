"""``toptheta curves``: what the thresholds of a table lose, measured and added to it."""

from __future__ import annotations

import dataclasses
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from ..._checks import check_choice, check_int
from ..._files import held
from ...errors import TopThetaValueError
from ..common import printing
from ..common.devices import choose_device
from ..common.model import DTYPES, Candidate, default_dtype, load_weights, look_at
from ..common.options import DeviceName, DtypeName, ModelName, TrustRemoteCode
from ..common.options import command as make_command
from ..common.progress import Bars
from ..common.shell import interruptible
from .curves import MEASURING, row_fraction_for, show_path
from .report import table_conclusion
from .work import Ranks, checked_part, keep, own_windows, resumable, resuming, shard_file, state_file

if TYPE_CHECKING:
    from ...calibration.part import Part
    from ...texts import Windows
    from ...thresholds import ThresholdTable


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of the command."""

    model: ModelName = None
    table: Annotated[Path, typer.Option(help="Thresholds of this model.")]
    text: Annotated[
        list[Path],
        typer.Option(help="Text that made no thresholds, as toptheta calibrate takes it; may be given again."),
    ]
    output: Annotated[Path, typer.Option("--output", "-o", help="The table with its error curves.")]
    force: Annotated[bool, typer.Option("--force", help="Replace the table that is there.")] = False
    field: Annotated[str, typer.Option(help="Field of .jsonl and .json files, column of data sets.")] = "text"
    encoding: Annotated[str, typer.Option(help="Of text files, such as utf-16 or latin-1.")] = "utf-8"
    length: Annotated[int | None, typer.Option(help="Tokens in a window. Default: as long as the table reaches.")] = (
        None
    )
    sequences: Annotated[int, typer.Option(min=1, help="Windows.")] = 16
    row_fraction: Annotated[
        float | None, typer.Option(help="Share of the rows to look at. Default: 1/32, and 32 rows or more.")
    ] = None
    seed: Annotated[int, typer.Option(help="Of the choice of rows.")] = 0
    dtype: DtypeName = None
    device: DeviceName = None
    checkpoint_every: Annotated[int, typer.Option(help="Windows between two writings of OUTPUT.partial.")] = 4
    restart: Annotated[bool, typer.Option("--restart", help="Leave out what an interrupted run has done.")] = False
    shards: Annotated[
        str | None, typer.Option(help="Run one part only, such as 0/4; twice, the second time after all others.")
    ] = None
    trust_remote_code: TrustRemoteCode = False


def curves(options: Options) -> None:
    """Measure what every k of a table loses in every head, so that budgets can be chosen; add that to the table.

    The model runs twice over the windows: for every head alone, then for a dozen budgets of all heads.
    """
    from ...thresholds import ThresholdTable

    started = time.perf_counter()
    ranks = Ranks()
    console = printing.console(quiet=not ranks.first)
    check_choice("--dtype", options.dtype or "auto", DTYPES)
    check_int("--checkpoint-every", options.checkpoint_every, 1)
    device = choose_device(options.device)
    part = checked_part(options.output, options.force, options.shards, ranks)
    table = ThresholdTable.load(options.table)
    candidate = look_at(options.model, options.trust_remote_code)
    with Bars(ranks.first) as bars:
        windows, notes = _read(options, candidate, table, bars.add("reading the texts", options.sequences))
    console.print(escape(f"{options.table}, on {len(windows)} windows of {windows.length} tokens, on {device}."))
    for note in notes:
        console.print(escape(f"note: {note}"))
    state = state_file(options.output) if part is None else shard_file(options.output, part)
    own = ranks.own_state(state)
    with interruptible(console, state), held(own), resumable(own), ranks.together(device), Bars(ranks.first) as bars:
        bars.add("loading the weights", None)
        network = load_weights(candidate, options.dtype or default_dtype(options.model), device)
        progress = bars.twice(MEASURING, own_windows(len(windows), part, ranks))
        arguments = _arguments(options, windows, resuming(options.restart, own, console, progress))
        texts = [windows[place] for place in range(len(windows))]
        if part is not None:
            lines = _run_shard(network, table, texts, part, options, arguments)
        else:
            table = ranks.measure(network, table, texts, state, options.checkpoint_every, arguments)
            keep(table, options.output, ranks, state)
    if part is None:
        show_path(console, table)
        lines = table_conclusion(options.output, table, time.perf_counter() - started)
    for line in lines:
        console.print(escape(line))


def _read(
    options: Options, candidate: Candidate, table: ThresholdTable, progress: Callable[[int], None]
) -> tuple[Windows, list[str]]:
    """Read the windows. Say what the user should know of them.

    Raises:
        TopThetaTypeError, TopThetaValueError: a text cannot be read, or there is too little of it.
    """
    from ...texts import Conventions, collect_windows, find_sources, read_before
    from .options import window_length

    sources = find_sources(options.text, options.field, options.encoding).sources
    length = window_length(options.length, 0, candidate.longest, int(table.lengths[-1]))
    windows = collect_windows(sources, Conventions.of(candidate.tokenizer), length, options.sequences, progress)
    if not len(windows):
        expected, got = f"enough text for a window of {length} tokens", f"{windows.rest} tokens"
        raise TopThetaValueError("--text", expected, got, "name more text, or use a smaller --length")
    names = ", ".join(read_before(sources, table.provenance.values()))
    note = f"the table was calibrated on {names}, too: errors may look better than on new text."
    return windows, [note] if names else []


def _arguments(options: Options, windows: Windows, progress: Any) -> dict[str, Any]:
    provenance = {"curve_windows_sha256": windows.digest(range(len(windows)))}
    share = row_fraction_for(windows.length) if options.row_fraction is None else options.row_fraction
    return {
        "seed": options.seed, "longest": windows.length, "row_fraction": share, "provenance": provenance,
        "progress": progress,
    }  # fmt: skip


def _run_shard(
    network: Any, table: ThresholdTable, texts: list[Any], part: Part, options: Options, arguments: dict[str, Any]
) -> list[str]:
    """Run one part, into its file. Tell what comes next."""
    from ...models import calibrate_error_curves_shard

    paths = [shard_file(options.output, dataclasses.replace(part, index=index)) for index in range(part.count)]
    finished = calibrate_error_curves_shard(
        network, table, texts, index=part.index, paths=paths, checkpoint_every=options.checkpoint_every, **arguments
    )
    name = f"{paths[part.index]}: shard {part.index} of {part.count}"
    if not finished:
        return [f"{name} has made the first of its two passes.", "Next, when all others have: the same command again."]
    output, table_file = shlex.quote(str(options.output)), shlex.quote(str(options.table))
    merge = f"toptheta merge {output}.shard-*-of-{part.count} --table {table_file} -o {output}"
    return [f"{name} is done.", f"Next, when all {part.count} are: {merge}"]


#: The command of `curves`.
command = make_command(Options, curves)
