"""``toptheta evaluate``: methods side by side on tasks, with what each of them reads."""

from __future__ import annotations

import platform
import shlex
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
import typer
from rich.console import Console
from rich.markup import escape

from .._checks import check_choice
from .._configuration import use_as_defaults
from ..errors import TopThetaValueError
from ..thresholds import ThresholdExtrapolationWarning
from . import printing
from .bars import Bars
from .loading import DTYPES, Candidate, choose_device, default_dtype, load_weights, look_at

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ..evaluation.results import Header, Point, ResultsFile
    from ..evaluation.sweep import Plan
    from ..thresholds import ThresholdTable
    from .evaluation_tasks import PlannedTask

DEFAULT_METHODS = ("dense", "top-theta", "top-k", "last-k")
_EMBEDDED_TASKS = ("perplexity", "key-value", "needle")
_DEFAULT_K = 64
#: Models of fewer parameters run in a thread per core, larger ones with all cores in each operator.
_SMALL = 100_000_000


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of the command.

    Attributes:
        typed: the names of those that the command line has.
    """

    model: str | None
    tables: list[Path]
    task: list[str]
    method: list[str]
    k: list[int]
    output: Path
    restart: bool
    text: list[Path]
    field: str
    encoding: str
    length: int | None
    windows: int
    positions: int | None
    prompts: int
    prompt_length: list[int]
    seed: int
    limit: int | None
    num_fewshot: int | None
    task_folder: Path | None
    confirm_run_unsafe_code: bool
    dtype: str | None
    device: str | None
    workers: int | None
    trust_remote_code: bool
    extrapolate: bool
    typed: frozenset[str]


def _read_configuration(context: typer.Context, value: Path | None) -> Path | None:
    if value is not None:
        use_as_defaults(context, value, {}, exclude=("config", "restart", "confirm_run_unsafe_code"))
    return value


def evaluate(
    context: typer.Context,
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="A causal transformers model: its folder, or its name on the Hub. "
                       "Default: the embedded one."),
    ] = None,
    tables: Annotated[
        list[Path] | None,
        typer.Argument(metavar="TABLE...", help="Thresholds of this model. Default: those of the embedded model."),
    ] = None,
    task: Annotated[
        list[str] | None,
        typer.Option(help="perplexity, key-value, needle, or a task of lm-eval; may be given again. Default: "
                     "perplexity; the first three for the embedded model."),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(help="A method, such as top-theta, or top-theta:sdc=none,vmc=false; may be given again. "
                     "Default: dense, top-theta, top-k and last-k."),
    ] = None,
    k: Annotated[
        list[int] | None,
        typer.Option(help="Elements to keep; may be given again. Default: 64, or the nearest k of the tables."),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The results.")] = Path("evaluation.jsonl"),
    restart: Annotated[bool, typer.Option("--restart", help="Leave out what is in the results.")] = False,
    text: Annotated[
        list[Path] | None, typer.Option(help="Text for perplexity, as toptheta calibrate takes it; may be given again.")
    ] = None,
    field: Annotated[str, typer.Option(help="Field of .jsonl files, column of data sets.")] = "text",
    encoding: Annotated[str, typer.Option(help="Of text files, such as utf-16 or latin-1.")] = "utf-8",
    length: Annotated[
        int | None,
        typer.Option(help="Tokens in a window. Default: as long as the tables reach, at most 4096; embedded 2560."),
    ] = None,
    windows: Annotated[int, typer.Option(min=1, help="Windows to score.")] = 16,
    positions: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens to predict, at the end of every window. Default: 512, at most a quarter."),
    ] = None,
    prompts: Annotated[
        int, typer.Option(min=1, help="Prompts of key-value and of needle, for each length and each of five depths.")
    ] = 8,
    prompt_length: Annotated[
        list[int] | None, typer.Option(help="Tokens of a prompt; may be given again. Default: 512, 1024 and 2048.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the prompts.")] = 0,
    limit: Annotated[int | None, typer.Option(min=1, help="Documents of a task of lm-eval. Default: all.")] = None,
    num_fewshot: Annotated[
        int | None, typer.Option(min=0, help="Examples before a question. Default: the paper's, else the task's.")
    ] = None,
    task_folder: Annotated[Path | None, typer.Option(help="Folder with tasks of lm-eval of yours, YAML.")] = None,
    confirm_run_unsafe_code: Annotated[
        bool, typer.Option("--confirm-run-unsafe-code", help="Run what the model writes (humaneval).")
    ] = False,
    dtype: Annotated[str | None, typer.Option(help="auto (the checkpoint's), float32, bfloat16 or float16.")] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, npu, or auto to spread the layers. Default: the best there is.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Methods at a time. Default: one per core for small models, else 1.")
    ] = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run code that comes with the model.")
    ] = False,
    extrapolate: Annotated[
        bool, typer.Option("--extrapolate", help="Rows longer than calibrated ones take the thresholds of the longest.")
    ] = False,
    config: Annotated[
        Path | None,
        typer.Option(help="These options in a YAML file; the command line wins.", is_eager=True,
                     callback=_read_configuration),
    ] = None,
) -> None:  # fmt: skip
    """Compare ways to attend on a model of yours: what they score, and which V rows they read.

    \b
    Every point (task, method, k) is written as soon as it is measured; the same command goes on after an interrupt, and
    one with more tasks, methods or k adds to the file. See toptheta plot for figures.
    """
    run(
        Options(
            model=model, tables=tables or [], task=list(dict.fromkeys(task or ())), method=list(method or ()),
            k=sorted(set(k or ())), output=output, restart=restart, text=text or [], field=field, encoding=encoding,
            length=length, windows=windows, positions=positions,
            prompts=prompts, prompt_length=prompt_length or [], seed=seed, limit=limit, num_fewshot=num_fewshot,
            task_folder=task_folder, confirm_run_unsafe_code=confirm_run_unsafe_code, dtype=dtype, device=device,
            workers=workers,
            trust_remote_code=trust_remote_code, extrapolate=extrapolate, typed=_typed(context),
        )
    )  # fmt: skip


def _typed(context: typer.Context) -> frozenset[str]:
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return frozenset(name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE")


def run(options: Options) -> None:
    """The work of the command: whatever can be wrong is looked at before the weights are loaded."""
    from ..evaluation.results import ResultsFile
    from ..evaluation.summary import tables_of
    from .calibration_work import interruptible
    from .evaluation_tasks import Texts, check_lengths, check_spare_length, plan_tasks, unused_options

    check_choice("--dtype", options.dtype or "auto", DTYPES)
    device = choose_device(options.device)
    options = _with_defaults(options)
    candidate = look_at(options.model, options.trust_remote_code)
    plan = _plan(options, candidate)
    texts = Texts(options, candidate, plan.tables)
    planned = plan_tasks(options, candidate, texts, plan.tables)
    if not options.extrapolate:
        check_lengths(planned, plan.tables)
    settings = {name: task.settings for name, task in planned.items()}
    if calibrating := [spec.text for spec in plan.methods if spec.calibrates]:
        check_spare_length(texts, planned, calibrating[0])
        settings["spare text"] = texts.spare_settings()
    console = printing.console()
    console.print(escape(_intention(candidate, plan, device)))
    for note in (*unused_options(options.typed, options.task), *texts.notes()):
        console.print(f"note: {escape(note)}")
    network = load_weights(candidate, options.dtype or default_dtype(options.model), device)
    header = _header(options, candidate, network, plan, settings, device)
    with ResultsFile(options.output, header, restart=options.restart) as results:
        with interruptible(console, options.output), _warnings_as_notes(console):
            _measure(console, options, network, plan, planned, texts, results)
        found = results.results()
    for table in tables_of(found):
        printing.print_table(console, table)
    for line in _conclusion(options, len(found.measurements)):
        console.print(escape(line))


def _with_defaults(options: Options) -> Options:
    """With what was left out, as far as it does not depend on the model."""
    if options.model is not None and Path(options.model).is_file():  # a table of the embedded model
        options = replace(options, model=None, tables=[Path(options.model), *options.tables])
    tasks = options.task or list(_EMBEDDED_TASKS if options.model is None else _EMBEDDED_TASKS[:1])
    method = options.method or list(DEFAULT_METHODS)
    # what all others are compared with
    method = ["dense", *(each for each in method if each != "dense")]
    return replace(options, task=tasks, method=method)


def _plan(options: Options, candidate: Candidate) -> Plan:
    from ..evaluation.methods.names import parse_method
    from ..evaluation.sweep import Plan
    from ..models.attach import num_layers

    methods = tuple(dict.fromkeys(parse_method(text) for text in options.method))
    tables = _tables(options)
    ks = tuple(options.k or [_default_k(tables)])
    return Plan(tuple(options.task), methods, ks, tables, num_layers(candidate.skeleton))


def _default_k(tables: Mapping[str, ThresholdTable]) -> int:
    """64, or the nearest k that was calibrated."""
    least = max((int(table.k[0]) for table in tables.values()), default=_DEFAULT_K)
    most = min((int(table.k[-1]) for table in tables.values()), default=_DEFAULT_K)
    return min(max(_DEFAULT_K, least), most)


def _tables(options: Options) -> dict[str, ThresholdTable]:
    """The thresholds by name: that of the file, without folder and ending."""
    from ..thresholds import ThresholdTable

    if not options.tables and options.model is None:
        from ..assets import load_tiny_llama_thresholds

        return {name: load_tiny_llama_thresholds(name) for name in ("pre_softmax", "post_softmax")}
    tables: dict[str, ThresholdTable] = {}
    for path in options.tables:
        if path.stem in tables:
            raise TopThetaValueError(
                "TABLE", "files of different names", f"two named {path.stem}", "rename one of them"
            )
        tables[path.stem] = ThresholdTable.load(path)
    return tables


def _intention(candidate: Candidate, plan: Plan, device: str) -> str:
    counts = [len(list(plan.points(task))) for task in plan.tasks]
    return (
        f"{candidate.name} on {device}: {sum(counts)} points, from {len(plan.methods)} methods on "
        f"{', '.join(plan.tasks)}."
    )


def _header(
    options: Options, candidate: Candidate, network: PreTrainedModel, plan: Plan, settings: Mapping[str, Any],
    device: str,
) -> Header:  # fmt: skip
    """Everything that the figures depend on; the tables are checked against the model."""
    from ..evaluation.results import Header
    from ..evaluation.sweep import table_digest
    from ..models import model_fingerprint
    from ..models.sparsify import check_table

    for table in plan.tables.values():
        check_table(network, table)
    return Header(
        candidate.name, model_fingerprint(network), settings,
        {name: table_digest(table) for name, table in plan.tables.items()},
        {
            "device": device, "dtype": str(network.dtype).removeprefix("torch."), "python": platform.python_version(),
            "torch": torch.__version__, **{name: version(name) for name in ("transformers", "toptheta_npu")},
        },
    )  # fmt: skip


def _measure(
    console: Console, options: Options, network: PreTrainedModel, plan: Plan, planned: Mapping[str, PlannedTask],
    texts: Any, results: ResultsFile,
) -> None:  # fmt: skip
    """Measures what is missing, a line for each point."""
    from ..evaluation.sweep import Sweep
    from ..evaluation.workers import ModelWorkers

    with Bars() as bars, ModelWorkers(network, _workers(options, network)) as workers:
        done: dict[Point, int] = {}

        def step(point: Point, samples: int) -> None:
            done[point] = samples
            advance(sum(list(done.values())))  # any thread may add another meanwhile

        makers = {name: task.make for name, task in planned.items()}
        sweep = Sweep(plan, makers, workers, lambda: texts.spare, results, step)
        missing = sweep.missing()
        if results.measurements:
            console.print(escape(f"{len(results.measurements)} points are in {options.output}; {len(missing)} to go."))
        advance = bars.add("evaluating", sum(planned[point.task].samples for point in missing))
        for point, measurement in sweep.run():
            console.print(escape(_line(point, measurement)))


@contextmanager
def _warnings_as_notes(console: Console) -> Iterator[None]:
    """Warnings, whichever thread gives them, as a line each and once."""
    seen: set[str] = set()

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        if str(message) not in seen:
            seen.add(str(message))
            console.print(f"note: {escape(str(message))}", soft_wrap=True)

    with warnings.catch_warnings():
        warnings.simplefilter("always", ThresholdExtrapolationWarning)
        warnings.showwarning = show
        yield


def _workers(options: Options, network: PreTrainedModel) -> int | None:
    """How many methods run at a time; None: one per core."""
    small = sum(parameter.numel() for parameter in network.parameters()) < _SMALL
    return options.workers or (None if small and network.device.type == "cpu" else 1)


def _line(point: Point, measurement: Any) -> str:
    from ..evaluation.summary import score, score_name

    reads = measurement.reads
    return (
        f"{point.name}: {score_name(measurement)} {score(measurement)}, "
        f"{reads.value_rows_mean:.0f} of {reads.keys_mean:.0f} V rows"
    )


def _conclusion(options: Options, points: int) -> list[str]:
    output = shlex.quote(str(options.output))
    return [
        f"{options.output}: {points} points.",
        f"Next: toptheta plot {output} -o figures",
    ]
