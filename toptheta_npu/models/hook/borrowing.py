"""What a context changes on a model: its class, that of its attention modules and a name in its configuration."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from .attention import NAME, STATE, LayerState


def sparse_class(original: type[nn.Module]) -> type[nn.Module]:
    """Make a subclass that shows every call to the module's `LayerState` first, before hooks of the user."""

    class Sparsified(original):  # type: ignore[misc, valid-type]
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            state: LayerState | None = self.__dict__.get(STATE)
            if state is not None:  # in a copy, or another thread may be leaving the context
                state.before_forward(args, kwargs)
            return super().__call__(*args, **kwargs)

    return disguised(Sparsified, original)


def disguised(borrowed: type[nn.Module], original: type[nn.Module]) -> type[nn.Module]:
    """Let a subclass pass for ``original`` by its name, which models write into their configuration."""
    borrowed.__name__, borrowed.__qualname__ = original.__name__, original.__qualname__
    borrowed.__module__, borrowed.__doc__ = original.__module__, original.__doc__
    return borrowed


def patch_class(module: nn.Module, borrowed: type[nn.Module]) -> Callable[[], None]:
    """Make ``module`` one of the class ``borrowed``. Return a function that undoes this."""
    original = type(module)

    def undo() -> None:
        module.__class__ = original

    module.__class__ = borrowed
    return undo


def patch_state(module: nn.Module, sparse: type[nn.Module], state: LayerState) -> Callable[[], None]:
    """Hang ``state`` on ``module``, and make it one of the class ``sparse``. Return a function that undoes this."""
    setattr(module, STATE, state)
    undo_class = patch_class(module, sparse)

    def undo() -> None:
        undo_class()
        delattr(module, STATE)

    return undo


@dataclass
class _Lent:
    """A configuration under our name. Models may share one. The last to leave restores it."""

    config: Any
    original: str | None
    users: int = 0


_LENT: dict[int, _Lent] = {}
_LOCK = threading.Lock()


def patch_name(config: Any) -> Callable[[], None]:
    """Put ``config`` under our name. Return a function that undoes this."""
    with _LOCK:
        lent = _LENT.setdefault(id(config), _Lent(config, config._attn_implementation))
        lent.users += 1
        # as transformers itself does: the public property would overwrite the sub-configurations too
        config._attn_implementation_internal = NAME

    def undo() -> None:
        with _LOCK:
            lent.users -= 1
            if not lent.users:
                config._attn_implementation_internal = lent.original
                del _LENT[id(config)]

    return undo
