"""Caches whose keys lie by columns: the tokens of a page side by side, one element of head_dim after the other."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def by_columns(key: Tensor, layout: str, paged: bool) -> Tensor:
    """The same keys in the same shape, by columns."""
    tokens = 1 if key.dim() == 3 or (layout == "BSND" and not paged) else 2
    return key.movedim(tokens, -1).contiguous().movedim(-1, tokens)


def with_columns(arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments of an operator, their keys by columns."""
    key = by_columns(arguments["key"], arguments["input_layout"], arguments.get("block_table") is not None)
    return arguments | {"key": key}
