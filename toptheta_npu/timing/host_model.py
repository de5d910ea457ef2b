"""The kernel on the host model of a clone, for the shapes of the comparison: modelled times, never a device's.

The clone's module `toptheta_host_model` runs it, which is imported when it is asked for.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from ..errors import TopThetaBackendError, TopThetaValueError
from .inputs import INT8_SCALE, Inputs

#: `run_operator`, `Platform` and `known_constants`, of whoever installs a module of this name.
_MODULE = "toptheta_host_model"


def host_model() -> Any:
    """Import the module that runs the operator on the host model.

    Raises:
        TopThetaBackendError: this Python has none.
    """
    try:
        return importlib.import_module(_MODULE)
    except ModuleNotFoundError as cause:
        raise TopThetaBackendError(
            "model of time", f"the module {_MODULE} of a clone of toptheta_npu", f"no module {cause.name}",
            "type in the clone: pip install -e ./emulator -e ./toptheta_host_model",
        ) from cause  # fmt: skip


def known_constants() -> frozenset[str]:
    """List the names that a set of constants may have."""
    constants: frozenset[str] = host_model().known_constants()
    return constants


def check_names(constants: Mapping[str, float], argument: str) -> None:
    """Refuse a constant that the model does not have.

    Raises:
        TopThetaValueError: naming it.
    """
    unknown = sorted(constants.keys() - known_constants())
    if unknown:
        raise TopThetaValueError(
            argument, "constants of this clone's model (emulator/ascendc/machine/cost.h)", ", ".join(unknown),
            "use the clone that toptheta verify ran in",
        )  # fmt: skip


@dataclass(frozen=True)
class ModelledRun:
    """One call on the host model, whose time can be asked for with any constants."""

    run: Any

    def microseconds(self, cache: Literal["cold", "hot"], constants: Mapping[str, float]) -> float:
        """Compute the modelled time of the call with its launch. Constants not given have the expected values."""
        return float(self.run.timeline(cache, **constants).with_launch)


def run_on_host_model(inputs: Inputs, *, dense: bool = False, cores: tuple[int, int] = (24, 48)) -> ModelledRun:
    """Run the operator on the host model.

    Args:
        inputs: of one shape, on any device; if it has int8 caches, the call is over those.
        dense: threshold -inf in place of those that keep k.
        cores: cube and vector cores of the device.
    """
    module = host_model()
    int8 = bool(inputs.shape.cache)
    key, value = (inputs.int8_layers if int8 else inputs.layers)[0]
    threshold = torch.full_like(inputs.threshold, -torch.inf) if dense else inputs.threshold
    tensors = {
        "query": inputs.query, "key": key, "value": value, "threshold": threshold,
        "actual_seq_lengths": inputs.lengths, "block_table": inputs.block_table,
    }  # fmt: skip
    shape = inputs.shape
    if int8:
        scale = threshold.new_full((shape.num_key_value_heads, shape.head_dim), INT8_SCALE)
        tensors |= {"key_antiquant_scale": scale, "value_antiquant_scale": scale}
    attributes = {
        "num_heads": shape.num_heads, "num_key_value_heads": shape.num_key_value_heads,
        "scale_value": shape.head_dim**-0.5, "block_size": shape.block_size,
    }  # fmt: skip
    result = module.run_operator(
        {name: None if tensor is None else tensor.cpu() for name, tensor in tensors.items()}, attributes,
        platform=module.Platform(vector_cores=cores[1], cube_cores=cores[0]), checks=False,
    )  # fmt: skip
    return ModelledRun(result.run)
