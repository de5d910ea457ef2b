"""What a GGUF file says of its model, and whether nothing of it would be lost or taken wrongly."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ..._files import file_error
from ...errors import TopThetaNotImplementedError, shortened, shown
from .contents import AGAIN, NO_WAY, Contents

#: Of ``llama.*``.
_NEEDED = (
    "context_length", "block_count", "embedding_length", "feed_forward_length", "attention.head_count",
    "attention.head_count_kv", "attention.layer_norm_rms_epsilon",
)  # fmt: skip
_SIZES = ("vocab_size", "rope.dimension_count", "attention.key_length", "attention.value_length")
_REALS = ("attention.layer_norm_rms_epsilon", "rope.freq_base")
_TAKEN = (*_NEEDED, *_SIZES, "rope.freq_base")
_LARGEST = 2**31 - 1
_NOT_SET = (0, False, "", "none")
#: Values that change nothing. The scaling "linear" is by its factor alone; the layout is that of every LLaMA in GGUF.
_WITHOUT_EFFECT: dict[str, tuple[Any, ...]] = {
    "tensor_data_layout": ("", "Meta AI original pth", "reference"), "attention.causal": (True,),
    "rope.scaling.type": ("", "none", "linear"), "rope.scaling.factor": (0, 1), "rope.scale_linear": (0, 1),
    "rope.scaling.attn_factor": (1,),
}  # fmt: skip
#: Of other types of scaling, which are refused by ``rope.scaling.type``.
_OF_SCALING = ("rope.scaling.original_context_length", "rope.scaling.finetuned")
#: What llama.cpp takes where the file has none.
_ROPE_BASE = 10000.0
_OF_TOKENIZER = "tokenizer."
_VOCABULARY = tuple(f"tokenizer.ggml.{name}" for name in ("tokens", "merges", "scores", "token_type"))


@dataclass(frozen=True)
class Header:
    """What a GGUF file says of a LLaMA model.

    Attributes:
        file: the file.
        name: of the model; "" if it has none.
        layers, heads, kv_heads: of its attention.
        longest: tokens of its context.
        parameters: all weights.
        stored: in how many of the tensors each type of numbers is, the type of the most weights first.
        tokenizer: tokenizer.ggml.* and the chat template, the vocabulary itself left out.
    """

    file: Path
    name: str
    layers: int
    heads: int
    kv_heads: int
    longest: int
    parameters: int
    stored: dict[str, int]
    tokenizer: dict[str, Any]


@dataclass(frozen=True)
class Sizes:
    """The sizes and numbers of a LLaMA model; tied: it has no output weights of its own."""

    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    longest: int
    vocabulary: int
    epsilon: float
    rope_base: float
    tied: bool


def read_header(contents: Contents, sizes: Sizes) -> Header:
    """Sum up what a file says of its model."""
    weights: Counter[str] = Counter()
    tensors: Counter[str] = Counter()
    for tensor in contents.tensors.values():
        weights[tensor.kind.name] += prod(tensor.shape)
        tensors[tensor.kind.name] += 1
    values = contents.values
    return Header(
        file=contents.file,
        name=text_of(contents, "general.name") or "",
        layers=sizes.layers,
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        longest=sizes.longest,
        parameters=sum(weights.values()),
        stored={name: tensors[name] for name, _ in weights.most_common()},
        tokenizer={name: values[name] for name in values if name.startswith(_OF_TOKENIZER) and name not in _VOCABULARY},
    )


def read_sizes(contents: Contents, tokens: int) -> Sizes:
    """Read the settings of a LLaMA model of so many tokens, and check that they are all there is and fit its tensors.

    Raises:
        TopThetaValueError: settings or tensors are missing, or cannot be.
        TopThetaNotImplementedError: settings or tensors that would be left out.
    """
    own = {name.removeprefix("llama."): value for name, value in contents.values.items() if name.startswith("llama.")}
    _check_settings(contents.file, own)
    count = {name: own[name] for name in (*_NEEDED, *_SIZES) if name in own}
    vocabulary = count.get("vocab_size", tokens)
    if tokens > vocabulary:
        raise file_error(contents.file, f"a vocabulary of at most {vocabulary} tokens", str(tokens), AGAIN)
    sizes = Sizes(
        layers=count["block_count"], hidden=count["embedding_length"], inner=count["feed_forward_length"],
        heads=count["attention.head_count"], kv_heads=count["attention.head_count_kv"],
        head_dim=_head_dim(contents.file, count), longest=count["context_length"], vocabulary=vocabulary,
        epsilon=float(own["attention.layer_norm_rms_epsilon"]), rope_base=float(own.get("rope.freq_base", _ROPE_BASE)),
        tied="output.weight" not in contents.tensors,
    )  # fmt: skip
    _check_tensors(contents, sizes)
    return sizes


def check_kind(contents: Contents) -> None:
    """Check that the file holds a whole model, and that of the architecture LLaMA.

    Raises:
        TopThetaValueError: it is one of the parts of a model.
        TopThetaNotImplementedError: the architecture is another.
    """
    file, values = contents.file, contents.values
    parts, part = (values.get(f"split.{name}", 0) for name in ("count", "no"))
    if type(parts) is not int or type(part) is not int or parts > 1:
        got = f"part {part + 1} of {parts}" if type(part) is int else f"split.no = {shown(part)}"
        raise file_error(file, "a whole model", got, "join its parts: llama-gguf-split --merge FIRST_PART WHOLE")
    architecture = text_of(contents, "general.architecture")
    if architecture != "llama":
        got = "none" if architecture is None else shown(architecture)
        raise TopThetaNotImplementedError(str(file), "a model of the architecture 'llama'", got, NO_WAY)


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


def _check_settings(file: Path, own: dict[str, Any]) -> None:
    if missing := [f"llama.{name}" for name in _NEEDED if name not in own]:
        raise file_error(file, "all settings of a LLaMA model", f"one without {', '.join(missing)}", NO_WAY)
    for name, value in own.items():
        if _is_unusual(name, value):
            expected = "a LLaMA model of the usual settings, which transformers has too"
            shown_value = value if isinstance(value, str) else plain(value)
            raise TopThetaNotImplementedError(str(file), expected, f"llama.{name} = {shortened(shown_value)}", NO_WAY)
    for name in _TAKEN:
        value = own.get(name)
        if name in own and name not in _REALS and (type(value) is not int or not 0 < value <= _LARGEST):
            raise file_error(file, f"a whole number from 1 to {_LARGEST} as llama.{name}", plain(value), AGAIN)
        if name in own and name in _REALS and not _is_positive(value):
            raise file_error(file, f"a finite number above 0 as llama.{name}", plain(value), AGAIN)


def _is_unusual(name: str, value: Any) -> bool:
    if isinstance(value, (list, np.ndarray)):
        return True
    if name in _TAKEN or name in _OF_SCALING:
        return False
    return value not in _WITHOUT_EFFECT.get(name, _NOT_SET)


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


def _check_tensors(contents: Contents, sizes: Sizes) -> None:
    file, tensors = contents.file, contents.tensors
    once, of_layer = _shapes(sizes)
    for name, stored in tensors.items():
        found = re.fullmatch(r"blk\.(0|[1-9]\d{0,9})\.(\w+)\.weight", name)
        known = of_layer.get(found[2]) if found and int(found[1]) < sizes.layers else once.get(name)
        if known is None:
            rotary = name == "rope_freqs.weight"
            got = "scaled rotary frequencies (rope_freqs.weight)" if rotary else shortened(name)
            expected = "a LLaMA model of the usual tensors, which transformers has too"
            raise TopThetaNotImplementedError(str(file), expected, got, NO_WAY)
        if stored.shape != known:
            expected = f"{name} of {' x '.join(map(str, known))}, as its settings say"
            raise file_error(file, expected, " x ".join(map(str, stored.shape)), AGAIN)
    needed = len(of_layer) * sizes.layers + len(once) - sizes.tied
    if missing := needed - len(tensors):
        first = next(name for name in _names(once, of_layer, sizes) if name not in tensors)
        raise file_error(file, "all tensors of the model", f"{missing} of {needed} missing, such as {first}", AGAIN)


def _shapes(sizes: Sizes) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
    """Tell the shapes of the tensors that are there once, and of those of each layer."""
    hidden, inner = sizes.hidden, sizes.inner
    queries, keys = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    words = (sizes.vocabulary, hidden)
    once: dict[str, tuple[int, ...]] = {
        "token_embd.weight": words, "output_norm.weight": (hidden,), "output.weight": words
    }  # fmt: skip
    of_layer: dict[str, tuple[int, ...]] = {
        "attn_norm": (hidden,), "attn_q": (queries, hidden), "attn_k": (keys, hidden), "attn_v": (keys, hidden),
        "attn_output": (hidden, queries), "ffn_norm": (hidden,), "ffn_gate": (inner, hidden),
        "ffn_up": (inner, hidden), "ffn_down": (hidden, inner),
    }  # fmt: skip
    return once, of_layer


def _names(once: dict[str, Any], of_layer: dict[str, Any], sizes: Sizes) -> Iterator[str]:
    yield from (name for name in once if name != "output.weight" or not sizes.tied)
    yield from (f"blk.{layer}.{part}.weight" for layer in range(sizes.layers) for part in of_layer)
