"""The public operators: checks, one schema for every device, merging of parts, prompts.

Start reading at `decode`; `registration` connects it to the backends.
"""

from ..fallback.schemas import SCHEMAS
from . import registration  # noqa: F401 (what the functions below call)
from .decode import incremental_attention, incremental_attention_partial, incremental_attention_with_stats
from .partials import merge_partials
from .prefill import prefill_attention
from .row_lengths import row_lengths

__all__ = [
    "SCHEMAS",
    "incremental_attention",
    "incremental_attention_partial",
    "incremental_attention_with_stats",
    "merge_partials",
    "prefill_attention",
    "row_lengths",
]
