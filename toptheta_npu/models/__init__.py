"""Top-Theta attention in Hugging Face transformers models: calibrate once, then `sparsify`.

Needs transformers 5; in a clone: ``pip install '.[hf]'``. Works with decoder-only models with full-attention layers,
such as LLaMA, Mistral and Qwen. In hybrid models such as Gemma 3, layers with a sliding window stay dense.
"""

from __future__ import annotations

try:
    import transformers  # noqa: F401
except ImportError as missing:
    raise ImportError("toptheta_npu.models needs transformers 5; in a clone: pip install '.[hf]'") from missing

from .caches.growing import GrowingCache
from .caches.int8 import Int8Cache
from .calibration.cache_scales import calibrate_cache_scales
from .calibration.calibrate import calibrate, calibrate_discarded_mass
from .calibration.find_tau import find_tau
from .fingerprint.model import folder_fingerprint, model_fingerprint
from .gguf.convert import convert_gguf
from .sparse.entering import NotEnteredWarning
from .sparse.run import SparseRun
from .sparse.selection import apply_selection
from .sparse.sparsify import DenseDraftsWarning, NothingSparsifiedWarning, sparsify
from .sparse.statistics import LayerStatistics, Recording
from .sparse.summaries import LayerSummary

__all__ = [
    "DenseDraftsWarning",
    "GrowingCache",
    "Int8Cache",
    "LayerStatistics",
    "LayerSummary",
    "NotEnteredWarning",
    "NothingSparsifiedWarning",
    "Recording",
    "SparseRun",
    "apply_selection",
    "calibrate",
    "calibrate_cache_scales",
    "calibrate_discarded_mass",
    "convert_gguf",
    "find_tau",
    "folder_fingerprint",
    "model_fingerprint",
    "sparsify",
]
