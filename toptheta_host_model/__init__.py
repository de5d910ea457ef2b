"""The operator of this repository on the emulator: its sources, and the runner that toptheta_npu finds by this name.

Example:
    >>> from emulator.cann import TensorSpec
    >>> half = lambda *shape: TensorSpec(shape, "float16")
    >>> inputs = {"query": half(6, 8, 1, 128), "key": half(6, 8, 2048, 128), "value": half(6, 8, 2048, 128),
    ...           "threshold": TensorSpec((8,), "float32")}
    >>> result = OPERATOR.run_tiling(inputs, {"num_heads": 8, "num_key_value_heads": 8, "scale_value": 0.088})
    >>> result.key, result.block_dim
    (1, 48)
"""

from emulator.cann import Platform

from .incremental_attention import (
    WITHOUT_TILING_POINTERS,
    OperatorRun,
    kernel_for,
    known_constants,
    run_operator,
)
from .sources import KERNEL_SOURCE, OPERATOR, PROJECT_FILE
from .tiling_data import tiling_fields, tiling_struct

__all__ = [
    "KERNEL_SOURCE",
    "OPERATOR",
    "PROJECT_FILE",
    "WITHOUT_TILING_POINTERS",
    "OperatorRun",
    "Platform",
    "kernel_for",
    "known_constants",
    "run_operator",
    "tiling_fields",
    "tiling_struct",
]
