"""The decode call of a layer that an engine repeats step by step: what stays the same is checked and packed once.

For short rows an operator spends more time on its arguments than on its work. An engine hands over the same caches and
options in every step, so `LayerDecode` keeps them, and `RepeatedRows` what all layers of a step say alike. What
is left for a layer is one native call, which makes its V sums and means, too. It looks at the values by itself.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .._value_checks import host_can_read
from ..fallback.arguments import TENSORS, Arguments
from .backend import CPU_SELECTOR
from .library import REST_OF_LAYER, REST_OF_ROWS, SUMS_OF_LAYER, loaded
from .operators import WITH_STATISTICS, check_status
from .plans import of_options, pack
from .threads import thread_count

#: Tensors of a repeated call; it has no others.
_TENSORS = (
    "query", "key", "value", "threshold", "actual_seq_lengths", "block_table", "key_antiquant_scale",
    "value_antiquant_scale", "discarded_mass", "value_mean",
)  # fmt: skip
_OTHER_TENSORS = [place for place in range(*TENSORS.indices(99)) if Arguments._fields[place] not in _TENSORS]
_NO_SUMS = bytes(SUMS_OF_LAYER.size)


class RepeatedRows(NamedTuple):
    """What all layers say alike of the rows that decode in a step.

    Attributes:
        shape: of a query, [S, Hq, D].
        packed: for the native call.
        kept, value_rows: of each layer what it writes, int32 [layers, S, Hq] and [layers, S, Hkv].
        alive: tensors whose addresses are packed.
    """

    shape: tuple[int, int, int]
    packed: bytes
    kept: Tensor
    value_rows: Tensor
    alive: tuple[Tensor, ...]


class LayerDecode:
    """`incremental_attention_with_stats` of one layer with a paged cache and lengths, for other rows.

    Args:
        arguments: of a call that has passed the operator's checks, in layout BNSD, and `is_possible`.
        threshold, discarded_mass: the layer's tables, float32 [places, Hq], contiguous, which stay where they are.
        number: of the layer among those that `RepeatedRows` are for.
        sums: where its V sums lie, as `page_sums.pack_layer` says; None: its rows want no mean.
    """

    def __init__(
        self, arguments: Arguments, threshold: Tensor, discarded_mass: Tensor | None, number: int, sums: bytes | None
    ) -> None:  # fmt: skip
        query, key, value = arguments.query, arguments.key, arguments.value
        blocks, kv_heads, block_size, head_dim = key.shape
        heads = arguments.num_heads
        self._key, self._value, self._dtype = key, value, query.dtype
        self._heads = heads, kv_heads, head_dim
        copies = list[Tensor]()
        options = of_options(arguments, WITH_STATISTICS, head_dim, copies)
        self._alive = threshold, discarded_mass, arguments.key_antiquant_scale, arguments.value_antiquant_scale, copies
        packed = pack({
            "sizes": (0, heads, kv_heads, head_dim, 1, 0), "key": (key.data_ptr(), *key.stride()),
            "value": (value.data_ptr(), *value.stride()), "threshold": (0, 0, 1),
            "block_table": (0, 0, block_size, blocks), "threads": (thread_count(),),
        }, options)  # fmt: skip
        tables = threshold.data_ptr(), 0 if discarded_mass is None else discarded_mass.data_ptr()
        self._packed = packed + (sums or _NO_SUMS) + REST_OF_LAYER.pack(*tables, number)
        self._entry = loaded(query.dtype).toptheta_decode_layer

    @staticmethod
    def is_possible(arguments: Arguments) -> bool:
        """Tell whether the native kernel runs these arguments, and a call is one that can be repeated."""
        plain = host_can_read(arguments.query) and arguments.key.dim() == 4 and arguments.is_of_one_token
        rest = any(arguments[place] is not None for place in _OTHER_TENSORS)
        paged = arguments.block_table is not None and arguments.actual_seq_lengths is not None
        return plain and paged and not rest and CPU_SELECTOR.runs_native(arguments.query.dtype)

    def rows(
        self, written: bytes, lengths: Tensor, block_table: Tensor, places: Tensor, layers: int
    ) -> RepeatedRows | None:
        """Pack what this layer and others like it say of a step. None: operators do not run the native kernel now.

        Args:
            written: the rows of all sequences, as `page_sums.pack_step` says; those it makes means of decode.
            lengths: int32 or int64 [S], as ``actual_seq_lengths``, contiguous.
            block_table: int32 or int64 [S, blocks].
            places: int64 [S], contiguous, of the rows in the layers' tables.
            layers: their number.
        """
        if not CPU_SELECTOR.runs_native(self._dtype):
            return None
        block_table = block_table.int().contiguous()
        (batch, width), (heads, kv_heads, head_dim) = block_table.shape, self._heads
        kept = block_table.new_empty((layers, batch, heads))
        value_rows = block_table.new_empty((layers, batch, kv_heads))
        packed = written + REST_OF_ROWS.pack(
            batch, width, lengths.data_ptr(), lengths.dtype == torch.int64, block_table.data_ptr(), places.data_ptr(),
            kept.data_ptr(), value_rows.data_ptr(),
        )  # fmt: skip
        return RepeatedRows((batch, heads, head_dim), packed, kept, value_rows, (lengths, block_table, places))

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, rows: RepeatedRows, out: Tensor) -> bool:
        """Make the V sums that the step ends, and run its rows.

        False: caches are not the very same as those of the first call, the query is not like its query, the output is
        not like this one, or a value is not what is taken. Then ``out`` is as it was.

        Args:
            query: [S, Hq, D], with any strides.
            key, value: the caches.
            rows: of the step.
            out: as the query, contiguous, written.
        """
        dtype, shape = self._dtype, rows.shape
        if key is not self._key or value is not self._value or query.dtype is not dtype or query.shape != shape:
            return False
        if out.dtype is not dtype or out.shape != shape or not out.is_contiguous():
            return False
        status = self._entry(self._packed, rows.packed, query.data_ptr(), *query.stride(), out.data_ptr())
        return not status or check_status(status)
