"""The decode step of a sequence whose keys lie on several ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor

from .._checks import DEVICES, FLOAT32, check_device, check_modes, check_rows, check_tensor
from .._value_checks import are_seen
from ..partials import merge_partials
from .exchange import Exchange
from .parts import Parts, Share, with_room
from .sharding import check_interleave
from .ties import settle_ties


def context_parallel_attention(
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
    placement: str = "pre_softmax",
    sdc: str = "exact",
    sdc_gamma: float = 0.05,
    discarded_mass: Tensor | None = None,
    value_sum: Tensor | None = None,
    interleave: int | None = None,
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    """`incremental_attention` over keys that the ranks of a process group hold together.

    Every rank calls it with the same query, thresholds and options, and with the keys that it holds, which may be none.
    It reads its own keys alone. One all-gather of `exchanged_bytes` merges the results, the same bits in all ranks:
    those of one process up to the rounding of float32 sums in another order, with the same elements kept (but see
    docs/distributed.md for scores within a rounding of their threshold). With ``placement="post_softmax"`` the ranks
    exchange the LSE of their keys first, for which each reads its K twice.

    Args:
        query, threshold, discarded_mass: as in `incremental_attention`, the same in all ranks.
        key, value: this rank's share of the cache, contiguous or paged; S may be 0. All ranks have the same dtype, and
            each the sizes that it likes.
        actual_seq_lengths, key_start, block_table, block_size: where the valid keys lie in this rank's share.
        num_heads, num_key_value_heads, input_layout, scale_value, placement, sdc, sdc_gamma: as in
            `incremental_attention`.
        value_sum: float32 [B, Hkv, D], the sum of the valid V rows of this rank; switches V-mean compensation on.
        interleave: None if rank r + 1 holds the keys that follow those of rank r; else the keys per block of a
            `Sharding`. It decides only between largest elements that are equal, in rows that keep nothing else: the
            lowest key of the sequence wins. To find it takes a second exchange, on a CPU and where there is such a row;
            on other devices, where a look at such rows would be a wait, the lowest rank wins.
        group: any backend for the device of the tensors; None: the default group.

    Returns:
        The whole row's output as `incremental_attention` gives it, in all ranks.

    Raises:
        TopThetaValueError, TopThetaTypeError, TopThetaNotImplementedError: as `incremental_attention`; there is no
            process group; a rank is gone; or, the first time that a call of this kind is made, the ranks differ in
            shapes or options. Where one rank alone raises before it meets the others, they wait until the timeout of
            the group, as with any collective.

    Example:
        >>> import torch, toptheta_npu
        >>> store = torch.distributed.HashStore()  # torchrun makes this needless
        >>> torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        >>> query, key, value = torch.randn(1, 8, 1, 64), torch.randn(1, 2, 1000, 64), torch.randn(1, 2, 1000, 64)
        >>> threshold = torch.full((8,), 1.5)
        >>> out = context_parallel_attention(query, key, value, threshold, value_sum=value.sum(2))
        >>> torch.distributed.destroy_process_group()
        >>> whole = toptheta_npu.incremental_attention(query, key, value, threshold, value_mean=value.mean(2))
        >>> torch.allclose(out, whole, atol=1e-5)
        True
    """
    return _attend(
        query, key, value, threshold, actual_seq_lengths, key_start, block_table, block_size, num_heads,
        num_key_value_heads, input_layout, scale_value, placement, sdc, sdc_gamma, discarded_mass, value_sum,
        interleave, group,
    )[0]  # fmt: skip


def context_parallel_attention_with_stats(
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
    placement: str = "pre_softmax",
    sdc: str = "exact",
    sdc_gamma: float = 0.05,
    discarded_mass: Tensor | None = None,
    value_sum: Tensor | None = None,
    interleave: int | None = None,
    group: dist.ProcessGroup | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """`context_parallel_attention`, and what the whole rows kept; nothing more is exchanged.

    Returns:
        (out; lse float32 [B, Hq]; kept int32 [B, Hq]), as the first three of `incremental_attention_with_stats`.

    Example:
        >>> import torch, toptheta_npu
        >>> store = torch.distributed.HashStore()
        >>> torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        >>> q, k, v = torch.randn(1, 4, 1, 32), torch.randn(1, 4, 50, 32), torch.randn(1, 4, 50, 32)
        >>> out, lse, kept = context_parallel_attention_with_stats(q, k, v, torch.full((4,), float("-inf")))
        >>> torch.distributed.destroy_process_group()
        >>> kept.tolist()
        [[50, 50, 50, 50]]
    """
    out, parts = _attend(
        query, key, value, threshold, actual_seq_lengths, key_start, block_table, block_size, num_heads,
        num_key_value_heads, input_layout, scale_value, placement, sdc, sdc_gamma, discarded_mass, value_sum,
        interleave, group,
    )  # fmt: skip
    return out, parts.lse(), parts.all_kept()


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    threshold: Tensor,
    actual_seq_lengths: Tensor | Sequence[int] | None,
    key_start: Tensor | Sequence[int] | None,
    block_table: Tensor | None,
    block_size: int,
    num_heads: int | None,
    num_key_value_heads: int | None,
    input_layout: str,
    scale_value: float | None,
    placement: str,
    sdc: str,
    sdc_gamma: float,
    discarded_mass: Tensor | None,
    value_sum: Tensor | None,
    interleave: int | None,
    group: dist.ProcessGroup | None,
) -> tuple[Tensor, Parts]:
    """The output, and what it was merged from."""
    exchange = Exchange(group)
    check_modes(placement, sdc, sdc_gamma, discarded_mass, None if value_sum is None else "value_sum")
    if interleave is not None:
        check_interleave(interleave)
    share = _own_share(
        query, key, value, threshold, actual_seq_lengths, key_start, block_table, block_size, num_heads,
        num_key_value_heads, input_layout, scale_value,
    )  # fmt: skip
    _check_sums(share, discarded_mass, value_sum)
    exchange.agree(
        {
            **share.sizes(), "input_layout": input_layout, "scale_value": share.where["scale_value"],
            "placement": placement, "sdc": sdc, "sdc_gamma": float(sdc_gamma), "vmc": value_sum is not None,
            "interleave": interleave,
        },
        query.device,
    )  # fmt: skip
    parts, value_mean = _gathered(exchange, share, threshold, placement, value_sum, interleave)
    out = merge_partials(
        parts.by_rank(), threshold, list(parts.n), input_layout=input_layout, placement=placement, sdc=sdc,
        sdc_gamma=sdc_gamma, discarded_mass=discarded_mass, value_mean=value_mean, dtype=query.dtype,
    )  # fmt: skip
    return out, parts


def _own_share(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    threshold: Tensor,
    actual_seq_lengths: Tensor | Sequence[int] | None,
    key_start: Tensor | Sequence[int] | None,
    block_table: Tensor | None,
    block_size: int,
    num_heads: int | None,
    num_key_value_heads: int | None,
    input_layout: str,
    scale_value: float | None,
) -> Share:
    """This rank's share, whose arguments fit each other."""
    if block_table is None:
        key, value, actual_seq_lengths = with_room(key, value, actual_seq_lengths, input_layout)
    lengths, starts, heads, kv_heads, head_dim, scale = check_rows(
        query, key, value, threshold, actual_seq_lengths, key_start, block_table, block_size, num_heads,
        num_key_value_heads, input_layout, scale_value, "auto",
    )  # fmt: skip
    check_device(query, DEVICES[:2])  # values on "meta" cannot be exchanged
    return Share(query, key, value, head_dim, {
        "actual_seq_lengths": lengths, "key_start": starts, "block_table": block_table, "block_size": block_size,
        "num_heads": heads, "num_key_value_heads": kv_heads, "input_layout": input_layout, "scale_value": scale,
    })  # fmt: skip


def _check_sums(share: Share, discarded_mass: Tensor | None, value_sum: Tensor | None) -> None:
    """Tensors of SDC and VMC fit the query."""
    batch, heads, kv_heads = len(share.query), share.where["num_heads"], share.where["num_key_value_heads"]
    if discarded_mass is not None:
        check_tensor("discarded_mass", discarded_mass, share.query, (batch, heads), FLOAT32, " [B, Hq]")
    if value_sum is not None:
        shape = batch, kv_heads, share.head_dim
        check_tensor("value_sum", value_sum, share.query, shape, FLOAT32, " [B, Hkv, D]")


def _gathered(
    exchange: Exchange,
    share: Share,
    threshold: Tensor,
    placement: str,
    value_sum: Tensor | None,
    interleave: int | None,
) -> tuple[Parts, Tensor | None]:
    """What all ranks found, and the mean of their V rows where they sent sums."""
    lse = None
    if placement == "post_softmax":
        lse = exchange.gather([share.lse(threshold)])[0].logsumexp(0)
    sent = [*share.partial(threshold, placement, lse), share.n]
    gathered = exchange.gather(sent if value_sum is None else [*sent, value_sum])
    parts = Parts(*gathered[:6])
    if interleave is not None and are_seen(share.query):
        parts = settle_ties(parts, share, exchange, interleave)
    if value_sum is None:
        return parts, None
    return parts, gathered[6].sum(0) / parts.n.sum(0).clamp_min(1)[:, None, None]
