"""What is around the attention modules: the residual stream that a layer adds to, and its output projection."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from ...errors import TopThetaNotImplementedError
from .architecture import attention_modules

#: Names of the output projection in the attention modules of transformers.
_PROJECTIONS = ("o_proj", "out_proj", "c_proj", "dense", "wo")


def output_projection(module: nn.Module) -> Tensor:
    """Return the weight of the output projection of an attention module, float32 [hidden, Hq * D].

    Raises:
        TopThetaNotImplementedError: the module has none of a known name.
    """
    for name in _PROJECTIONS:
        projection = getattr(module, name, None)
        if isinstance(projection, (nn.Linear, Conv1D)):
            weight = projection.weight.detach().float()
            return weight.T if isinstance(projection, Conv1D) else weight
    raise TopThetaNotImplementedError(
        "model", f"attention modules with a linear {', '.join(_PROJECTIONS[:-1])} or {_PROJECTIONS[-1]}",
        type(module).__name__, "use a model such as LLaMA, Mistral or Qwen",
    )  # fmt: skip


class ResidualStream:
    """What every layer reads and adds to, in the call at hand of this thread."""

    def __init__(self) -> None:
        self._here = threading.local()

    def note(self, layer: int, hidden: Tensor) -> None:
        """Remember the stream [B, Q, hidden] before layer ``layer``."""
        self._here.layer, self._here.hidden = layer, hidden.detach()

    def before(self, layer: int) -> Tensor:
        """Return the stream before the layer, [B, Q, hidden].

        Raises:
            TopThetaNotImplementedError: the layer was not seen to begin.
        """
        if getattr(self._here, "layer", None) != layer:
            raise TopThetaNotImplementedError(
                "model", "decoder layers that are given hidden_states", "others", "use a model such as LLaMA or Qwen"
            )
        hidden: Tensor = self._here.hidden
        return hidden


@contextmanager
def residual_stream(model: PreTrainedModel) -> Iterator[ResidualStream]:
    """Watch the residual stream of ``model`` within the context."""
    stream, modules = ResidualStream(), attention_modules(model)
    layer_of = {id(module): index for index, module in enumerate(modules)}

    def watch(index: int) -> Any:
        def note(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            hidden = kwargs.get("hidden_states", args[0] if args else None)
            if isinstance(hidden, Tensor):
                stream.note(index, hidden)

        return note

    with ExitStack() as undo:
        for parent in model.modules():
            for child in parent.children():
                if id(child) in layer_of:
                    hook = parent.register_forward_pre_hook(watch(layer_of[id(child)]), with_kwargs=True)
                    undo.callback(hook.remove)
        yield stream
