"""One tau for all heads, layers and row lengths: a row drops every element whose probability is at most tau."""

from __future__ import annotations

import math
from typing import get_args

from torch import Tensor

from ..._checks import check_choice
from ...fallback.prefill import RowChunk, Selector
from ...fallback.reference import log_sum_exp
from ...thresholds.kinds import Lse
from ...thresholds.uniform import check_tau
from .method import Method
from .selecting import by_selection, selected
from .spec import COMPENSATED, SELECTION, MethodKind, MethodSpec, Option, Setting


def select_probable(tau: float, lse: Lse = "exact") -> Selector:
    """Keep the elements whose probability after the softmax exceeds ``tau``.

    Args:
        tau: from 0, which keeps all, to below 1.
        lse: ``"exact"`` divides by the row's whole denominator, which takes a first pass over K. ``"sampled"``
            estimates it from the first 16 keys, the newest 128 and 256 between.

    Raises:
        TopThetaValueError: a value out of range.
    """
    check_tau(tau)
    check_choice("lse", lse, get_args(Lse))
    bound = math.log(tau) if tau else -math.inf

    def select(chunk: RowChunk) -> Tensor:
        exact = lse == "exact"
        denominator = log_sum_exp(chunk.scores, chunk.learnable_sink) if exact else chunk.sampled_lse()
        return chunk.scores - denominator.unsqueeze(-1) > bound

    return select


def _make(spec: MethodSpec, setting: Setting) -> Method:
    options = spec.options
    rule = by_selection(select_probable(options["tau"], options["lse"]), spec.selection)
    return Method(setting.family, None, lambda model: selected(model, lambda layer: rule, spec.compensation))


KIND = MethodKind(
    "tau", "τ", _make, has_k=False,
    options={
        "tau": Option(1e-3, label="{:g}", always=True), "lse": Option("exact", get_args(Lse), "{} LSE"),
        **COMPENSATED, "selection": SELECTION,
    },
)  # fmt: skip
