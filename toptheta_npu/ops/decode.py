"""The decode step: the public functions, as users see them; what they do is in `calls`."""

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

    Names, layouts and meaning follow ``torch_npu.npu_incre_flash_attention``. In each row (sequence, query
    head) an element is kept when its scaled score a_i > threshold; a row that would keep nothing keeps its
    largest element, the lowest index among equals. Softmax runs over what is kept, with the discarded mass
    given back as ``sdc`` says and the discarded value as ``value_mean`` says (paper section "Top-Theta
    Attention Inference", equations sdc and vmc). ``threshold=-inf`` is dense attention.

    A step has one query token per sequence, or Sq of them, up to 16. The last keys are theirs: token t of s sees the
    first n - s + 1 + t of n valid keys. Tensors of numbers per row have no axis Sq where there is one token.

    Args:
        query: float16, bfloat16 or float32: BNSD [B, Hq, Sq, D], BSND [B, Sq, Hq, D] or BSH [B, Sq, Hq*D]; head_dim D
            from 16 to 512.
        key, value: same dtype and layout, S keys and Hkv heads (a divisor of Hq); or paged:
            [blocks, Hkv, block_size, D] or [blocks, block_size, Hkv*D]. Or int8: K alone, or both.
        threshold: float32 [Hq], [B, Hq] or [B, Hq, Sq], in units of the scaled score (after RoPE and scale); with
            ``placement="post_softmax"`` or ``"sampled_softmax"`` a probability, at most 1 (or +inf, which keeps the
            largest element alone).
        actual_seq_lengths: int32 or int64 [B] on the query's device, the number of valid keys; None means all.
            0 is allowed and gives an output of 0. A list is copied to the device once per call.
        actual_query_lengths: int32 or int64 [B] on the query's device, the number s of real tokens, which come first
            and whose keys are among the valid ones; None means all. The rows behind them are 0; with s = 0 nothing is
            read.
        key_start: int32 or int64 [B], index of the first valid key (left padding); not with paging.
        block_table: int32 [B, max_blocks]; entries past a sequence's last block are never read.
        block_size: rows per block of a paged cache.
        num_heads, num_key_value_heads: inferred from BNSD and BSND; BSH needs num_heads.
        input_layout: "BNSD", "BSND" or "BSH".
        scale_value: factor of q·k; None means 1 / sqrt(D).
        key_antiquant_scale, value_antiquant_scale: of int8 caches, whose rows are their numbers times these; float32,
            float16 or bfloat16, finite and not negative.
        key_antiquant_mode, value_antiquant_mode: 0, scales per channel [Hkv, D] or what broadcasts to it; 3, per token
            and head [B, Hkv, S]; 5, the same of a paged cache [blocks, Hkv, block_size].
        placement: "pre_softmax" compares a_i, "post_softmax" the probability softmax(a)_i. "sampled_softmax" does so
            with the row's LSE as a sample of its keys tells it, the first 16, the newest 128 and 256 between, so that
            one pass over K does; it is exact for rows of up to 400 keys.
        sdc: estimate of the discarded mass in the softmax denominator: "none", "exact",
            "exp_threshold" (``sdc_gamma`` (n - kept) exp(threshold)) or "offline" (``discarded_mass``).
            It is 0 where nothing is discarded. "exact" only where probabilities are compared.
        sdc_gamma: factor of sdc="exp_threshold".
        discarded_mass: float32 [B, Hq, Sq], relative to exp(row maximum), for sdc="offline".
        value_mean: float32 [B, Hkv, Sq, D], the mean of the V rows that each token sees (of int8 ones what they stand
            for); switches V-mean compensation on.
        learnable_sink: float32 [Hq], one more logit of each row's softmax, without a V row: its weight is lost. The
            returned LSE includes it, and so does what probabilities are a share of. -inf is no sink.

    Returns:
        A new contiguous tensor shaped and typed like query. Tensors on "meta" give one on "meta".

    Raises:
        TopThetaValueError, TopThetaTypeError, TopThetaNotImplementedError: naming the argument, what was
            expected, what came and the remedy. Values in tensors are checked on a CPU only.

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
    """Run `incremental_attention` and return also what it kept.

    Returns:
        (out; lse float32 [B, Hq, Sq], m + ln(R + E) over all valid keys and the sink, -inf for a length of 0; kept
        int32 [B, Hq, Sq]; both [B, Hq] of one token; value_rows int32 [B, Hkv], V rows needed: the union over all
        tokens and a block of at most 8 query heads, 4 above head_dim 256, summed over a group's blocks).

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
    """Run a decode step over a part of a row's keys, to be merged: split-KV decoding and context parallelism.

    Args:
        actual_seq_lengths: as in `incremental_attention` with one token. With several, required: [B, Sq], the keys of
            this part that each token sees, which are its first ones; 0 for tokens that are not real.
        lse: float32 [B, Hq, Sq], the LSE of the whole rows; required with placement="post_softmax", whose test
            needs it (with the sink, if there is one), and refused otherwise.

    Returns:
        (out = N / R float32 in the layout of query; maximum, kept_mass R, discarded_mass E float32
        [B, Hq, Sq]; kept int32 [B, Hq, Sq]; all [B, Hq] of one token). Where nothing passes, kept and R are 0, E is
        all the part's mass and out is V of its largest element.

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
