"""The kernel's tiling struct for Python, read from the C++ header that defines it."""

from __future__ import annotations

import ctypes
import re
from functools import cache
from typing import Any

from .sources import KERNEL_SOURCE

_HEADER = KERNEL_SOURCE.with_name("top_theta_incremental_attention_tiling_data.h")
_NAME = "TopThetaIncrementalAttentionTilingData"
_STRUCT = re.compile(r"struct (\w+) \{(.*?)\};", re.DOTALL)
_FIELD = re.compile(r"^\s*(\w+) (\w+)(?: : (\d+))?;", re.MULTILINE)


@cache
def tiling_struct() -> type[ctypes.Structure]:
    """Make a `ctypes.Structure` of the same layout as the struct."""
    types: dict[str, Any] = {
        f"{sign}int{bits}_t": getattr(ctypes, f"c_{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)
    } | {"float": ctypes.c_float}
    for name, body in _STRUCT.findall(_HEADER.read_text()):
        fields = [(field, types[kind], *([int(bits)] if bits else [])) for kind, field, bits in _FIELD.findall(body)]
        types[name] = type(name, (ctypes.Structure,), {"_fields_": fields})
    return types[_NAME]  # type: ignore[no-any-return]


def tiling_fields(tiling: bytes) -> dict[str, Any]:
    """Read the fields of a tiling struct by name, those of every call beside the others; strides are dictionaries.

    Raises:
        ValueError: `tiling` has another size than the struct.
    """
    struct = tiling_struct()
    if len(tiling) != ctypes.sizeof(struct):
        raise ValueError(f"tiling: expected {ctypes.sizeof(struct)} bytes, got {len(tiling)}")
    fields = _as_dict(struct.from_buffer_copy(tiling))
    of_every_call: dict[str, Any] = fields.pop("call")
    return of_every_call | fields


def _as_dict(struct: ctypes.Structure) -> dict[str, Any]:
    values = {field[0]: getattr(struct, field[0]) for field in struct._fields_}
    return {name: _as_dict(value) if isinstance(value, ctypes.Structure) else value for name, value in values.items()}
