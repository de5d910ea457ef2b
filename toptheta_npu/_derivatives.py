"""Derivatives that the operators would lose: tangents, and gradients of tensors that functional transforms wrap.

PyTorch has no public function that tells whether a transform is under way; what is used in its place is the same in all
versions from 2.6 on.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack

import torch
from torch import Tensor
from torch._C import _functorch
from torch.autograd import forward_ad

from .errors import TopThetaNotImplementedError, TopThetaValueError

_DIFFERENTIATING = (_functorch.TransformType.Jvp, _functorch.TransformType.Grad)
_INFERENCE = "the operator is for inference"


def under_transforms() -> bool:
    """Tell whether a call runs within forward-mode differentiation or a functional transform.

    torch.compile is told only of those that differentiate: it breaks its graph there, since it cannot trace the checks.
    """
    if forward_ad._current_level >= 0:
        return True
    if torch.compiler.is_compiling():
        return _transforms_differentiate()
    active: bool = torch._C._are_functorch_transforms_active()
    return active


def _transforms_differentiate() -> bool:
    """Tell whether torch.func.jvp or torch.func.grad is among the transforms under way."""
    stack = _functorch.get_interpreter_stack() or ()
    return any(each.key() in _DIFFERENTIATING for each in stack)


# torch.compile enters the transforms while it traces, and traces anew under others
_transforms_differentiate._dynamo_marked_constant = True  # type: ignore[attr-defined]


def refuse_derivatives(arguments: Iterable[tuple[str, object]]) -> None:
    """Raise TopThetaValueError for a tensor of which somebody wants a derivative. Call it `under_transforms`."""
    for name, tensor in arguments:
        if not isinstance(tensor, Tensor):
            continue
        if has_tangent(tensor):
            raise TopThetaValueError(
                name, f"a tensor without a tangent ({_INFERENCE})", "one of forward-mode differentiation",
                f"pass torch.autograd.forward_ad.unpack_dual({name}).primal, or keep the call out of what is "
                "differentiated",
            )  # fmt: skip
        if torch.is_grad_enabled() and any(each.requires_grad for each in _layers(tensor)):
            raise TopThetaValueError(
                name, f"a tensor that does not require grad ({_INFERENCE})", "one that a transform differentiates",
                f"call it under torch.no_grad() or pass {name}.detach()",
            )  # fmt: skip


def has_tangent(tensor: Tensor) -> bool:
    """Tell whether a tensor carries a tangent, also beneath the wrappers of transforms such as vmap."""
    if forward_ad._current_level < 0:
        return False
    with ExitStack() as undo:
        for each in _layers(tensor):
            _leave_inner_transforms(_functorch.maybe_get_level(each), undo)
            if not _functorch.is_batchedtensor(each) and forward_ad.unpack_dual(each).tangent is not None:
                return True
    return False


def _leave_inner_transforms(level: int, undo: ExitStack) -> None:
    """Leave the transforms inside of ``level``, which hide the tangents of tensors from further out."""
    while (current := _functorch.maybe_current_level()) is not None and current > level:
        undo.callback(_functorch.push_dynamic_layer_stack, _functorch.pop_dynamic_layer_stack())


def refuse_vmap(arguments: Iterable[tuple[str, object]], remedy: str) -> None:
    """Raise TopThetaNotImplementedError for a tensor that torch.func.vmap splits."""
    for name, tensor in arguments:
        if isinstance(tensor, Tensor) and any(map(_functorch.is_batchedtensor, _layers(tensor))):
            raise TopThetaNotImplementedError(name, "a tensor outside torch.func.vmap", "one inside", remedy)


def _layers(tensor: Tensor) -> list[Tensor]:
    """List a tensor and what the wrappers of transforms hold, from the outermost wrapper to the numbers."""
    if torch.compiler.is_compiling():  # which traces tensors without tangents: where this raises, it does not trace
        raise TopThetaNotImplementedError(
            "torch.compile", "a call that nothing differentiates", "differentiation around it",
            "keep it out of what is compiled, or out of what is differentiated",
        )  # fmt: skip
    found = [tensor]
    while _functorch.is_functorch_wrapped_tensor(found[-1]):
        found.append(_functorch.get_unwrapped(found[-1]))
    return found
