"""``toptheta evaluate``: methods side by side on tasks, with what each of them reads."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from rich.markup import escape

from ..common import printing
from ..common.devices import choose_device
from ..common.model import default_dtype, load_weights
from ..common.options import Settings
from ..common.options import command as make_command
from ..common.progress import Bars
from ..common.shell import interruptible
from .options import Options, completed

if TYPE_CHECKING:
    from transformers import PreTrainedModel

#: Models of fewer parameters run in a thread per core, larger ones with all cores in each operator.
_SMALL = 100_000_000


def evaluate(options: Options) -> None:
    """Compare ways to attend on a model of yours: what they score, and which V rows they read.

    \b
    Every point (task, method, k) is written as soon as it is measured; the same command goes on after an interrupt, and
    one with more tasks, methods or k adds to the file. See toptheta plot for figures.
    """
    from ...evaluation.results import ResultsFile
    from ...evaluation.summary import tables_of
    from ...evaluation.verdict import verdicts
    from ...evaluation.workers import ModelWorkers
    from .tasks import unused_options
    from .work import header, measure, prepare

    device = choose_device(options.device)
    options = completed(options)
    prepared = prepare(options)
    console = printing.console()
    what = f"{prepared.points} points, from {len(prepared.plan.methods)} methods on {', '.join(options.task)}"
    console.print(escape(f"{prepared.candidate.name} on {device}: {what}."))
    for note in (*unused_options(options.typed, options.task), *prepared.texts.notes()):
        console.print(f"note: {escape(note)}")
    network = load_weights(prepared.candidate, options.dtype or default_dtype(options.model), device)
    with ResultsFile(options.output, header(prepared, network, device), restart=options.restart) as results:
        with (
            interruptible(console, options.output), Bars() as bars,
            ModelWorkers(network, _workers(options, network)) as workers,
        ):  # fmt: skip
            measure(console, bars, prepared, workers, results)
        found = results.results()
    for table in tables_of(found):
        printing.print_table(console, table)
        for line in verdicts(table.title, found.of_task(table.title)):
            console.print(escape(line), soft_wrap=True)
        console.print()
    console.print(escape(f"{options.output}: {len(found.measurements)} points."))
    console.print(escape(f"Next: toptheta plot {shlex.quote(str(options.output))} -o figures"))


def _workers(options: Options, network: PreTrainedModel) -> int | None:
    """Choose how many methods run at a time; None: one per core."""
    small = sum(parameter.numel() for parameter in network.parameters()) < _SMALL
    return options.workers or (None if small and network.device.type == "cpu" else 1)


#: The command of `evaluate`.
command = make_command(Options, evaluate, Settings(exclude=("restart", "confirm_run_unsafe_code")))
