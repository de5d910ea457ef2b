"""What ``toptheta calibrate`` says in the end: what the thresholds keep of k on text that they have not seen."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from rich.console import Console
from rich.markup import escape
from torch import Tensor

from ..._tables import Table
from ..common import printing
from ..common.model import Candidate
from ..common.progress import Bars
from .options import Options, Plan
from .texts import MAX_JUDGED, Material

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ...thresholds import ThresholdTable

#: Off by more, k̃/k is worth a warning.
MAX_OFF = 0.25


@dataclass(frozen=True)
class Kept:
    """The held-out rows of a layer at one k.

    Attributes:
        layer: its number.
        k: what was asked for.
        target: what the layer keeps: k, or its own least k.
        ratio: k̃/k, the mean over heads and rows; NaN without a row that is not dense.
        spread: its 5th and 95th percentile over rows.
        value_rows: mean and 95th percentile of the V rows per row and KV group.
        rows: that are not dense.
        dense: that are.
    """

    layer: int
    k: int
    target: int
    ratio: float
    spread: tuple[float, float]
    value_rows: tuple[float, float]
    rows: int
    dense: int


def intention(options: Options, candidate: Candidate, plan: Plan, material: Material, device: str) -> str:
    """Say in a line what will be done."""
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


def report(
    console: Console, options: Options, network: PreTrainedModel, table: ThresholdTable, material: Material
) -> None:
    """Judge the table by the windows that were kept back, and say what it keeps on them."""
    windows = material.held_out[:MAX_JUDGED]
    with Bars() as bars:
        progress = bars.count("checking on held-out text", len(windows), "windows")
        kept = judge(network, table, windows, progress)
    show(console, table, kept, len(windows), len(material.held_out))
    for warning in warnings_of(kept, options.estimator):
        console.print(f"[yellow]warning:[/yellow] {escape(warning)}")


def judge(
    network: PreTrainedModel, table: ThresholdTable, windows: list[Tensor], progress: Callable[[int], None]
) -> list[Kept]:
    """Measure what every layer keeps at every k of ``table``, for all rows of ``windows``, in one run of the model.

    Args:
        progress: is told how many of the windows are done.
    """
    from ...models.calibration.kept_rows import count_kept

    by_layer = count_kept(network, table, windows, progress=progress)
    return [
        _kept(layer, k, table.layer_targets(k)[layer], rows.lengths, rows.kept[place], rows.value_rows[place])
        for place, k in enumerate(table.k.tolist())
        for layer, rows in by_layer.items()
    ]


def _kept(layer: int, k: int, target: int, lengths: Tensor, kept: Tensor, value_rows: Tensor) -> Kept:
    sparse = lengths > target
    ratio, dense = kept[sparse].float().mean(1) / target, int((~sparse).sum())
    if not len(ratio):
        nothing = float("nan")
        return Kept(layer, k, target, nothing, (nothing, nothing), (nothing, nothing), 0, dense)
    spread = (_percentile(ratio, 5), _percentile(ratio, 95))
    needed = value_rows[sparse].float().flatten()
    return Kept(
        layer,
        k,
        target,
        ratio.mean().item(),
        spread,
        (needed.mean().item(), _percentile(needed, 95)),
        len(ratio),
        dense,
    )


def _percentile(values: Tensor, percent: int) -> float:
    """Find a percentile by rank, since torch.quantile takes no more than 16 Mi numbers."""
    return values.kthvalue(1 + (len(values) - 1) * percent // 100).values.item()


def show(console: Console, table: ThresholdTable, kept: list[Kept], windows: int, held_out: int) -> None:
    """Print the table of k̃/k, the rows that stay dense, and the knots without data.

    Args:
        console: where it goes.
        table: that was judged.
        kept: what `judge` found.
        windows: that it was found on.
        held_out: windows that were kept back.
    """
    ks = table.k.tolist()
    of = f" of {held_out}" if held_out > windows else ""
    console.print(
        f"On {windows}{of} held-out {'window' if held_out == 1 else 'windows'}: k̃/k, the mean over heads and rows "
        "(5th to 95th percentile of the rows); V rows per row and KV group, mean / 95th percentile."
    )
    columns = [name for k in ks for name in (f"k={k}: k̃/k", "V rows")]
    by_layer: dict[int, list[Kept]] = {}
    for entry in kept:
        by_layer.setdefault(entry.layer, []).append(entry)
    by_layer = {layer: entries for layer, entries in by_layer.items() if any(entry.rows for entry in entries)}
    rows = []
    for layer, entries in by_layer.items():
        same = _covered(ks, table.layer_k[layer])
        cells = [(f"as k={same[entry.k]}", "") if entry.k in same else _cells(entry) for entry in entries]
        rows.append(
            [f"{layer}{'*' if table.layer_k[layer] > ks[0] else ''}", *(cell for pair in cells for cell in pair)]
        )
    printing.print_table(console, Table("", ["layer", *columns], rows))
    if least := {k for layer in by_layer if (k := table.layer_k[layer]) > ks[0]}:
        console.print(f"* keeps at least {', '.join(map(str, sorted(least)))}.")
    console.print(f"Dense: {dense_rows(table, kept)}.")
    console.print(f"Row lengths: {knots(table)}.")


def _cells(entry: Kept) -> tuple[str, str]:
    """Write k̃/k and V rows as text."""
    if not entry.rows:
        return "dense", "all"
    ratio = "{:.2f} ({:.2f} to {:.2f})".format(entry.ratio, *entry.spread)
    return ratio, "{:.0f} / {:.0f}".format(*entry.value_rows)


def dense_rows(table: ThresholdTable, kept: list[Kept]) -> str:
    """Tell which rows no threshold sparsifies, and why."""
    from ...thresholds.summary import dense_layers

    parts = [f"rows of up to k keys ({_share(kept)})"]
    dense = dense_layers(table)
    wholly = {layer for layers in dense.values() for layer in layers}
    own: dict[int, list[int]] = {}
    for layer, least in enumerate(table.layer_k):
        if least > table.k[0] and layer not in wholly:
            own.setdefault(least, []).append(layer)
    parts += [f"up to {least} keys in {layers_in_words(layers)}" for least, layers in own.items()]
    parts += [f"everything in {layers_in_words(layers)} ({why})" for why, layers in dense.items()]
    if short := sorted({entry.layer for entry in kept if not entry.rows} - wholly):
        parts.append(f"every row so far in {layers_in_words(short)}, whose k is longer than the windows")
    return "; ".join(parts)


def _share(kept: list[Kept]) -> str:
    """Write the share of dense rows, such as "5 % and 9 % of the held-out rows at k = 64 and 128"."""
    shares = []
    ks = list(dict.fromkeys(entry.k for entry in kept))
    for k in ks:
        entries = [entry for entry in kept if entry.k == k]
        dense, rows = (sum(getattr(entry, name) for entry in entries) for name in ("dense", "rows"))
        shares.append(f"{100 * dense / max(1, dense + rows):.0f} %")
    return f"{listed(shares)} of the held-out rows at k = {listed(list(map(str, ks)))}"


def listed(words: list[str]) -> str:
    """Join the words with commas and an "and".

    Example:
        >>> listed(["1", "2", "3"])
        '1, 2 and 3'
    """
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def knots(table: ThresholdTable) -> str:
    """Tell at which lengths there are thresholds, and which of them had no rows."""
    lengths = table.lengths.tolist()
    text = f"{len(lengths)} from {lengths[0]} to {lengths[-1]}"
    filled = (table.counts == 0) & (table.theta > -torch.inf).any(0)  # [L, Hq, R]
    if not bool(filled.any()):
        return f"{text}, every one with calibrated rows"
    empty = [length for length, any_head in zip(lengths, filled.any(1).any(0).tolist(), strict=True) if any_head]
    layers = filled.any(2).any(1).nonzero().flatten().tolist()
    named = f"{empty[0]} to {empty[-1]}" if len(empty) > 1 else str(empty[0])
    return f"{text}; {len(empty)} without rows in {layers_in_words(layers)} ({named}), filled from their neighbours"


def warnings_of(kept: list[Kept], estimator: str) -> list[str]:
    """Write a sentence for every k at which a layer keeps far more or less than it should."""
    found = []
    for k in dict.fromkeys(entry.k for entry in kept):
        off = [entry for entry in kept if entry.k == k and entry.rows and abs(entry.ratio - 1) > MAX_OFF]
        if off:
            worst = max(off, key=lambda entry: abs(entry.ratio - 1))
            advice = "calibrate on more windows (--sequences), and on text like that of your prompts"
            if estimator == "algorithm1":
                advice = "use --estimator pooled, which keeps k on average, or " + advice
            where = layers_in_words([entry.layer for entry in off])
            found.append(
                f"k̃/k at k={k} is off by more than {100 * MAX_OFF:.0f} % in {where}, most in layer {worst.layer} "
                f"({worst.ratio:.2f}): {advice}."
            )
    return found


def layers_in_words(layers: Sequence[int]) -> str:
    """List layers by ranges, such as "layers 0 to 3 and 7"."""
    runs: list[list[int]] = []
    for layer in layers:
        if runs and runs[-1][-1] == layer - 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    names = [str(run[0]) if len(run) == 1 else f"{run[0]} {'and' if len(run) == 2 else 'to'} {run[-1]}" for run in runs]
    return f"{'layer' if len(layers) == 1 else 'layers'} {listed(names) if len(runs) > 1 else names[0]}"


def table_conclusion(output: Path, table: ThresholdTable, seconds: float) -> list[str]:
    """Tell what was made, what it cost, and what to do with it."""
    aim = f"k={int(table.k[len(table.k) // 2])}"
    load = f"toptheta_npu.ThresholdTable.load({str(output)!r})"
    size = f"{output.stat().st_size / 1e6:.2f} MB"
    return [
        f"{output}: {size}, after {_duration(seconds)}{_memory()}.",
        f"Next: with toptheta_npu.sparsify(model, {load}, {aim}): model.generate(...)",
        f"      toptheta inspect {shlex.quote(str(output))}",
    ]


def _duration(seconds: float) -> str:
    """Write a duration, such as "1 h 05 min", "3 min 20 s" or "41 s"."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def _memory() -> str:
    """Tell the most memory that this process had, and that torch had on a CUDA device."""
    try:
        import resource
    except ImportError:  # not on Windows
        return ""
    unit = 1 if sys.platform == "darwin" else 1024
    parts = [f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30:.1f} GiB of memory"]
    if torch.cuda.is_available() and (most := torch.cuda.max_memory_allocated()):
        parts.append(f"{most / 2**30:.1f} GiB on the GPU")
    return f", with at most {' and '.join(parts)}"


def _covered(ks: Sequence[int], least: int) -> dict[int, int]:
    """Map the k that keep the same because of a layer's least k to the largest of them; leave that one out.

    Example:
        >>> _covered([64, 128, 256], 128), _covered([64, 128, 256], 0)
        ({64: 128}, {})
    """
    largest = max((k for k in ks if k <= least), default=0)
    return {k: largest for k in ks if k < largest}
