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
from ..common.options import INT8
from ..common.options import command as make_command
from ..common.progress import Bars
from ..common.shell import interruptible
from ..common.table_file import check_output
from . import options as asked
from .report import intention, limits_of, report, table_conclusion
from .work import begin, check_outputs, resumable, state_file

if TYPE_CHECKING:
    from .texts import Material


def calibrate(options: asked.Options) -> None:
    """Calibrate thresholds for your model on text.

    It reports what the thresholds keep on held-out text. Try toptheta evaluate --tau first: tau needs no calibration.

    \b
    Why these defaults:
    - pooled keeps k on average, and one pass serves every k from 64 to 256;
    - post_softmax compares probabilities, and loses half as much;
    - a quarter of the rows is enough: neighbouring rows are alike;
    - 512 in the first two layers is the paper's choice.
    """
    # whatever can be wrong is looked at before the weights are loaded
    from ... import models
    from ...texts import Conventions
    from . import texts as calibration_texts

    started = time.perf_counter()
    console = printing.console()
    check_choice("--dtype", options.dtype or "auto", DTYPES)
    device = choose_device(options.device)
    check_outputs(options.output, options.force)
    texts = calibration_texts.find_texts(options)
    candidate, plan = asked.prepared(options)
    with Bars() as bars:
        read = bars.add("reading the texts", calibration_texts.windows_wanted(texts, plan))
        material = calibration_texts.collect(texts, Conventions.of(candidate.tokenizer), plan, read)
    plan.settings.check_rows([plan.settings.longest] * len(material.calibration))
    console.print(escape(intention(options, candidate, plan, material, device)))
    for note in material.notes:
        console.print(f"note: {escape(note)}")
    for limit in limits_of(plan):
        console.print(f"[yellow]warning:[/yellow] {escape(limit)}")
    state = state_file(options.output)
    arguments = _arguments(options, candidate, plan, material)
    with interruptible(console, state), held(state), resumable(state), Bars() as bars:
        check_output(options.output, options.force)  # another process may have written it meanwhile
        begin(options.restart, state, console)
        bars.add("loading the weights", None)
        network = load_weights(candidate, options.dtype or default_dtype(options.model), device)
        arguments["progress"] = bars.count("calibrating", len(material.calibration), "windows")
        table = models.calibrate(network, checkpoint=state, **arguments)
        if options.kv_cache == INT8:
            progress = bars.count("finding scales for int8", len(material.calibration), "windows")
            table = models.calibrate_cache_scales(network, table, arguments["sequences"], progress=progress)
        table.save(options.output)
        state.unlink(missing_ok=True)
    report(console, options, network, table, material)
    for line in table_conclusion(options.output, table, time.perf_counter() - started):
        console.print(escape(line))


def _arguments(options: asked.Options, candidate: Candidate, plan: asked.Plan, material: Material) -> dict[str, Any]:
    """Collect what all the ways to calibrate take."""
    provenance = {**asked.provenance(options, candidate, plan), **material.provenance}
    return {**asked.arguments(options, plan), "sequences": material.calibration, "provenance": provenance}


#: The command of `calibrate`.
command = make_command(asked.Options, calibrate, config=True)
