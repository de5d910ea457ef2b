"""Top-Theta attention in pure PyTorch: every other implementation is tested against it.

It is written to be read. Begin with `reference` and `compensation`: one function per equation of the paper.
`arguments` is the table of a decode step's arguments; the operators' schemas are made from it.
`incremental` runs the same steps on a KV cache (`layout`, `scores`) and reads only the V rows that survive.
`partial` merges the parts of a split row. `prefill` applies the rule row by row to a whole prompt.
"""

if __name__ == "fallback":
    # a second name would define every class and function twice
    raise ImportError("fallback: expected the name toptheta_npu.fallback, got fallback; import toptheta_npu.fallback")

from .arguments import Arguments
from .compensation import Compensation
from .incremental import (
    incremental_attention,
    incremental_attention_partial,
    incremental_attention_with_stats,
)
from .partial import Partial, merge_partials
from .prefill import prefill_attention, prefill_attention_with_stats

#: The registered operators by name.
IMPLEMENTATIONS = {
    implementation.__name__: implementation
    for implementation in (
        incremental_attention, incremental_attention_with_stats, incremental_attention_partial,
    )
}  # fmt: skip

__all__ = [
    "IMPLEMENTATIONS",
    "Arguments",
    "Compensation",
    "Partial",
    "incremental_attention",
    "incremental_attention_partial",
    "incremental_attention_with_stats",
    "merge_partials",
    "prefill_attention",
    "prefill_attention_with_stats",
]
