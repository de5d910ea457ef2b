"""Top-Theta attention in Hugging Face transformers models: calibrate once, then `sparsify`.

Needs transformers 5: ``pip install 'toptheta_npu[hf]'``. Works with decoder-only models whose layers
attend to everything before them, such as LLaMA, Mistral and Qwen; in hybrid models such as Gemma 3 the layers
with a sliding window stay dense.
"""

from __future__ import annotations

try:
    import transformers  # noqa: F401
except ImportError as missing:
    raise ImportError("toptheta_npu.models needs transformers 5: pip install 'toptheta_npu[hf]'") from missing

from ..calibration.shards import merge_shards
from .calibrate import calibrate, calibrate_discarded_mass
from .distributed import calibrate_distributed
from .drift import DriftControl
from .fingerprint import folder_fingerprint, model_fingerprint
from .selection import apply_selection
from .sharded_cache import ShardedCache
from .shards import calibrate_shard
from .sparse_run import SparseRun
from .sparsify import DenseDraftsWarning, NothingSparsifiedWarning, sparsify
from .statistics import LayerStatistics, Recording
from .summaries import LayerSummary

__all__ = [
    "DenseDraftsWarning",
    "DriftControl",
    "LayerStatistics",
    "LayerSummary",
    "NothingSparsifiedWarning",
    "Recording",
    "ShardedCache",
    "SparseRun",
    "apply_selection",
    "calibrate",
    "calibrate_discarded_mass",
    "calibrate_distributed",
    "calibrate_shard",
    "folder_fingerprint",
    "merge_shards",
    "model_fingerprint",
    "sparsify",
]
