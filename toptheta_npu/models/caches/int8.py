"""A transformers cache in int8, which `sparsify` reads without dequantising it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from transformers import DynamicCache, PretrainedConfig
from transformers.cache_utils import Cache, DynamicLayer

from ..._checks import MAX_TOKENS
from ...cpu.int8_rows import pack_rows
from ...errors import TopThetaNotImplementedError, TopThetaTypeError, TopThetaValueError
from ...fallback.antiquant import (
    PER_CHANNEL,
    PER_TOKEN_AND_HEAD,
    dequantise,
    quantise,
    scale_rows,
    token_scale,
)
from ...thresholds import ThresholdTable
from .growing import GrowingLayer
from .naming import CACHE_ARGUMENT

_SCALE_BYTES = 4
_THIS_MODEL = "give the table of this model"


class Int8Cache(Cache):
    """A cache for ``generate`` that keeps keys and values in int8, in about half the memory of 16 bits.

    Within `sparsify`, decode steps and calls that verify drafts pass the int8 numbers and their scales to the operator.
    Nothing is dequantised there. Prompts, and models without `sparsify`, get the whole layer dequantised, including the
    tokens of the call. The result therefore does not depend on the pieces in which a prompt comes. The cache grows
    without copies, like a `GrowingCache`. Beam search, batches, ``crop`` and assisted decoding work.

    Args:
        config: configuration of the model. All its layers must attend to all tokens.
        table: thresholds with scales per channel, as ``toptheta calibrate --kv-cache int8`` stores them. Larger numbers
            are clipped to the largest seen in calibration. None: each row of a KV head has its own scale, stored as
            4 bytes behind its numbers.

    Raises:
        TopThetaTypeError, TopThetaValueError: the table has no scales, or the scales of another model.
        TopThetaNotImplementedError: a layer has a sliding window, keeps other things than keys and values, or reads
            the keys and values of another layer.

    Example:
        >>> import torch
        >>> from toptheta_npu.assets import load_tiny_llama, load_tiny_llama_thresholds
        >>> from toptheta_npu.models import Int8Cache, sparsify
        >>> (model, _), table = load_tiny_llama(), load_tiny_llama_thresholds("pre_softmax")
        >>> prompt, options = torch.arange(600)[None], {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False}
        >>> cache = Int8Cache(model.config)
        >>> with sparsify(model, table, k=64):
        ...     in_16_bits, in_int8 = (model.generate(prompt, **options, cache=c) for c in (None, cache))
        >>> torch.equal(in_16_bits, in_int8), cache.layers[0].keys.dtype
        (True, torch.int8)
    """

    def __init__(self, config: PretrainedConfig, *, table: ThresholdTable | None = None) -> None:
        if not isinstance(config, PretrainedConfig):
            raise TopThetaTypeError(
                "config", "the configuration of a model", type(config).__name__, "pass model.config"
            )
        shared = getattr(config.get_text_config(decoder=True), "num_kv_shared_layers", 0)
        if shared:
            raise TopThetaNotImplementedError(
                "config", "a model whose layers all have keys and values of their own",
                f"{shared} that read those of other layers", "pass DynamicCache()",
            )  # fmt: skip
        layers = DynamicCache(config=config).layers
        scales = _scales(table, layers)
        super().__init__(layers=[Int8Layer(*pair) for pair in scales])

    @classmethod
    def from_dynamic(
        cls, cache: DynamicCache, config: PretrainedConfig, *, table: ThresholdTable | None = None
    ) -> Int8Cache:
        """Make one with the tokens of ``cache``, rounded."""
        made = cls(config, table=table)
        layers: list[Any] = cache.layers
        for number, layer in enumerate(layers):
            made.update(layer.keys, layer.values, number)
        return made


def has_channel_scales(table: ThresholdTable | None) -> bool:
    """Tell whether ``table`` is given and has the static scales of an `Int8Cache`."""
    return table is not None and table.key_cache_scale is not None and table.value_cache_scale is not None


@dataclass(frozen=True)
class Packing:
    """How rows [..., D] are stored in int8: the numbers, then the bytes of the row's own scale if it has one.

    Attributes:
        scale: float32 [Hkv, D], the scales of the channels; None: each row has its own.
    """

    scale: Tensor | None

    @property
    def mode(self) -> int:
        """The number of this kind of scales among the operator's modes."""
        return PER_TOKEN_AND_HEAD if self.scale is None else PER_CHANNEL

    def pack(self, states: Tensor) -> Tensor:
        """Round rows [B, Hkv, n, D] to int8 [B, Hkv, n, D or more]."""
        scale = self.scale
        if scale is not None and states.shape[1::2] != scale.shape:
            expected = f"scales of {list(states.shape[1::2])} channels, as the model has"
            raise TopThetaValueError("table", expected, str(list(scale.shape)), _THIS_MODEL)
        filler = 0 if scale is not None else -states.shape[-1] % _SCALE_BYTES + _SCALE_BYTES
        packed = states.new_empty((*states.shape[:-1], states.shape[-1] + filler), dtype=torch.int8)
        if pack_rows(states, packed, scale):
            return packed
        if scale is not None:
            return quantise(states, scale.to(states.device)[:, None])
        own = token_scale(states)[..., None]
        numbers = quantise(states, own)
        zeros = numbers.new_zeros((*numbers.shape[:-1], filler - _SCALE_BYTES))
        return torch.cat([numbers, zeros, own.contiguous().view(torch.int8)], -1)

    def scales(self, packed: Tensor) -> Tensor:
        """View the scales of packed rows as the operator takes them: [B, Hkv, n], or the channels' scales."""
        if self.scale is not None:
            return self.scale.to(packed.device)
        return packed[..., -_SCALE_BYTES:].view(torch.float32)[..., 0]

    def beside(self, packed: Tensor, head_dim: int) -> Tensor:
        """View the scales so that they broadcast to the rows."""
        return scale_rows(self.scales(packed), self.mode, packed.shape[1], head_dim)


class Int8Layer(GrowingLayer):  # type: ignore[no-untyped-call]
    """One layer of an `Int8Cache`. ``keys`` and ``values`` are packed: [B, Hkv, n, D and more], int8.

    Attributes:
        head_dim: D of keys and of values.
        asked_for_numbers: whether the next update returns int8 numbers instead of dequantised rows. It does so only if
            the tokens are few enough for an operator and follow others.
    """

    def __init__(self, keys: Packing, values: Packing) -> None:
        super().__init__()
        self._packing = keys, values
        self.asked_for_numbers = False
        self.head_dim = 0, 0

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Pack new keys and values [B, Hkv, Q, D] and keep them. Return all, as ``asked_for_numbers`` says."""
        asked, self.asked_for_numbers = self.asked_for_numbers, False
        new = key_states.shape[2]
        if new > 1:
            asked = asked and new <= MAX_TOKENS and bool(self.get_seq_length())
        packed = super().update(*self._packed(key_states, value_states), *args, **kwargs)
        if asked:
            return self._numbers(packed)
        keys, values = (dequantise(numbers, scale).to(key_states.dtype)
                        for numbers, scale in zip(self._numbers(packed), self.scales_beside, strict=True))  # fmt: skip
        return keys, values

    @property
    def scales(self) -> dict[str, Any]:
        """The scales and modes of the numbers, as arguments of the operator."""
        held = cast(Tensor, self.keys), cast(Tensor, self.values)
        (key, value), (key_packing, value_packing) = held, self._packing
        return {
            "key_antiquant_scale": key_packing.scales(key), "key_antiquant_mode": key_packing.mode,
            "value_antiquant_scale": value_packing.scales(value), "value_antiquant_mode": value_packing.mode,
        }  # fmt: skip

    @property
    def scales_beside(self) -> tuple[Tensor, Tensor]:
        """View the scales of keys and of values so that they broadcast to their rows [B, Hkv, n, D]."""
        held = cast(Tensor, self.keys), cast(Tensor, self.values)
        keys, values = (packing.beside(rows, size)
                        for packing, rows, size in zip(self._packing, held, self.head_dim, strict=True))  # fmt: skip
        return keys, values

    def _packed(self, key_states: Tensor, value_states: Tensor) -> tuple[Tensor, Tensor]:
        head_dim = key_states.shape[-1], value_states.shape[-1]
        if self.is_initialized and head_dim != self.head_dim:
            got, expected = (" and ".join(map(str, dims)) for dims in (head_dim, self.head_dim))
            raise TopThetaValueError(
                CACHE_ARGUMENT,
                f"keys and values of {expected} elements, as it holds",
                got,
                "give each model a cache",
            )
        self.head_dim = head_dim
        keys, values = self._packing
        return keys.pack(key_states), values.pack(value_states)

    def _numbers(self, packed: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        key, value = packed
        return key[..., : self.head_dim[0]], value[..., : self.head_dim[1]]


def _scales(table: ThresholdTable | None, layers: Sequence[object]) -> list[tuple[Packing, Packing]]:
    """Find how the keys and the values of each layer are packed."""
    for index, layer in enumerate(layers):
        if type(layer) is not DynamicLayer:
            raise TopThetaNotImplementedError(
                "config", "a model whose layers all attend to every token",
                f"a {type(layer).__name__} as layer {index}", "pass DynamicCache()",
            )  # fmt: skip
    if table is None:
        return [(Packing(None), Packing(None))] * len(layers)
    if not isinstance(table, ThresholdTable):
        raise TopThetaTypeError("table", "a ThresholdTable or None", type(table).__name__)
    if table.key_cache_scale is None or table.value_cache_scale is None:
        remedy = "calibrate with --kv-cache int8, or leave the table out: each row gets a scale of its own"
        raise TopThetaValueError("table", "scales of an int8 cache", "none", remedy)
    if len(table.key_cache_scale) != len(layers):
        expected = f"scales of {len(layers)} layers, as the model has"
        raise TopThetaValueError("table", expected, str(len(table.key_cache_scale)), _THIS_MODEL)
    pairs = zip(table.key_cache_scale, table.value_cache_scale, strict=True)
    return [(Packing(keys), Packing(values)) for keys, values in pairs]
