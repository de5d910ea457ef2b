"""What a GGUF file says of its model, and whether nothing of it would be lost or taken wrongly."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ..._files import file_error
from ...errors import TopThetaNotImplementedError, shortened, shown
from .architectures import ARCHITECTURES, ONCE, Architecture, Sizes
from .contents import AGAIN, NO_WAY, Contents

#: Settings of every architecture, whose name stands before them.
_NEEDED = (
    "context_length", "block_count", "embedding_length", "feed_forward_length", "attention.head_count",
    "attention.head_count_kv", "attention.layer_norm_rms_epsilon",
)  # fmt: skip
_SIZES = ("vocab_size", "rope.dimension_count", "attention.key_length", "attention.value_length")
_REALS = ("attention.layer_norm_rms_epsilon", "rope.freq_base")
_LARGEST = 2**31 - 1
_NOT_SET = (0, False, "", "none")
#: Values that change nothing. The scaling "linear" is by its factor alone.
_WITHOUT_EFFECT: dict[str, tuple[Any, ...]] = {
    "tensor_data_layout": ("", "reference"), "attention.causal": (True,),
    "rope.scaling.type": ("", "none", "linear"), "rope.scaling.factor": (0, 1), "rope.scale_linear": (0, 1),
    "rope.scaling.attn_factor": (1,),
}  # fmt: skip
#: Of other types of scaling, which are refused by ``rope.scaling.type``.
_OF_SCALING = ("rope.scaling.original_context_length", "rope.scaling.finetuned")
#: What llama.cpp takes where the file has none.
_ROPE_BASE = 10000.0
_WINDOW, _WINDOW_ROPE_BASE, _ROPE_FACTOR = "attention.sliding_window", "rope.freq_base_swa", "rope.scaling.factor"
_ARCHITECTURE, _OF_TOKENIZER = "general.architecture", "tokenizer."
_VOCABULARY = tuple(f"tokenizer.ggml.{name}" for name in ("tokens", "merges", "scores", "token_type"))


@dataclass(frozen=True)
class Header:
    """What a GGUF file says of its model.

    Attributes:
        file: the file.
        architecture: such as "LLaMA".
        name: of the model; "" if it has none.
        layers, heads, kv_heads: of its attention.
        longest: tokens of its context.
        parameters: all weights.
        stored: in how many of the tensors each type of numbers is, the type of the most weights first.
        tokenizer: tokenizer.ggml.* and the chat template, the vocabulary itself left out.
    """

    file: Path
    architecture: str
    name: str
    layers: int
    heads: int
    kv_heads: int
    longest: int
    parameters: int
    stored: dict[str, int]
    tokenizer: dict[str, Any]


def read_header(contents: Contents, kind: Architecture, sizes: Sizes) -> Header:
    """Sum up what a file says of its model."""
    weights: Counter[str] = Counter()
    tensors: Counter[str] = Counter()
    for tensor in contents.tensors.values():
        weights[tensor.kind.name] += prod(tensor.shape)
        tensors[tensor.kind.name] += 1
    values = contents.values
    return Header(
        file=contents.file,
        architecture=kind.title,
        name=text_of(contents, "general.name") or "",
        layers=sizes.layers,
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        longest=sizes.longest,
        parameters=sum(weights.values()),
        stored={name: tensors[name] for name, _ in weights.most_common()},
        tokenizer={name: values[name] for name in values if name.startswith(_OF_TOKENIZER) and name not in _VOCABULARY},
    )


def read_sizes(contents: Contents, kind: Architecture, tokens: int) -> Sizes:
    """Read the settings of a model of so many tokens, and check that they are all there is and fit its tensors.

    Raises:
        TopThetaValueError: settings or tensors are missing, or cannot be.
        TopThetaNotImplementedError: settings or tensors that would be left out.
    """
    prefix = f"{contents.values[_ARCHITECTURE]}."
    own = {name.removeprefix(prefix): value for name, value in contents.values.items() if name.startswith(prefix)}
    _check_settings(contents.file, kind, prefix, own)
    count = {name: own[name] for name in (*_NEEDED, *_SIZES) if name in own}
    vocabulary = count.get("vocab_size", tokens)
    if tokens > vocabulary:
        raise file_error(contents.file, f"a vocabulary of at most {vocabulary} tokens", str(tokens), AGAIN)
    sizes = Sizes(
        layers=count["block_count"], hidden=count["embedding_length"], inner=count["feed_forward_length"],
        heads=count["attention.head_count"], kv_heads=count["attention.head_count_kv"],
        head_dim=_head_dim(contents.file, count), longest=count["context_length"], vocabulary=vocabulary,
        epsilon=float(own["attention.layer_norm_rms_epsilon"]), rope_base=float(own.get("rope.freq_base", _ROPE_BASE)),
        tied="output.weight" not in contents.tensors, window=own[_WINDOW] if _WINDOW in kind.needed else 0,
        window_rope_base=float(own.get(_WINDOW_ROPE_BASE, _ROPE_BASE)),
        rope_factor=float(own.get(_ROPE_FACTOR) or 1),
    )  # fmt: skip
    _check_tensors(contents, kind, sizes)
    return sizes


def read_kind(contents: Contents) -> Architecture:
    """Find the architecture of the whole model that the file holds.

    Raises:
        TopThetaValueError: it is one of the parts of a model.
        TopThetaNotImplementedError: the architecture is none that is known.
    """
    file, values = contents.file, contents.values
    parts, part = (values.get(f"split.{name}", 0) for name in ("count", "no"))
    if type(parts) is not int or type(part) is not int or parts > 1:
        got = f"part {part + 1} of {parts}" if type(part) is int else f"split.no = {shown(part)}"
        raise file_error(file, "a whole model", got, "join its parts: llama-gguf-split --merge FIRST_PART WHOLE")
    architecture = text_of(contents, _ARCHITECTURE)
    if architecture is None or architecture not in ARCHITECTURES:
        got = "none" if architecture is None else shown(architecture)
        expected = f"a model of the architecture {', '.join(ARCHITECTURES)}"
        raise TopThetaNotImplementedError(str(file), expected, got, NO_WAY)
    return ARCHITECTURES[architecture]


def text_of(contents: Contents, name: str) -> str | None:
    """Return a setting that is a text; None: there is none.

    Raises:
        TopThetaValueError: it is something else.
    """
    value = contents.values.get(name)
    if value is not None and not isinstance(value, str):
        raise file_error(contents.file, f"a text as {name}", plain(value), AGAIN)
    return value


def plain(value: Any) -> str:
    """Show a value of the file in an error message."""
    return shortened(str(value.tolist())) if isinstance(value, np.ndarray) else shown(value)


def _check_settings(file: Path, kind: Architecture, prefix: str, own: dict[str, Any]) -> None:
    needed, reals = (*_NEEDED, *kind.needed), (*_REALS, *kind.reals)
    if missing := [f"{prefix}{name}" for name in needed if name not in own]:
        raise file_error(file, f"all settings of a {kind.title} model", f"one without {', '.join(missing)}", NO_WAY)
    taken = dict.fromkeys((*needed, *_SIZES, *reals))
    for name, value in own.items():
        if _is_unusual(name, value, taken, kind):
            expected = f"a {kind.title} model of the usual settings, which transformers has too"
            got = f"{prefix}{name} = {shortened(value if isinstance(value, str) else plain(value))}"
            raise TopThetaNotImplementedError(str(file), expected, got, NO_WAY)
    for name in taken:
        value = own.get(name)
        if name in own and name not in reals and (type(value) is not int or not 0 < value <= _LARGEST):
            raise file_error(file, f"a whole number from 1 to {_LARGEST} as {prefix}{name}", plain(value), AGAIN)
        # no scaling is written as 0 or as 1
        if name in own and name in reals and not _is_positive(value) and (name, value) != (_ROPE_FACTOR, 0):
            raise file_error(file, f"a finite number above 0 as {prefix}{name}", plain(value), AGAIN)


def _is_unusual(name: str, value: Any, taken: Collection[str], kind: Architecture) -> bool:
    if isinstance(value, (list, np.ndarray)):
        return True
    if name in taken or name in _OF_SCALING:
        return False
    return value not in (*_WITHOUT_EFFECT.get(name, _NOT_SET), *kind.without_effect.get(name, ()))


def _is_positive(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and value > 0


def _head_dim(file: Path, count: dict[str, int]) -> int:
    heads, kv_heads = count["attention.head_count"], count["attention.head_count_kv"]
    if heads % kv_heads:
        raise file_error(file, "heads in groups of one size", f"{heads} heads on {kv_heads} KV heads", AGAIN)
    usual, left = divmod(count["embedding_length"], heads)
    if "attention.key_length" not in count and (left or not usual):
        expected, got = f"an embedding that {heads} heads share", f"one of {count['embedding_length']} elements"
        raise file_error(file, expected, got, AGAIN)
    head_dim = count.get("attention.key_length", usual)
    others = {count.get("rope.dimension_count", head_dim), count.get("attention.value_length", head_dim)}
    if others != {head_dim} or head_dim % 2:
        got = f"heads of {head_dim} with {', '.join(map(str, sorted(others)))} rotary or value elements"
        raise TopThetaNotImplementedError(str(file), "heads that are rotated as a whole", got, NO_WAY)
    return head_dim


def _check_tensors(contents: Contents, kind: Architecture, sizes: Sizes) -> None:
    file, tensors = contents.file, contents.tensors
    once, of_layer = (
        {name: tuple(sizes.by_name[each] for each in shape) for name, (_, shape) in known.items()}
        for known in (ONCE, kind.of_layer)
    )
    for name, stored in tensors.items():
        found = re.fullmatch(r"blk\.(0|[1-9]\d{0,9})\.(\w+\.\w+)", name)
        known = of_layer.get(found[2]) if found and int(found[1]) < sizes.layers else once.get(name)
        if known is None:
            rotary = name == "rope_freqs.weight"
            got = "scaled rotary frequencies (rope_freqs.weight)" if rotary else shortened(name)
            expected = f"a {kind.title} model of the usual tensors, which transformers has too"
            raise TopThetaNotImplementedError(str(file), expected, got, NO_WAY)
        if stored.shape != known:
            expected = f"{name} of {' x '.join(map(str, known))}, as its settings say"
            raise file_error(file, expected, " x ".join(map(str, stored.shape)), AGAIN)
    needed = len(of_layer) * sizes.layers + len(once) - sizes.tied
    if missing := needed - len(tensors):
        first = next(name for name in _names(once, of_layer, sizes) if name not in tensors)
        raise file_error(file, "all tensors of the model", f"{missing} of {needed} missing, such as {first}", AGAIN)


def _names(once: dict[str, Any], of_layer: dict[str, Any], sizes: Sizes) -> Iterator[str]:
    yield from (name for name in once if name != "output.weight" or not sizes.tied)
    yield from (f"blk.{layer}.{part}" for layer in range(sizes.layers) for part in of_layer)
