"""Arrays and tensors as arguments of a kernel: where their bytes are, and what the kernel may do with them."""

from __future__ import annotations

import math
import mmap
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

Role = Literal["in", "out", "inout", "workspace"]
Value: TypeAlias = "npt.NDArray[Any] | torch.Tensor | bytes | int | None"
Argument: TypeAlias = tuple[str, Value, Role]
_MAP_NORESERVE = 0x4000  # of Linux; Python names it from 3.13 on
ROLES: tuple[Role, ...] = ("in", "out", "inout", "workspace")


class ArgumentError(ValueError):
    """A kernel argument that cannot be passed; names it, what was expected, what came and the remedy."""


@dataclass(frozen=True)
class GmBytes:
    """One argument as bytes of the host: `address` may be 0, `owner` keeps the memory alive."""

    name: str
    address: int
    size: int
    role: Role
    owner: object


def sparse_array(shape: int | Sequence[int], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Make a zero array of `shape` whose memory is taken page by page, when it is touched.

    It serves as global memory of many GiB of which a kernel uses little.
    """
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    size = math.prod(shape) * np.dtype(dtype).itemsize
    pages = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
    return np.frombuffer(pages, dtype=dtype, count=math.prod(shape)).reshape(shape)


def gm_memory(arguments: Sequence[Argument]) -> list[GmBytes]:
    """Find the bytes behind each (name, value, role), in order.

    An array may have gaps (strides); it then covers everything from its first to its last element.

    Raises:
        ArgumentError: no such role, a value that cannot have it, or a name that comes twice.
    """
    names = [name for name, _, _ in arguments]
    for name in names:
        if names.count(name) > 1:
            raise ArgumentError(
                f"{name}: expected a name of its own for each argument, got it {names.count(name)} times"
            )
    return [_gm_bytes(argument) for argument in arguments]


def _gm_bytes(argument: Argument) -> GmBytes:
    name, value, role = argument
    if role not in ROLES:
        raise ArgumentError(f"{name}: expected one of the roles {', '.join(ROLES)}, got {role!r}")
    if value is None:
        return GmBytes(name, 0, 0, role, None)
    if isinstance(value, bytes):
        return _from_bytes(name, value, role)
    if isinstance(value, int):
        return _workspace(name, value, role)
    if isinstance(value, np.ndarray):
        return _from_numpy(name, value, role)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _from_torch(name, value, role)
    raise ArgumentError(
        f"{name}: expected a numpy array, a torch tensor, bytes, a number of workspace bytes or None, "
        f"got {type(value).__name__}"
    )


def _from_bytes(name: str, value: bytes, role: Role) -> GmBytes:
    if role != "in":
        raise ArgumentError(f"{name}: bytes cannot be written, so expected the role in, got {role}; pass an array")
    copy = np.frombuffer(bytearray(value), dtype=np.uint8)
    return GmBytes(name, copy.ctypes.data, copy.nbytes, role, copy)


def _workspace(name: str, size: int, role: Role) -> GmBytes:
    if role != "workspace" or size < 0:
        raise ArgumentError(f"{name}: a number stands for that many bytes of workspace, got {size} as {role}")
    memory = sparse_array(size, np.uint8)
    return GmBytes(name, memory.ctypes.data if size else 0, size, role, memory)


def _from_numpy(name: str, value: npt.NDArray[Any], role: Role) -> GmBytes:
    if role != "in" and not value.flags.writeable:
        raise ArgumentError(f"{name}: expected a writeable array for the role {role}; pass a copy")
    if value.dtype.hasobject:
        raise ArgumentError(f"{name}: expected numbers, got dtype {value.dtype}")
    size = _span(name, value.shape, value.strides, value.itemsize, role)
    return GmBytes(name, value.ctypes.data, size, role, value)


def _from_torch(name: str, value: torch.Tensor, role: Role) -> GmBytes:
    if value.device.type != "cpu":
        raise ArgumentError(f"{name}: expected a CPU tensor, got one on {value.device}; call .cpu() first")
    item = value.element_size()
    size = _span(name, tuple(value.shape), [stride * item for stride in value.stride()], item, role)
    return GmBytes(name, value.data_ptr(), size, role, value)


def _span(name: str, shape: Sequence[int], strides: Sequence[int], item: int, role: Role) -> int:
    """Count the bytes from the first to the last element."""
    if 0 in shape:
        return 0
    if any(stride < 0 for stride in strides):
        raise ArgumentError(f"{name}: expected strides that are not negative, got {tuple(strides)}; pass a copy")
    span = item + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))
    if role in ("out", "workspace") and span != item * math.prod(shape):
        raise ArgumentError(
            f"{name}: expected a contiguous array for the role {role}, because what lies between its elements would "
            f"be overwritten, got strides {tuple(strides)}; pass a contiguous array, or use the role inout"
        )
    return span
