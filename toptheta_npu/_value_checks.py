"""Checks of the values in tensors, which only a CPU sees for free: a device would have to wait for each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from .errors import Setting, TopThetaValueError
from .fallback.antiquant import PER_CHANNEL
from .fallback.arguments import TABLE, Arguments
from .fallback.layout import valid_range


def host_can_read(tensor: Tensor) -> bool:
    """Tell whether the values are there to be looked at: on a CPU, and neither traced nor faked."""
    return tensor.device.type == "cpu" and type(tensor) is Tensor and not torch.compiler.is_compiling()


def check_threshold_values(name: str, threshold: Tensor, placement: str) -> None:
    """Refuse NaN, and scores where probabilities are wanted: such a threshold would keep a single element."""
    largest = threshold.max().item()  # of numbers with a NaN among them: NaN
    if math.isnan(largest):
        raise TopThetaValueError(name, "numbers, -inf or +inf", "NaN", "calibrate again")
    if largest > 1 and placement != "pre_softmax":
        # +inf keeps the largest element alone, in either placement
        largest = threshold.where(threshold < math.inf, 0.0).max().item()
        if largest > 1:
            raise TopThetaValueError(
                name, ("probabilities up to 1, or +inf, with ", Setting("placement", placement)), f"{largest:g}",
                ("thresholds in units of the score go with ", Setting("placement", "pre_softmax")),
            )  # fmt: skip


def check_float_values(given: Mapping[str, Tensor | None]) -> None:
    """Check that tensors of numbers per row or head are in the range of the table of arguments, if it gives one."""
    for name, tensor in given.items():
        values = TABLE[name].about.values
        if tensor is not None and values is not None:
            low, high = (limit.item() for limit in tensor.aminmax())
            if not (low >= values.least and high < values.limit):
                wrong = low if not low >= values.least else high
                raise TopThetaValueError(name, values.expected, f"{wrong:g}", values.remedy)


def cache_capacity(key: Tensor, input_layout: str, block_table: Tensor | None) -> int:
    """Compute the number of keys per sequence that the cache has room for."""
    if block_table is None:
        return key.shape[2] if input_layout == "BNSD" else key.shape[1]
    return block_table.shape[1] * (key.shape[1] if key.dim() == 3 else key.shape[2])


def check_cache_values(lengths: Tensor | None, starts: Tensor | None, capacity: int) -> None:
    """Check that lengths and starts lie inside the cache."""
    start_list: list[int] = [] if starts is None else starts.tolist()
    for index, start in enumerate(start_list):
        if not 0 <= start <= capacity:
            raise TopThetaValueError(f"key_start[{index}]", f"0 to {capacity} (the cache's capacity)", str(start))
    if lengths is None:
        return
    for index, of_tokens in enumerate((lengths if lengths.dim() == 2 else lengths[:, None]).tolist()):
        room = capacity - (start_list[index] if start_list else 0)
        for length in of_tokens:
            if not 0 <= length <= room:
                wanted = f"0 to {room} (the cache's capacity)"
                raise TopThetaValueError(f"actual_seq_lengths[{index}]", wanted, str(length))


def check_blocks(key: Tensor, lengths: Tensor, block_table: Tensor) -> None:
    """Check the numbers of the blocks in which the first ``lengths`` keys lie."""
    block_size = key.shape[1] if key.dim() == 3 else key.shape[2]
    for index, length in enumerate(lengths.tolist()):
        if length:
            used = block_table[index, : -(-length // block_size)]
            low, high = int(used.min()), int(used.max())
            if low < 0 or high >= key.shape[0]:
                raise TopThetaValueError(
                    f"block_table[{index}]", f"block numbers 0 to {key.shape[0] - 1}", str(low if low < 0 else high)
                )


def _read_keys(a: Arguments) -> tuple[Tensor, Tensor]:
    """Find the first key that is read of each sequence, and how many are, [B]; none without a real token."""
    capacity = cache_capacity(a.key, a.input_layout, a.block_table)
    starts, n = valid_range(a.query, capacity, a.key_start, a.actual_seq_lengths)
    if a.actual_query_lengths is not None:
        n = n.where(a.actual_query_lengths > 0, 0)
    return starts, n if n.dim() == 1 else n.amax(1)


def check_query_lengths(a: Arguments, capacity: int) -> None:
    """Check that no sequence has more real tokens than the query, or than valid keys, which include theirs.

    Without numbers of them a sequence has all of the query's tokens, or no keys.
    """
    n = valid_range(a.query, capacity, a.key_start, a.actual_seq_lengths)[1].tolist()
    if a.actual_query_lengths is None:
        for index, keys in enumerate(n):
            if 0 < keys < a.query_tokens:
                wanted = f"0, or at least the keys of the {a.query_tokens} query tokens"
                remedy = "give the real tokens of each sequence by actual_query_lengths"
                raise TopThetaValueError(f"actual_seq_lengths[{index}]", wanted, str(keys), remedy)
        return
    for index, (real, keys) in enumerate(zip(a.actual_query_lengths.tolist(), n, strict=True)):
        if not 0 <= real <= min(keys, a.query_tokens):
            most = (
                f"{keys} (the valid keys, which include theirs)"
                if keys < a.query_tokens
                else f"{a.query_tokens} (the query's tokens)"
            )
            raise TopThetaValueError(f"actual_query_lengths[{index}]", f"0 to {most}", str(real))


def check_scale_values(a: Arguments) -> None:
    """Check that the scales of int8 caches are finite and not negative: of all channels or valid rows."""
    for name, scale, mode in (
        ("key_antiquant_scale", a.key_antiquant_scale, a.key_antiquant_mode),
        ("value_antiquant_scale", a.value_antiquant_scale, a.value_antiquant_mode),
    ):
        if scale is None:
            continue
        for scales in [scale] if mode == PER_CHANNEL else _scales_of_valid_rows(a, scale):
            low, high = (limit.item() for limit in scales.aminmax()) if scales.numel() else (0.0, 0.0)
            if not 0 <= low <= high < math.inf:
                wrong = low if not low >= 0 else high
                raise TopThetaValueError(name, "finite numbers >= 0", f"{wrong:g}", "quantise the cache again")


def _scales_of_valid_rows(a: Arguments, scale: Tensor) -> Iterator[Tensor]:
    """Yield for each sequence the scales per token and head [Hkv, n] of its valid rows."""
    starts, lengths = _read_keys(a)
    for sequence, (start, n) in enumerate(zip(starts.tolist(), lengths.tolist(), strict=True)):
        if a.block_table is None:
            yield scale[sequence, :, start : start + n]
        else:
            blocks = a.block_table[sequence, : -(-n // scale.shape[2])].long()
            yield scale[blocks].transpose(0, 1).flatten(1)[:, :n]


def check_step_values(a: Arguments) -> None:
    """Check all values of a decode step, for an implementation that did not look at them itself or refused them."""
    check_threshold_values("threshold", a.threshold, a.placement)
    check_float_values(a._asdict())
    lengths = a.actual_seq_lengths
    capacity = cache_capacity(a.key, a.input_layout, a.block_table)
    check_cache_values(lengths, a.key_start, capacity)
    if not a.is_of_one_token and (lengths is None or lengths.dim() == 1):
        check_query_lengths(a, capacity)
    if a.block_table is not None:
        check_blocks(a.key, _read_keys(a)[1], a.block_table)
    check_scale_values(a)
