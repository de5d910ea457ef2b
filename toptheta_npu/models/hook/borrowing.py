"""What a context changes on a model: its class, that of its attention modules and a name in its configuration.

None of it shows in a copy or a pickle that is made meanwhile: those are of the model as it was before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from .attention import NAME, STATE, LayerState


def sparse_class(original: type[nn.Module]) -> type[nn.Module]:
    """Make a subclass that shows every call to the module's `LayerState` first.

    A forward hook would do the same, and a copy of the module would keep it.
    """

    class Sparsified(original):  # type: ignore[misc, valid-type]
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            state: LayerState | None = self.__dict__.get(STATE)
            if state is not None:  # another thread may be leaving the context
                state.before_forward(args, kwargs)
            return super().__call__(*args, **kwargs)

    return disguised(Sparsified, original)


def disguised(borrowed: type[nn.Module], original: type[nn.Module]) -> type[nn.Module]:
    """Let a subclass pass for ``original``, by its name and in copies and pickles of its modules."""

    def reduce_ex(self: nn.Module, protocol: Any) -> Any:
        # later protocols insist on the object's own class
        reduced: tuple[Any, ...] = original.__reduce_ex__(self, min(protocol, 1))  # type: ignore[assignment]
        make, arguments, state, *rest = reduced
        arguments = tuple(original if argument is borrowed else argument for argument in arguments)
        return make, arguments, {name: value for name, value in state.items() if name != STATE}, *rest

    borrowed.__reduce_ex__ = reduce_ex  # type: ignore[method-assign, assignment]
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


class _LentName(str):
    """Our name in a configuration. Copies and pickles get the original one."""

    original: str | None

    def __deepcopy__(self, memo: Any) -> str | None:
        return self.original

    def __reduce__(self) -> tuple[Any, ...]:
        return (str, (self.original,)) if self.original is not None else (type(None), ())


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
        name = _LentName(NAME)
        name.original = lent.original
        # as transformers itself does: the public property would overwrite the sub-configurations too
        config._attn_implementation_internal = name

    def undo() -> None:
        with _LOCK:
            lent.users -= 1
            if not lent.users:
                config._attn_implementation_internal = lent.original
                del _LENT[id(config)]

    return undo
