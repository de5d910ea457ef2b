"""The operators as nodes of a GE graph, for ``torch.compile`` with torchair's backend.

`register` tells torchair how to write each operator; it is called when a graph is wanted, since it needs torchair:

    from toptheta_npu.npu import converter
    converter.register()
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import torch

from ..errors import TopThetaBackendError
from .interface import ATTRIBUTES, INPUTS, OUTPUTS

OPERATOR = "TopThetaIncrementalAttention"
#: Outputs of the definition that each torch operator returns.
RETURNED = {
    "incremental_attention": ("attention_out",),
    "incremental_attention_with_stats": ("attention_out", "lse", "kept", "value_rows"),
    "incremental_attention_partial": ("part_out", "part_maximum", "part_kept_mass", "part_discarded_mass", "kept"),
}


def node_inputs(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Collect the inputs of the node by the definition's names; None where the call has none."""
    return {name: arguments.get(argument) for name, argument in INPUTS.items()}


def node_attributes(operator: str, arguments: Mapping[str, Any], key_sizes: list[Any]) -> dict[str, Any]:
    """Collect the attributes of the node by the definition's names, as Python values.

    Args:
        operator: a key of `RETURNED`.
        arguments: of the torch operator by name, those with defaults filled in.
        key_sizes: the shape of key. Tensors in a GE graph are contiguous, so the strides stay empty.
    """
    paged = arguments.get("block_table") is not None
    filled = {
        "sdc": "exact", "sdc_gamma": 0.0, **arguments, "key_strides": [], "value_strides": [],
        "key_scale_strides": [], "value_scale_strides": [],
        "block_size": int(key_sizes[1 if len(key_sizes) == 3 else 2]) if paged else 0,
        "with_stats": operator == "incremental_attention_with_stats",
        "partial": operator == "incremental_attention_partial",
    }  # fmt: skip
    return {name: filled[name] for name in ATTRIBUTES}


def register() -> None:
    """Register the three operators with torchair.

    Raises:
        TopThetaBackendError: there is no torchair.
    """
    try:
        torchair = importlib.import_module("torchair")
        register_converter = torchair.register_fx_node_ge_converter
    # torch_npu puts a stand-in there that fails at the first use with whatever hindered torchair
    except Exception as error:
        raise TopThetaBackendError(
            "torchair", "it to be importable, for operators in a GE graph", str(error),
            "install the torchair that belongs to torch_npu, or use torch.compile without its backend",
        ) from error  # fmt: skip
    for operator in RETURNED:
        overload = getattr(torch.ops.toptheta_npu, operator).default
        register_converter(overload)(_converter(torchair, operator, overload._schema))


def _converter(torchair: Any, operator: str, schema: Any) -> Any:
    names = [argument.name for argument in schema.arguments]
    defaults = {argument.name: argument.default_value for argument in schema.arguments if argument.has_default_value()}

    def convert(*positional: Any, meta_outputs: Any = None, **keywords: Any) -> Any:
        arguments = {**defaults, **dict(zip(names, positional, strict=False)), **keywords}
        values = node_attributes(operator, arguments, list(arguments["key"].symsize))
        results = torchair.ge.custom_op(
            OPERATOR,
            inputs=node_inputs(arguments),
            attrs={name: getattr(torchair.ge.attr, ATTRIBUTES[name])(value) for name, value in values.items()},
            outputs=list(OUTPUTS),
        )
        by_name = dict(zip(OUTPUTS, results, strict=True))
        chosen = tuple(by_name[name] for name in RETURNED[operator])
        return chosen[0] if len(chosen) == 1 else chosen

    return convert
