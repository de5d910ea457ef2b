"""Finds which peft adapters apply in a model, and so which of its tensors count."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from torch import nn

from .settings import digest_of


class Adapted(NamedTuple):
    """The adapters that an adapted layer applies, and the adapters merged into its own weight."""

    applied: tuple[str, ...]
    merged: tuple[str, ...]
    scaling: tuple[float, ...]


def adapted_layers(model: nn.Module) -> dict[str, Adapted]:
    """Find the layers of ``model`` that peft has wrapped, by name; peft itself is not asked."""
    return {
        name: _adapted(module)
        for name, module in model.named_modules()
        if hasattr(module, "base_layer") and hasattr(module, "active_adapters")
    }


def names_that_count(model: nn.Module, names: Iterable[str]) -> dict[str, str]:
    """Leave out adapters that do not apply. A layer without adapters gets the names that it would have without peft.

    Returns:
        The names that count, with the names to use for them.
    """
    layers = adapted_layers(model)
    counted = {}
    for name in names:
        layer, inside = _split(name, layers)
        if layer is None:
            counted[name] = name
        elif inside[0] == "base_layer":
            counted[name] = name if layers[layer].applied else ".".join((layer, *inside[1:]))
        elif len(inside) > 1 and inside[1] in layers[layer].applied:
            counted[name] = name
    return counted


def applied_adapters(model: nn.Module) -> str:
    """Name the adapters that apply, with a digest of where and how strongly; "none" if none applies."""
    layers = {name: layer for name, layer in adapted_layers(model).items() if layer.applied or layer.merged}
    names = sorted({name for layer in layers.values() for name in (*layer.applied, *layer.merged)})
    return f"{', '.join(names)} {digest_of(layers)}" if layers else "none"


def _adapted(module: Any) -> Adapted:
    merged = tuple(getattr(module, "merged_adapters", ()))
    active = () if merged or getattr(module, "disable_adapters", False) else tuple(module.active_adapters)
    known = {
        inner for child in module.children() if isinstance(child, (nn.ModuleDict, nn.ParameterDict)) for inner in child
    }
    applied = tuple(adapter for adapter in active if adapter in known)
    scaling: Mapping[str, float] = getattr(module, "scaling", {})
    return Adapted(applied, merged, tuple(float(scaling.get(adapter, 1.0)) for adapter in applied))


def _split(name: str, layers: Mapping[str, Adapted]) -> tuple[str | None, list[str]]:
    """Split a name into the name of its adapted layer, if any, and the rest."""
    pieces = name.split(".")
    for end in range(len(pieces) - 1, 0, -1):
        if (layer := ".".join(pieces[:end])) in layers:
            return layer, pieces[end:]
    return None, pieces
