"""Changes the attention modules of a model and the name in its configuration for a context."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from ...errors import TopThetaValueError, shown
from .attention import NAME, STATE, LayerState


def patch_state(module: nn.Module, state: LayerState) -> Callable[[], None]:
    """Attach ``state`` to ``module``; it sees calls before the user's hooks. Return a function that undoes this."""
    setattr(module, STATE, state)
    hook = module.register_forward_pre_hook(_show_call, prepend=True, with_kwargs=True)

    def undo() -> None:
        hook.remove()
        delattr(module, STATE)

    return undo


def _show_call(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    state: LayerState | None = module.__dict__.get(STATE)
    if state is not None:  # in a copy, or another thread may be leaving the context
        _check_name(module.config)
        state.before_forward(args, kwargs)


def _check_name(config: Any) -> None:
    """Raise if another attention was chosen meanwhile: transformers would run that one instead of ours."""
    chosen = config._attn_implementation
    if chosen != NAME:
        raise TopThetaValueError(
            "model", f"attention implementation {NAME!r} until the context ends", shown(chosen),
            "leave the sparsify (or other Top-Theta) context before you choose another attention",
        )  # fmt: skip


@dataclass
class _Lent:
    """A configuration under our name. Models may share one. The last to leave restores it."""

    config: Any
    original: str | None
    users: int = 0


_LENT: dict[int, _Lent] = {}
_LOCK = threading.Lock()


def patch_name(config: Any) -> Callable[[], None]:
    """Set our name in ``config``. Return a function that undoes this, unless the name was changed since."""
    with _LOCK:
        lent = _LENT.setdefault(id(config), _Lent(config, config._attn_implementation))
        if config._attn_implementation != NAME:
            lent.original = config._attn_implementation  # the last choice, also if made in another model's context
        lent.users += 1
        # as transformers itself does: the public property would overwrite the sub-configurations too
        config._attn_implementation_internal = NAME

    def undo() -> None:
        with _LOCK:
            lent.users -= 1
            if not lent.users:
                if config._attn_implementation == NAME:
                    config._attn_implementation_internal = lent.original
                del _LENT[id(config)]

    return undo
