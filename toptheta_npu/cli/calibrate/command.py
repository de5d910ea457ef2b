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
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.markup import escape

from ..._checks import check_choice
from ..._configuration import as_yaml
from ..._files import check_writable, held
from ...errors import TopThetaValueError
from ..common import printing
from ..common.devices import choose_device
from ..common.model import DTYPES, Candidate, default_dtype, load_weights, look_at
from ..common.options import Settings
from ..common.options import command as make_command
from ..common.progress import Bars
from ..common.shell import interruptible
from ..common.table_file import check_output
from . import options as asked
from .work import Ranks, noted, parse_shard, resumable, shard_file, state_file

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ...calibration.state import Part
    from ...thresholds import ThresholdTable
    from .texts import Material

#: The embedded model is calibrated in a minute or two on two cores.
_EMBEDDED_LENGTH, _EMBEDDED_SEQUENCES, _SEQUENCES = 2048, 16, 64


def calibrate(options: asked.Options) -> None:
    """Calibrate thresholds for a model on text, and say what they keep on text that was kept back.

    \b
    Why these defaults:
    - pooled keeps k on average, and serves every k from 64 to 256 from one pass;
    - pre_softmax needs one pass over the scores, and its V rows have a shorter tail;
    - a quarter of the rows, since neighbouring rows are much alike;
    - 512 in the first two layers, as in the paper, at most a quarter of a window.
    """
    # whatever can be wrong is looked at before the weights are loaded
    from ...texts import Conventions
    from . import texts as calibration_texts

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
    from ...models.hook.architecture import num_heads, num_layers

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
    from ...models import calibrate_shard

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
    from . import report as calibration_report
    from . import texts as calibration_texts

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
