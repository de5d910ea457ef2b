"""Stand-ins for CANN's host headers: they run the unmodified operator definition, shape inference and tiling.

No CANN is needed. The definition is recorded instead of compiled into an operator package, so that tests, the
PyTorch adapter and the emulated runtime can be checked against it.
"""

from ..compile_cache import CompileError
from .build import build_library
from .host import (
    Operator,
    OperatorError,
    Platform,
    TensorSpec,
    TilingResult,
)
from .kernel_types import kernel_combinations, kernel_defines

__all__ = [
    "CompileError",
    "Operator",
    "OperatorError",
    "Platform",
    "TensorSpec",
    "TilingResult",
    "build_library",
    "kernel_combinations",
    "kernel_defines",
]
