"""``toptheta calibrate``: from a model and some text to a table of thresholds."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from ..._checks import check_choice
from ..._files import held
from ..common import printing
from ..common.devices import choose_device
from ..common.model import DTYPES, Candidate, default_dtype, load_weights
from ..common.options import INT8, Settings
from ..common.options import command as make_command
from ..common.progress import Bars
from ..common.shell import interruptible
from ..common.table_file import check_output
from . import options as asked
from .report import intention, report, shard_conclusion, table_conclusion
from .work import (
    Ranks,
    checked_part,
    keep,
    own_windows,
    resumable,
    resuming,
    run_shard,
    shard_file,
    state_file,
)

if TYPE_CHECKING:
    from .texts import Material


def calibrate(options: asked.Options) -> None:
    """Calibrate thresholds for a model on text, and say what they keep on text that was kept back.

    \b
    Why these defaults:
    - pooled keeps k on average, and serves every k from 64 to 256 from one pass;
    - post_softmax compares shares of the attention, which hold from row to row, and loses half as much;
    - a quarter of the rows, since neighbouring rows are much alike;
    - 512 in the first two layers, as in the paper, at most a quarter of a window.
    """
    # whatever can be wrong is looked at before the weights are loaded
    from ...texts import Conventions
    from . import texts as calibration_texts

    started = time.perf_counter()
    ranks = Ranks()
    console = printing.console(quiet=not ranks.first)
    check_choice("--dtype", options.dtype or "auto", DTYPES)
    device = choose_device(options.device)
    part = checked_part(options.output, options.force, options.shards, ranks)
    texts = calibration_texts.find_texts(options)
    candidate, plan = asked.prepared(options)
    with Bars(ranks.first) as bars:
        read = bars.add("reading the texts", calibration_texts.windows_wanted(texts, plan))
        material = calibration_texts.collect(texts, Conventions.of(candidate.tokenizer), plan, read)
    plan.settings.check_rows([plan.settings.longest] * len(material.calibration))
    console.print(escape(intention(options, candidate, plan, material, device)))
    for note in material.notes:
        console.print(f"note: {escape(note)}")
    state = state_file(options.output) if part is None else shard_file(options.output, part)
    own = ranks.own_state(state)
    arguments = _arguments(options, candidate, plan, material)
    with interruptible(console, state), held(own), resumable(own), ranks.together(device), Bars(ranks.first) as bars:
        if part is None:  # another process may have written it meanwhile
            check_output(options.output, options.force)
        bars.add("loading the weights", None)
        network = load_weights(candidate, options.dtype or default_dtype(options.model), device)
        progress = bars.count("calibrating", own_windows(len(material.calibration), part, ranks), "windows")
        arguments["progress"] = resuming(options.restart, own, console, progress)
        if part is not None:
            run_shard(network, part, options, arguments)
        else:
            table = ranks.calibrate(network, state, options.checkpoint_every, arguments)
            if options.kv_cache == INT8:
                own_texts = list(material.sequences())[ranks.rank :: ranks.count]
                progress = bars.count("finding scales for int8", len(own_texts), "windows")
                table = ranks.find_scales(network, table, own_texts, progress)
            keep(table, options.output, ranks, state)
    if part is not None:
        lines = shard_conclusion(options, part)
    else:
        if ranks.first:
            report(console, options, network, table, material)
        lines = table_conclusion(options.output, table, time.perf_counter() - started)
    for line in lines:
        console.print(escape(line))


def _arguments(options: asked.Options, candidate: Candidate, plan: asked.Plan, material: Material) -> dict[str, Any]:
    """Collect what all the ways to calibrate take."""
    provenance = {**asked.provenance(options, candidate, plan), **material.provenance}
    return {**asked.arguments(options, plan), "sequences": material.sequences(), "provenance": provenance}


#: The command of `calibrate`.
command = make_command(
    asked.Options,
    calibrate,
    Settings(
        {"layer_k": asked.layer_k_text, "sequences": asked.sequences_text},
        ("force", "restart"),
        {"dense_at_calibration": "write top_k_at_calibration: false"},
    ),
)
