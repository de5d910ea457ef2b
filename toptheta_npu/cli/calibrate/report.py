"""What ``toptheta calibrate`` says: what it will do, and what the thresholds keep on text that they have not seen."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from torch import Tensor

from ..._tables import Table, counted
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
        ratio: k̃/k, or over the layer's own least k, the mean over heads and rows that are not dense; NaN without any.
        value_rows: mean of the V rows per row and KV group.
        rows: that are not dense.
    """

    layer: int
    k: int
    ratio: float
    value_rows: float
    rows: int


def intention(options: Options, candidate: Candidate, plan: Plan, material: Material, device: str) -> str:
    """Say in a line what will be done."""
    from ...models.hook.architecture import num_heads, num_layers

    ks = ", ".join(map(str, plan.k))
    layers, heads = num_layers(candidate.skeleton), num_heads(candidate.skeleton)
    return (
        f"{candidate.name}: {layers} layers x {heads} heads, on {device}. {options.estimator}, {options.placement}, "
        f"k = {ks}, on {counted(len(material.calibration), 'windows')} of {plan.length} tokens; "
        f"{len(material.held_out)} held out."
    )


def limits_of(plan: Plan) -> list[str]:
    """Write a sentence for what the thresholds will not do though it was asked for, before they are made."""
    from ...evaluation.methods.method import DENSER_LAYERS

    found = []
    least = min((k for layer, k in enumerate(plan.layer_k) if layer not in plan.settings.dense_layers), default=0)
    if below := [str(k) for k in plan.k if k < least]:
        found.append(
            f"no layer keeps k = {', '.join(below)}: each keeps at least {least}, its layer_k; lower that, too, such "
            "as by --layer-k 0."
        )
    if len(plan.layer_k) <= DENSER_LAYERS:
        found.append(
            f"toptheta evaluate cannot judge thresholds of this model: it takes models of more than {DENSER_LAYERS} "
            "layers."
        )
    return found


def report(
    console: Console, options: Options, network: PreTrainedModel, table: ThresholdTable, material: Material
) -> None:
    """Judge the table by the windows that were kept back, and say what it keeps on them."""
    windows = material.held_out[:MAX_JUDGED]
    with Bars() as bars:
        progress = bars.count("checking on held-out text", len(windows), "windows")
        kept = judge(network, table, windows, progress)
    show(console, table, kept, len(windows))
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
    found = []
    for layer, rows in by_layer.items():
        for place, k in enumerate(table.k.tolist()):
            target = table.layer_targets(k)[layer]
            sparse = rows.lengths > target
            ratio = rows.kept[place][sparse].float().mean().item() / target
            value_rows = rows.value_rows[place][sparse].float().mean().item()
            found.append(Kept(layer, k, ratio, value_rows, int(sparse.sum())))
    return found


def show(console: Console, table: ThresholdTable, kept: list[Kept], windows: int) -> None:
    """Print k̃/k and V rows by layer and k, in which layers layer_k stands for k, and which are dense.

    Args:
        console: where it goes.
        table: that was judged.
        kept: what `judge` found.
        windows: how many it was found on.
    """
    from ...thresholds.summary import dense_layers

    columns = [name for k in table.k.tolist() for name in (f"k={k}: k̃/k", "V rows")]
    by_layer: dict[int, list[Kept]] = {}
    for entry in kept:
        by_layer.setdefault(entry.layer, []).append(entry)
    rows = [
        [str(layer), *(cell for entry in entries for cell in _cells(entry))]
        for layer, entries in by_layer.items()
        if any(entry.rows for entry in entries)
    ]
    title = f"On {counted(windows, 'held-out windows')}, means over heads and rows; V rows per row and KV group"
    printing.print_table(console, Table(title, ["layer", *columns], rows))
    for line in _raised(table, [layer for layer, entries in by_layer.items() if any(each.rows for each in entries)]):
        console.print(escape(line))
    for why, layers in dense_layers(table).items():
        console.print(escape(f"Dense: {printing.layers_in_words(layers)} ({why})."))


def _raised(table: ThresholdTable, layers: list[int]) -> list[str]:
    """Write a sentence for each least k of layers that is more than some k of the table: there it counts."""
    lines = []
    for least in sorted({table.layer_k[layer] for layer in layers}):
        if below := [str(k) for k in table.k.tolist() if k < least]:
            where = printing.layers_in_words([layer for layer in layers if table.layer_k[layer] == least])
            lines.append(f"Kept in {where}: about {least}, the layer_k, in place of k = {', '.join(below)}.")
    return lines


def _cells(entry: Kept) -> tuple[str, str]:
    """Write k̃/k and V rows as text."""
    return (f"{entry.ratio:.2f}", f"{entry.value_rows:.0f}") if entry.rows else ("dense", "all")


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
            where = printing.layers_in_words([entry.layer for entry in off])
            found.append(
                f"k̃/k at k={k} is off by more than {100 * MAX_OFF:.0f} % in {where}, most in layer {worst.layer} "
                f"({worst.ratio:.2f}): {advice}."
            )
    return found


def table_conclusion(output: Path, table: ThresholdTable, seconds: float) -> list[str]:
    """Tell what was made, what it cost, and what to do with it."""
    aim = f"k={int(table.k[len(table.k) // 2])}"
    load = f"toptheta_npu.ThresholdTable.load({str(output)!r})"
    return [
        f"{output}: {output.stat().st_size / 1e6:.2f} MB, after {seconds:.0f} s.",
        f"Next: with toptheta_npu.sparsify(model, {load}, {aim}): model.generate(...)",
        f"      toptheta inspect {shlex.quote(str(output))}",
    ]
