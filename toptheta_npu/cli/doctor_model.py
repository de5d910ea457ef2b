"""``toptheta doctor MODEL``: what share of a decode step a threshold can save at most, before any weight is loaded."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from .._checks import check_int
from .._tables import Table
from ..errors import TopThetaValueError
from .common import printing
from .common.model import be_quiet, check_folder, look_at_config

if TYPE_CHECKING:
    from ..timing.byte_limit import ModelBytes

_LENGTHS = (2048, 8192, 32768, 131072)
_BATCHES = (1, 8, 32)
_COLUMNS = ("batch", "tokens", "KV cache", "of all bytes", "attention", "whole model")
_DOWNLOAD = "correct the path, or download the model first: hf download NAME --local-dir FOLDER"
_CAPTION = (
    "of all bytes: KV cache against KV cache and weights. attention, whole model: the most that a threshold can speed "
    "them up, if it read K in full and no V row at all. A threshold keeps some V rows, so expect less."
)


@dataclass(frozen=True)
class Examined:
    """A model as far as its configuration and the headers of its weights tell.

    Attributes:
        name: of its folder.
        dtype: of its weights and KV cache, such as "bfloat16".
        layers: all of them.
        longest: tokens that it has positions for; None where it does not say.
    """

    name: str
    dtype: str
    layers: int
    longest: int | None
    size: ModelBytes


def doctor_model(model: str, lengths: Sequence[int], batches: Sequence[int], as_json: bool) -> None:
    """Say what a decode step reads, and what a threshold can gain at most, at each length and batch."""
    for name, values in (("--length", lengths), ("--batch", batches)):
        for value in values:
            check_int(name, value, 1)
    found = examine(model)
    longest = found.longest
    if longest is not None and max(lengths, default=0) > longest:
        expected = f"at most {longest} tokens, for which the model has positions"
        raise TopThetaValueError("--length", expected, str(max(lengths)), f"use --length {longest}")
    usual = [each for each in _LENGTHS if longest is None or each <= longest] or [longest or _LENGTHS[0]]
    places = [(batch, length) for batch in batches or _BATCHES for length in lengths or usual]
    if as_json:
        print(json.dumps(_as_json(found, places), indent=2))
    else:
        _show(found, places, model, printing.console())


def examine(model: str) -> Examined:
    """Look at the folder of a model.

    Raises:
        TopThetaValueError: it is no folder of a model, or its weights are not there.
        TopThetaNotImplementedError: `toptheta_npu.models.sparsify` does not support the architecture.
    """
    be_quiet()
    folder = Path(model).expanduser()
    check_folder(folder, "the folder of a model", _DOWNLOAD)
    from ..models.fingerprint.sizes import sizes_of_folder
    from ..timing.byte_limit import model_bytes

    _, config, _ = look_at_config(str(folder), False)
    sizes, dtype = sizes_of_folder(folder, config)
    decoder = config.get_text_config(decoder=True)
    size = model_bytes(decoder, sizes, dtype.itemsize)
    longest = getattr(decoder, "max_position_embeddings", None)
    name = folder.resolve().name
    return Examined(name, str(dtype).removeprefix("torch."), int(decoder.num_hidden_layers), longest, size)


def _show(found: Examined, places: Sequence[tuple[int, int]], model: str, console: Console) -> None:
    size = found.size
    groups = f", {size.group} heads share a KV head" if size.group > 1 else ""
    sliding = f"; {len(size.windows)} layers with a sliding window stay dense" if size.windows else ""
    console.print(
        escape(
            f"{found.name}: {found.layers} layers, {size.query_heads} query heads{groups}, {found.dtype}{sliding}.\n"
            f"A decode step reads {_bytes(size.weights)} of weights for the whole batch, and the KV cache of each "
            "sequence."
        )
    )
    rows = []
    for batch, length in places:
        step = size.step(length, batch)
        gains = (f"{gain:.2f}x" for gain in (step.attention_gain(), step.model_gain()))
        rows.append((str(batch), str(length), _bytes(step.cache), f"{100 * step.cache_share:.0f} %", *gains))
    printing.print_table(console, Table("", _COLUMNS, rows, _CAPTION, keys=2))
    if size.group > 1:
        console.print("Heads that share a KV head read a V row if any of them keeps it.")
    console.print(escape(f"Next: toptheta evaluate {shlex.quote(model)} --text FILE    # what it loses"))
    time_it = f"toptheta benchmark-generate --device cpu --model {shlex.quote(model)} --tau 0.0005"
    console.print(escape(f"      {time_it}    # what it gains"))


def _bytes(number: float) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6)):
        if number >= scale:
            return f"{number / scale:.3g} {unit}" if number < 1000 * scale else f"{number / scale:.0f} {unit}"
    return f"{number / 1e3:.3g} kB"


def _as_json(found: Examined, places: Sequence[tuple[int, int]]) -> dict[str, Any]:
    steps = []
    for batch, length in places:
        step = found.size.step(length, batch)
        gains = {"attention_at_most": step.attention_gain(), "model_at_most": step.model_gain()}
        steps.append({"batch": batch, "length": length, "bytes": asdict(step), **gains})
    return {**asdict(found), "steps": steps}
