"""The whole operator on CPU tensors: shape inference, tiling and kernel, as an Ascend machine would run them.

What runs here are the unmodified sources of op_host and op_kernel; what they run on is the host model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from emulator.ascendc import Argument, Kernel, KernelRun, cost_constants, run_kernel
from emulator.cann import Platform, TensorSpec, TilingResult, kernel_defines

from .sources import KERNEL_SOURCE, OPERATOR

_CACHES = ("key", "value")
_SCALES = ("key_antiquant_scale", "value_antiquant_scale")
#: A flag for `kernel_for`: the build has no pointers to the tiling data, like that of CANN 8.1.
WITHOUT_TILING_POINTERS = "-DASCENDC_HOST_NO_TILING_POINTERS"


@dataclass(frozen=True)
class OperatorRun:
    """One call of the operator.

    Attributes:
        outputs: every output of the definition by name; those that were not asked for are empty.
        run: findings, traffic and timeline of the kernel.
        tiling: what the tiling function decided.
    """

    outputs: dict[str, Tensor]
    run: KernelRun
    tiling: TilingResult


def kernel_for(
    dtype: torch.dtype, key: torch.dtype | None = None, value: torch.dtype | None = None, **options: Any
) -> Kernel:
    """Make the kernel: its source with the defines that the operator build makes for one combination of dtypes.

    Args:
        dtype: of the query.
        key: of K, where it is not that of the query; ``value`` likewise.
        **options: of `Kernel`.
    """
    dtypes = {"query": dtype, "key": key or dtype, "value": value or dtype}
    names = {name: str(each).removeprefix("torch.") for name, each in dtypes.items()}
    return Kernel(KERNEL_SOURCE, defines=kernel_defines(OPERATOR.describe(), names), **options)


def known_constants() -> frozenset[str]:
    """List the constants of the model of time by name."""
    return frozenset(cost_constants())


def run_operator(
    tensors: Mapping[str, Tensor | None],
    attributes: Mapping[str, Any],
    *,
    platform: Platform = Platform(),  # noqa: B008 (immutable)
    kernel: Kernel | None = None,
    **launch: Any,
) -> OperatorRun:
    """Run one call of TopThetaIncrementalAttention on the host model.

    Args:
        tensors: inputs of the operator definition by name, on the CPU. The kernel reads a strided cache in place, and
            its scales; other inputs are made contiguous, as the generated aclnn function does.
        attributes: attributes of the definition by name; the strides of the caches and their scales are filled in.
        platform: the SoC to tile for.
        kernel: another build of the kernel, see `kernel_for`.
        **launch: further options of `run_kernel`, such as ``suppress`` or ``trace``.

    Raises:
        OperatorError: the operator refuses the call; the text is its own message.
        ValueError: a cache whose rows have gaps, which the operator has no attribute for.

    Example:
        >>> import torch
        >>> q, k, v = (torch.randn(1, 2, n, 64).half() for n in (1, 256, 256))
        >>> inputs = {"query": q, "key": k, "value": v, "threshold": torch.full((2,), 1.0)}
        >>> result = run_operator(inputs, {"num_heads": 2, "num_key_value_heads": 2, "scale_value": 0.125})
        >>> result.outputs["attention_out"].shape, result.run.findings
        (torch.Size([1, 2, 1, 64]), [])
    """
    passed = {name: _as_passed(name, tensor) for name, tensor in tensors.items() if tensor is not None}
    specs = {name: _spec(tensor) for name, tensor in passed.items()}
    attributes = dict(attributes) | {f"{name}_strides": _row_strides(passed[name], attributes) for name in _CACHES}
    attributes |= {f"{name.replace('_antiquant', '')}_strides": passed[name].stride() for name in _SCALES
                   if name in passed and passed[name].dim() == 3}  # fmt: skip
    tiling = OPERATOR.run_tiling(specs, attributes, platform)
    outputs = {
        name: torch.empty(spec.shape, dtype=getattr(torch, spec.dtype))
        for name, spec in OPERATOR.infer_shape(specs, attributes).items()
    }
    names = [item["name"] for item in OPERATOR.describe()["inputs"]]
    arguments: list[Argument] = [
        *((name, passed.get(name), "in") for name in names),
        *((name, output if output.numel() else None, "out") for name, output in outputs.items()),
        ("workspace", tiling.workspace - platform.system_workspace, "workspace"),
        ("tiling", tiling.tiling, "in"),
    ]
    dtypes = (passed[name].dtype for name in ("query", *_CACHES))
    run = run_kernel(
        kernel or kernel_for(*dtypes), arguments, blocks=tiling.block_dim, tiling_key=tiling.key,
        cores=platform.vector_cores, **launch,
    )  # fmt: skip
    return OperatorRun(outputs, run, tiling)


def _as_passed(name: str, tensor: Tensor) -> Tensor:
    """Return the tensor as it reaches the kernel, which knows strides of the caches alone."""
    if name not in _CACHES + _SCALES:
        return tensor.contiguous()
    if tensor.stride(-1) != 1:
        raise ValueError(f"{name}: expected a last stride of 1, got {tensor.stride()}; pass {name}.contiguous()")
    return tensor


def _spec(tensor: Tensor) -> TensorSpec:
    return TensorSpec(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))


def _row_strides(cache: Tensor, attributes: Mapping[str, Any]) -> Sequence[int]:
    """Return the strides of sequence or block, KV head and row, in elements."""
    layout = attributes.get("input_layout", "BNSD")
    if cache.dim() == 4:
        paged = attributes.get("block_size", 0) > 0
        head, row = (2, 1) if layout == "BSND" and not paged else (1, 2)
        return cache.stride(0), cache.stride(head), cache.stride(row)
    head_dim = cache.shape[2] // int(attributes["num_key_value_heads"])
    return cache.stride(0), head_dim, cache.stride(1)
