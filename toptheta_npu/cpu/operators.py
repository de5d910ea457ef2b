"""The three operators over the native library."""

from __future__ import annotations

import torch
from torch import Tensor

from .._value_checks import check_step_values
from ..fallback.arguments import Arguments
from .library import function
from .plans import Plan, make_plan
from .threads import thread_count

OUTPUT, WITH_STATISTICS, _PARTIAL = range(3)
_DONE, _BAD_VALUES, _OUT_OF_MEMORY = range(3)


def load(dtype: torch.dtype) -> None:
    """Load the library for tensors of a dtype, and build it if need be.

    Raises:
        TopThetaBackendError: it cannot be had.
    """
    function(dtype)


def incremental_attention(arguments: Arguments) -> Tensor:
    """Run one decode step; arguments and result as `toptheta_npu.fallback.incremental_attention`."""
    return run(make_plan(arguments, OUTPUT), arguments)


def incremental_attention_with_stats(arguments: Arguments) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Run `incremental_attention` and return also lse, kept int32 [B, Hq] or [B, Hq, Sq], value_rows [B, Hkv] int32."""
    return run_with_stats(make_plan(arguments, WITH_STATISTICS), arguments)


def incremental_attention_partial(arguments: Arguments) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Run a decode step over a part of the keys. Return (out = N/R float32, m, R, E, kept int32), as the fallback."""
    query, threshold = arguments.query, arguments.threshold
    rows = _shape_of_rows(arguments)
    out, kept = _like(query, torch.float32), threshold.new_empty(rows, dtype=torch.int32)
    maximum, kept_mass, discarded_mass = (threshold.new_empty(rows) for _ in range(3))
    outputs = (
        out.data_ptr(), 0, kept.data_ptr(), 0, maximum.data_ptr(), kept_mass.data_ptr(), discarded_mass.data_ptr()
    )  # fmt: skip
    _call(make_plan(arguments, _PARTIAL), arguments, outputs)
    return out, maximum, kept_mass, discarded_mass, kept


def run(plan: Plan, arguments: Arguments) -> Tensor:
    """Run `incremental_attention` by a plan for such arguments."""
    out = _like(arguments.query)
    _call(plan, arguments, (out.data_ptr(), 0, 0, 0, 0, 0, 0))
    return out


def run_with_stats(plan: Plan, arguments: Arguments) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Run `incremental_attention_with_stats` by a plan for such arguments."""
    query, threshold = arguments.query, arguments.threshold
    rows = _shape_of_rows(arguments)
    # not torch.empty, whose dtype and device are what the process has set
    out, lse = _like(query), threshold.new_empty(rows)
    kept = threshold.new_empty(rows, dtype=torch.int32)
    value_rows = threshold.new_empty((rows[0], arguments.num_key_value_heads), dtype=torch.int32)
    _call(plan, arguments, (out.data_ptr(), lse.data_ptr(), kept.data_ptr(), value_rows.data_ptr(), 0, 0, 0))
    return out, lse, kept, value_rows


def _shape_of_rows(a: Arguments) -> tuple[int, ...]:
    """Return the shape of per-row tensors: [B, Hq], or [B, Hq, Sq] with several tokens."""
    tokens = a.query_tokens
    return (a.query.shape[0], a.num_heads) if tokens == 1 else (a.query.shape[0], a.num_heads, tokens)


def _call(plan: Plan, a: Arguments, outputs: tuple[int, ...]) -> None:
    packed, _copies = plan.pack(a, outputs, thread_count())
    if not check_status(function(a.query.dtype)(packed)):
        check_step_values(a)
        raise AssertionError("the native kernel refused values that pass the checks in Python")


def check_status(status: int) -> bool:
    """Tell whether a call found values that it can work with; where it did not, nothing is written.

    Raises:
        MemoryError: there was no memory for intermediate results.
    """
    if status == _OUT_OF_MEMORY:
        raise MemoryError("the native CPU backend found no memory for its intermediate results")
    return status == _DONE


def _like(query: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    # three times as fast as torch.empty with its shape
    return torch.empty_like(query, dtype=dtype, memory_format=torch.contiguous_format)
