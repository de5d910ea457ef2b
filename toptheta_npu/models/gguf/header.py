"""What a GGUF file says of its model, and whether nothing of it would be lost or taken wrongly."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import numpy as np

from ..._files import file_error
from ...errors import TopThetaNotImplementedError, shortened, shown
from .architectures import ARCHITECTURES, Architecture, Sizes
from .contents import AGAIN, NO_WAY, Contents

#: Settings of every architecture, whose name stands before them.
_NEEDED = (
    "context_length", "block_count", "embedding_length", "feed_forward_length", "attention.head_count",
    "attention.head_count_kv", "attention.layer_norm_rms_epsilon",
)  # fmt: skip
_SIZES = ("vocab_size", "rope.dimension_count", "attention.key_length", "attention.value_length")
_REALS = ("attention.layer_norm_rms_epsilon", "rope.freq_base")
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
_ARCHITECTURE = "general.architecture"


def read_kind(contents: Contents) -> Architecture:
    """Find the architecture of the whole model that the file holds.

    Raises:
        TopThetaValueError: it is one of the parts of a model.
        TopThetaNotImplementedError: the architecture is none that is known.
    """
    file, values = contents.file, contents.values
    if (parts := values.get("split.count", 0)) > 1:
        got = f"part {values.get('split.no', 0) + 1} of {parts}"
        raise file_error(file, "a whole model", got, "join its parts: llama-gguf-split --merge FIRST_PART WHOLE")
    architecture = values.get(_ARCHITECTURE, "none")
    if architecture not in ARCHITECTURES:
        expected = f"a model of the architecture {', '.join(ARCHITECTURES)}"
        raise TopThetaNotImplementedError(str(file), expected, shown(architecture), NO_WAY)
    return ARCHITECTURES[architecture]


def read_sizes(contents: Contents, kind: Architecture, tokens: int) -> Sizes:
    """Read the settings of a model of so many tokens, and check that they are all there is and fit its tensors.

    Raises:
        TopThetaValueError: settings or tensors are missing, or cannot be.
        TopThetaNotImplementedError: settings or tensors that would be left out.
    """
    prefix = f"{contents.values[_ARCHITECTURE]}."
    own = {name.removeprefix(prefix): value for name, value in contents.values.items() if name.startswith(prefix)}
    _check_settings(contents, kind, prefix, own)
    heads, hidden = own["attention.head_count"], own["embedding_length"]
    sizes = Sizes(
        layers=own["block_count"], hidden=hidden, inner=own["feed_forward_length"], heads=heads,
        kv_heads=own["attention.head_count_kv"], head_dim=own.get("attention.key_length", hidden // heads),
        longest=own["context_length"], vocabulary=own.get("vocab_size", tokens),
        epsilon=float(own["attention.layer_norm_rms_epsilon"]), rope_base=float(own.get("rope.freq_base", _ROPE_BASE)),
        tied="output.weight" not in contents.tensors, window=own[_WINDOW] if _WINDOW in kind.needed else 0,
        window_rope_base=float(own.get(_WINDOW_ROPE_BASE, _ROPE_BASE)),
        rope_factor=float(own.get(_ROPE_FACTOR) or 1),
    )  # fmt: skip
    others = {own.get(name, sizes.head_dim) for name in ("rope.dimension_count", "attention.value_length")}
    if others != {sizes.head_dim}:
        got = f"heads of {sizes.head_dim} with {', '.join(map(str, sorted(others)))} rotary or value elements"
        raise TopThetaNotImplementedError(str(contents.file), "heads that are rotated as a whole", got, NO_WAY)
    _check_tensors(contents, kind, sizes)
    return sizes


def _check_settings(contents: Contents, kind: Architecture, prefix: str, own: dict[str, Any]) -> None:
    needed, reals = (*_NEEDED, *kind.needed), (*_REALS, *kind.reals)
    if missing := [f"{prefix}{name}" for name in needed if name not in own]:
        got = f"one without {', '.join(missing)}"
        raise file_error(contents.file, f"all settings of a {kind.title} model", got, NO_WAY)
    taken = dict.fromkeys((*needed, *_SIZES, *reals))
    for name, value in own.items():
        if _is_unusual(name, value, taken, kind):
            expected = f"a {kind.title} model of the usual settings, which transformers has too"
            got = f"{prefix}{name} = {shortened(str(value))}"
            raise TopThetaNotImplementedError(str(contents.file), expected, got, NO_WAY)
        if name not in taken or (name, value) == (_ROPE_FACTOR, 0):  # no scaling is written as 0 or as 1
            continue
        if type(value) not in ((int, float) if name in reals else (int,)) or not 0 < value < math.inf:
            expected = "a finite number above 0" if name in reals else "a whole number from 1 on"
            raise file_error(contents.file, f"{expected} as {prefix}{name}", shown(value), AGAIN)


def _is_unusual(name: str, value: Any, taken: Collection[str], kind: Architecture) -> bool:
    if isinstance(value, (list, np.ndarray)):
        return True
    if name in taken or name in _OF_SCALING:
        return False
    return value not in (*_WITHOUT_EFFECT.get(name, _NOT_SET), *kind.without_effect.get(name, ()))


def _check_tensors(contents: Contents, kind: Architecture, sizes: Sizes) -> None:
    file, tensors, known = contents.file, contents.tensors, kind.tensors(sizes)
    for name, stored in tensors.items():
        if name not in known:
            rotary = name == "rope_freqs.weight"
            got = "scaled rotary frequencies (rope_freqs.weight)" if rotary else shortened(name)
            expected = f"a {kind.title} model of the usual tensors, which transformers has too"
            raise TopThetaNotImplementedError(str(file), expected, got, NO_WAY)
        if stored.shape != known[name].shape:
            expected = f"{name} of {' x '.join(map(str, known[name].shape))}, as its settings say"
            raise file_error(file, expected, " x ".join(map(str, stored.shape)), AGAIN)
    if missing := [name for name in known if name not in tensors]:
        got = f"{len(missing)} of {len(known)} missing, such as {missing[0]}"
        raise file_error(file, "all tensors of the model", got, AGAIN)
