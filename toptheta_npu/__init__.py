"""Top-Theta attention for Ascend NPUs, with a portable fallback.

`incremental_attention` is the decode step; `prefill_attention` applies the same rule to a prompt.
Importing this package imports neither torch_npu nor transformers and initialises no device.
"""

from . import fallback
from .errors import TopThetaError, TopThetaNotImplementedError, TopThetaTypeError, TopThetaValueError
from .operator import (
    incremental_attention,
    incremental_attention_partial,
    incremental_attention_with_stats,
)
from .partials import merge_partials
from .prefill import prefill_attention

__all__ = [
    "TopThetaError",
    "TopThetaNotImplementedError",
    "TopThetaTypeError",
    "TopThetaValueError",
    "fallback",
    "incremental_attention",
    "incremental_attention_partial",
    "incremental_attention_with_stats",
    "merge_partials",
    "prefill_attention",
]

__version__ = "0.1.0"
