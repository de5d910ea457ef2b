"""Top-Theta attention in pure PyTorch: the semantics that every other implementation is tested against.

Read `reference` first: one dense function per equation of the paper. `incremental` is the same decode
step, reading only the V rows that survive; `prefill` applies the rule row by row to a whole prompt.
"""

if __name__ == "fallback":
    # under a second name every class and function would exist twice
    raise ImportError("fallback: expected the name toptheta_npu.fallback, got fallback; import toptheta_npu.fallback")

from .incremental import (
    incremental_attention,
    incremental_attention_partial,
    incremental_attention_with_stats,
)
from .partial import Partial, merge_partials
from .prefill import prefill_attention, prefill_attention_with_stats

__all__ = [
    "Partial",
    "incremental_attention",
    "incremental_attention_partial",
    "incremental_attention_with_stats",
    "merge_partials",
    "prefill_attention",
    "prefill_attention_with_stats",
]
