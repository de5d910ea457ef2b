"""What other packages put in the place of weights: quantised tensors, as torchao's, and adapted layers, as peft's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel


class Int8Weight(Tensor):
    """Packed numbers and a scale for each row, of which aten knows nothing but how to detach them."""

    @staticmethod
    def __new__(cls, numbers: Tensor, scales: Tensor) -> Int8Weight:
        return Tensor._make_wrapper_subclass(cls, numbers.shape, dtype=scales.dtype, device=numbers.device)

    def __init__(self, numbers: Tensor, scales: Tensor) -> None:
        self.numbers, self.scales = numbers, scales

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["numbers", "scales"], None

    @classmethod
    def __tensor_unflatten__(cls, inner: dict[str, Tensor], *_: Any) -> Int8Weight:
        return cls(inner["numbers"], inner["scales"])

    def multiplied_out(self) -> Tensor:
        return self.numbers.to(self.scales.dtype) * self.scales

    def dequantize(self) -> Tensor:
        return self.multiplied_out()

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is nn.functional.linear:
            return func(args[0], args[1].multiplied_out(), *args[2:], **(kwargs or {}))
        return super().__torch_function__(func, types, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return cls(args[0].numbers, args[0].scales)
        raise NotImplementedError(f"{cls.__name__} dispatch: attempting to run unimplemented operator {func}")


class OpaqueWeight(Int8Weight):
    """One that tells nobody its numbers."""

    def dequantize(self) -> Tensor:
        raise NotImplementedError("no dequantize for OpaqueWeight")


def quantise(model: PreTrainedModel, kind: type[Int8Weight] = Int8Weight) -> PreTrainedModel:
    """Quantise the linear layers of the decoder in place."""
    for module in model.base_model.modules():
        if isinstance(module, nn.Linear):
            scales = module.weight.data.abs().amax(1, keepdim=True) / 127
            numbers = (module.weight.data / scales).round().to(torch.int8)
            module.weight = nn.Parameter(kind(numbers, scales), requires_grad=False)
    return model


class AdaptedLinear(nn.Module):
    """A linear layer with adapters beside it, whose attributes have the names of peft."""

    def __init__(self, base_layer: nn.Linear, adapters: dict[str, int]) -> None:
        super().__init__()
        self.base_layer, self.active_adapters, self.disable_adapters = base_layer, list(adapters)[:1], False
        self.merged_adapters: list[str] = []
        self.scaling = dict.fromkeys(adapters, 1.0)
        self.lora_A, self.lora_B = nn.ModuleDict(), nn.ModuleDict()
        for name, seed in adapters.items():
            torch.manual_seed(seed)
            self.lora_A[name] = nn.Linear(base_layer.in_features, 2, bias=False)
            self.lora_B[name] = nn.Linear(2, base_layer.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base_layer(x)
        for name in () if self.disable_adapters else self.active_adapters:
            out = out + self.lora_B[name](self.lora_A[name](x)) * self.scaling[name]
        return out


def adapt(model: PreTrainedModel, projection: str, **adapters: int) -> list[AdaptedLinear]:
    """Put adapters of these seeds beside a projection of each layer, the first of them active."""
    layers = [AdaptedLinear(getattr(layer.self_attn, projection), adapters) for layer in model.model.layers]
    for layer, adapted in zip(model.model.layers, layers, strict=True):
        setattr(layer.self_attn, projection, adapted.eval())
    return layers
