"""Dense attention: every element is kept."""

from __future__ import annotations

from ...fallback.prefill import Selector
from .method import Compensation, Method
from .selecting import selected
from .spec import MethodKind, MethodSpec, Setting


def select_all() -> Selector:
    """Keep every element."""
    return lambda chunk: chunk.visible.expand_as(chunk.scores)


def _make(spec: MethodSpec, setting: Setting) -> Method:
    neither = Compensation("none", False)
    return Method(setting.family, None, lambda model: selected(model, lambda layer: select_all(), neither))


KIND = MethodKind("dense", "dense", _make, has_k=False)
