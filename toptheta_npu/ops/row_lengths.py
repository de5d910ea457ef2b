"""The lengths of the rows of a decode step with several query tokens."""

from __future__ import annotations

from torch import Tensor

from .._checks import INTEGERS, MAX_TOKENS, check_int, check_tensor
from ..fallback import layout


def row_lengths(actual_seq_lengths: Tensor, actual_query_lengths: Tensor | None, query_tokens: int) -> Tensor:
    """Count the keys that each query token of a decode step sees. This row length selects its threshold.

    Args:
        actual_seq_lengths: int32 or int64 [B], the number n of valid keys, including the keys of the real tokens.
        actual_query_lengths: int32 or int64 [B], the number s of real tokens, which come first; None means all.
        query_tokens: Sq, from 1 to 16.

    Returns:
        int64 [B, Sq] on the same device: n - s + 1 + t for token t, and 0 behind the real tokens. As on devices, s is
        clamped to n and Sq.

    Raises:
        TopThetaValueError, TopThetaTypeError: a wrong shape, dtype or number.

    Example:
        >>> import torch
        >>> row_lengths(torch.tensor([9, 20, 5]), torch.tensor([3, 1, 0]), 3).tolist()
        [[7, 8, 9], [20, 0, 0], [0, 0, 0]]
    """
    check_tensor("actual_seq_lengths", actual_seq_lengths, actual_seq_lengths, (None,), INTEGERS, " [B]")
    if actual_query_lengths is not None:
        shape = tuple(actual_seq_lengths.shape)
        check_tensor("actual_query_lengths", actual_query_lengths, actual_seq_lengths, shape, INTEGERS, " [B]")
    check_int("query_tokens", query_tokens, 1, MAX_TOKENS)
    return layout.row_lengths(actual_seq_lengths.clamp(min=0), actual_query_lengths, query_tokens)
