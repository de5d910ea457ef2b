"""How a call's arguments are packed for the native library, as far as shapes, strides and options tell."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..fallback.antiquant import PER_CHANNEL, per_channel
from ..fallback.arguments import ANTIQUANT_MODES, ANTIQUANT_SCALES, FLOAT_TENSORS, TENSORS, Arguments
from .library import ARGUMENTS, POINTERS, RUN_IN_PARALLEL

_PLACEMENTS = {"pre_softmax": 0, "post_softmax": 1, "sampled_softmax": 2}
_SDC = {"none": 0, "exact": 1, "exp_threshold": 2, "offline": 3}
_PATHS = {"auto": 0, "gather": 1, "dense": 2}
SCALE_TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
NO_SCALES = (0, 0, 0, 0, 0, 0)
_NO_OUTPUTS = (0,) * 7
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
    heads, kv_heads, scale, query, key, value, threshold, lengths, starts, block_table = a[:10]
    layout, query_shape, key_shape = a.input_layout, query.shape, key.shape
    head_dim = query_shape[2] // heads if layout == "BSH" else query_shape[3]
    paged = block_table is not None
    capacity = rows = key_shape[1 if len(key_shape) == 3 or (layout == "BSND" and not paged) else 2]
    blocks_per_sequence = 0
    if block_table is not None:
        blocks_per_sequence = block_table.shape[1]
        capacity = rows * blocks_per_sequence
    caches = 0, *_strides(key, layout, head_dim, paged), 0, *_strides(value, layout, head_dim, paged)
    tokens = a.query_tokens
    integers = (
        *_integers(lengths), lengths is not None and lengths.dim() == 2, *_integers(starts),
        0, blocks_per_sequence, rows, key_shape[0],
    )  # fmt: skip
    of_tokens = tokens if threshold.dim() == 3 else 1
    scales = scales_of(a, kv_heads, head_dim, [])
    template = pack(
        (query_shape[0], heads, kv_heads, head_dim, tokens, capacity), (0, *_strides(query, layout, head_dim, False)),
        caches, (0, heads * of_tokens if threshold.dim() > 1 else 0, of_tokens), integers,
        (0,) * (FLOAT_TENSORS.stop - FLOAT_TENSORS.start), (scale, a.sdc_gamma), choices(result, a), _NO_OUTPUTS,
        scales, _integers(a.actual_query_lengths),
    )  # fmt: skip
    return Plan(template, *_places(a, kv_heads, head_dim))


def pack(
    sizes: Sequence[int], query: Sequence[int], caches: Sequence[int], threshold: Sequence[int],
    integers: Sequence[int], floats: Sequence[int], numbers: Sequence[float], choices: Sequence[int],
    outputs: Sequence[int], scales: Sequence[int], query_lengths: Sequence[int] = (0, 0), threads: int = 0,
) -> bytes:  # fmt: skip
    """Pack the fields of struct Arguments in source/arguments.h, in its order."""
    return ARGUMENTS.pack(
        *sizes, *query, *caches, *threshold, *integers, *scales, *query_lengths, *floats, *numbers, *choices, *outputs,
        threads, RUN_IN_PARALLEL,
    )  # fmt: skip


def choices(result: int, a: Arguments) -> tuple[int, ...]:
    """Number what is to be written, how rows select and compensate, and the order of the output."""
    return result, _PLACEMENTS[a.placement], _SDC[a.sdc], _PATHS[a.path], a.input_layout != "BNSD"


def scales_of(a: Arguments, kv_heads: int, head_dim: int, copies: list[Tensor]) -> tuple[int, ...]:
    """Describe the scales of int8 K and V. Put into ``copies`` what has to stay alive until the call is over."""
    fields: list[int] = []
    for scale, mode in (
        (a.key_antiquant_scale, a.key_antiquant_mode), (a.value_antiquant_scale, a.value_antiquant_mode),
    ):  # fmt: skip
        if scale is None:
            fields += NO_SCALES
        elif mode == PER_CHANNEL:
            copies.append(_as_channels(scale, kv_heads, head_dim))
            fields += (copies[-1].data_ptr(), 0, head_dim, 0, 1, 0)
        else:
            fields += (scale.data_ptr(), *scale.stride(), 0, SCALE_TYPES[scale.dtype])
    return tuple(fields)


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
