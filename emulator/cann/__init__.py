"""Stand-ins for CANN's host headers: they run the unmodified operator definition, shape inference and tiling.

No CANN is needed. The definition is recorded instead of compiled into an operator package, so that tests, the
PyTorch adapter and the emulated runtime can be checked against it.

Example:
    >>> from emulator.cann import TensorSpec, run_tiling
    >>> half = lambda *shape: TensorSpec(shape, "float16")
    >>> inputs = {"query": half(6, 8, 1, 128), "key": half(6, 8, 2048, 128), "value": half(6, 8, 2048, 128),
    ...           "threshold": TensorSpec((8,), "float32")}
    >>> result = run_tiling(inputs, {"num_heads": 8, "num_key_value_heads": 8, "scale_value": 0.088})
    >>> result.key, result.block_dim
    (1, 48)
"""

from ..compile_cache import CompileError
from .build import build_library
from .host import (
    OperatorError,
    Platform,
    TensorSpec,
    TilingResult,
    aclnn_signature,
    describe_operator,
    infer_shape,
    operator_library,
    run_tiling,
)
from .tiling_struct import tiling_fields, tiling_struct

__all__ = [
    "CompileError",
    "OperatorError",
    "Platform",
    "TensorSpec",
    "TilingResult",
    "aclnn_signature",
    "build_library",
    "describe_operator",
    "infer_shape",
    "operator_library",
    "run_tiling",
    "tiling_fields",
    "tiling_struct",
]
