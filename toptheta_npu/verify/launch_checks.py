"""Points of a launch: which kernels start, with what tensors and lengths, and whether its cores meet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

import toptheta_npu

from .calls import PARTIAL, STATS, Call, Mismatch, check, compare, make_call

#: The allocator gives out blocks up to so many bytes larger than asked for.
_ALLOCATOR_BYTES = 1 << 20
#: Rows that give each of up to 64 cores a part of one sequence.
ROWS_FOR_EVERY_CORE = 64 * 256
#: Calls in which cores that do not wait for each other would have to be right by chance.
_REPEATS = 3


def launch_forms(device: str) -> None:
    """Launch the four pre-softmax tiling keys one after the other, each with inputs of its own, and the first again."""
    check(make_call((2, 2), 128, 64, seed=1), device)
    check(make_call((2, 2), 128, 64, lengths=[100], seed=2), device)
    check(make_call((4, 1), 128, 64, seed=3), device)
    check(make_call((2, 2), 128, 64, tokens=2, seed=4), device)
    check(make_call((2, 2), 128, 64, seed=5), device)


def dtypes(device: str) -> None:
    """Check float16 and bfloat16, lengths of 32 and of 64 bits."""
    for seed, dtype in enumerate((torch.float16, torch.bfloat16)):
        call = make_call((2, 2), 200, 64, dtype=dtype, lengths=[200, 77], seed=seed)
        for integer in (torch.int32, torch.int64):
            check(call.with_tensors(actual_seq_lengths=call["actual_seq_lengths"].to(integer)), device)


def empty_outputs(device: str) -> None:
    """Call the same shape without statistics and as a part, each with its own inputs: memory holds no old answer."""
    check(make_call((4, 2), 300, 64, seed=1), device)
    check(make_call((4, 2), 300, 64, seed=2), device, "incremental_attention")
    check(make_call((4, 2), 300, 64, seed=3), device, PARTIAL)


def strided_caches(device: str) -> None:
    """Check that caches inside longer rows full of NaN are read in place, with no memory for a copy."""
    call = make_call((2, 2), 4096, 128, keep=0.02, lengths=[4000])
    placed = {name: _in_longer_rows(call[name], device) for name in ("key", "value")}
    check(call, device, placed=placed)
    plain, strided = (_extra_bytes(call, device, each) for each in ({}, placed))
    if strided > plain + _ALLOCATOR_BYTES:
        raise Mismatch(f"a call with strided caches takes {strided - plain} bytes more than with contiguous ones")


def _in_longer_rows(cache: Tensor, device: str) -> Tensor:
    wide = torch.full((*cache.shape[:3], cache.shape[3] + 48), torch.nan, dtype=cache.dtype, device=device)
    view = wide[..., 16 : 16 + cache.shape[3]]
    view.copy_(cache.to(device))
    return view


def _extra_bytes(call: Call, device: str, placed: Mapping[str, Tensor]) -> int:
    """Measure the device memory that one call takes beside its inputs, at its peak."""
    accelerator: Any = getattr(torch, device)
    arguments = call.on(device) | dict(placed)
    accelerator.synchronize()
    accelerator.reset_peak_memory_stats()
    before = accelerator.memory_allocated()
    toptheta_npu.incremental_attention(**arguments)
    accelerator.synchronize()
    return int(accelerator.max_memory_allocated() - before)


def sync_all(device: str) -> None:
    """Share one sequence among all vector cores, so that each combines what the others have left."""
    for seed in range(_REPEATS):
        call = make_call((1, 1), ROWS_FOR_EVERY_CORE, 16, keep=0.01, lengths=[ROWS_FOR_EVERY_CORE - 5], seed=seed)
        check(call, device)


def graph_replay(device: str) -> None:
    """Replay graphs with other lengths, token counts, thresholds and queries than they were captured with."""
    captured = make_call((4, 4), 512, 64, lengths=[512, 1], seed=1)
    replayed = make_call((4, 4), 512, 64, lengths=[37, 400], seed=1).with_tensors(
        query=make_call((4, 4), 512, 64, lengths=[512, 512], seed=2)["query"]
    )
    _replay(device, captured, replayed)
    drafts = make_call((4, 2), 512, 64, lengths=[512, 400], tokens=3)
    counts = (torch.tensor(real, dtype=torch.int32, device="cpu") for real in ([3, 1], [2, 3]))
    _replay(device, *(drafts.with_tensors(actual_query_lengths=real) for real in counts))


def _replay(device: str, captured: Call, replayed: Call) -> None:
    """Capture one call, and replay it with the tensors of the other one and with its own."""
    accelerator: Any = getattr(torch, device)
    arguments = captured.on(device)
    stream = accelerator.Stream()
    function = toptheta_npu.incremental_attention_with_stats
    with accelerator.stream(stream):  # a capture wants everything loaded
        function(**arguments)
    accelerator.synchronize()
    graph = accelerator.NPUGraph()
    with accelerator.graph(graph, stream=stream):
        result = function(**arguments)
    for call in (replayed, captured):
        for name in call.tensors.keys() - {"key", "value"}:
            arguments[name].copy_(call[name].to(device))
        graph.replay()
        accelerator.synchronize()
        compare(call, [tensor.cpu() for tensor in result], STATS)
