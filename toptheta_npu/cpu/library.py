"""The compiled libraries of this process, one per dtype, loaded when first needed."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Any

import torch

from ..errors import TopThetaBackendError
from ..fallback.arguments import FLOAT_TENSORS, TABLE, Arguments
from . import build, cache, threads

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
#: struct PageSumsOfLayer, WrittenRows, and what is behind these and Arguments in DecodingLayer and DecodingRows.
SUMS_OF_LAYER, WRITTEN_ROWS = struct.Struct("@5qP4qP"), struct.Struct("@3qP" + 2 * _INTEGERS + "2qP")
REST_OF_LAYER, REST_OF_ROWS = struct.Struct("@2Pq"), struct.Struct("@2q" + _INTEGERS + "4P")
#: struct RowsToRound.
ROWS_TO_ROUND = struct.Struct("@P8q2P3qP3q")
_SIZE = sum(each.size for each in (ARGUMENTS, SUMS_OF_LAYER, REST_OF_LAYER, WRITTEN_ROWS, REST_OF_ROWS, ROWS_TO_ROUND))
_LIBRARIES: dict[torch.dtype, ctypes.CDLL] = {}
RUN_IN_PARALLEL = threads.run_in_parallel()


def function(dtype: torch.dtype) -> Callable[[bytes], int]:
    """Find the entry point for tensors of this dtype. It takes packed `ARGUMENTS` and returns a status.

    Raises:
        TopThetaBackendError: the library cannot be built or does not fit.
    """
    entry: Callable[[bytes], int] = (_LIBRARIES.get(dtype) or loaded(dtype)).toptheta_incremental_attention
    return entry


def loaded(dtype: torch.dtype) -> ctypes.CDLL:
    """Load the library for tensors of this dtype. Its entry points are those of its C++ unit.

    Raises:
        As `function`.
    """
    found = _LIBRARIES.get(dtype)
    if found is None:
        found = _LIBRARIES[dtype] = _load(str(build.library(DTYPES[dtype])))
    return found


def _load(path: str) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        remedy = f"remove it, or set {cache.VARIABLE} to a folder from which programs may be run"
        raise TopThetaBackendError("CPU kernel", "a library that can be loaded", str(error), remedy) from error
    size = library.toptheta_size_of_structs
    size.restype = ctypes.c_int64
    if size() != _SIZE:
        remedy = "install toptheta_npu again"
        raise TopThetaBackendError("CPU kernel", f"arguments of {_SIZE} bytes", str(size()), remedy)
    packed, address, strides = ctypes.c_char_p, ctypes.c_void_p, [ctypes.c_int64] * 3
    entries: tuple[tuple[Any, list[Any]], ...] = (
        (library.toptheta_incremental_attention, [packed]),
        (library.toptheta_page_sums, [packed, packed, address]),
        (library.toptheta_decode_layer, [packed, packed, address, *strides, address]),
        (library.toptheta_round_rows, [packed]),
    )
    for entry, arguments in entries:
        entry.argtypes, entry.restype = arguments, ctypes.c_int32
    return library
