"""The compiled libraries of this process, one per dtype, loaded when first needed."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from ..errors import TopThetaBackendError
from ..fallback.arguments import FLOAT_TENSORS, TABLE, Arguments
from . import cache, threads
from .build import Library, best_library

DTYPES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}
_VIEW = "Pqqqq"
_SCALES = _VIEW + "q"
_INTEGERS = "Pq"
#: What struct Arguments in source/arguments.h says of each argument, and beside them, in words of 8 bytes.
FIELDS = {
    "sizes": "q" * 6, "query": _VIEW, "key": _VIEW, "value": _VIEW, "threshold": "Pqq",
    "actual_seq_lengths": _INTEGERS + "q", "key_start": _INTEGERS, "block_table": "Pqqq",
    "key_antiquant_scale": _SCALES, "value_antiquant_scale": _SCALES, "actual_query_lengths": _INTEGERS,
    **dict.fromkeys(Arguments._fields[FLOAT_TENSORS], "P"),
    **{name: "d" for name, argument in TABLE.items() if argument.type is float},
    "choices": "q" * 5, "outputs": "P" * 7, "threads": "q", "run_in_parallel": "P",
}  # fmt: skip
_WORDS = "".join(FIELDS.values())
ARGUMENTS = struct.Struct("@" + _WORDS)
#: The words that are addresses: of the tensors in the order of `fallback.arguments.Arguments`, then of the outputs.
POINTERS = tuple(word for word, kind in enumerate(_WORDS) if kind == "P")
# by dtype, and those of other units by their sources and dtype
_LIBRARIES: dict[torch.dtype | tuple[Path, torch.dtype], ctypes.CDLL] = {}
RUN_IN_PARALLEL = threads.run_in_parallel()


def function(dtype: torch.dtype) -> Callable[[bytes], int]:
    """Find the entry point for tensors of this dtype. It takes packed `ARGUMENTS` and returns a status.

    Raises:
        TopThetaBackendError: the library cannot be built or does not fit.
    """
    library = _LIBRARIES.get(dtype) or _library(dtype)
    entry: Callable[[bytes], int] = library.toptheta_incremental_attention
    return entry


def read(tensor: Tensor) -> float:
    """Load all bytes of a contiguous tensor over as many threads as an operator uses, and do nothing else.

    Returns:
        The largest of them as float32 numbers, NaN left out.

    Raises:
        As `function`.
    """
    entry: Callable[..., float] = _library(tensor.dtype).toptheta_read
    return entry(tensor.data_ptr(), tensor.nbytes, threads.thread_count(), RUN_IN_PARALLEL)


def loaded(dtype: torch.dtype) -> ctypes.CDLL:
    """Load the library for tensors of this dtype. Its entry points are those at the end of its C++ unit.

    Raises:
        As `function`.
    """
    return _library(dtype)


def loaded_unit(source: Path, dtype: torch.dtype, declare: Callable[[ctypes.CDLL], None]) -> ctypes.CDLL:
    """Load another unit than the operators for tensors of this dtype. ``declare`` sees it the first time.

    Raises:
        As `function`.
    """
    found = _LIBRARIES.get((source, dtype))
    if found is None:
        found = _open(best_library(DTYPES[dtype], source=source))
        declare(found)
        _LIBRARIES[source, dtype] = found
    return found


def check_size(name: str, expected: int, found: int) -> None:
    """Check that a library takes the arguments that are packed for it.

    Raises:
        TopThetaBackendError: it does not.
    """
    if found != expected:
        remedy = "install toptheta_npu again"
        raise TopThetaBackendError("CPU kernel", f"{name} of {expected} bytes", str(found), remedy)


def _library(dtype: torch.dtype) -> ctypes.CDLL:
    found = _LIBRARIES.get(dtype)
    if found is None:
        found = _LIBRARIES[dtype] = _load(best_library(DTYPES[dtype]))
    return found


def _open(built: Library) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(built.path))
    except OSError as error:
        remedy = f"remove it, or set {cache.VARIABLE} to a folder from which programs may be run"
        raise TopThetaBackendError("CPU kernel", "a library that can be loaded", str(error), remedy) from error


def _load(built: Library) -> ctypes.CDLL:
    library = _open(built)
    size = library.toptheta_size_of_arguments
    size.restype = ctypes.c_int64
    check_size("arguments", ARGUMENTS.size, size())
    step, read = library.toptheta_incremental_attention, library.toptheta_read
    step.argtypes, step.restype = [ctypes.c_char_p], ctypes.c_int32
    read.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]
    read.restype = ctypes.c_float
    ranges, count = library.toptheta_row_ranges, library.toptheta_count
    ranges.argtypes, ranges.restype = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, *[ctypes.c_void_p] * 2], None
    count.argtypes = [*ranges.argtypes, ctypes.c_void_p, ctypes.c_float, ctypes.c_void_p]
    count.restype = None
    pack = library.toptheta_pack_rows
    pack.argtypes, pack.restype = [ctypes.c_char_p], None
    return library
