"""Points of a vector core: masks, counts, strides, arithmetic, and where its buffers and rows may lie."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .calls import (
    PARTIAL,
    STATS,
    Call,
    Mismatch,
    check,
    check_tokens,
    compare,
    make_call,
    require_equal,
    run_on,
    thresholds,
)

#: Relative error of exp and ln; some units in the last place of float32.
_ACCURATE = 4e-6
_HALF_BYTES = torch.float16.itemsize
#: DataCopyPad may skip less than this many bytes between two rows.
_GAP_LIMIT = 2**31 - 1


def _theta(heads: int, value: float) -> Tensor:
    return torch.full((heads,), value, dtype=torch.float32, device="cpu")


def mask_bits(device: str) -> None:
    """Let each head keep one row, at another place of its byte. The V rows hold their numbers."""
    heads, rows, dim = 8, 64, 16
    kept = [9 * head % rows for head in range(heads)]
    key = torch.zeros(1, heads, rows, dim, dtype=torch.float16, device="cpu")
    key[0, range(heads), kept] = 1
    value = torch.arange(rows, device="cpu").half().view(1, 1, rows, 1).expand(1, heads, rows, dim).contiguous()
    query = torch.ones(1, heads, 1, dim, dtype=torch.float16, device="cpu")
    call = Call({"query": query, "key": key, "value": value, "threshold": _theta(heads, 0.5)}, {"sdc": "none"})
    (out,) = run_on(call, device, "incremental_attention")
    read = out[0, :, 0, 0].tolist()
    if read != kept:
        shown = ", ".join(f"{row:g}" for row in read)
        raise Mismatch(f"eight heads keep the rows {kept}, but the outputs are the V rows [{shown}]")
    check(call, device)


def gather_count(device: str) -> None:
    """Gather two lists on one core, the longer first, of more than half and of less than half of the keys.

    Behind the 64 keys the caches go on for as far as a row number of 16 bits reaches, so that a wrong count reads NaN
    and nothing else.
    """
    rows, behind = 64, 2**16
    call = make_call((2, 2), rows, 16, keep=[40, 20], lengths=[rows]).with_options(_path="gather")
    padding = torch.full((1, 2, behind, 16), torch.nan, dtype=torch.float16, device="cpu")
    long = {name: torch.cat([call[name], padding], 2) for name in ("key", "value")}
    got = run_on(call, device, STATS, {name: tensor.to(device) for name, tensor in long.items()})
    _require_counts(call, got)
    compare(call, got)


def select_strides(device: str) -> None:
    """Let two heads share a list, so that Select counts what each of them keeps."""
    call = make_call((2, 1), 200, 64, keep=[20, 60])
    got = run_on(call, device)
    _require_counts(call, got)
    compare(call, got)


def _require_counts(call: Call, got: Sequence[Tensor]) -> None:
    kept, wanted = got[2][0].tolist(), call.expected(STATS)[2][0].tolist()
    if kept != wanted:
        raise Mismatch(f"the heads keep {wanted} rows, but report {kept}")


def multiply_add(device: str) -> None:
    """Check products of more digits than float16 has, with a few keys, so that errors do not average out."""
    generator = torch.Generator().manual_seed(1)
    query, key, value = (
        torch.randn(1, 8, n, 64, generator=generator, dtype=torch.float32, device="cpu").half() for n in (1, 4, 4)
    )
    call = Call({"query": query, "key": key, "value": value, "threshold": _theta(8, -torch.inf)})
    check(call, device, close=1e-5)


def int8_cast(device: str) -> None:
    """Check an int8 cache of rows that are four blocks long; the last of them are no four. Scales are powers of two."""
    call = make_call((4, 2), 203, 128, keep=[20, 60, 20, 60])
    key, value = (call[name].clamp(-127, 127).round().to(torch.int8) for name in ("key", "value"))
    scale = torch.exp2(torch.arange(2 * 128, dtype=torch.float32, device="cpu") % 3 - 1.0).view(2, 128)
    scales = {"key_antiquant_scale": scale, "value_antiquant_scale": scale}
    call = call.with_tensors(key=key, value=value, threshold=_theta(4, -torch.inf), **scales)
    check(call, device)


def exp_ln(device: str) -> None:
    """Check sums and their logarithms against float64: two keys a head, whose scores differ by 0, 1/8, 2/8, ..."""
    heads = 64
    difference = torch.arange(heads, dtype=torch.float64, device="cpu") / 8
    query = torch.zeros(1, heads, 1, 16, dtype=torch.float16, device="cpu")
    query[..., 0] = 1
    key = torch.zeros(1, heads, 2, 16, dtype=torch.float16, device="cpu")
    key[0, :, 1, 0] = -difference.half()
    call = Call({"query": query, "key": key, "value": key, "threshold": _theta(heads, -torch.inf)},
                {"scale_value": 1.0})  # fmt: skip
    mass = (1 + (-difference).exp())[None]
    require_equal("kept mass, a sum of Exp,", run_on(call, device, PARTIAL)[2], mass, _ACCURATE * mass)
    lse = mass.log()
    require_equal("lse, a Ln,", run_on(call, device, STATS)[1], lse, _ACCURATE * (1 + lse))


def infinite_bounds(device: str) -> None:
    """Check thresholds of -inf and +inf and sinks of -inf, which become the last finite numbers in the kernel."""
    above, below = torch.inf, -torch.inf
    bounds = torch.tensor([below, above, below, 0.5, above, below, 0.5, 0.0], dtype=torch.float32, device="cpu")
    sink = torch.tensor([below, below, 1.0, below] * 2, dtype=torch.float32, device="cpu")
    for kv_heads in (4, 2):  # on vector cores, and on cube cores
        call = make_call((8, kv_heads), 200, 64).with_tensors(threshold=bounds, learnable_sink=sink)
        for placement in ("pre_softmax", "post_softmax"):
            check(call.with_options(placement=placement), device)


def infinite_scores(device: str) -> None:
    """Check K rows whose scores are -inf: Compare, Max, Sub and Exp take them, and nothing of them is left."""
    for kv_heads in (4, 2):
        call = make_call((8, kv_heads), 200, 64)
        query, key = call["query"].clone(), call["key"].clone()
        query[..., 0] = 1
        key[:, :, ::7, 0] = -torch.inf
        check(call.with_tensors(query=query, key=key, threshold=_theta(8, 0.0)), device)


def lowest_number(device: str) -> None:
    """Check lanes without scores: behind the last key, of keys that a token does not see, and of rows that see none."""
    for kv_heads in (4, 2):
        check(make_call((8, kv_heads), 600, 64), device)
    call = make_call((8, 2), 600, 64, lengths=[600, 4, 300], tokens=4)
    real = torch.tensor([4, 4, 1], dtype=torch.int32, device="cpu")
    check_tokens(call.with_tensors(actual_query_lengths=real), device)


def unified_buffer(device: str) -> None:
    """Gather lists of every length about that of the last buffer, which ends at the limit of the Unified Buffer."""
    heads, rows = 20, 600
    call = make_call((heads, heads), rows, 400, dtype=torch.bfloat16)  # for which it holds 32 rows
    key = call["key"].clone()
    key[:, :, :-96] = 0  # all that is kept lies in the last chunk, whose V rows go into that buffer
    call = call.with_tensors(key=key)
    check(call.with_tensors(threshold=thresholds(call, [20 + head for head in range(heads)])), device)


def wide_gaps(device: str) -> None:
    """Gather the first and third of three V rows: just less than 2^31 bytes apart (one command) or just more."""
    dim = 16
    call = make_call((1, 1), 3, dim).with_options(_path="gather")
    key = call["query"].repeat(1, 1, 3, 1)
    key[0, 0, 1] = 0
    call = call.with_tensors(key=key)
    call = call.with_tensors(threshold=thresholds(call, [2]))
    below = (_GAP_LIMIT // 64 * 32) // _HALF_BYTES + dim  # twice the stride less a row is the gap
    room = torch.empty(2 * (below + 16) + dim, dtype=torch.float16, device=device)
    for stride in (below, below + 16):
        value = room.as_strided((1, 1, 3, dim), (3 * stride, 3 * stride, stride, 1))
        value.copy_(call["value"].to(device))
        check(call, device, placed={"value": value})
