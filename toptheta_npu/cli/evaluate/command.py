"""``toptheta evaluate``: methods side by side on tasks, with what each of them reads.

The work is prepared without the weights, so that errors come first, and then measured point by point.
"""

from __future__ import annotations

import platform
import shlex
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.markup import escape

from ...errors import TopThetaNotImplementedError, TopThetaValueError, shortened
from ...thresholds import ThresholdExtrapolationWarning, ThresholdTable
from ..common import printing
from ..common.devices import choose_device
from ..common.model import Candidate, default_dtype, load_weights, look_at
from ..common.options import INT8
from ..common.options import command as make_command
from ..common.progress import Bars
from ..common.shell import interruptible
from .estimate import FirstPoints, say_estimate
from .options import Options, completed
from .tasks import PlannedTask, Texts, check_lengths, plan_tasks

if TYPE_CHECKING:
    from transformers import DynamicCache, PreTrainedModel
    from transformers.cache_utils import Cache

    from ...evaluation.results import Header, Point, ResultsFile
    from ...evaluation.sweep import Plan

_DEFAULT_K = 64
#: By which options there are fewer or shorter samples of a unit.
_OF_UNIT = {"windows": ("--windows", "--length"), "prompts": ("--prompts", "--prompt-length"), "requests": ("--limit",)}


def evaluate(options: Options) -> None:
    """Compare attention methods on your model.

    Each is scored on your text or tasks, and its V rows are counted.

    Every result (task, method, k) is saved at once. After an interrupt, the same command continues. More tasks, methods
    or k add to the file. toptheta plot draws it.
    """
    from ...evaluation.results import ResultsFile
    from ...evaluation.summary import tables_of
    from ...evaluation.verdict import verdicts

    device = choose_device(options.device)
    options = completed(options)
    prepared = prepare(options)
    console = printing.console()
    _announce(console, prepared, device)
    for note in prepared.texts.notes():
        console.print(f"note: {escape(note)}")
    network = load_weights(prepared.candidate, options.dtype or default_dtype(options.model), device)
    _say_limit(console, prepared, network)
    with ResultsFile(options.output, header(prepared, network, device), restart=options.restart) as results:
        with interruptible(console, options.output), Bars() as bars:
            say_estimate(console, prepared, network, results)
            measure(console, bars, prepared, network, results)
        found = results.results()
    for table in tables_of(found):
        printing.print_table(console, table)
        for line in verdicts(table.title, found.of_task(table.title)):
            console.print(escape(line), soft_wrap=True)
        console.print()
    console.print(escape(f"{options.output}: {len(found.measurements)} points."))
    console.print(escape(f"Next: toptheta plot {shlex.quote(str(options.output))} -o figures"))


def _announce(console: Console, prepared: Prepared, device: str) -> None:
    """Say what is going to be measured, and how it would be less."""
    methods, tasks = prepared.plan.methods, prepared.tasks
    what = f"{prepared.points} points, from {len(methods)} methods on {', '.join(tasks)}"
    console.print(escape(f"{prepared.candidate.name} on {device}: {what}."))
    samples = "; ".join(f"{task.samples} {_named(name, task)}" for name, task in tasks.items())
    console.print(escape(f"Methods: {', '.join(method.text for method in methods)}. For each point: {samples}."))
    fewer = dict.fromkeys(option for task in tasks.values() for option in _OF_UNIT[task.unit])
    console.print(escape(f"For a shorter run: {', '.join(fewer)}, or fewer of --task, --method and --k."))


def _say_limit(console: Console, prepared: Prepared, network: PreTrainedModel) -> None:
    """Say what a threshold can gain at most with rows as long as those that are scored."""
    from ...models.fingerprint.sizes import sizes_of_model
    from ...timing.byte_limit import limit_in_words, model_bytes

    element = network.dtype.itemsize if prepared.plan.cache_of is None else 1
    size = model_bytes(network.config.get_text_config(decoder=True), sizes_of_model(network), element)
    console.print(limit_in_words(size, max(task.longest for task in prepared.tasks.values())))


def _named(name: str, task: PlannedTask) -> str:
    texts = shortened(", ".join(task.settings.get("text", ())))
    return f"{task.unit} of {texts or name}, rows of up to {task.longest} keys"


@dataclass(frozen=True)
class Prepared:
    """An evaluation before its model is loaded.

    Attributes:
        plan: which points it has.
        tasks: by name.
        settings: for the header of the results.
    """

    candidate: Candidate
    plan: Plan
    texts: Texts
    tasks: Mapping[str, PlannedTask]
    settings: Mapping[str, Any]

    @property
    def points(self) -> int:
        """How many there are."""
        return sum(len(list(self.plan.points(task))) for task in self.plan.tasks)


def prepare(options: Options) -> Prepared:
    """Look at whatever can be wrong before the weights are loaded.

    Raises:
        TopThetaTypeError, TopThetaValueError, TopThetaNotImplementedError: something is.
    """
    from ...evaluation.measurement import check_layers

    candidate = look_at(options.model, options.trust_remote_code)
    check_layers(candidate.skeleton)
    if options.kv_cache == INT8:
        _check_int8(candidate)
    plan = _plan(options, candidate)
    texts = Texts(options, candidate, plan.tables)
    tasks = plan_tasks(options, candidate, texts, plan.tables)
    if not options.extrapolate:
        check_lengths(tasks, plan.tables)
    cache = {"kv_cache": INT8} if options.kv_cache == INT8 else {}
    settings = {name: {**task.settings, **cache} for name, task in tasks.items()}
    return Prepared(candidate, plan, texts, tasks, settings)


def _plan(options: Options, candidate: Candidate) -> Plan:
    from ...evaluation.methods.kinds import parse_method
    from ...evaluation.sweep import Plan
    from ...models.hook.architecture import num_layers

    methods = tuple(dict.fromkeys(parse_method(text) for text in options.method))
    tables = _tables(options)
    ks = tuple(options.k or [_default_k(tables)])
    cache_of = partial(_int8_cache, candidate.config) if options.kv_cache == INT8 else None
    return Plan(tuple(options.task), methods, ks, tables, num_layers(candidate.skeleton), cache_of)


def _check_int8(candidate: Candidate) -> None:
    """Raise TopThetaNotImplementedError for a model that an Int8Cache does not take."""
    from ...models import Int8Cache

    try:
        Int8Cache(candidate.config)
    except TopThetaNotImplementedError as error:
        raise TopThetaNotImplementedError("--kv-cache", error.expected, error.got, "leave it out") from error


def _int8_cache(config: Any, table: ThresholdTable | None, dense: DynamicCache) -> Cache:
    from ...models import Int8Cache
    from ...models.caches.int8 import has_channel_scales

    return Int8Cache.from_dynamic(dense, config, table=table if has_channel_scales(table) else None)


def _default_k(tables: Mapping[str, ThresholdTable]) -> int:
    """Choose 64, or the nearest k that was calibrated."""
    least = max((int(table.k[0]) for table in tables.values()), default=_DEFAULT_K)
    most = min((int(table.k[-1]) for table in tables.values()), default=_DEFAULT_K)
    return min(max(_DEFAULT_K, least), most)


def _tables(options: Options) -> dict[str, ThresholdTable]:
    """Load the thresholds by name: that of the file, without folder and ending."""
    if not options.tables and options.model is None:
        from ...assets import load_tiny_llama_thresholds

        return {name: load_tiny_llama_thresholds(name) for name in ("pre_softmax", "post_softmax")}
    tables: dict[str, ThresholdTable] = {}
    for path in options.tables:
        if path.stem in tables:
            raise TopThetaValueError(
                "TABLE", "files of different names", f"two named {path.stem}", "rename one of them"
            )
        tables[path.stem] = ThresholdTable.load(path)
    return tables


def header(prepared: Prepared, network: PreTrainedModel, device: str) -> Header:
    """Make the header of the results, everything that the figures depend on; check the tables against the model."""
    from ...evaluation.results import Header
    from ...evaluation.sweep import table_digest
    from ...models.fingerprint.digests import model_digests, tokenizer_digest
    from ...models.fingerprint.model import check_table

    tables = prepared.plan.tables
    for name, table in tables.items():
        try:
            check_table(network, table)
        except TopThetaValueError as error:
            raise error.located(f"in table {name}") from error
    versions = {name: version(name) for name in ("transformers", "toptheta_npu")}
    environment = {
        "device": device, "dtype": str(network.dtype).removeprefix("torch."),
        "python": platform.python_version(), "torch": torch.__version__, **versions,
    }  # fmt: skip
    digests = {name: table_digest(table) for name, table in tables.items()}
    model = {**model_digests(network), "tokenizer": tokenizer_digest(prepared.candidate.tokenizer)}
    return Header(prepared.candidate.name, _fingerprint(network), prepared.settings, digests, environment, model)


def _fingerprint(network: PreTrainedModel) -> str:
    """Compute the fingerprint, or nothing for a quantised model without one: only thresholds need it."""
    from ...models import model_fingerprint

    try:
        return model_fingerprint(network)
    except TopThetaNotImplementedError:
        return ""


def measure(console: Console, bars: Bars, prepared: Prepared, network: PreTrainedModel, results: ResultsFile) -> None:
    """Measure the points that the results lack, a line for each."""
    from ...evaluation.sweep import sweep

    done: dict[Point, int] = {}

    def step(point: Point, samples: int) -> None:
        done[point] = samples
        task = prepared.tasks[point.task]
        bars.line(point.name, samples, task.samples, task.unit)
        advance(sum(done.values()))

    makers = {name: task.make for name, task in prepared.tasks.items()}
    with _warnings_as_notes(console):
        missing = [point for point, _ in prepared.plan.missing(results.measurements)]
        if known := prepared.points - len(missing):
            console.print(escape(f"{known} points are in {results.path}; {len(missing)} to go."))
        advance = bars.add("evaluating", sum(prepared.tasks[point.task].samples for point in missing))
        first_points = FirstPoints(missing)
        for point, measurement in sweep(prepared.plan, makers, network, results, step):
            console.print(escape(_line(point, measurement)))
            if told := first_points.finished(point):
                console.print(escape(told))


@contextmanager
def _warnings_as_notes(console: Console) -> Iterator[None]:
    """Print warnings as a line each and once."""
    seen: set[str] = set()

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        if str(message) not in seen:
            seen.add(str(message))
            console.print(f"note: {escape(str(message))}", soft_wrap=True)

    with warnings.catch_warnings():
        warnings.simplefilter("always", ThresholdExtrapolationWarning)
        warnings.showwarning = show
        yield


def _line(point: Point, measurement: Any) -> str:
    from ...evaluation.summary import score, score_name

    reads = measurement.reads
    return (
        f"{point.name}: {score_name(measurement)} {score(measurement)}, "
        f"{reads.value_rows_mean:.0f} of {reads.keys_mean:.0f} V rows"
    )


#: The command of `evaluate`.
command = make_command(Options, evaluate, config=True, exclude=("confirm_run_unsafe_code",))
