"""``toptheta find-tau``: the tau that reads a wanted number of V rows, or that loses at most so much."""

from __future__ import annotations

import dataclasses
import math
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from .._checks import check_choice, check_number
from .._tables import counted
from ..errors import TopThetaCombinationError, TopThetaValueError, shown
from .common import printing
from .common.devices import choose_device
from .common.model import DTYPES, Candidate, default_dtype, load_weights, look_at
from .common.options import DeviceName, DtypeName, ModelName, TextField, TextPaths, TrustRemoteCode
from .common.options import command as make_command
from .evaluate.estimate import estimated_seconds, in_words
from .evaluate.options import PERPLEXITY
from .evaluate.options import Options as EvaluateOptions
from .evaluate.tasks import PlannedTask, Texts, plan_tasks

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ..evaluation.loss_target import Found, Tried

#: Fewer windows have no interval that says something.
_FEWEST = 3


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of the command."""

    model: ModelName = None
    text: TextPaths = dataclasses.field(default_factory=list)
    field: TextField = "text"
    loss: Annotated[
        str | None,
        typer.Option(
            metavar="PERCENT", help="Loss of perplexity to stay below, such as 0.5%. Gives the largest such tau."
        ),
    ] = None
    value_rows: Annotated[
        float | None,
        typer.Option(metavar="FLOAT", help="V rows that a decode step reads on average, for each KV head."),
    ] = None
    length: Annotated[
        int | None,
        typer.Option(metavar="INT", help="Tokens in a window of text. Default: at most 4096; 2560 if embedded."),
    ] = None
    windows: Annotated[int, typer.Option(min=1, metavar="INT", help="Windows of text to measure on.")] = 16
    positions: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="INT",
            help="Tokens to predict at the end of each window, with --loss. Default: 512, at most a quarter.",
        ),
    ] = None  # fmt: skip
    dtype: DtypeName = None
    device: DeviceName = None
    trust_remote_code: TrustRemoteCode = False


def find_tau(options: Options) -> None:
    """Find the tau for a target of loss, or of V rows.

    Use text that the model will not be judged on. With --loss, tau is bisected by the perplexity of toptheta evaluate:
    the whole 95 % interval of the loss must lie below the target.
    """
    if options.loss is None and options.value_rows is None:
        remedy = "such as: --loss 0.5%"
        raise TopThetaValueError("--loss", "a target, or --value-rows in its place", "neither", remedy)
    if options.loss is not None and options.value_rows is not None:
        raise TopThetaCombinationError("--loss", "excludes", "--value-rows", "leave one of them out")
    device = choose_device(options.device)
    check_choice("--dtype", options.dtype or "auto", DTYPES)
    most_loss = None if options.loss is None else read_percent(options.loss)
    if options.value_rows is not None:
        check_number("--value-rows", options.value_rows, minimum=1)
    if most_loss is not None and options.windows < _FEWEST:
        expected = f"at least {_FEWEST}, whose spread says how sure the loss is"
        raise TopThetaValueError("--windows", expected, str(options.windows), "take 16, for example")
    candidate = look_at(options.model, options.trust_remote_code)
    texts, task = _prepared(options, candidate)
    console = printing.console()
    for note in texts.notes():
        console.print(f"note: {escape(note)}")
    network = load_weights(candidate, options.dtype or default_dtype(options.model), device)
    if most_loss is None:
        tau = _by_rows(console, options, network, texts)
    else:
        tau = _by_loss(console, network, task, texts, most_loss)
    model = shlex.quote(options.model) if options.model else ""
    evaluate = " ".join(filter(None, ("toptheta evaluate", model, f"--text OTHER_TEXT --tau {tau:g}")))
    console.print(escape(f"Next: {evaluate}"))


def read_percent(text: str) -> float:
    """Read a loss in percent.

    Raises:
        TopThetaValueError: it is no number above 0 and up to 100.

    Example:
        >>> read_percent("0.5%"), read_percent("2")
        (0.5, 2.0)
    """
    try:
        value = float(text.strip().removesuffix("%"))
    except ValueError:
        value = math.nan
    if not 0 < value <= 100:
        raise TopThetaValueError("--loss", "percent of perplexity, above 0 and up to 100", shown(text), "such as 0.5%")
    return value


def _prepared(options: Options, candidate: Candidate) -> tuple[Texts, PlannedTask]:
    """Cut the windows, as toptheta evaluate does."""
    from ..evaluation.measurement import check_layers

    if options.loss is not None:
        check_layers(candidate.skeleton)
    asked = EvaluateOptions(
        model=options.model, text=options.text, field=options.field, length=options.length, windows=options.windows,
        positions=options.positions, task=[PERPLEXITY],
    )  # fmt: skip
    texts = Texts(asked, candidate, {})
    return texts, plan_tasks(asked, candidate, texts, {})[PERPLEXITY]


def _by_rows(console: Console, options: Options, network: PreTrainedModel, texts: Texts) -> float:
    from ..models import find_tau as tau_of_rows

    assert options.value_rows is not None
    tau = float(f"{tau_of_rows(network, texts.scored, value_rows=options.value_rows):.3g}")
    windows = f"{counted(len(texts.scored), 'windows')} of {texts.length} tokens"
    console.print(f"tau = {tau:g} reads {options.value_rows:g} V rows on average, after {windows}.")
    console.print("What it loses depends on the model, and is not measured here.")
    return tau


def _by_loss(console: Console, network: PreTrainedModel, planned: PlannedTask, texts: Texts, most_loss: float) -> float:
    from ..evaluation.loss_target import LEAST, STEPS, search_tau
    from ..evaluation.methods.kinds import make_method

    methods = [make_method("dense"), *[make_method("tau")] * STEPS]
    seconds = estimated_seconds(network, texts.scored, int(planned.settings["positions"]), methods)
    windows = counted(planned.samples, "windows")
    console.print(f"This will take {in_words(seconds)}: {STEPS} values of tau and dense, on {windows} each.")

    def show(tried: Tried) -> None:
        console.print(escape(f"tau = {tried.tau:g}: perplexity {tried.change}"))

    found = search_tau(planned.make(network), network, most_loss, progress=show)
    if found.below is None:
        assert found.above is not None
        raise TopThetaValueError(
            "--loss", f"a loss that {windows} can exclude at some tau from {LEAST:g} on",
            f"{most_loss:g} %, where tau = {found.above.tau:g} may lose {found.above.change.high:.2g} %",
            "allow more, or add --windows",
        )  # fmt: skip
    for line in conclusion(found, most_loss, windows):
        console.print(escape(line))
    return found.below.tau


def conclusion(found: Found, most_loss: float, windows: str) -> list[str]:
    """Say which tau was found, and how sure its loss is."""
    below, above = found.below, found.above
    assert below is not None
    loss, reads = below.change, below.measurement.reads
    lines = [
        f"tau = {below.tau:g}: perplexity {loss.value:+.2f} % (95 % interval {loss.low:+.2f} to {loss.high:+.2f} %) on "
        f"{windows}; {reads.value_rows_mean:.0f} of {reads.keys_mean:.0f} V rows read."
    ]
    beyond = f"; that of tau = {above.tau:g} does not" if above is not None else "; no larger tau was tried"
    return [*lines, f"The whole interval lies below {most_loss:g} %{beyond}. Other text may lose more."]


#: The command of `find_tau`.
command = make_command(Options, find_tau)
