"""A transformers cache whose keys and values lie on the ranks of a process group, each on one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn, cast

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import DynamicCache, PretrainedConfig
from transformers.cache_utils import Cache, DynamicLayer

from ...context_parallel import Sharding
from ...errors import TopThetaNotImplementedError
from .rows import Rows


class ContextParallelCache(Cache):
    """A cache for ``generate`` within `sparsify`, of which each rank of a process group keeps a share of K and V.

    Every rank runs the whole model with the same input, and in each decode step and layer reads the keys of its own
    share alone: see `context_parallel_attention`. So the tokens are those of one process. Where they are drawn, all
    ranks need the same seed. A prompt is one call, in which each rank has all of its keys. Then come single tokens.
    Beam search works. ``crop`` and statistics do not. Layers with a sliding window are kept whole in
    every rank.

    Args:
        config: of the model.
        interleave: token p lies on rank (p // interleave) % world_size.
        group: a process group with a backend for the device of the model; None: the default one.

    Raises:
        TopThetaTypeError, TopThetaValueError: as `Sharding`; or there is no such process group.

    Example:
        >>> import torch
        >>> from toptheta_npu.assets import load_tiny_llama, load_tiny_llama_thresholds
        >>> from toptheta_npu.models import ContextParallelCache, sparsify
        >>> (model, _), table = load_tiny_llama(), load_tiny_llama_thresholds("pre_softmax")
        >>> prompt, options = torch.arange(600)[None], {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False}
        >>> store = torch.distributed.HashStore()  # torchrun makes this needless
        >>> torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        >>> with sparsify(model, table, k=64):
        ...     whole = model.generate(prompt, **options)
        ...     spread = model.generate(prompt, **options, past_key_values=ContextParallelCache(model.config))
        >>> torch.distributed.destroy_process_group()
        >>> torch.equal(whole, spread)
        True
    """

    def __init__(
        self, config: PretrainedConfig, *, interleave: int = 128, group: dist.ProcessGroup | None = None
    ) -> None:
        sharding = Sharding.of_group(interleave, group)
        layers = DynamicCache(config=config).layers
        super().__init__(
            layers=[ContextParallelLayer(sharding, group) if type(layer) is DynamicLayer else layer for layer in layers]
        )


class ContextParallelLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """One layer: ``keys`` and ``values`` are this rank's share. The length is that of the whole sequence.

    Attributes:
        sharding, group: which keys lie here, and with whom.
    """

    def __init__(self, sharding: Sharding, group: dist.ProcessGroup | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sharding, self.group = sharding, group
        self._length = 0

    @property
    def share(self) -> tuple[Tensor, Tensor]:
        """This rank's keys and values, [B, Hkv, S, D], once there are tokens."""
        return cast(Tensor, self.keys), cast(Tensor, self.values)

    def get_seq_length(self) -> int:
        """Count the tokens of the whole sequence."""
        return self._length

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Keep what belongs here. Return K and V of a prompt, and tensors without content for a step after it."""
        first, new = self._length, key_states.shape[2]
        value_states = value_states.to(key_states.dtype)  # as in a GrowingCache
        if first and new > 1:
            raise TopThetaNotImplementedError(
                "past_key_values",
                "a prompt in one call, then one token per sequence and call, with a ContextParallelCache",
                f"{new} tokens after {first}", "prefill in one piece, and decode without assistance",
            )  # fmt: skip
        if not self.is_initialized:
            self.dtype, self.device = key_states.dtype, key_states.device
            nothing = (*key_states.shape[:2], 0, key_states.shape[3])
            self.keys, self.values = key_states.new_empty(nothing), value_states.new_empty(nothing)
            self.is_initialized = True
        mine = (self.sharding.positions(first, first + new) - first).to(key_states.device)
        if len(mine):
            keys, values = self.share
            self.keys = torch.cat([keys, key_states.index_select(2, mine)], 2)
            self.values = torch.cat([values, value_states.index_select(2, mine)], 2)
        self._length = first + new
        if not first:
            return key_states, value_states
        return _Spread.like(key_states, self._length), _Spread.like(value_states, self._length)

    def local_rows(self, rows: Rows) -> Rows:
        """Find where the valid ones among this rank's keys lie, for the rows of a decode step."""
        held = self.share[0].shape[2]
        if rows.lengths is None:
            host = torch.full((len(rows.counts),), held, dtype=torch.int64, device="cpu")
            return Rows(held, host[:, None].to(rows.counts.device), None, None, host)
        starts = torch.zeros_like(rows.lengths) if rows.starts is None else rows.starts
        first = self.sharding.held(starts)
        lengths = self.sharding.held(starts + rows.lengths) - first
        return Rows(held, lengths[:, None], lengths, first, None)

    def reset(self) -> None:
        """Forget all tokens."""
        self.keys = self.values = None
        self.is_initialized, self._length = False, 0

    def crop(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse to drop tokens."""
        raise TopThetaNotImplementedError(
            "past_key_values", "a cache that is never cropped, as a ContextParallelCache", "crop()",
            "decode without assistance",
        )  # fmt: skip


class _Spread(Tensor):
    """Stands for keys that lie on several ranks: it has their shape, and refuses to be computed with."""

    @staticmethod
    def like(states: Tensor, length: int) -> _Spread:
        batch, heads, _, head_dim = states.shape
        return torch.empty((batch, heads, length, head_dim), dtype=states.dtype, device="meta").as_subclass(_Spread)

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func.__name__ in ("__get__", "size", "dim"):  # its attributes
            return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]
        raise TopThetaNotImplementedError(
            "past_key_values", "a ContextParallelCache within sparsify, whose attention merges the ranks",
            f"{func.__name__} over keys of which this rank has a share", "enter sparsify, or pass DynamicCache()",
        )  # fmt: skip
