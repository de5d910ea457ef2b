"""Who takes part: vendor dense attention, Top-θ dense and sparse, Top-k, the fallback, and the floor of reading K."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

import toptheta_npu

from .. import fallback
from ..cpu.backend import CPU_SELECTOR
from .clocks import is_emulated
from .inputs import INT8_SCALE, Inputs, hidden_keys
from .shapes import Shape

Role = Literal[
    "dense", "own dense", "sparse", "compensated", "own dense int8", "sparse int8", "top-k", "fallback", "floor"
]  # fmt: skip
Call = Callable[[int], Any]
#: The answer that a contender of each role must give.
ANSWERS: dict[str, str] = {
    "dense": "dense", "own dense": "dense", "sparse": "kept", "compensated": "compensated", "top-k": "kept",
    "own dense int8": "dense", "sparse int8": "kept", "fallback": "kept",
}  # fmt: skip
#: Rows and columns of the causal mask of npu_fused_infer_attention_score, which it takes in this size alone.
_MASK_SIZE = 2048
#: Rows of a block that it takes a multiple of with several query tokens, and takes at most.
_VENDOR_BLOCK_ROWS = (128, 512)
#: The floor of an NPU, where no sum over K is known to run at the rate of the memory.
COPY = "copy K (torch.neg)"
_ROUNDING = {"float32": 1e-3, "float16": 1e-2, "bfloat16": 3e-2}
# scores rounded to a half-precision dtype choose other elements near the k-th
_SELECTION_ROUNDING = {"float32": 1e-3, "float16": 0.15, "bfloat16": 0.35}


def _always(_: Shape) -> str | None:
    return None


@dataclass(frozen=True)
class Contender:
    """One row of the comparison.

    Attributes:
        name: unique within a device.
        role: what it computes, which decides its answer and its place in ratios.
        make: from the inputs the function to time, which takes the number of the copy to use.
        reason: why it cannot run a shape; None if it can.
        foreign: not this package's code, so that an error of it is a reason and not the end of the comparison.
    """

    name: str
    role: Role
    make: Callable[[Inputs], Call]
    reason: Callable[[Shape], str | None] = _always
    foreign: bool = False

    def tolerance(self, shape: Shape) -> float:
        """Look up the relative error that is allowed."""
        return (_SELECTION_ROUNDING if self.role == "top-k" else _ROUNDING)[shape.dtype]


def list_contenders(device: str, *, int8: bool = False) -> list[Contender]:
    """List the rows of a device in the order of the table, on a CPU and an NPU with those of int8 caches if asked for.

    Example:
        >>> [contender.name for contender in list_contenders("cpu")][:3]
        ['stream', 'SDPA enable_gqa', 'SDPA folded']
    """
    top_k = Contender("top-k (torch.topk)", "top-k", _top_k, _no_table)
    fallback_row = Contender("PyTorch fallback", "fallback", _fallback)
    if device == "cpu":
        stream = Contender("stream", "floor", _read_keys, _no_native)
        own = _own("native at θ=-inf", "native top-θ", _no_native) + (_own_int8(_no_native) if int8 else [])
        return [stream, *_sdpa(), *own, top_k, fallback_row]
    own = _own("top-θ at -inf", "top-θ")
    if device == "npu":
        own += _own_int8(_always) if int8 else []
        vendor = [
            Contender("npu_incre_flash_attention", "dense", _incre_flash_attention, _incre_limits, foreign=True),
            Contender("npu_fused_infer_attention_score", "dense", _fused_infer_attention, _fused_limits, foreign=True),
        ]
        return [Contender(COPY, "floor", _copy_keys), *vendor, *own, top_k, fallback_row]
    flash = Contender("flash_attn", "dense", _flash_attn, _no_flash_attn, foreign=True)
    return [Contender("read K", "floor", _read_keys), *_sdpa(foreign=True), flash, *own, top_k]


def _own(dense: str, sparse: str, reason: Callable[[Shape], str | None] = _always) -> list[Contender]:
    """List the rows of our operator: the Ascend C kernel on an NPU, the native kernel on a CPU, PyTorch elsewhere."""
    return [
        Contender(dense, "own dense", lambda inputs: _operator(inputs, dense=True), reason),
        Contender(sparse, "sparse", _operator, reason),
        Contender(f"{sparse} + SDC + VMC", "compensated", lambda inputs: _operator(inputs, compensated=True), reason),
    ]


def _own_int8(reason: Callable[[Shape], str | None]) -> list[Contender]:
    """List the rows of our operator over int8 caches."""
    return [
        Contender("int8 at θ=-inf", "own dense int8", lambda inputs: _operator(inputs, dense=True, int8=True), reason),
        Contender("int8 top-θ", "sparse int8", lambda inputs: _operator(inputs, int8=True), reason),
    ]


def _no_native(shape: Shape) -> str | None:
    if CPU_SELECTOR.runs_native(shape.torch_dtype):
        return None
    return f"not available: {CPU_SELECTOR.failures.get(shape.torch_dtype, 'the PyTorch fallback is chosen')}"


def _no_table(shape: Shape) -> str | None:
    return "takes no block table" if shape.block_size else None


def _no_flash_attn(shape: Shape) -> str | None:
    if find_spec("flash_attn") is None:
        return "not available: flash_attn is not installed"
    if shape.block_size:
        return "not compared on paged caches, whose layout differs"
    return "takes half precision only" if shape.dtype == "float32" else None


def _vendor_limits(shape: Shape) -> str | None:
    if is_emulated("npu"):
        return "not available: the emulator has no fused operators of torch_npu"
    if shape.group > 64 or shape.num_heads > 256:
        return "takes up to 256 heads in groups of up to 64"
    return "takes up to 262144 keys" if shape.n > 262144 and shape.query_tokens == 1 else None


def _incre_limits(shape: Shape) -> str | None:
    return "takes one query token per sequence" if shape.query_tokens > 1 else _vendor_limits(shape)


def _fused_limits(shape: Shape) -> str | None:
    step, most = _VENDOR_BLOCK_ROWS
    if shape.query_tokens > 1 and (shape.block_size % step or shape.block_size > most):
        return f"takes blocks of a multiple of {step} rows up to {most} with several query tokens"
    return _vendor_limits(shape)


def _sdpa(*, foreign: bool = False) -> list[Contender]:
    """List SDPA's rows: a group's heads folded into query rows, or spread by enable_gqa (the same without groups)."""

    def make(inputs: Inputs, folded: bool) -> Call:
        rows = _folded(inputs) if folded else inputs.query
        mask = _additive_mask(inputs, inputs.shape.group if folded else 1)
        repeated = not folded and inputs.shape.group > 1

        def attend(copy: int) -> Tensor:
            out = F.scaled_dot_product_attention(rows, *inputs.layers[copy], attn_mask=mask, enable_gqa=repeated)
            return out.view_as(inputs.query)

        return attend

    def same(shape: Shape) -> str | None:
        return _no_table(shape) or ("the same as enable_gqa without groups" if shape.group == 1 else None)

    return [
        Contender("SDPA enable_gqa", "dense", lambda inputs: make(inputs, False), _no_table, foreign),
        Contender("SDPA folded", "dense", lambda inputs: make(inputs, True), same, foreign),
    ]


def _folded(inputs: Inputs) -> Tensor:
    """View the query rows of each KV head side by side, the tokens of a head together: [B, Hkv, group * Sq, D]."""
    return inputs.query.reshape(inputs.shape.batch, inputs.shape.num_key_value_heads, -1, inputs.shape.head_dim)


def _additive_mask(inputs: Inputs, heads: int) -> Tensor | None:
    """Make what is added to the scores [heads * Sq, n]: -inf where a token does not see a key; None with one token."""
    if inputs.shape.query_tokens == 1:
        return None
    query = inputs.query
    hidden = hidden_keys(inputs.shape, query.device).repeat(heads, 1)
    return query.new_zeros(hidden.shape).masked_fill_(hidden, -torch.inf)


def _flash_attn(inputs: Inputs) -> Call:
    from flash_attn import flash_attn_with_kvcache

    query = inputs.query.transpose(1, 2)
    layers = [(key.transpose(1, 2), value.transpose(1, 2)) for key, value in inputs.layers]
    attend: Callable[..., Tensor] = flash_attn_with_kvcache
    # its causal mask ends with the last key; it changes nothing for one token
    return lambda copy: attend(query, *layers[copy], causal=True).transpose(1, 2)


def _incre_flash_attention(inputs: Inputs) -> Call:
    import torch_npu

    arguments = _vendor_arguments(inputs)
    if inputs.block_table is not None:
        arguments["actual_seq_lengths"] = [inputs.shape.n] * inputs.shape.batch
    arguments["scale_value"] = inputs.shape.head_dim**-0.5
    attend: Callable[..., Tensor] = torch_npu.npu_incre_flash_attention
    return lambda copy: attend(inputs.query, *inputs.layers[copy], **arguments)


def _fused_infer_attention(inputs: Inputs) -> Call:
    import torch_npu

    arguments = _vendor_arguments(inputs)
    if inputs.block_table is not None:
        arguments["actual_seq_lengths_kv"] = [inputs.shape.n] * inputs.shape.batch
    # its default, 0, is "high precision", which the documented rules keep away from the preload cube template
    arguments |= {"scale": inputs.shape.head_dim**-0.5, "inner_precise": 1}
    if inputs.shape.query_tokens > 1:
        mask = torch.ones(_MASK_SIZE, _MASK_SIZE, dtype=torch.bool, device=inputs.query.device).triu_(1)
        arguments |= {"atten_mask": mask, "sparse_mode": 3}  # of the lower right corner, as the operator has it
    attend: Callable[..., tuple[Tensor, Tensor]] = torch_npu.npu_fused_infer_attention_score
    return lambda copy: attend(inputs.query, *inputs.layers[copy], **arguments)[0]


def _vendor_arguments(inputs: Inputs) -> dict[str, Any]:
    shape = inputs.shape
    arguments: dict[str, Any] = {
        "num_heads": shape.num_heads, "num_key_value_heads": shape.num_key_value_heads, "input_layout": "BNSD",
    }  # fmt: skip
    if inputs.block_table is not None:
        arguments |= {"block_table": inputs.block_table, "block_size": shape.block_size}
    return arguments


def _operator(inputs: Inputs, dense: bool = False, compensated: bool = False, int8: bool = False) -> Call:
    threshold = torch.full_like(inputs.threshold, -torch.inf) if dense else inputs.threshold
    options: dict[str, Any] = {
        "actual_seq_lengths": inputs.lengths, "block_table": inputs.block_table,
        "block_size": inputs.shape.block_size, "sdc": "exact" if compensated else "none",
        "value_mean": inputs.value_mean if compensated else None,
    }  # fmt: skip
    layers = inputs.int8_layers if int8 else inputs.layers
    if int8:
        scale = threshold.new_full((inputs.shape.num_key_value_heads, inputs.shape.head_dim), INT8_SCALE)
        options |= {"key_antiquant_scale": scale, "value_antiquant_scale": scale}
    return lambda copy: toptheta_npu.incremental_attention(inputs.query, *layers[copy], threshold, **options)


def _fallback(inputs: Inputs) -> Call:
    shape = inputs.shape
    return lambda copy: fallback.incremental_attention(fallback.Arguments(
        shape.num_heads, shape.num_key_value_heads, shape.head_dim**-0.5, inputs.query, *inputs.layers[copy],
        inputs.threshold, inputs.lengths, None, inputs.block_table, sdc="none",
    ))  # fmt: skip


def _top_k(inputs: Inputs) -> Call:
    """Make the call of Top-k: scores, torch.topk, and a gather of the chosen V rows of each query row."""
    shape, query = inputs.shape, inputs.query
    folded, mask = _folded(inputs) * shape.head_dim**-0.5, _additive_mask(inputs, shape.group)

    def attend(copy: int) -> Tensor:
        key, value = inputs.layers[copy]
        scores = folded @ key.transpose(-1, -2)
        if mask is not None:
            scores += mask
        chosen = scores.topk(shape.k, dim=-1, sorted=False)
        weights = chosen.values.float().softmax(-1).to(value.dtype)
        index = chosen.indices.flatten(2)[..., None].expand(-1, -1, -1, shape.head_dim)
        rows = value.gather(2, index).unflatten(2, (-1, shape.k))
        out: Tensor = weights.unsqueeze(-2) @ rows
        return out.view_as(query)

    return attend


def _read_keys(inputs: Inputs) -> Call:
    """Make the call that reads K once, as integers: a sum of half-precision numbers may be slower than reading them."""
    width = torch.int64.itemsize

    def words(key: Tensor) -> Tensor:
        raw = key.view(-1).view(torch.uint8)
        return raw[: len(raw) // width * width].view(torch.int64)

    return lambda copy: words(inputs.layers[copy][0]).sum()


def _copy_keys(inputs: Inputs) -> Call:
    """Make the call whose kernel reads and writes K. A copy proper would be no kernel, and no task of the profiler."""
    target = torch.empty_like(inputs.layers[0][0])
    return lambda copy: torch.neg(inputs.layers[copy][0], out=target)
