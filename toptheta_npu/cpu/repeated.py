"""The decode call of a layer that an engine repeats step by step: what stays the same is checked and packed once.

For short rows an operator spends more time on its arguments than on its work. An engine hands over the same caches and
options in every step, so `RepeatedDecode` keeps them. The native kernel looks at the values of each call by itself.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .._value_checks import are_seen
from ..fallback.arguments import Arguments
from .backend import CPU_SELECTOR
from .library import function
from .operators import WITH_STATISTICS, choices, is_done, pack


class RepeatedRows(NamedTuple):
    """What all layers say alike of the rows of a step; contiguous tensors on a CPU.

    Attributes:
        lengths: int32 or int64 [B], as ``actual_seq_lengths``.
        block_table: int32 [B, blocks].
        lse: float32 [B, Hq], written by every layer.
    """

    lengths: Tensor
    block_table: Tensor
    lse: Tensor


class RepeatedDecode:
    """`incremental_attention_with_stats` of one layer with a paged cache and lengths, for other rows.

    Args:
        arguments: of a call that has passed the operator's checks, in layout BNSD.
    """

    def __init__(self, arguments: Arguments) -> None:
        query, key, value = arguments.query, arguments.key, arguments.value
        blocks, kv_heads, self._block_size, head_dim = key.shape
        self._caches = key, value
        self._like = query.dtype, (arguments.num_heads, head_dim)
        self._heads = arguments.num_heads, kv_heads, head_dim
        self._views = (key.data_ptr(), *key.stride(), value.data_ptr(), *value.stride())
        self._pages = self._block_size, blocks
        self._numbers = arguments.scale_value, arguments.sdc_gamma
        self._choices = choices(WITH_STATISTICS, arguments)
        self._entry = function(query.dtype)

    @staticmethod
    def is_possible(arguments: Arguments) -> bool:
        """Tell whether the native kernel runs these arguments, and a call is one that can be repeated."""
        same = arguments.key.dtype == arguments.query.dtype  # no int8
        plain = are_seen(arguments.query) and arguments.key.dim() == 4 and same
        rest = arguments.key_start, arguments.learnable_sink, arguments.lse
        paged = arguments.block_table is not None and arguments.actual_seq_lengths is not None
        return plain and paged and rest == (None,) * 3 and CPU_SELECTOR.runs_native(arguments.query.dtype)

    def fits(self, query: Tensor, key: Tensor, value: Tensor) -> bool:
        """Tell whether a call is this one but for its rows: query [B, Hq, D], and the very same caches."""
        dtype, shape = self._like
        same = key is self._caches[0] and value is self._caches[1] and not torch.compiler.is_compiling()
        return same and query.dtype == dtype and query.shape[1:] == shape and CPU_SELECTOR.runs_native(dtype)

    def __call__(
        self, query: Tensor, rows: RepeatedRows, threshold: Tensor, discarded_mass: Tensor | None,
        value_mean: Tensor | None, out: Tensor, kept: Tensor, value_rows: Tensor,
    ) -> bool:  # fmt: skip
        """Run the rows. False: a value is not what the operator takes, and nothing is written.

        Args:
            query: [B, Hq, D], with any strides.
            rows: of these sequences.
            threshold: float32 [B, Hq], contiguous, as all that follow.
            discarded_mass: float32 [B, Hq].
            value_mean: float32 [B, Hkv, D].
            out: [B, Hq, D] of the query's dtype, written.
            kept, value_rows: int32 [B, Hq] and [B, Hkv], written.
        """
        batch, width = rows.block_table.shape
        sequence, head, element = query.stride()
        lengths = rows.lengths
        packed = pack(
            (batch, *self._heads, self._block_size * width),
            (query.data_ptr(), sequence, head, 0, element), self._views,
            (threshold.data_ptr(), self._heads[0]),
            (lengths.data_ptr(), lengths.dtype == torch.int64, 0, 0, rows.block_table.data_ptr(), width, *self._pages),
            (_address(discarded_mass), _address(value_mean), 0, 0), self._numbers, self._choices,
            (out.data_ptr(), rows.lse.data_ptr(), kept.data_ptr(), value_rows.data_ptr(), 0, 0, 0),
        )  # fmt: skip
        return is_done(self._entry(packed))


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
