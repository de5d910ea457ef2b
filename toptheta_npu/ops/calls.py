"""The bodies of the public functions: check the arguments once, then run the registered operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from .._checks import NPU
from ..cpu.direct import CallCache
from ..fallback import Partial
from ..fallback.arguments import OPERATORS, Arguments
from ..fallback.schemas import giving_arguments
from ..npu.backend import NPU_SELECTOR
from . import registration  # noqa: F401 (what is called below)
from .checks import check, refuse_unknown

#: Each operator, called with checked arguments.
RUN = {name: giving_arguments(name, getattr(torch.ops.toptheta_npu, name).default) for name in OPERATORS}
#: Calls that have passed the checks and the dispatcher before.
DIRECT = {name: CallCache(name) for name in ("incremental_attention", "incremental_attention_with_stats")}
_Call = Callable[[Arguments, Mapping[str, object]], Any]


def on_whole_rows(operator: str) -> _Call:
    """Make the body of an operator on whole rows: it takes the arguments as given, and unknown ones."""
    direct = DIRECT[operator]

    def call(given: Arguments, unknown: Mapping[str, object]) -> Any:
        if unknown:
            refuse_unknown("incremental_attention", unknown)
        key = direct.key(given)
        if key is not None:
            found = direct.run(key, given)
            if found is not None:
                return found
        checked = check(given, _runs_npu_kernel)
        result = RUN[operator](checked)
        if key is not None:
            direct.remember(key, checked)
        return result

    return call


def on_part_of_rows(given: Arguments, unknown: Mapping[str, object]) -> Partial:
    """Run the operator on parts of rows with the arguments as given, and refuse unknown ones."""
    if unknown:
        refuse_unknown("incremental_attention_partial", unknown)
    return Partial(*RUN["incremental_attention_partial"](check(given, _runs_npu_kernel, part=True)))


def _runs_npu_kernel(query: torch.Tensor) -> bool:
    """Tell whether a call runs the NPU kernel; load it if so.

    Nothing is loaded while torch.compile traces; the adapter and the op package repeat the checks.
    """
    if query.is_cpu or query.device.type != NPU:  # the name of a device takes long to make
        return False
    return not torch.compiler.is_compiling() and NPU_SELECTOR.uses_kernel()
