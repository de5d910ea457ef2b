"""Eager calls past PyTorch's dispatcher and the checks: calls that are like one that went through both.

In a model, an operator's Python is cold when its turn comes. Then checks and dispatcher take longer than the kernel
takes for a short row. What they decide follows from shapes, strides, dtypes and options alone, so it is kept. The
native kernel checks the values of each call itself.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import torch

from ..fallback.arguments import CHOICES, TENSORS, Arguments
from . import operators
from .backend import CPU_SELECTOR
from .dispatch_watch import is_watched, plain_keys
from .plans import Plan, make_plan

_MAX_CALLS = 512
_RUNS: dict[str, tuple[int, Callable[[Plan, Arguments], Any]]] = {
    "incremental_attention": (operators.OUTPUT, operators.run),
    "incremental_attention_with_stats": (operators.WITH_STATISTICS, operators.run_with_stats),
}
_COUNTS, _OPTIONS = slice(0, TENSORS.start), slice(CHOICES.start, len(Arguments._fields))
_PLAIN_OPTIONS = {int, float, str, type(None)}


class _Call(NamedTuple):
    num_heads: int
    num_key_value_heads: int
    scale_value: float
    plan: Plan


class CallCache:
    """The calls of one operator that went through checks and dispatcher before."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._native = getattr(operators, name)
        self._result, self._run = _RUNS[name]
        self._calls: dict[Hashable, _Call] = {}

    def key(self, given: Arguments) -> Hashable:
        """Describe all of a call but addresses and values; None where somebody watches calls, or may want to."""
        if torch.compiler.is_compiling() or is_watched():
            return None
        fields: tuple[Any, ...] = given
        parts: list[Hashable] = []
        for tensor in fields[TENSORS]:
            if tensor is None:
                parts.append(None)
                continue
            keys = plain_keys(tensor)
            if not keys or tensor.requires_grad:  # a list of lengths, an error, or a tensor that stands for others
                return None
            parts.append((keys, tensor.dtype, tensor.shape, tensor.stride()))
        options = fields[_COUNTS] + fields[_OPTIONS]
        types = tuple(map(type, options))
        if not _PLAIN_OPTIONS.issuperset(types):
            return None
        return *parts, *options, *types  # with types, since 1 equals True and 1.0

    def run(self, key: Hashable, given: Arguments) -> Any:
        """Run a call that is like one before. None: there was none, or the native kernel does not run now."""
        call = self._calls.get(key)
        if call is None or CPU_SELECTOR.implementation(self._name, given.query.dtype) is not self._native:
            return None
        return self._run(call.plan, Arguments._make((*call[:3], *given[TENSORS.start :])))

    def remember(self, key: Hashable, checked: Arguments) -> None:
        """Keep a call that went through."""
        if CPU_SELECTOR.implementation(self._name, checked.query.dtype) is not self._native:
            return
        if len(self._calls) >= _MAX_CALLS:
            self._calls.clear()
        counts = checked.num_heads, checked.num_key_value_heads, checked.scale_value
        self._calls[key] = _Call(*counts, make_plan(checked, self._result))
