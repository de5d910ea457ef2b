"""The arguments of a decode step: one table, and the object that carries them from the public functions to a backend.

`schemas` makes the parameters of the registered operators and the public functions from it. The packing for the native
CPU kernel, the parameters of the aclnn function and the nodes of a GE graph are made from it elsewhere. Tests compare
the C++ code and the pages with it.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple, get_args, get_type_hints

import torch
from torch import Tensor

from .compensation import Compensation

#: The registered operators, and what each returns.
OPERATORS = {
    "incremental_attention": "Tensor",
    "incremental_attention_with_stats": "(Tensor, Tensor, Tensor, Tensor)",
    "incremental_attention_partial": "(Tensor, Tensor, Tensor, Tensor, Tensor)",
}
_WHOLE_ROW = ("incremental_attention", "incremental_attention_with_stats")
_PART_OF_ROW = ("incremental_attention_partial",)
_ELEMENTS = (torch.float16, torch.bfloat16, torch.float32)
_CACHED = (*_ELEMENTS, torch.int8)
_INTEGERS = (torch.int32, torch.int64)
_FLOAT32 = (torch.float32,)
_SCALES = "mode 0: [Hkv, D] or what broadcasts to it; 3: [B, Hkv, S]; 5: [blocks, Hkv, block_size]"


class Values(NamedTuple):
    """The range that a tensor's numbers must lie in, from ``least`` to below ``limit``; in words, with a remedy."""

    least: float
    limit: float
    expected: str
    remedy: str


class About(NamedTuple):
    """A table entry beyond the argument's name, type and default.

    Attributes:
        meaning: one line.
        shape: the shape of a tensor in words: B sequences, Hq query heads, Hkv KV heads, S keys, D head_dim, Sq query
            tokens. With one query token, per-row tensors have no axis Sq.
        dtypes: the dtypes that a tensor may have.
        operators: the operators whose schema has this argument, on all devices.
        values: the range of a tensor's numbers, checked on a CPU only.
    """

    meaning: str
    shape: str = ""
    dtypes: tuple[torch.dtype, ...] = ()
    operators: tuple[str, ...] = tuple(OPERATORS)
    values: Values | None = None


class Arguments(NamedTuple):
    """The checked arguments of a decode step. Required ones come first, and tensors stand together.

    Each operator has some of them: see `About`.
    """

    num_heads: Annotated[int, About("query heads Hq")]
    num_key_value_heads: Annotated[int, About("KV heads Hkv, a divisor of Hq")]
    scale_value: Annotated[float, About("factor of q·k; None is 1/√D")]
    query: Annotated[
        Tensor,
        About(
            "one token per sequence, or up to 16", "BNSD [B, Hq, Sq, D], BSND [B, Sq, Hq, D] or BSH [B, Sq, Hq*D]",
            _ELEMENTS,
        ),
    ]  # fmt: skip
    key: Annotated[
        Tensor,
        About(
            "the K cache; as query, or int8", "as query with S and Hkv; paged [blocks, Hkv, block_size, D] or 3-D",
            _CACHED,
        ),
    ]  # fmt: skip
    value: Annotated[Tensor, About("the V cache; as query, or int8 where key is", "as key", _CACHED)]
    threshold: Annotated[
        Tensor,
        About("θ: of a scaled score, or post-softmax of a probability", "[Hq], [B, Hq] or [B, Hq, Sq]", _FLOAT32),
    ]
    actual_seq_lengths: Annotated[
        Tensor | None,
        About("valid keys n; None is all of S", "[B]; of parts with several tokens [B, Sq]", _INTEGERS),
    ] = None
    key_start: Annotated[Tensor | None, About("first valid key, after left padding", "[B]", _INTEGERS)] = None
    block_table: Annotated[
        Tensor | None, About("blocks of each sequence in a paged cache", "[B, max_blocks]", (torch.int32,))
    ] = None
    key_antiquant_scale: Annotated[
        Tensor | None,
        About("scales of an int8 key: a K row is its numbers times them", _SCALES, _ELEMENTS),
    ] = None
    value_antiquant_scale: Annotated[
        Tensor | None, About("scales of an int8 value", "as key_antiquant_scale", _ELEMENTS)
    ] = None
    actual_query_lengths: Annotated[
        Tensor | None,
        About("real query tokens, which come first; None is all Sq", "[B]", _INTEGERS, _WHOLE_ROW),
    ] = None
    discarded_mass: Annotated[
        Tensor | None,
        About(
            'E of `sdc="offline"`, relative to exp(m)', "[B, Hq, Sq]", _FLOAT32, _WHOLE_ROW,
            Values(0.0, torch.inf, "finite numbers >= 0", "calibrate again"),
        ),
    ] = None  # fmt: skip
    value_mean: Annotated[
        Tensor | None,
        About("mean of the V rows that a token sees; switches VMC on", "[B, Hkv, Sq, D]", _FLOAT32, _WHOLE_ROW),
    ] = None
    learnable_sink: Annotated[
        Tensor | None,
        About(
            "one more logit per head in the denominator, with no V row; -inf is none", "[Hq]", _FLOAT32, _WHOLE_ROW,
            Values(-torch.inf, torch.inf, "finite numbers, or -inf for no sink", "check the model's sinks"),
        ),
    ] = None  # fmt: skip
    lse: Annotated[
        Tensor | None,
        About(
            "LSE of the whole row, post-softmax", "[B, Hq, Sq]", _FLOAT32, _PART_OF_ROW,
            Values(-torch.inf, torch.inf, "finite numbers, or -inf for no keys", "look for NaN in query and key"),
        ),
    ] = None  # fmt: skip
    input_layout: Annotated[str, About('"BNSD", "BSND" or "BSH"')] = "BNSD"
    key_antiquant_mode: Annotated[
        int, About("what `key_antiquant_scale` has one number for: 0 channel, 3 token and head, 5 the same paged")
    ] = 0
    value_antiquant_mode: Annotated[int, About("the same for `value_antiquant_scale`")] = 0
    placement: Annotated[
        str,
        About(
            'θ tests the score ("pre_softmax"), the probability ("post_softmax") or, of whole rows, the probability by '
            'the LSE of a sample of keys ("sampled_softmax")'
        ),
    ] = "pre_softmax"
    sdc: Annotated[str, About('estimate of E: "none", "exact", "exp_threshold" or "offline"', operators=_WHOLE_ROW)] = (
        "exact"
    )
    sdc_gamma: Annotated[float, About('factor gamma of `sdc="exp_threshold"`', operators=_WHOLE_ROW)] = 0.05
    path: Annotated[str, About('how V is read, for tests: "auto", "gather" or "dense"')] = "auto"
    block_size: Annotated[int, About("rows per block of a paged cache; operators see it in key", operators=())] = 0

    @property
    def compensation(self) -> Compensation:
        """The compensation of the whole row."""
        return Compensation(self.sdc, self.sdc_gamma, self.discarded_mass, self.value_mean, self.learnable_sink)

    @property
    def head_dim(self) -> int:
        """D, which BSH does not show."""
        size = self.query.shape[-1]
        return size // self.num_heads if self.input_layout == "BSH" else size

    @property
    def query_tokens(self) -> int:
        """Sq, the query tokens of each sequence."""
        return self.query.shape[2 if self.input_layout == "BNSD" else 1]

    @property
    def is_of_one_token(self) -> bool:
        """Whether every sequence has one query token, which is real."""
        return self.query_tokens == 1 and self.actual_query_lengths is None


class Argument(NamedTuple):
    """A line of the table. ``type`` is Tensor, "Tensor | None", int, float or str. ``default`` applies to the last four
    unless ``required`` is set."""

    name: str
    type: Any
    about: About
    required: bool
    default: Any


def _read_table() -> dict[str, Argument]:
    table = {}
    for name, hint in get_type_hints(Arguments, include_extras=True).items():
        kind, about = get_args(hint)
        required = name not in Arguments._field_defaults
        table[name] = Argument(name, kind, about, required, Arguments._field_defaults.get(name))
    return table


#: By name, in the order of `Arguments`.
TABLE = _read_table()


def _places(names: list[str]) -> slice:
    """Find the slice of consecutive fields in `Arguments`."""
    first = Arguments._fields.index(names[0])
    assert list(Arguments._fields[first : first + len(names)]) == names, "an order that slices rely on"
    return slice(first, first + len(names))


_OPTIONAL = [argument.name for argument in TABLE.values() if argument.type == Tensor | None]
#: The tensors of `Arguments`.
TENSORS = _places(["query", "key", "value", "threshold", *_OPTIONAL])
#: The tensors that may be given as lists.
LENGTHS = _places(["actual_seq_lengths", "key_start"])
#: The tensors that hold a float32 number per row or head.
FLOAT_TENSORS = _places([name for name in _OPTIONAL if TABLE[name].about.dtypes == _FLOAT32])
#: The arguments that describe int8 caches.
ANTIQUANT_SCALES = _places(["key_antiquant_scale", "value_antiquant_scale"])
ANTIQUANT_MODES = _places(["key_antiquant_mode", "value_antiquant_mode"])
#: Choices, which all have a default.
CHOICES = _places([
    "input_layout", "key_antiquant_mode", "value_antiquant_mode", "placement", "sdc", "sdc_gamma", "path",
])  # fmt: skip
