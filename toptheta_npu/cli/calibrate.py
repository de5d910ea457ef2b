"""``toptheta calibrate``: from a model and some text to a table of thresholds."""

from __future__ import annotations

import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
import typer
from rich.console import Console
from rich.markup import escape

from .._checks import check_choice
from .._configuration import as_yaml, use_as_defaults
from .._files import check_writable, held
from ..errors import TopThetaValueError
from . import calibration_options as asked
from . import printing
from .bars import Bars
from .calibration_work import Ranks, interruptible, noted, parse_shard, resumable, shard_file, state_file
from .loading import DTYPES, Candidate, choose_device, default_dtype, load_weights, look_at
from .table_file import check_output

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ..calibration.state import Part
    from ..thresholds import ThresholdTable
    from .calibration_texts import Material

#: The embedded model is calibrated in a minute or two on two cores.
_EMBEDDED_LENGTH, _EMBEDDED_SEQUENCES, _SEQUENCES = 2048, 16, 64


def _read_configuration(context: typer.Context, value: Path | None) -> Path | None:
    if value is not None:
        converters = {"layer_k": asked.layer_k_text, "sequences": asked.sequences_text}
        instead = {"dense_at_calibration": "write top_k_at_calibration: false"}
        use_as_defaults(context, value, converters, ("config", "force", "restart"), instead)
    return value


def calibrate(
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="A causal transformers model: its folder, or its name on the Hub. "
                       "Default: the embedded one."),
    ] = None,
    text: Annotated[
        list[Path] | None,
        typer.Option(help="Text file, .jsonl file, folder of them, or data set saved by datasets; may be given again."),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The table.")] = Path("thresholds.theta"),
    force: Annotated[bool, typer.Option("--force", help="Replace the table that is there.")] = False,
    evaluation: Annotated[
        list[Path] | None,
        typer.Option(help="Text to judge by, as --text. Default: one window in ten is kept back."),
    ] = None,
    field: Annotated[str, typer.Option(help="Field of .jsonl files, column of data sets.")] = "text",
    encoding: Annotated[str, typer.Option(help="Of text files, such as utf-16 or latin-1.")] = "utf-8",
    length: Annotated[
        int | None, typer.Option(help="Tokens in a window. Default: the model's positions, up to 4096; embedded 2048.")
    ] = None,
    sequences: Annotated[str | None, typer.Option(help="Windows, or all. Default: 64; embedded 16.")] = None,
    k: Annotated[
        list[int] | None,
        typer.Option(help="Elements to keep per row; may be given again. Default: 64, 128 and 256."),
    ] = None,
    layer_k: Annotated[
        str | None,
        typer.Option(help="Least k of layers: 0:512,1:512, or one number per layer. Default: 512 in the first two."),
    ] = None,
    placement: Annotated[str, typer.Option(help="pre_softmax or post_softmax.")] = "pre_softmax",
    estimator: Annotated[str, typer.Option(
        help="pooled keeps k on average; algorithm1 is the paper's; quantile bounds the tail.")] = "pooled",
    alpha: Annotated[float, typer.Option(help="Standard deviations to add (algorithm1).")] = 0.1,
    quantile: Annotated[
        float | None, typer.Option(help="Share of the rows that keep at most k (estimator quantile), such as 0.9.")
    ] = None,
    row_fraction: Annotated[float, typer.Option(help="Share of the rows to look at.")] = 0.25,
    decode_tokens: Annotated[int, typer.Option(help="Tokens to generate after each window, also looked at.")] = 0,
    top_k_at_calibration: Annotated[
        bool | None,
        typer.Option(
            "--top-k-at-calibration/--dense-at-calibration",
            help="What later layers see. Default: top-k with one k and algorithm1.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the choice of rows.")] = 0,
    dtype: Annotated[str | None, typer.Option(help="auto (the checkpoint's), float32, bfloat16 or float16.")] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, npu, or auto to spread the layers. Default: the best there is.")
    ] = None,
    checkpoint_every: Annotated[int, typer.Option(help="Windows between two writings of OUTPUT.partial.")] = 16,
    restart: Annotated[bool, typer.Option("--restart", help="Leave out what an interrupted run has done.")] = False,
    shards: Annotated[str | None, typer.Option(help="Run one part only, such as 0/4; see toptheta merge.")] = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run code that comes with the model.")
    ] = False,
    config: Annotated[
        Path | None,
        typer.Option(help="These options in a YAML file; the command line wins.", is_eager=True,
                     callback=_read_configuration),
    ] = None,
) -> None:  # fmt: skip
    """Calibrate thresholds for a model on text, and say what they keep on text that was kept back.

    \b
    Why these defaults:
    - pooled keeps k on average, and serves every k from 64 to 256 from one pass;
    - pre_softmax needs one pass over the scores, and its V rows have a shorter tail;
    - a quarter of the rows, since neighbouring rows are much alike;
    - 512 in the first two layers, as in the paper, at most a quarter of a window.
    """
    run(
        asked.Options(
            model=model, text=text or [], evaluation=evaluation or [], field=field, encoding=encoding, length=length,
            sequences=sequences, output=output, force=force, k=k or [], layer_k=layer_k, placement=placement,
            estimator=estimator, alpha=alpha, quantile=quantile, row_fraction=row_fraction, decode_tokens=decode_tokens,
            top_k_at_calibration=top_k_at_calibration, seed=seed, dtype=dtype, device=device,
            checkpoint_every=checkpoint_every, restart=restart, shards=shards,
            trust_remote_code=trust_remote_code,
        )
    )  # fmt: skip


def run(options: asked.Options) -> None:
    """The work of the command: whatever can be wrong is looked at before the weights are loaded."""
    from ..texts import Conventions
    from . import calibration_texts

    started = time.perf_counter()
    ranks = Ranks()
    console = printing.console(quiet=not ranks.first)
    part, device = _checked(options, ranks)
    texts = calibration_texts.find_texts(options)
    candidate, plan = _prepared(options)
    with Bars(ranks.first) as bars:
        read = bars.add("reading the texts", calibration_texts.windows_wanted(texts, plan))
        material = calibration_texts.collect(texts, Conventions.of(candidate.tokenizer), plan, read)
    console.print(escape(_intention(options, candidate, plan, material, device)))
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
        progress = bars.add("calibrating", _own_windows(len(material.calibration), part, ranks))
        arguments["progress"] = _resuming(options.restart, own, console, progress)
        if part is not None:
            _run_shard(network, part, options, arguments)
        else:
            table = ranks.calibrate(network, state, options.checkpoint_every, arguments)
            _keep(table, options.output, ranks, state)
    if ranks.first and part is None:
        _report(console, options, network, table, material)
    for line in (
        _shard_conclusion(options, part) if part else _conclusion(options, table, time.perf_counter() - started)
    ):
        console.print(escape(line))


def _checked(options: asked.Options, ranks: Ranks) -> tuple[Part | None, str]:
    """The shard, if it is one, and the device; the options that need neither model nor texts are checked."""
    check_choice("--dtype", options.dtype or "auto", DTYPES)
    device = choose_device(options.device)
    if options.shards is None:
        check_output(options.output, options.force)
        check_writable(ranks.own_state(state_file(options.output)), "--output")
        return None, device
    if ranks.count > 1:
        got = "torchrun, whose ranks share the windows"
        raise TopThetaValueError("--shards", "a process of its own for a shard", got, "leave out one of them")
    part = parse_shard(options.shards)
    check_writable(shard_file(options.output, part), "--output")
    return part, device


def _prepared(options: asked.Options) -> tuple[Candidate, asked.Plan]:
    candidate = look_at(options.model, options.trust_remote_code)
    embedded = options.model is None
    length, sequences = (_EMBEDDED_LENGTH, _EMBEDDED_SEQUENCES) if embedded else (asked.MOST_LENGTH, _SEQUENCES)
    return candidate, asked.make_plan(options, candidate, length, sequences)


def _intention(options: asked.Options, candidate: Candidate, plan: asked.Plan, material: Material, device: str) -> str:
    from ..models.attach import num_heads, num_layers

    count = torch.get_num_threads()
    threads = f" with {count} {'thread' if count == 1 else 'threads'}" if device == "cpu" else ""
    ks = ", ".join(map(str, plan.k))
    layers, heads = num_layers(candidate.skeleton), num_heads(candidate.skeleton)
    return (
        f"{candidate.name}: {layers} layers x {heads} heads, on {device}{threads}. {options.estimator}, "
        f"{options.placement}, k = {ks}, on {len(material.calibration)} windows of {plan.length} tokens; "
        f"{len(material.held_out)} held out."
    )


def _provenance(options: asked.Options, candidate: Candidate, plan: asked.Plan) -> dict[str, str]:
    """The settings in force, as a file for --config says them, and the versions; nothing of this machine."""
    effective = {
        "model": candidate.name if options.model is not None else None, "text": options.text or None,
        "evaluation": options.evaluation or None, "field": options.field, "encoding": options.encoding,
        "length": plan.length, "sequences": plan.sequences or asked.ALL, "k": plan.k, "layer_k": plan.layer_k,
        "placement": options.placement, "estimator": options.estimator, "alpha": options.alpha,
        "quantile": options.quantile,
        "row_fraction": options.row_fraction, "decode_tokens": options.decode_tokens,
        "top_k_at_calibration": plan.top_k_at_calibration, "seed": options.seed,
        "dtype": options.dtype or default_dtype(options.model),
        "trust_remote_code": options.trust_remote_code or None,
    }  # fmt: skip
    versions = {name: version(name) for name in ("toptheta_npu", "transformers")}
    return {"model": candidate.name, "configuration": as_yaml(effective), **versions}


def _arguments(options: asked.Options, candidate: Candidate, plan: asked.Plan, material: Material) -> dict[str, Any]:
    """What all the ways to calibrate take."""
    return {
        "sequences": material.sequences(), "k": plan.k, "placement": options.placement,
        "estimator": options.estimator, "alpha": options.alpha, "quantile": options.quantile, "layer_k": plan.layer_k,
        "row_fraction": options.row_fraction, "top_k_at_calibration": plan.top_k_at_calibration, "seed": options.seed,
        "decode_tokens": options.decode_tokens, "longest": plan.length,
        "provenance": {**_provenance(options, candidate, plan), **material.provenance},
    }  # fmt: skip


def _resuming(restart: bool, state: Path, console: Console, progress: Callable[[int], None]) -> Callable[[int], None]:
    """Goes back to the start where that is wished; else ``progress`` says that it does not, once the state fits."""
    if restart:
        state.unlink(missing_ok=True)
    if not state.exists():
        return progress
    note = f"note: going on from {escape(str(state))}; --restart begins anew."
    return noted(progress, lambda: console.print(note))


def _own_windows(windows: int, part: Part | None, ranks: Ranks) -> int:
    """How many of the windows are run here."""
    index, count = (ranks.rank, ranks.count) if part is None else (part.index, part.count)
    return len(range(index, windows, count))


def _run_shard(network: PreTrainedModel, part: Part, options: asked.Options, arguments: Mapping[str, Any]) -> None:
    from ..models import calibrate_shard

    calibrate_shard(
        network, index=part.index, count=part.count, path=shard_file(options.output, part),
        checkpoint_every=options.checkpoint_every, **arguments,
    )  # fmt: skip


def _shard_conclusion(options: asked.Options, part: Part) -> list[str]:
    """What was made, and what makes a table of it."""
    output = shlex.quote(str(options.output))
    return [
        f"{shard_file(options.output, part)}: shard {part.index} of {part.count} is done.",
        f"Next, when all {part.count} are there: toptheta merge {output}.shard-*-of-{part.count} -o {output}",
    ]


def _keep(table: ThresholdTable, output: Path, ranks: Ranks, state: Path) -> None:
    """Saves the table in one of the ranks; the states are then not needed any more."""
    saved = False
    try:
        if ranks.first:
            _save(table, output)
            saved = True
    finally:
        ranks.after_the_first(saved)
    ranks.own_state(state).unlink(missing_ok=True)


def _report(
    console: Console, options: asked.Options, network: PreTrainedModel, table: ThresholdTable, material: Material
) -> None:
    from . import calibration_report, calibration_texts

    # every k takes a pass of its own
    windows = material.held_out[: calibration_texts.MOST_JUDGED // min(2, len(table.k))]
    with Bars(True) as bars:
        progress = bars.add("checking on held-out text", len(windows) * len(table.k))
        kept = calibration_report.judge(network, table, windows, progress)
    calibration_report.show(console, table, kept, len(windows), len(material.held_out))
    for warning in calibration_report.warnings_of(kept, options.estimator):
        console.print(f"[yellow]warning:[/yellow] {escape(warning)}")


def _save(table: ThresholdTable, output: Path) -> None:
    """Saves the table; where that fails, it is not lost but saved elsewhere."""
    try:
        table.save(output)
    except TopThetaValueError as error:
        reason = getattr(error.__cause__, "strerror", None) or str(error)
        remedy = "free some space and run the same command again: what it found is kept"
        with suppress(OSError, TopThetaValueError):
            rescue = Path(tempfile.mkdtemp(prefix="toptheta-")) / "thresholds.theta"
            table.save(rescue)
            remedy = f"the table is not lost: it is in {rescue}, move it from there"
        expected, got = "a place where the table can be written", f"{reason} at {output}"
        raise TopThetaValueError("--output", expected, got, remedy) from error


def _conclusion(options: asked.Options, table: ThresholdTable, seconds: float) -> list[str]:
    """What was made at which price, and what to do with it."""
    output = options.output
    k = int(table.k[len(table.k) // 2])
    load = f"toptheta_npu.ThresholdTable.load({str(output)!r})"
    size = f"{output.stat().st_size / 1e6:.2f} MB"
    return [
        f"{output}: {size}, after {_duration(seconds)}{_memory()}.",
        f"Next: with toptheta_npu.sparsify(model, {load}, k={k}): model.generate(...)",
        f"      toptheta inspect {shlex.quote(str(output))}",
    ]


def _duration(seconds: float) -> str:
    """Such as "1 h 05 min", "3 min 20 s" or "41 s"."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def _memory() -> str:
    """The most memory that this process had, and that torch had on a CUDA device."""
    try:
        import resource
    except ImportError:  # not on Windows
        return ""
    unit = 1 if sys.platform == "darwin" else 1024
    parts = [f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30:.1f} GiB of memory"]
    if torch.cuda.is_available() and (most := torch.cuda.max_memory_allocated()):
        parts.append(f"{most / 2**30:.1f} GiB on the GPU")
    return f", with at most {' and '.join(parts)}"
