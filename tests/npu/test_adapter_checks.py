"""The arguments of a call on an NPU are checked once, and lists of lengths reach the device once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from tests.cases import CASES
from tests.helpers import make_inputs
from toptheta_npu import incremental_attention, incremental_attention_partial, incremental_attention_with_stats
from toptheta_npu.ops import cache_checks, checks

_CASE = next(case for case in CASES if case.id == "f16-bnsd")


def _named(function: Callable[..., Any]) -> list[str]:
    """What a wrapped check was asked to check."""
    return [call.args[0] for call in function.call_args_list]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "function", [incremental_attention, incremental_attention_with_stats, incremental_attention_partial]
)
def test_arguments_are_checked_once(function: Callable[..., Any]) -> None:
    arguments = make_inputs(_CASE, "npu").arguments
    if function is incremental_attention_partial:
        arguments = {name: arguments[name] for name in ("query", "key", "value", "threshold", "actual_seq_lengths")}
    arguments["actual_seq_lengths"] = arguments["actual_seq_lengths"].tolist()
    function(**arguments)  # loads the adapter
    with (
        mock.patch.object(cache_checks, "check_tensor", wraps=cache_checks.check_tensor) as of_caches,
        mock.patch.object(checks, "as_device_tensor", wraps=checks.as_device_tensor) as of_lists,
        mock.patch.object(checks, "check_threshold", wraps=checks.check_threshold) as of_thresholds,
    ):
        function(**arguments)
    assert _named(of_caches) == ["key", "value"]
    assert _named(of_lists) == ["actual_seq_lengths", "key_start"]
    assert of_thresholds.call_count == 1
