"""How engines lay out the cache of a layer, and views of it as pages of keys and of values, by strides.

Nothing is copied: an operator that cannot step through a layout refuses it here, before the first token.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._checks import DTYPES, KERNEL_DTYPES, KERNEL_PAGE_ROWS, KERNEL_STEP, NPU
from ..errors import TopThetaNotImplementedError

#: torch_npu's formats that hold elements in the order of their strides, as in npu/adapter.cpp.
_BASE_FORMATS = (-1, 0, 1, 2, 27, 30, 47)
_REMEDY = (
    "serve with a cache in half precision that is not quantised (kv_cache_dtype='auto'), by a version of the engine "
    "whose layouts were read, or leave Top-Theta out"
)


class Layout(Enum):
    """Where the keys and values of a page lie; the dimensions are those that the engine gives its tensors."""

    #: Keys and values apart: vllm-ascend's own.
    SPLIT = "K and V apart, each [blocks, block_size, Hkv, D]"
    #: The same with heads before rows: vllm-ascend with VLLM_KV_CACHE_LAYOUT=HND.
    SPLIT_HND = "K and V apart, each [blocks, Hkv, block_size, D]"
    #: All keys of a page by columns, [D, block_size], and then its values by rows: vLLM on CPUs.
    COLUMN_KEYS = "keys by columns before values by rows, [blocks, Hkv, block_size, 2D]"

    @property
    def is_split(self) -> bool:
        """Whether keys and values are tensors of their own."""
        return self in (Layout.SPLIT, Layout.SPLIT_HND)


class Antiquant(NamedTuple):
    """The scales of an int8 cache and their kinds, by the names of the operator's arguments."""

    key_antiquant_scale: Tensor
    value_antiquant_scale: Tensor
    key_antiquant_mode: int
    value_antiquant_mode: int


class Pages(NamedTuple):
    """Keys and values [blocks, Hkv, block_size, D], views of the engine's memory with any strides.

    Attributes:
        antiquant: their scales; None: they are not int8.
    """

    keys: Tensor
    values: Tensor
    antiquant: Antiquant | None = None


def view_pages(
    kv_cache: Any, layout: Layout, num_key_value_heads: int, head_dim: int, antiquant: Antiquant | None = None
) -> Pages:
    """View the cache of a layer as pages of keys and of values.

    Args:
        kv_cache: one tensor, or one each for keys and values, which may be stacked in one.
        layout: layout that the engine reports; a shape alone does not tell rows from heads.
        num_key_value_heads: Hkv of this rank.
        head_dim: D.
        antiquant: scales of an int8 cache; None for other dtypes.

    Raises:
        TopThetaNotImplementedError: the cache is quantised or has another layout, such as NZ, or the NPU kernel cannot
            read it.

    Example:
        >>> import torch
        >>> cache = torch.arange(2 * 1 * 4 * 32).view(2, 1, 4, 32).half()
        >>> keys, values, _ = view_pages(cache, Layout.COLUMN_KEYS, 1, 16)
        >>> keys.shape, keys[1, 0, 0, :2].tolist(), values[1, 0, 0, :2].tolist()
        (torch.Size([2, 1, 4, 16]), [128.0, 132.0], [192.0, 193.0])
    """
    parts = _parts(kv_cache, layout)
    heads_at, width = (2 if layout is Layout.SPLIT else 1), (head_dim if layout.is_split else 2 * head_dim)
    expected = f"{layout.value} with Hkv {num_key_value_heads} and D {head_dim}"
    dtypes = DTYPES if antiquant is None else (torch.int8,)
    for part in parts:
        fits = part.dim() == 4 and (part.shape[heads_at], part.shape[3]) == (num_key_value_heads, width)
        if not fits or part.dtype not in dtypes or (part.shape, part.dtype) != (parts[0].shape, parts[0].dtype):
            got = " and ".join(f"{list(each.shape)} of {each.dtype}" for each in parts)
            raise TopThetaNotImplementedError("kv_cache", expected, got, _REMEDY)
        if (found := _format(part)) not in _BASE_FORMATS:
            raise TopThetaNotImplementedError("kv_cache", expected, f"the private format {found} (29 is NZ)", _REMEDY)
    if layout.is_split:
        keys, values = (part if heads_at == 1 else part.transpose(1, 2) for part in parts)
    else:
        keys, values = _column_keys(parts[0], head_dim)
    pages = Pages(keys, values, antiquant)
    if pages.keys.device.type == NPU:
        check_kernel_reads(pages)
    return pages


def check_kernel_reads(pages: Pages) -> None:
    """Check that the NPU kernel can step through pages as they lie.

    Raises:
        TopThetaNotImplementedError: it cannot, and would need a copy of the cache.
    """
    for name, cache in (("keys", pages.keys), ("values", pages.values)):
        *outer, last = cache.stride()
        step = KERNEL_STEP * 2 // cache.element_size()  # 32 bytes
        if cache.dtype not in KERNEL_DTYPES and pages.antiquant is None:
            raise _unread(name, "float16 or bfloat16", str(cache.dtype), "serve with dtype='bfloat16' or 'float16'")
        if cache.shape[2] % KERNEL_STEP or cache.shape[2] > KERNEL_PAGE_ROWS:
            expected = f"pages of a multiple of {KERNEL_STEP} rows up to {KERNEL_PAGE_ROWS}"
            raise _unread(name, expected, str(cache.shape[2]), "set block_size=128")
        if cache.shape[3] % step:
            expected = f"rows of a multiple of {step} elements"
            raise _unread(name, expected, str(cache.shape[3]), "leave Top-Theta out")
        if last != 1 or any(size > 1 and stride % step for size, stride in zip(cache.shape, outer, strict=False)):
            expected = f"elements of a row side by side, and strides that are multiples of {step}"
            raise _unread(name, expected, f"strides {list(cache.stride())}", _REMEDY)


def _parts(kv_cache: Any, layout: Layout) -> list[Tensor]:
    """List the tensors of a cache, as many as the layout has."""
    if isinstance(kv_cache, Tensor):
        stacked = layout.is_split and kv_cache.dim() > 0 and kv_cache.shape[0] == 2
        parts = list(kv_cache.unbind()) if stacked else [kv_cache]
    else:
        parts = list(kv_cache or ())
    if len(parts) != (2 if layout.is_split else 1):
        got = f"{len(parts)}: {', '.join(str(list(part.shape)) for part in parts)}" if parts else "none"
        expected = "two tensors, of K and of V" if layout.is_split else "one tensor"
        raise TopThetaNotImplementedError("kv_cache", f"{expected} ({layout.value})", got, _REMEDY)
    return parts


def _format(part: Tensor) -> int:
    if part.device.type != NPU:
        return -1
    import torch_npu

    return int(torch_npu.get_npu_format(part))


def _column_keys(cache: Tensor, head_dim: int) -> tuple[Tensor, Tensor]:
    blocks, heads, rows, width = cache.shape
    if cache.stride(3) != 1 or (rows > 1 and cache.stride(2) != width):
        raise TopThetaNotImplementedError(
            "kv_cache", f"{Layout.COLUMN_KEYS.value}, without gaps in a page of a head",
            f"{list(cache.shape)} with strides {list(cache.stride())}",
            "unset VLLM_KV_CACHE_LAYOUT, or leave Top-Theta out",
        )  # fmt: skip
    outer = cache.stride()[:2]
    columns = cache.as_strided((blocks, heads, rows, head_dim), (*outer, 1, rows))
    first_value = cache.storage_offset() + rows * head_dim
    values = cache.as_strided((blocks, heads, rows, head_dim), (*outer, head_dim, 1), first_value)
    return columns, values


def _unread(name: str, expected: str, got: str, remedy: str) -> TopThetaNotImplementedError:
    return TopThetaNotImplementedError(f"kv_cache ({name})", f"{expected} on an NPU, read as they lie", got, remedy)
