"""The decode step of a sequence whose keys lie on several ranks."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor

from .._checks import DEVICES, FLOAT32, check_device, check_modes, check_tensor
from .._derivatives import refuse_derivatives, refuse_vmap, under_transforms
from ..errors import TopThetaTypeError
from ..fallback import Arguments
from ..fallback.arguments import TABLE
from ..fallback.compensation import add_sink
from ..ops import merge_partials
from ..ops.checks import check_rows
from .exchange import Exchange
from .parts import Parts, Share, with_room

#: The arguments of `incremental_attention` except the first four. With several tokens, the lengths say which keys of a
#: rank's share each token sees. The mean of V is taken over all ranks.
_OPTIONS = {
    name: None if argument.required else argument.default
    for name, argument in TABLE.items()
    if name not in ("query", "key", "value", "threshold", "actual_query_lengths", "value_mean", "lse", "path")
}


def context_parallel_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    threshold: Tensor,
    *,
    value_sum: Tensor | None = None,
    group: dist.ProcessGroup | None = None,
    **options: Any,
) -> Tensor:
    """Run `incremental_attention` over keys that are spread over the ranks of a process group.

    Every rank calls it with the same query, thresholds and options, and with its own keys, which may be none. It reads
    only its own keys. One all-gather of `exchanged_bytes` merges the results. All ranks get the same bits. They equal
    the result of one process up to the rounding of float32 sums in another order. The same elements are kept; for
    scores within a rounding of their threshold see docs/context-parallelism.md.

    With ``placement="post_softmax"`` the ranks first exchange the LSE of their keys, so each rank reads its K twice.
    With ``"sampled_softmax"`` each rank samples its own keys and reads its K once.

    Args:
        query, threshold: as in `incremental_attention`, the same in all ranks.
        key, value: this rank's share of the cache, contiguous or paged; S may be 0. All ranks must have the same dtype;
            sizes may differ.
        value_sum: float32 [B, Hkv, D], the sum of this rank's valid V rows; switches V-mean compensation on. With
            several tokens [B, Hkv, Sq, D], the sum of the V rows that each token sees.
        group: process group with a backend for the device of the tensors; None: the default group.
        options: options of `incremental_attention`, except ``actual_query_lengths`` and ``value_mean``. Lengths, block
            tables and the scales of an int8 cache describe this rank's share. The others are the same on all ranks.
            With several query tokens ``actual_seq_lengths`` is [B, Sq], the number of this share's first keys that each
            token sees. Take `row_lengths` of the whole sequence, and cut it to this rank's run of keys or count it with
            `Sharding.held`. Tokens that are not real see none.

    Returns:
        The output of the whole rows as in `incremental_attention`, on all ranks.

    Raises:
        TopThetaValueError, TopThetaTypeError, TopThetaNotImplementedError: as `incremental_attention`; no process group
            exists; a rank is gone; or, in the first call of its kind, the ranks differ in shapes or options. If a
            single rank raises before the exchange, the others wait until the timeout of the group, as in any
            collective.

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
    return _attend(_arguments(query, key, value, threshold, options), value_sum, group)[0]


def context_parallel_attention_with_stats(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    threshold: Tensor,
    *,
    value_sum: Tensor | None = None,
    group: dist.ProcessGroup | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run `context_parallel_attention`, and also return the LSE and the kept elements of the whole rows.

    The ranks exchange nothing more for it.

    Returns:
        The tuple (out, lse float32, kept int32), as the first three of `incremental_attention_with_stats`.

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
    given = _arguments(query, key, value, threshold, options)
    out, parts = _attend(given, value_sum, group)
    return out, add_sink(parts.lse(), given.learnable_sink), parts.all_kept()


def _arguments(query: Tensor, key: Tensor, value: Tensor, threshold: Tensor, options: dict[str, Any]) -> Arguments:
    for name in options:
        if name not in _OPTIONS:
            raise TopThetaTypeError(name, f"one of the options {', '.join(_OPTIONS)}", name, "leave it out")
    return Arguments(**{**_OPTIONS, "query": query, "key": key, "value": value, "threshold": threshold, **options})


def _attend(given: Arguments, value_sum: Tensor | None, group: dist.ProcessGroup | None) -> tuple[Tensor, Parts]:
    """Compute the output; return it and the parts that it was merged from."""
    if under_transforms():
        tensors = {**given._asdict(), "value_sum": value_sum}
        refuse_derivatives(tensors.items())
        refuse_vmap(tensors.items(), "pass all sequences in one call: the first axis is theirs")
    exchange = Exchange(group)
    vmc_argument = None if value_sum is None else "value_sum"
    check_modes(given.placement, given.sdc, given.sdc_gamma, given.discarded_mass, vmc_argument)
    share = _own_share(given, value_sum)
    a = share.arguments
    exchange.agree(
        {
            **share.sizes(), "input_layout": a.input_layout, "scale_value": a.scale_value, "placement": a.placement,
            "sdc": a.sdc, "sdc_gamma": float(a.sdc_gamma), "vmc": value_sum is not None,
            "learnable_sink": a.learnable_sink is not None,
        },
        a.query.device,
    )  # fmt: skip
    parts, value_mean = _gathered(exchange, share, value_sum)
    out = merge_partials(
        parts.by_rank(), a.threshold, list(parts.n), input_layout=a.input_layout, placement=a.placement, sdc=a.sdc,
        sdc_gamma=a.sdc_gamma, discarded_mass=a.discarded_mass, value_mean=value_mean,
        learnable_sink=a.learnable_sink, dtype=a.query.dtype,
    )  # fmt: skip
    return out, parts


def _own_share(given: Arguments, value_sum: Tensor | None) -> Share:
    """Make this rank's share, and check that its arguments fit each other."""
    arguments = check_rows(given if given.block_table is not None else with_room(given), part=True)
    check_device(arguments.query, DEVICES[:2])  # values on "meta" cannot be exchanged
    if value_sum is not None:
        a = arguments
        several, words = ((a.query_tokens,), "[B, Hkv, Sq, D]") if a.query_tokens > 1 else ((), "[B, Hkv, D]")
        shape = (len(a.query), a.num_key_value_heads, *several, a.head_dim)
        check_tensor("value_sum", value_sum, a.query, shape, FLOAT32, f" {words}")
    return Share(arguments)


def _gathered(exchange: Exchange, share: Share, value_sum: Tensor | None) -> tuple[Parts, Tensor | None]:
    """Gather the results of all ranks, and the mean of their V rows if they sent sums."""
    lse = None
    if share.arguments.placement != "pre_softmax":
        own = share.lse() if share.arguments.placement == "post_softmax" else share.sampled_lse()
        lse = add_sink(exchange.gather([own])[0].logsumexp(0), share.arguments.learnable_sink)
    sent = [*share.partial(lse), share.n]
    gathered = exchange.gather(sent if value_sum is None else [*sent, value_sum])
    parts = Parts(*gathered[:6])
    if value_sum is None:
        return parts, None
    return parts, gathered[6].sum(0) / parts.n.sum(0).clamp_min(1)[:, None, ..., None]
