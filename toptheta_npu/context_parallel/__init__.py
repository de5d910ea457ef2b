"""Context parallelism: decode attention over one sequence whose keys and values are spread over several ranks.

Every rank runs the operator over its own keys. One all-gather per layer merges the results.
"""

from __future__ import annotations

from .attention import context_parallel_attention, context_parallel_attention_with_stats
from .exchange import exchanged_bytes
from .sharding import Sharding

__all__ = [
    "Sharding",
    "context_parallel_attention",
    "context_parallel_attention_with_stats",
    "exchanged_bytes",
]
