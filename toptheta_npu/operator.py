"""The operator: public functions, argument checks, and one torch.library schema for every device.

The schema is defined once, here. A CPU runs the native kernel or the pure PyTorch fallback, CUDA the fallback. On an
NPU the adapter of the op package registers itself under the same names; until it is loaded, NPU tensors come through
the implementation for all other devices, which loads it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from . import fallback
from ._backends import Selector
from ._checks import (
    FLOAT32,
    NPU,
    PLACEMENTS,
    check_choice,
    check_compensation,
    check_device,
    check_kernel_limits,
    check_rows,
    check_tensor,
    check_value_mean,
    refuse_unknown,
)
from ._value_checks import check_step_values
from .cpu.backend import CpuSelector
from .errors import TopThetaValueError
from .npu.backend import NpuSelector

_TENSORS = (
    "Tensor query, Tensor key, Tensor value, Tensor threshold, Tensor? actual_seq_lengths=None, "
    "Tensor? key_start=None, Tensor? block_table=None"
)
_GEOMETRY = (
    'int num_heads, int num_key_value_heads, float scale_value, str input_layout="BNSD", str placement="pre_softmax"'
)
_COMPENSATED = (
    f"({_TENSORS}, Tensor? discarded_mass=None, Tensor? value_mean=None, *, {_GEOMETRY}, "
    'str sdc="exact", float sdc_gamma=0.05, str path="auto")'
)
#: One schema for all devices.
SCHEMAS = {
    "incremental_attention": f"{_COMPENSATED} -> Tensor",
    "incremental_attention_with_stats": f"{_COMPENSATED} -> (Tensor, Tensor, Tensor, Tensor)",
    "incremental_attention_partial": (
        f'({_TENSORS}, Tensor? lse=None, *, {_GEOMETRY}, str path="auto") -> (Tensor, Tensor, Tensor, Tensor, Tensor)'
    ),
}


def incremental_attention(
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
    value_mean: Tensor | None = None,
    _path: str = "auto",
    **unsupported: object,
) -> Tensor:
    """Decode attention of one token that reads only the V rows whose score exceeds a threshold.

    Names, layouts and meaning follow ``torch_npu.npu_incre_flash_attention``. In each row (sequence, query
    head) an element is kept when its scaled score a_i > threshold; a row that would keep nothing keeps its
    largest element, the lowest index among equals. Softmax runs over what is kept, with the discarded mass
    given back as ``sdc`` says and the discarded value as ``value_mean`` says (paper section "Top-Theta
    Attention Inference", equations sdc and vmc). ``threshold=-inf`` is dense attention.

    Args:
        query: one token, float16, bfloat16 or float32: BNSD [B, Hq, 1, D], BSND [B, 1, Hq, D] or BSH
            [B, 1, Hq*D]; head_dim D from 16 to 512.
        key, value: same dtype and layout, S keys and Hkv heads (a divisor of Hq); or paged:
            [blocks, Hkv, block_size, D] or [blocks, block_size, Hkv*D].
        threshold: float32 [Hq] or [B, Hq], in units of the scaled score (after RoPE and scale); with
            ``placement="post_softmax"`` a probability, at most 1 (or +inf, which keeps the largest element alone).
        actual_seq_lengths: int32 or int64 [B] on the query's device, the number of valid keys; None means all.
            0 is allowed and gives an output of 0. A list is copied to the device once per call.
        key_start: int32 or int64 [B], index of the first valid key (left padding); not with paging.
        block_table: int32 [B, max_blocks]; entries past a sequence's last block are never read.
        block_size: rows per block of a paged cache.
        num_heads, num_key_value_heads: inferred from BNSD and BSND; BSH needs num_heads.
        input_layout: "BNSD", "BSND" or "BSH".
        scale_value: factor of q·k; None means 1 / sqrt(D).
        placement: "pre_softmax" compares a_i, "post_softmax" the probability softmax(a)_i.
        sdc: estimate of the discarded mass in the softmax denominator: "none", "exact",
            "exp_threshold" (``sdc_gamma`` (n - kept) exp(threshold)) or "offline" (``discarded_mass``).
            It is 0 where nothing is discarded. "exact" only with post_softmax.
        sdc_gamma: factor of sdc="exp_threshold".
        discarded_mass: float32 [B, Hq], relative to exp(row maximum), for sdc="offline".
        value_mean: float32 [B, Hkv, D], the mean of all valid V rows; switches V-mean compensation on.

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
    return _decode(  # type: ignore[no-any-return]
        torch.ops.toptheta_npu.incremental_attention.default,
        query, key, value, threshold, actual_seq_lengths, key_start, block_table, block_size, num_heads,
        num_key_value_heads, input_layout, scale_value, placement, sdc, sdc_gamma, discarded_mass, value_mean,
        _path, unsupported,
    )  # fmt: skip


def incremental_attention_with_stats(
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
    value_mean: Tensor | None = None,
    _path: str = "auto",
    **unsupported: object,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`incremental_attention`, and what it kept.

    Returns:
        (out; lse float32 [B, Hq], m + ln(R + E) over all valid keys, -inf for a length of 0; kept int32
        [B, Hq]; value_rows int32 [B, Hkv], V rows needed: the union over a block of at most 8 query heads,
        4 above head_dim 256, summed over a group's blocks).

    Example:
        >>> import torch, toptheta_npu
        >>> q, k, v = torch.randn(1, 4, 1, 32), torch.randn(1, 4, 50, 32), torch.randn(1, 4, 50, 32)
        >>> out, lse, kept, value_rows = toptheta_npu.incremental_attention_with_stats(
        ...     q, k, v, torch.full((4,), float("-inf")))
        >>> kept.tolist()
        [[50, 50, 50, 50]]
    """
    return _decode(  # type: ignore[no-any-return]
        torch.ops.toptheta_npu.incremental_attention_with_stats.default,
        query, key, value, threshold, actual_seq_lengths, key_start, block_table, block_size, num_heads,
        num_key_value_heads, input_layout, scale_value, placement, sdc, sdc_gamma, discarded_mass, value_mean,
        _path, unsupported,
    )  # fmt: skip


def incremental_attention_partial(
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
    lse: Tensor | None = None,
    _path: str = "auto",
    **unsupported: object,
) -> fallback.Partial:
    """A decode step over a part of a row's keys, to be merged: split-KV decoding and context parallelism.

    Args:
        lse: float32 [B, Hq], the LSE of the whole row; required with placement="post_softmax", whose test
            needs it, and refused otherwise.

    Returns:
        (out = N / R float32 in the layout of query; maximum, kept_mass R, discarded_mass E float32
        [B, Hq]; kept int32 [B, Hq]). Where nothing passes, kept and R are 0, E is all the part's mass and
        out is V of its largest element.

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
    if unsupported:
        refuse_unknown("incremental_attention_partial", unsupported)
    lengths, starts, heads, kv_heads, head_dim, scale = check_rows(
        query, key, value, threshold, actual_seq_lengths, key_start, block_table, block_size, num_heads,
        num_key_value_heads, input_layout, scale_value, _path,
    )  # fmt: skip
    check_choice("placement", placement, PLACEMENTS)
    if (lse is None) == (placement == "post_softmax"):
        wanted = "the whole row's LSE [B, Hq]" if lse is None else "None"
        raise TopThetaValueError("lse", f"{wanted} with placement={placement!r}", "None" if lse is None else "a tensor")
    if lse is not None:
        check_tensor("lse", lse, query, (query.shape[0], heads), FLOAT32, " [B, Hq]")
    _check_npu(query, key, value, head_dim, block_size)
    return fallback.Partial(*torch.ops.toptheta_npu.incremental_attention_partial.default(
        query, key, value, threshold, lengths, starts, block_table, lse,
        num_heads=heads, num_key_value_heads=kv_heads, input_layout=input_layout, scale_value=scale,
        placement=placement, path=_path,
    ))  # fmt: skip


def _decode(
    operator: Callable[..., Any],
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
    value_mean: Tensor | None,
    path: str,
    unsupported: dict[str, object],
) -> Any:
    """Check everything, then call the registered operator."""
    if unsupported:
        refuse_unknown("incremental_attention", unsupported)
    lengths, starts, heads, kv_heads, head_dim, scale = check_rows(
        query, key, value, threshold, actual_seq_lengths, key_start, block_table, block_size, num_heads,
        num_key_value_heads, input_layout, scale_value, path,
    )  # fmt: skip
    options: dict[str, object] = {}
    simple = type(placement) is str and type(sdc) is str and type(sdc_gamma) is float  # others compare as they like
    if not simple or (input_layout, placement, sdc, sdc_gamma, path) != _DEFAULTS or discarded_mass is not None:
        check_compensation(query, heads, kv_heads, placement, sdc, sdc_gamma, discarded_mass, value_mean, head_dim)
        options = dict(zip(_OPTIONS, (input_layout, placement, sdc, float(sdc_gamma), path), strict=True))
    elif value_mean is not None:
        check_value_mean(value_mean, query, kv_heads, head_dim)
    _check_npu(query, key, value, head_dim, block_size)
    return operator(
        query, key, value, threshold, lengths, starts, block_table, discarded_mass, value_mean,
        num_heads=heads, num_key_value_heads=kv_heads, scale_value=scale, **options,
    )  # fmt: skip


def _check_npu(query: Tensor, key: Tensor, value: Tensor, head_dim: int, block_size: int) -> None:
    """On an NPU: the backend is there, and the arguments are within the kernel's limits where the kernel runs.

    Under torch.compile nothing is loaded while tracing; the adapter and the op package check the same again.
    """
    if query.is_cpu:  # the name of a device takes longer to make
        return
    if query.device.type == NPU and not torch.compiler.is_compiling() and NPU_SELECTOR.uses_kernel():
        check_kernel_limits(query, key, value, head_dim, block_size)


def _on_cpu(name: str) -> Callable[..., Any]:
    def run(query: Tensor, *arguments: Any, **options: Any) -> Any:
        return CPU_SELECTOR.implementation(name, query.dtype)(query, *arguments, **options)

    return run


def _after_checks(implementation: Callable[..., Any]) -> Callable[..., Any]:
    """The fallback behind a check of the values in its tensors, which a CPU sees for free; the kernel has its own."""

    def run(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        threshold: Tensor,
        actual_seq_lengths: Tensor | None = None,
        key_start: Tensor | None = None,
        block_table: Tensor | None = None,
        *rest: Tensor | None,
        **options: Any,
    ) -> Any:
        check_step_values(
            key, threshold, actual_seq_lengths, key_start, block_table,
            rest[0] if options.get("sdc") == "offline" else None,
            options.get("input_layout", "BNSD"), options.get("placement", "pre_softmax"),
        )  # fmt: skip
        return implementation(
            query, key, value, threshold, actual_seq_lengths, key_start, block_table, *rest, **options
        )

    return run


def _on_other_devices(name: str) -> Callable[..., Any]:
    """On devices without a kernel of their own: an NPU as long as the adapter is not loaded."""

    def run(query: Tensor, *arguments: Any, **options: Any) -> Any:
        check_device(query, ())
        return NPU_SELECTOR.run(name, query, *arguments, **options)

    return run


def _without_autocast(operator: Callable[..., Any], device: str) -> Callable[..., Any]:
    """Scores and sums are float32 also under autocast."""

    def run(*arguments: Any, **options: Any) -> Any:
        with torch.autocast(device, enabled=False):
            return operator(*arguments, **options)

    return run


def _fake_output(query: Tensor, *_: Any, **__: Any) -> Tensor:
    return query.new_empty(query.shape)


def _fake_with_stats(
    query: Tensor, *_: Any, num_heads: int, num_key_value_heads: int, **__: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    batch = query.shape[0]
    per_head = query.new_empty((batch, num_heads), dtype=torch.float32)
    value_rows = query.new_empty((batch, num_key_value_heads), dtype=torch.int32)
    return query.new_empty(query.shape), per_head, per_head.new_empty((batch, num_heads), dtype=torch.int32), value_rows


def _fake_partial(query: Tensor, *_: Any, num_heads: int, **__: Any) -> tuple[Tensor, ...]:
    masses = [query.new_empty((query.shape[0], num_heads), dtype=torch.float32) for _ in range(3)]
    kept = query.new_empty((query.shape[0], num_heads), dtype=torch.int32)
    return query.new_empty(query.shape, dtype=torch.float32), *masses, kept


_FALLBACKS: dict[str, Callable[..., Any]] = {
    "incremental_attention": fallback.incremental_attention,
    "incremental_attention_with_stats": fallback.incremental_attention_with_stats,
    "incremental_attention_partial": fallback.incremental_attention_partial,
}
_FAKES: dict[str, Callable[..., Any]] = {
    "incremental_attention": _fake_output,
    "incremental_attention_with_stats": _fake_with_stats,
    "incremental_attention_partial": _fake_partial,
}
CPU_SELECTOR = CpuSelector({name: _after_checks(implementation) for name, implementation in _FALLBACKS.items()})
NPU_SELECTOR = NpuSelector(SCHEMAS, _FALLBACKS)
#: What decides what tensors of a device run; CUDA tensors run the fallback.
SELECTORS: dict[str, Selector] = {"cpu": CPU_SELECTOR, "npu": NPU_SELECTOR}


def _register() -> torch.library.Library:
    library = torch.library.Library("toptheta_npu", "DEF")
    for name, schema in SCHEMAS.items():
        library.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))
        library.impl(name, _on_cpu(name), "CPU")
        library.impl(name, _FALLBACKS[name], "CUDA")
        library.impl(name, _on_other_devices(name), "CompositeExplicitAutograd")
        # for inference only: nothing to record, so autograd need not look at the call
        library.impl(name, torch.library.fallthrough_kernel, "Autograd")
        torch.library.register_fake(f"toptheta_npu::{name}", _FAKES[name], lib=library)
        operator = getattr(torch.ops.toptheta_npu, name).default
        for device, key in (("cpu", "AutocastCPU"), ("cuda", "AutocastCUDA"), (NPU, "AutocastPrivateUse1")):
            library.impl(name, _without_autocast(operator, device), key)
    return library


_LIBRARY = _register()
#: What the schema assumes where nothing is said: the dispatcher need not convert it on every call.
_OPTIONS, _DEFAULTS = zip(
    *(
        (argument.name, argument.default_value)
        for argument in torch.ops.toptheta_npu.incremental_attention.default._schema.arguments
        if argument.kwarg_only and argument.has_default_value()
    ),
    strict=True,
)
