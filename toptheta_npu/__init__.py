"""Top-Theta attention for Ascend NPUs, with a portable fallback.

`incremental_attention` is the decode step; `prefill_attention` applies the same rule to a prompt.
Importing this package imports neither torch_npu nor transformers and initialises no device.
"""

# sets the environment in which torch_npu finds the op package; torch below may import torch_npu
from .npu import environment as _environment  # noqa: F401

# isort: split

from . import fallback
from ._backends import use_backend
from ._info import backend_info
from ._version import __version__ as __version__
from ._warnings import SdcWithoutVmcWarning
from .errors import (
    TopThetaBackendError,
    TopThetaError,
    TopThetaNotImplementedError,
    TopThetaTypeError,
    TopThetaValueError,
)
from .ops import (
    incremental_attention,
    incremental_attention_partial,
    incremental_attention_with_stats,
    merge_partials,
    prefill_attention,
    row_lengths,
)
from .thresholds import ThresholdTable

__all__ = [
    "SdcWithoutVmcWarning",
    "ThresholdTable",
    "TopThetaBackendError",
    "TopThetaError",
    "TopThetaNotImplementedError",
    "TopThetaTypeError",
    "TopThetaValueError",
    "backend_info",
    "calibrate",
    "fallback",
    "incremental_attention",
    "incremental_attention_partial",
    "incremental_attention_with_stats",
    "merge_partials",
    "prefill_attention",
    "row_lengths",
    "sparsify",
    "use_backend",
]

# these import transformers, so they come into being when first asked for
_FROM_MODELS = ("calibrate", "sparsify")


def __getattr__(name: str) -> object:
    if name in _FROM_MODELS:
        from . import models

        return getattr(models, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
