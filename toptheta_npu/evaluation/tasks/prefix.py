"""A text whose keys and values are computed once and continued by several others, one after the other or in threads."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel


@dataclass(frozen=True, eq=False)
class Prefix:
    """What a model made of a text at batch size 1.

    Attributes:
        cache: its keys and values; `to_continue` gives a cache that may be written to.
        logits: float [1, V], after its last token.
    """

    cache: DynamicCache
    logits: Tensor

    def to_continue(self) -> DynamicCache:
        """A cache that begins with the text; what it takes in stays its own."""
        own = copy.copy(self.cache)
        # the layers of a dynamic cache concatenate into new tensors, so the shared ones are never written to
        own.layers = [copy.copy(layer) for layer in self.cache.layers]
        return own

    @property
    def num_bytes(self) -> int:
        """Memory of the keys and values."""
        layers: list[Any] = list(self.cache.layers)
        return sum(int(layer.keys.nbytes + layer.values.nbytes) for layer in layers)


class Likelihood(NamedTuple):
    """How likely a continuation is: in nats, and whether each of its tokens is the most likely one."""

    log_likelihood: float
    greedy: bool


def run_prefix(model: PreTrainedModel, tokens: Sequence[int] | Tensor, before: Prefix | None = None) -> Prefix:
    """Runs a text, after another one if there is one ``before``, the way ``model`` attends now.

    Args:
        tokens: int64 [T].

    Example:
        >>> from toptheta_npu.assets import load_tiny_llama
        >>> model, tokenizer = load_tiny_llama()
        >>> with torch.inference_mode():
        ...     prefix = run_prefix(model, tokenizer("for i in range")["input_ids"])
        ...     [score(model, prefix, tokenizer(text)["input_ids"]).greedy for text in ("(", "import")]
        [True, False]
    """
    cache = DynamicCache(config=model.config) if before is None else before.to_continue()
    tokens = torch.as_tensor(tokens, device=model.device)
    return Prefix(cache, model(tokens[None], past_key_values=cache, logits_to_keep=1).logits[0])


def score(model: PreTrainedModel, prefix: Prefix, tokens: Sequence[int]) -> Likelihood:
    """How likely ``tokens`` are to follow the prefix."""
    answer = torch.tensor(tokens, device=model.device)
    rows = [prefix.logits]
    if len(answer) > 1:
        rows.append(model(answer[None, :-1], past_key_values=prefix.to_continue()).logits[0])
    logits = torch.cat(rows).float()
    answer = answer.to(logits.device)
    each = logits.log_softmax(-1).gather(-1, answer[:, None])
    return Likelihood(each.sum().item(), bool((logits.argmax(-1) == answer).all()))
