"""Lists the tensors of a loaded model by name: plain ones, quantised ones, and ones that accelerate offloads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from transformers import PreTrainedModel

from ...errors import TopThetaNotImplementedError, TopThetaValueError, shortened
from .adapters import names_that_count

#: What to do with a model that has no fingerprint.
USE_TAU = "use tau in place of thresholds: it needs no fingerprint"


def entries_of(model: PreTrainedModel) -> dict[str, Any]:
    """List parameters and buffers, and what modules save beside them, such as the packed weights of quantised layers.

    Names are those of the model without adapters where none applies; adapters that do not apply are left out.

    Raises:
        TopThetaNotImplementedError: a module does not tell its weights.
    """
    try:
        # first of all: bitsandbytes takes its layout for CPUs back when it is asked
        saved = model.state_dict(keep_vars=True)
    except NotImplementedError as error:
        raise unreadable("a module that does not save", error) from error
    named = {**dict(model.named_buffers()), **dict(model.named_parameters())}
    known = {id(tensor) for tensor in named.values()}
    entries = named | {name: each for name, each in saved.items() if name not in named and id(each) not in known}
    return {counted: entries[name] for name, counted in names_that_count(model, entries).items()}


def unreadable(what: str, error: Exception | None = None) -> TopThetaNotImplementedError:
    """Make the error for weights whose numbers cannot be read."""
    reason = f" ({shortened(str(error).splitlines()[0])})" if error is not None and str(error) else ""
    return TopThetaNotImplementedError("model", "weights whose numbers can be read", f"{what}{reason}", USE_TAU)


def is_plain(tensor: Tensor) -> bool:
    """Tell whether the tensor holds its own numbers; quantised ones hold packed numbers and scales."""
    return not (tensor.is_quantized or is_traceable_wrapper_subclass(tensor))


def dequantised(name: str, tensor: Tensor) -> Tensor:
    """Return the numbers of a tensor, quantised or not.

    Raises:
        TopThetaNotImplementedError: the numbers of its kind cannot be read.
    """
    if is_plain(tensor):
        return tensor
    try:
        plain = tensor.dequantize()
    except (NotImplementedError, AttributeError, TypeError, RuntimeError) as error:
        raise unreadable(f"{name}, a {type(tensor).__name__}", error) from error
    if not is_plain(plain):
        raise unreadable(f"{name}, a {type(tensor).__name__}")
    return plain


@contextmanager
def fetched(model: PreTrainedModel, name: str, tensor: Tensor) -> Iterator[Tensor]:
    """Yield the tensor within a context, even if accelerate keeps it elsewhere until a layer runs.

    Raises:
        TopThetaValueError: its numbers are nowhere.
    """
    if not tensor.is_meta:
        yield tensor.detach()
        return
    place, _, attribute = name.rpartition(".")
    try:
        module = model.get_submodule(place)
    except AttributeError:  # a part of a quantised weight
        module = None
    if not hasattr(module, "_hf_hook"):  # accelerate's, which fetches the weights for each call
        raise TopThetaValueError(
            "model", "weights in memory, or offloaded by accelerate", "the meta device", "load it fully"
        )
    from accelerate.utils import align_module_device

    with align_module_device(module, execution_device="cpu"):
        yield getattr(module, attribute).detach()
