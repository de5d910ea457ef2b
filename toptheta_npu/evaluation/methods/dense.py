"""Dense attention: every element is kept."""

from __future__ import annotations

from ...fallback.prefill import Selector
from .method import Compensation, Method
from .selecting import selected
from .spec import MethodKind


def select_all() -> Selector:
    """Keep everything."""
    return lambda chunk: chunk.visible.expand_as(chunk.scores)


def dense() -> Method:
    """Attend to every element."""
    return Method("dense", None, lambda model: selected(model, lambda layer: select_all(), Compensation("none", False)))


KIND = MethodKind("dense", "dense", make=lambda spec, setting: dense(), has_k=False)
