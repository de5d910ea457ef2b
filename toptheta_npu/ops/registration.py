"""The operators in torch.library: one schema for every device.

A CPU runs the native kernel or the pure PyTorch fallback, a GPU the Triton kernels or the fallback. On an NPU the
adapter of the op package registers itself under the same names. Until it is loaded, NPU tensors reach the
implementation for all other devices, which loads it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._checks import NPU, check_device
from ..cpu.backend import CPU_SELECTOR
from ..fallback.schemas import SCHEMAS, taking_arguments
from ..npu.backend import NPU_SELECTOR
from ..triton.backend import CUDA_SELECTOR


def _on_other_devices(name: str) -> Callable[..., Any]:
    """Make the operator for all other devices: it serves an NPU until the adapter is loaded."""

    def run(query: Tensor, *arguments: Any, **options: Any) -> Any:
        check_device(query, ())
        return NPU_SELECTOR.run(name, query, *arguments, **options)

    return run


def _without_autocast(operator: Callable[..., Any], device: str) -> Callable[..., Any]:
    """Switch autocast off in an operator, so that scores and sums stay float32."""

    def run(*arguments: Any, **options: Any) -> Any:
        with torch.autocast(device, enabled=False):
            return operator(*arguments, **options)

    return run


def _fake_rows(query: Tensor, num_heads: int, input_layout: str) -> Tensor:
    """Make an empty tensor with one float32 per row."""
    tokens = query.shape[2 if input_layout == "BNSD" else 1]
    of_tokens = () if tokens == 1 else (tokens,)
    return query.new_empty((query.shape[0], num_heads, *of_tokens), dtype=torch.float32)


def _fake_output(query: Tensor, *_: Any, **__: Any) -> Tensor:
    return query.new_empty(query.shape)


def _fake_with_stats(
    query: Tensor, *_: Any, num_heads: int, num_key_value_heads: int, input_layout: str = "BNSD", **__: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    lse = _fake_rows(query, num_heads, input_layout)
    value_rows = query.new_empty((query.shape[0], num_key_value_heads), dtype=torch.int32)
    return query.new_empty(query.shape), lse, torch.empty_like(lse, dtype=torch.int32), value_rows


def _fake_partial(query: Tensor, *_: Any, num_heads: int, input_layout: str = "BNSD", **__: Any) -> tuple[Tensor, ...]:
    masses = [_fake_rows(query, num_heads, input_layout) for _ in range(3)]
    kept = torch.empty_like(masses[0], dtype=torch.int32)
    return query.new_empty(query.shape, dtype=torch.float32), *masses, kept


_FAKES: dict[str, Callable[..., Any]] = {
    "incremental_attention": _fake_output,
    "incremental_attention_with_stats": _fake_with_stats,
    "incremental_attention_partial": _fake_partial,
}


def _register() -> torch.library.Library:
    library = torch.library.Library("toptheta_npu", "DEF")
    for name, schema in SCHEMAS.items():
        library.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))
        library.impl(name, taking_arguments(name, CPU_SELECTOR.runner(name)), "CPU")
        library.impl(name, taking_arguments(name, CUDA_SELECTOR.runner(name)), "CUDA")
        library.impl(name, _on_other_devices(name), "CompositeExplicitAutograd")
        # for inference only: autograd has nothing to record, so it can skip the call
        library.impl(name, torch.library.fallthrough_kernel, "Autograd")
        torch.library.register_fake(f"toptheta_npu::{name}", _FAKES[name], lib=library)
        operator = getattr(torch.ops.toptheta_npu, name).default
        for device, key in (("cpu", "AutocastCPU"), ("cuda", "AutocastCUDA"), (NPU, "AutocastPrivateUse1")):
            library.impl(name, _without_autocast(operator, device), key)
    return library


_LIBRARY = _register()
