"""Computes keys and values of a text once, for several continuations."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import Cache

from ...errors import TopThetaValueError
from ...models.caches.naming import CACHE_ARGUMENT


@dataclass(frozen=True, eq=False)
class Prefix:
    """The keys, values and logits of a text at batch size 1.

    Attributes:
        cache: its keys and values; `to_continue` returns a cache that may be written to.
        logits: float [1, V], after its last token.
    """

    cache: Cache
    logits: Tensor

    def kept_by(self, cache_of: Callable[[DynamicCache], Cache] | None) -> Prefix:
        """Keep the same text in the cache that ``cache_of`` makes of it."""
        return self if cache_of is None else Prefix(cache_of(cast(DynamicCache, self.to_continue())), self.logits)

    def to_continue(self, batch: int = 1) -> Cache:
        """Make a cache for ``batch`` sequences that all begin with the text; what it takes in stays its own."""
        own = copy.copy(self.cache)
        # the layers of a dynamic cache concatenate into new tensors, and those of an `Int8Cache` write behind what is
        # shared, which serves one continuation after the other
        own.layers = [copy.copy(layer) for layer in self.cache.layers]
        layers: list[Any] = own.layers
        for layer in layers if batch > 1 else ():
            layer.keys, layer.values = (each.expand(batch, -1, -1, -1) for each in (layer.keys, layer.values))
        return own

    @property
    def num_bytes(self) -> int:
        """Memory of the keys and values."""
        layers: list[Any] = list(self.cache.layers)
        return sum(int(layer.keys.nbytes + layer.values.nbytes) for layer in layers)


class Prefixes:
    """Dense prefixes for the methods: the first ones stay in memory, the others run again on each use.

    Args:
        model: the model, in evaluation mode.
        texts: tokens of each text.
        limit: memory limit for keys and values, in bytes.
    """

    def __init__(self, model: PreTrainedModel, texts: Sequence[Sequence[int] | Tensor], limit: int) -> None:
        self._texts = texts
        self.kept: list[Prefix] = []
        held = 0
        with torch.inference_mode():
            for text in texts:
                prefix = run_prefix(model, text)
                held += prefix.num_bytes
                if held > limit:
                    break
                self.kept.append(prefix)
        # the model itself is a method's while that runs; a copy of it, with the same weights, is not
        shared: dict[int, Any] = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
        self._dense = copy.deepcopy(model, shared) if len(self.kept) < len(texts) else model

    def __iter__(self) -> Iterator[Prefix]:
        yield from self.kept
        for text in self._texts[len(self.kept) :]:
            yield run_prefix(self._dense, text)


class Likelihood(NamedTuple):
    """Tell how likely a continuation is: in nats, and whether each of its tokens is the most likely one."""

    log_likelihood: float
    greedy: bool


def check_tokens(model: PreTrainedModel, tokens: Sequence[int] | Tensor) -> None:
    """Raise TopThetaValueError for a token that the model has no embedding for."""
    most = int(model.get_input_embeddings().num_embeddings)  # type: ignore[arg-type]
    given = torch.as_tensor(tokens, device="cpu")
    beyond = given[(given < 0) | (given >= most)]
    if len(beyond):
        got = f"token {int(beyond[0])}"
        remedy = "use the model's own tokenizer, or call resize_token_embeddings before the model is saved"
        raise TopThetaValueError("tokenizer", f"tokens from 0 to {most - 1}, which the model embeds", got, remedy)


def run_prefix(model: PreTrainedModel, tokens: Sequence[int] | Tensor, before: Prefix | None = None) -> Prefix:
    """Run a text, after another one if there is one ``before``, the way ``model`` attends now.

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
    check_tokens(model, tokens)
    cache = DynamicCache(config=model.config) if before is None else before.to_continue()
    tokens = torch.as_tensor(tokens, dtype=torch.int64, device=model.device)
    return Prefix(cache, model(tokens[None], **{CACHE_ARGUMENT: cache}, logits_to_keep=1).logits[0])


def score(model: PreTrainedModel, prefix: Prefix, tokens: Sequence[int]) -> Likelihood:
    """Tell how likely ``tokens`` are to follow the prefix."""
    return score_all(model, prefix, [tokens])[0]


def score_all(model: PreTrainedModel, prefix: Prefix, continuations: Sequence[Sequence[int]]) -> list[Likelihood]:
    """Tell how likely each of several continuations is to follow the prefix; those of one length run as one batch."""
    for tokens in continuations:
        check_tokens(model, tokens)
    found: dict[int, Likelihood] = {}
    for length in {len(tokens) for tokens in continuations}:
        places = [place for place, tokens in enumerate(continuations) if len(tokens) == length]
        answers = torch.tensor([list(continuations[place]) for place in places], dtype=torch.int64, device=model.device)
        logits = prefix.logits.expand(len(places), 1, -1)
        if length > 1:
            after = model(answers[:, :-1], **{CACHE_ARGUMENT: prefix.to_continue(len(places))}).logits
            logits = torch.cat([logits.to(after), after], 1)
        answers = answers.to(logits.device)
        each = logits.float().log_softmax(-1).gather(-1, answers[..., None])[..., 0].sum(1)
        greedy = (logits.argmax(-1) == answers).all(1)
        found |= zip(places, map(Likelihood, each.tolist(), greedy.tolist()), strict=True)
    return [found[place] for place in range(len(continuations))]
