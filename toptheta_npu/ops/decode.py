"""The public functions of the decode step. `calls` holds their bodies."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ..fallback import Partial
from ..fallback.schemas import with_arguments
from .calls import on_part_of_rows, on_whole_rows


@with_arguments(on_whole_rows("incremental_attention"))
def incremental_attention(  # type: ignore[empty-body]
    query: Tensor,
    key: Tensor,
    value: Tensor,
    threshold: Tensor,
    *,
    actual_seq_lengths: Tensor | Sequence[int] | None = None,
    actual_query_lengths: Tensor | Sequence[int] | None = None,
    key_start: Tensor | Sequence[int] | None = None,
    block_table: Tensor | None = None,
    block_size: int = 0,
    num_heads: int | None = None,
    num_key_value_heads: int | None = None,
    input_layout: str = "BNSD",
    scale_value: float | None = None,
    key_antiquant_scale: Tensor | None = None,
    value_antiquant_scale: Tensor | None = None,
    key_antiquant_mode: int = 0,
    value_antiquant_mode: int = 0,
    placement: str = "pre_softmax",
    sdc: str = "exact",
    sdc_gamma: float = 0.05,
    discarded_mass: Tensor | None = None,
    value_mean: Tensor | None = None,
    learnable_sink: Tensor | None = None,
    _path: str = "auto",
    **unsupported: object,
) -> Tensor:
    """Compute decode attention; read only the V rows whose score exceeds a threshold.

    Argument names, layouts and meaning follow ``torch_npu.npu_incre_flash_attention``. Each row (sequence, query
    head) keeps the elements whose scaled score a_i > threshold. A row with none keeps its largest element, the
    lowest index among equals. Softmax runs over the kept elements. ``sdc`` gives the discarded mass back, and
    ``value_mean`` the discarded value (paper section "Top-Theta Attention Inference", equations sdc and vmc).
    ``threshold=-inf`` is dense attention.

    A step has Sq query tokens per sequence, from 1 to 16. Their keys are the last ones: token t of s sees the first
    n - s + 1 + t of n valid keys. With one query token, per-row tensors have no axis Sq.

    Args:
        query: float16, bfloat16 or float32: BNSD [B, Hq, Sq, D], BSND [B, Sq, Hq, D] or BSH [B, Sq, Hq*D]; head_dim D
            from 16 to 512.
        key, value: same dtype and layout, S keys and Hkv heads (a divisor of Hq). A paged cache is
            [blocks, Hkv, block_size, D] or [blocks, block_size, Hkv*D]. K alone, or both, may be int8.
        threshold: float32 [Hq], [B, Hq] or [B, Hq, Sq], in units of the scaled score (after RoPE and scale). With
            ``placement="post_softmax"`` or ``"sampled_softmax"`` it is a probability of at most 1, or +inf, which
            keeps only the largest element.
        actual_seq_lengths: int32 or int64 [B] on the query's device, the number n of valid keys; None means all.
            A length of 0 gives an output of 0. A list is copied to the device once per call.
        actual_query_lengths: int32 or int64 [B] on the query's device, the number s of real tokens; None means all.
            Real tokens come first, and their keys count as valid. The rows behind them are 0. A sequence with s = 0
            reads nothing.
        key_start: int32 or int64 [B], index of the first valid key (left padding); not with paging.
        block_table: int32 [B, max_blocks], the blocks of each sequence in a paged cache. Entries past a sequence's
            last block are never read.
        block_size: rows per block of a paged cache.
        num_heads, num_key_value_heads: inferred from BNSD and BSND; BSH needs num_heads.
        input_layout: "BNSD", "BSND" or "BSH".
        scale_value: factor of q·k; None means 1 / sqrt(D).
        key_antiquant_scale, value_antiquant_scale: scales of int8 caches; a row is its int8 numbers times them.
            float32, float16 or bfloat16, finite and not negative.
        key_antiquant_mode, value_antiquant_mode: 0 for scales per channel, [Hkv, D] or any shape that broadcasts to
            it; 3 per token and head, [B, Hkv, S]; 5 the same for a paged cache, [blocks, Hkv, block_size].
        placement: "pre_softmax" compares the score a_i, "post_softmax" the probability softmax(a)_i. "sampled_softmax"
            compares the probability too, but estimates the row's LSE from a sample of its keys: the first 16, the
            newest 128 and 256 between. It therefore needs one pass over K, and is exact for rows of up to 400 keys.
        sdc: estimate of the discarded mass in the softmax denominator: "none", "exact",
            "exp_threshold" (``sdc_gamma`` (n - kept) exp(threshold)) or "offline" (``discarded_mass``).
            It is 0 where nothing is discarded. Placements that compare probabilities take only "exact".
        sdc_gamma: factor of sdc="exp_threshold".
        discarded_mass: float32 [B, Hq, Sq], relative to exp(row maximum), for sdc="offline".
        value_mean: float32 [B, Hkv, Sq, D], the mean of the V rows that each token sees, dequantised for int8; switches
            V-mean compensation on.
        learnable_sink: float32 [Hq], one more logit of each row's softmax. It has no V row, so its weight is lost. The
            returned LSE and the denominator of the probabilities include it. -inf is no sink.

    Returns:
        A new contiguous tensor shaped and typed like query. Tensors on "meta" give one on "meta".

    Raises:
        TopThetaValueError, TopThetaTypeError, TopThetaNotImplementedError: an argument is wrong or not supported.
            The message names it, what was expected, what came and the remedy. Values in tensors are checked on a CPU
            only.

    Example:
        >>> import torch, toptheta_npu
        >>> query = torch.randn(1, 8, 1, 64)
        >>> key, value = torch.randn(1, 2, 1000, 64), torch.randn(1, 2, 1000, 64)
        >>> threshold = torch.full((8,), 1.5)
        >>> toptheta_npu.incremental_attention(query, key, value, threshold).shape
        torch.Size([1, 8, 1, 64])
    """


@with_arguments(on_whole_rows("incremental_attention_with_stats"))
def incremental_attention_with_stats(  # type: ignore[empty-body]
    query: Tensor,
    key: Tensor,
    value: Tensor,
    threshold: Tensor,
    *,
    actual_seq_lengths: Tensor | Sequence[int] | None = None,
    actual_query_lengths: Tensor | Sequence[int] | None = None,
    key_start: Tensor | Sequence[int] | None = None,
    block_table: Tensor | None = None,
    block_size: int = 0,
    num_heads: int | None = None,
    num_key_value_heads: int | None = None,
    input_layout: str = "BNSD",
    scale_value: float | None = None,
    key_antiquant_scale: Tensor | None = None,
    value_antiquant_scale: Tensor | None = None,
    key_antiquant_mode: int = 0,
    value_antiquant_mode: int = 0,
    placement: str = "pre_softmax",
    sdc: str = "exact",
    sdc_gamma: float = 0.05,
    discarded_mass: Tensor | None = None,
    value_mean: Tensor | None = None,
    learnable_sink: Tensor | None = None,
    _path: str = "auto",
    **unsupported: object,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Run `incremental_attention`, and also return the LSE, the number of kept elements and the V rows read.

    Returns:
        The tuple (out, lse, kept, value_rows). With one token, lse and kept are [B, Hq].

        - lse: float32 [B, Hq, Sq], m + ln(R + E) over all valid keys and the sink; -inf for a length of 0.
        - kept: int32 [B, Hq, Sq], the kept elements of each row.
        - value_rows: int32 [B, Hkv], the V rows needed. A block of up to 8 query heads (4 above head_dim 256) needs
          the union over its heads and all tokens; the blocks of a group add up.

    Example:
        >>> import torch, toptheta_npu
        >>> q, k, v = torch.randn(1, 4, 1, 32), torch.randn(1, 4, 50, 32), torch.randn(1, 4, 50, 32)
        >>> out, lse, kept, value_rows = toptheta_npu.incremental_attention_with_stats(
        ...     q, k, v, torch.full((4,), float("-inf")))
        >>> kept.tolist()
        [[50, 50, 50, 50]]
    """


@with_arguments(on_part_of_rows)
def incremental_attention_partial(  # type: ignore[empty-body]
    query: Tensor,
    key: Tensor,
    value: Tensor,
    threshold: Tensor,
    *,
    actual_seq_lengths: Tensor | Sequence[int] | None = None,
    key_start: Tensor | Sequence[int] | None = None,
    block_table: Tensor | None = None,
    block_size: int = 0,
    num_heads: int | None = None,
    num_key_value_heads: int | None = None,
    input_layout: str = "BNSD",
    scale_value: float | None = None,
    key_antiquant_scale: Tensor | None = None,
    value_antiquant_scale: Tensor | None = None,
    key_antiquant_mode: int = 0,
    value_antiquant_mode: int = 0,
    placement: str = "pre_softmax",
    lse: Tensor | None = None,
    _path: str = "auto",
    **unsupported: object,
) -> Partial:
    """Run a decode step over part of a row's keys, for split-KV decoding and context parallelism.

    `merge_partials` merges the results. The other arguments are those of `incremental_attention`.

    Args:
        actual_seq_lengths: as in `incremental_attention` with one token. Several tokens require [B, Sq]: the number of
            keys of this part that each token sees, counted from the part's first; 0 for tokens that are not real.
        lse: float32 [B, Hq, Sq], the LSE of the whole rows, including any sink. Required with
            placement="post_softmax", which tests probabilities of the whole row; refused otherwise.

    Returns:
        The tuple (out, maximum, kept_mass, discarded_mass, kept). With one token, all but out are [B, Hq].

        - out: N / R, float32 in the layout of query.
        - maximum, kept_mass R, discarded_mass E: float32 [B, Hq, Sq].
        - kept: int32 [B, Hq, Sq].

        Where nothing passes, kept and R are 0, E is the whole mass of the part, and out is V of its largest element.

    Example:
        >>> import torch, toptheta_npu
        >>> q, k, v = torch.randn(1, 4, 1, 32), torch.randn(1, 4, 50, 32), torch.randn(1, 4, 50, 32)
        >>> threshold = torch.zeros(4)
        >>> parts = [toptheta_npu.incremental_attention_partial(q, k[:, :, s], v[:, :, s], threshold)
        ...          for s in (slice(0, 20), slice(20, 50))]
        >>> out = toptheta_npu.merge_partials(parts, threshold, [20, 30])
        >>> whole = toptheta_npu.incremental_attention(q, k, v, threshold)
        >>> torch.allclose(out, whole, atol=1e-5)
        True
    """
