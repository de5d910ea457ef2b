"""How a call's arguments are packed for the native library, as far as shapes, strides and options tell."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._checks import PATHS, ROW_PLACEMENTS, SDC_MODES
from ..fallback.antiquant import PER_CHANNEL, per_channel
from ..fallback.arguments import ANTIQUANT_MODES, ANTIQUANT_SCALES, TENSORS, Arguments
from .library import ARGUMENTS, FIELDS, POINTERS, RUN_IN_PARALLEL

_PLACEMENTS, _SDC, _PATHS = (
    {name: number for number, name in enumerate(names)} for names in (ROW_PLACEMENTS, SDC_MODES, PATHS)
)
SCALE_TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
_NOTHING: dict[str, Sequence[float]] = {name: (0,) * len(words) for name, words in FIELDS.items()}
_NOTHING["run_in_parallel"] = (RUN_IN_PARALLEL,)
_OF_TENSORS = range(*TENSORS.indices(99))
#: The words of the packed arguments that are addresses of tensors, of outputs, and the number of threads.
_TENSOR_WORDS = POINTERS[: len(_OF_TENSORS)]
_OUTPUT_WORDS = slice(POINTERS[len(_OF_TENSORS)], POINTERS[-2] + 1)
_THREADS_WORD = _OUTPUT_WORDS.stop
#: The scales of int8, and their modes.
_SCALES = dict(zip(range(*ANTIQUANT_SCALES.indices(99)), range(*ANTIQUANT_MODES.indices(99)), strict=True))
#: Tensors that are read by their strides; others are small, and made contiguous.
_STRIDED = (*(Arguments._fields.index(name) for name in ("query", "key", "value")), *_SCALES)
_Make = Callable[[Tensor], Tensor]


class Plan(NamedTuple):
    """A packed call without its addresses: the same for all calls with the same shapes, strides and options.

    Attributes:
        template: as `ARGUMENTS`, with 0 for each address.
        in_place: for each tensor that is read where it lies its word of the template and its place in `Arguments`.
        copied: for each other tensor also what makes the one that is read.
    """

    template: bytes
    in_place: tuple[tuple[int, int], ...]
    copied: tuple[tuple[int, int, _Make], ...]

    def pack(self, a: Arguments, outputs: Sequence[int], threads: int) -> tuple[bytes, list[Tensor]]:
        """Fill in the addresses of tensors and outputs. Return also what has to stay alive until the call is over."""
        words = array("Q", self.template)
        for word, field in self.in_place:
            tensor: Any = a[field]
            words[word] = tensor.data_ptr()
        copies = []
        for word, field, make in self.copied:
            source: Any = a[field]
            copies.append(make(source))
            words[word] = copies[-1].data_ptr()
        words[_OUTPUT_WORDS] = array("Q", outputs)
        words[_THREADS_WORD] = threads
        return words.tobytes(), copies


def make_plan(a: Arguments, result: int) -> Plan:
    """Plan calls with arguments like these. ``result`` says what they write."""
    query, key, threshold, block_table = a.query, a.key, a.threshold, a.block_table
    heads, kv_heads, layout, query_shape, key_shape = *a[:2], a.input_layout, query.shape, key.shape
    head_dim = query_shape[2] // heads if layout == "BSH" else query_shape[3]
    paged = block_table is not None
    capacity = rows = key_shape[1 if len(key_shape) == 3 or (layout == "BSND" and not paged) else 2]
    blocks_per_sequence = 0
    if block_table is not None:
        blocks_per_sequence = block_table.shape[1]
        capacity = rows * blocks_per_sequence
    lengths, tokens = a.actual_seq_lengths, a.query_tokens
    of_tokens = tokens if threshold.dim() == 3 else 1
    fields: dict[str, Sequence[float]] = {
        "sizes": (query_shape[0], heads, kv_heads, head_dim, tokens, capacity),
        "query": (0, *_strides(query, layout, head_dim, False)), "key": (0, *_strides(key, layout, head_dim, paged)),
        "value": (0, *_strides(a.value, layout, head_dim, paged)),
        "threshold": (0, heads * of_tokens if threshold.dim() > 1 else 0, of_tokens),
        "actual_seq_lengths": (*_integers(lengths), lengths is not None and lengths.dim() == 2),
        "key_start": _integers(a.key_start), "block_table": (0, blocks_per_sequence, rows, key_shape[0]),
        "actual_query_lengths": _integers(a.actual_query_lengths),
    }  # fmt: skip
    return Plan(pack(fields, of_options(a, result, head_dim, [])), *_places(a, kv_heads, head_dim))


def pack(fields: Mapping[str, Sequence[float]], options: Mapping[str, Sequence[float]]) -> bytes:
    """Pack struct Arguments by the names of `library.FIELDS`; what is not given is 0."""
    return ARGUMENTS.pack(*chain.from_iterable({**_NOTHING, **fields, **options}.values()))


def of_options(a: Arguments, result: int, head_dim: int, copies: list[Tensor]) -> dict[str, Sequence[float]]:
    """Describe scales, numbers and choices: what is to be written, how rows select and compensate, in which order.

    Put into ``copies`` what has to stay alive until the call is over.
    """
    choices = result, _PLACEMENTS[a.placement], _SDC[a.sdc], _PATHS[a.path], a.input_layout != "BNSD"
    options: dict[str, Sequence[float]] = {
        "scale_value": (a.scale_value,), "sdc_gamma": (a.sdc_gamma,), "choices": choices,
    }  # fmt: skip
    for name, scale, mode in (
        ("key_antiquant_scale", a.key_antiquant_scale, a.key_antiquant_mode),
        ("value_antiquant_scale", a.value_antiquant_scale, a.value_antiquant_mode),
    ):
        if scale is not None:
            options[name] = _scales(scale, mode, a.num_key_value_heads, head_dim, copies)
    return options


def _scales(scale: Tensor, mode: int, kv_heads: int, head_dim: int, copies: list[Tensor]) -> tuple[int, ...]:
    if mode == PER_CHANNEL:
        copies.append(_as_channels(scale, kv_heads, head_dim))
        return copies[-1].data_ptr(), 0, head_dim, 0, 1, 0
    return scale.data_ptr(), *scale.stride(), 0, SCALE_TYPES[scale.dtype]


def _places(
    a: Arguments, kv_heads: int, head_dim: int
) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int, _Make], ...]]:
    """Find the tensors that are read where they lie, and those of which something is made first."""
    in_place: list[tuple[int, int]] = []
    copied: list[tuple[int, int, _Make]] = []
    as_channels = partial(_as_channels, kv_heads=kv_heads, head_dim=head_dim)
    for word, field in zip(_TENSOR_WORDS, _OF_TENSORS, strict=True):
        tensor: Any = a[field]
        if tensor is None:
            continue
        of_channels = field in _SCALES and a[_SCALES[field]] == PER_CHANNEL
        if of_channels and not _are_channels(tensor, kv_heads, head_dim):
            copied.append((word, field, as_channels))
        elif field in _STRIDED or tensor.is_contiguous():
            in_place.append((word, field))
        else:
            copied.append((word, field, Tensor.contiguous))
    return tuple(in_place), tuple(copied)


def _integers(given: Tensor | None) -> tuple[int, int]:
    return 0, given is not None and given.dtype == torch.int64


def _are_channels(scale: Tensor, kv_heads: int, head_dim: int) -> bool:
    """Tell whether scales of mode 0 can be read where they lie."""
    return scale.dtype == torch.float32 and scale.is_contiguous() and scale.numel() == kv_heads * head_dim


def _as_channels(scale: Tensor, kv_heads: int, head_dim: int) -> Tensor:
    return per_channel(scale, kv_heads, head_dim).float().contiguous()


def _strides(tensor: Tensor, layout: str, head_dim: int, paged: bool) -> tuple[int, ...]:
    """Return the strides of sequence (or block), head, row and element, whatever the layout."""
    strides = tensor.stride()
    if len(strides) == 3:
        return strides[0], head_dim * strides[2], strides[1], strides[2]
    if layout == "BSND" and not paged:
        return strides[0], strides[2], strides[1], strides[3]
    return strides
