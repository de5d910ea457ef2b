"""The machine's C interface: the structs of machine/c_api.cpp and a loaded kernel library."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any


class CArgument(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
        ("bytes", ctypes.c_uint64),
        ("role", ctypes.c_int32),
    )


class COptions(ctypes.Structure):
    _fields_ = (
        ("blocks", ctypes.c_int64),
        ("cores", ctypes.c_int64),
        ("tiling_key", ctypes.c_uint64),
        ("auto_sync", ctypes.c_int32),
        ("checks", ctypes.c_int32),
        ("trace", ctypes.c_int32),
        ("host_threads", ctypes.c_int32),
        ("suppress", ctypes.c_char_p),
        ("defect", ctypes.c_char_p),
    )


class CCost(ctypes.Structure):
    """The constants of machine/cost.h, which documents them."""

    _fields_ = tuple(
        (name, ctypes.c_double)
        for name in (
            "gigahertz",
            "vector_head",
            "gather_mask_repeat",
            "vector_repeat",
            "cube_head",
            "scalar_issue",
            "scalar_ub",
            "scalar_gm_hit",
            "scalar_gm_miss",
            "dma_command",
            "read_latency_cold",
            "read_latency_hot",
            "write_latency",
            "rate_cold",
            "rate_hot",
            "cube_rate_cold",
            "cube_rate_hot",
            "cube_write_rate_hot",
            "shared_cold",
            "shared_hot",
            "queue_depth",
            "sync_all_microseconds",
            "cross_core_flag",
            "launch_microseconds",
            "launch_mixed_microseconds",
            "workspace_in_l2",
            "l2_bytes",
            "scattered_row_bytes",
            "same_address_read",
        )
    )


def cost_constants() -> tuple[str, ...]:
    """List the constants of machine/cost.h, as `KernelRun.timeline` takes them."""
    return tuple(entry[0] for entry in CCost._fields_)


class CTimelineOptions(ctypes.Structure):
    _fields_ = (("hot", ctypes.c_int32), ("bank_conflicts", ctypes.c_int32), ("cost", CCost))


class KernelLibrary:
    """A loaded kernel library with typed functions."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        self.path = path
        text, pointer = ctypes.c_char_p, ctypes.c_void_p
        options, timeline = ctypes.POINTER(COptions), ctypes.POINTER(CTimelineOptions)
        arguments = ctypes.POINTER(CArgument)
        self.launch = self._function("launch", pointer, pointer, arguments, ctypes.c_uint64, options)
        self.error = self._function("error", text, pointer)
        self.report = self._function("report", text, pointer)
        self.timeline = self._function("timeline", text, pointer, timeline)
        self.write_trace = self._function("write_trace", ctypes.c_int, pointer, timeline, text)
        self.cost_of = self._function("cost_of", ctypes.c_int, text, ctypes.POINTER(CCost))
        self.free = self._function("free", None, pointer)

    def _function(self, name: str, result: Any, *arguments: Any) -> Any:
        function = getattr(self._library, f"ascendc_host_{name}")
        function.restype = result
        function.argtypes = arguments
        return function

    def entry(self, name: str) -> int:
        """Find the address of the kernel function `name`; AttributeError if the library has no such function."""
        address = ctypes.cast(getattr(self._library, name), ctypes.c_void_p).value
        assert address is not None
        return address

    def cost(self, overrides: Mapping[str, float], column: str = "expected") -> CCost:
        """Get the constants of a column with `overrides`; TypeError names one that does not exist."""
        cost = CCost()
        if not self.cost_of(column.encode(), ctypes.byref(cost)):
            raise ValueError(f"column: the machine has no constants of that name, got {column!r}")
        known = cost_constants()
        for name, value in overrides.items():
            if name not in known:
                raise TypeError(f"{name}: no such constant of the timeline; there are {', '.join(known)}")
            setattr(cost, name, value)
        return cost


@cache
def load(path: Path) -> KernelLibrary:
    return KernelLibrary(path)
