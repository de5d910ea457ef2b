"""Running a model over calibration texts with an eye on its attention scores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from .._checks import check_int
from ..calibration.row_statistics import take_rows
from ..errors import TopThetaValueError
from .attach import attached, text_config
from .attention import AttentionCall
from .calibration_rows import BlockThreads, SequenceRows, TopK, keep_largest
from .token_sequences import batches_of, can_be_read_twice, sequences_of

#: Token ids: a tensor, a list, a tokenizer's output, or an iterable of those; see `calibrate`.
Sequences = Iterable[Any] | Mapping[str, Any]
#: What a layer passes on: [B, Hq, Q, D].
Attend = Callable[[AttentionCall], Tensor]


class Watch(Protocol):
    """What is to be learnt of the rows, such as a `Calibrator`: any number of threads look, one adds."""

    def look(self, layer: int, scores: Tensor, lengths: Tensor, ranked: Tensor | None = None) -> Any:
        """What rows of a layer say: scores [Hq, rows, S], lengths [rows], and their (k+1)-th largest, if known."""

    def add(self, seen: Any) -> None:
        """Adds it to what is known."""


class CalibrationTexts:
    """The sequences of a calibration, checked one by one; a list or tensor of them at once, beforehand.

    Attributes:
        longest_row: keys of the longest row there will be.
        decode_tokens: tokens to generate after each sequence.
        done, tokens: sequences handed out so far, and their tokens.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        sequences: Sequences,
        longest: int | None,
        decode_tokens: int,
        smallest_k: int,
    ) -> None:
        check_int("decode_tokens", decode_tokens, 0)
        if longest is not None:
            check_int("longest", longest, 1)
        head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
        if decode_tokens and head is None:
            raise TopThetaValueError(
                "decode_tokens", "0 for a model without a language-modelling head", str(decode_tokens),
                "load it with AutoModelForCausalLM",
            )  # fmt: skip
        self._batches = batches_of(sequences)
        self._vocabulary = int(text_config(model).vocab_size)
        self._smallest_k = smallest_k
        self._longest = longest
        self.decode_tokens = decode_tokens
        self.done = self.tokens = 0
        if isinstance(self._batches, (Sequence, Tensor)) or (longest is None and can_be_read_twice(self._batches)):
            self._longest = max(map(len, self._checked()), default=0)
        elif longest is None:
            raise TopThetaValueError(
                "longest", "the most tokens of a sequence, since sequences is an iterator", "None", "or pass a list"
            )
        self.longest_row = (self._longest or 0) + decode_tokens
        if self.longest_row <= smallest_k:
            raise TopThetaValueError(
                "sequences", f"rows longer than k={smallest_k}", str(self.longest_row), "feed longer ones, or lower k"
            )

    def __iter__(self) -> Iterator[Tensor]:
        """Tokens [1, n] of one sequence after the other."""
        for tokens in self._checked():
            yield tokens[None]
            self.done += 1
            self.tokens += len(tokens)

    def _checked(self) -> Iterator[Tensor]:
        for index, batch in enumerate(self._batches):
            for name, tokens in sequences_of(f"sequences[{index}]", batch):
                self._check(name, tokens)
                yield tokens

    def _check(self, name: str, tokens: Tensor) -> None:
        length = len(tokens)
        if length + self.decode_tokens <= self._smallest_k:
            raise TopThetaValueError(
                name, f"more than {self._smallest_k} tokens, the smallest k, since shorter rows are dense",
                f"{length} and {self.decode_tokens} to generate", "leave it out, join it to another, or lower k",
            )  # fmt: skip
        if self._longest is not None and length > self._longest:
            raise TopThetaValueError(name, f"at most longest={self._longest} tokens", str(length), "raise longest")
        low, high = int(tokens.min()), int(tokens.max())
        if low < 0 or high >= self._vocabulary:
            raise TopThetaValueError(
                name, f"tokens from 0 to {self._vocabulary - 1}", str(low if low < 0 else high), "check the tokenizer"
            )


def observe_model(
    model: PreTrainedModel,
    texts: CalibrationTexts,
    rows_of_sequence: Callable[[int, int], Tensor],
    watch: Watch,
    attend_of: Callable[[int], Attend | TopK],
    progress: Callable[[int], None] | None,
) -> None:
    """Runs every text through the model and shows ``watch`` the scores of its chosen rows, layer by layer.

    What is added comes in the order of the rows, whatever the number of threads.
    """
    with BlockThreads() as threads:
        chosen = _Chosen()

        def rule_of(layer: int) -> _ObservingRule | _TopKRule:
            attend = attend_of(layer)
            if isinstance(attend, TopK):
                return _TopKRule(layer, chosen, watch, threads, attend)
            return _ObservingRule(layer, chosen, watch, threads, attend)

        with attached(model, rule_of), torch.no_grad():
            for index, tokens in enumerate(texts):
                chosen.rows = rows_of_sequence(tokens.shape[1] + texts.decode_tokens, index)
                # accelerate leaves offloaded weights on the meta device, and itself moves what goes in
                _run(model, tokens if model.device.type == "meta" else tokens.to(model.device), texts.decode_tokens)
                if progress is not None:
                    progress(index + 1)


class _Chosen:
    """The rows to look at in the sequence at hand, int64 [chosen], ascending."""

    rows: Tensor

    def within(self, sequence: SequenceRows) -> Tensor:
        """Those of one call, counted from its first row."""
        past, span = sequence.past, sequence.key.shape[1]
        rows = self.rows[(self.rows >= past) & (self.rows < span)]
        return rows.to(sequence.query.device) - past


@dataclass(frozen=True)
class _ObservingRule:
    """Shows the chosen rows, and attends by another rule."""

    layer: int
    chosen: _Chosen
    watch: Watch
    threads: BlockThreads
    passes_on: Attend

    def attend(self, call: AttentionCall) -> Tensor:
        sequence = SequenceRows(call)

        def look(rows: Tensor) -> Any:
            return self.watch.look(self.layer, sequence.scores(rows), sequence.lengths(rows))

        blocks = sequence.blocks(self.chosen.within(sequence))
        with _naming_layer(self.layer):
            for seen in self.threads.map(look, blocks, call.query.device):
                self.watch.add(seen)
        return self.passes_on(call)


@dataclass(frozen=True)
class _TopKRule:
    """Shows the chosen rows, and attends to the k largest scores of every row."""

    layer: int
    chosen: _Chosen
    watch: Watch
    threads: BlockThreads
    option: TopK

    def attend(self, call: AttentionCall) -> Tensor:
        sequence = SequenceRows(call, self.option.vmc)
        count, device = call.query.shape[2], call.query.device
        is_chosen = torch.zeros(count, dtype=torch.bool, device=device)
        is_chosen[self.chosen.within(sequence)] = True

        def attend(rows: Tensor) -> tuple[Tensor, Any]:
            scores = sequence.scores(rows)
            keep, ranked = keep_largest(scores, self.option.k)
            out = sequence.attend(rows, scores, keep, self.option.sdc)
            here = is_chosen[rows].nonzero().flatten()
            if len(here) == 0:
                return out, None
            ranked = None if ranked is None else take_rows(ranked, here)
            return out, self.watch.look(self.layer, take_rows(scores, here), sequence.lengths(rows[here]), ranked)

        with _naming_layer(self.layer):
            found = self.threads.map(attend, sequence.blocks(torch.arange(count, device=device)), device)
            for seen in (seen for _, seen in found if seen is not None):
                self.watch.add(seen)
        return torch.cat([out for out, _ in found], 1)[None].to(call.query.dtype)


@contextmanager
def _naming_layer(layer: int) -> Iterator[None]:
    """Scores that are no numbers are an error of the model, which has layers and knows nothing of values and rows."""
    try:
        yield
    except TopThetaValueError as error:
        if error.argument not in ("values", "rows"):
            raise
        remedy = "look for NaN in its weights, or for an overflow: load it in bfloat16 or float32"
        raise TopThetaValueError(f"scores of layer {layer}", "finite elements or -inf", error.got, remedy) from error


def _run(model: PreTrainedModel, tokens: Tensor, decode_tokens: int) -> None:
    if not decode_tokens:
        # without the head: the logits of a whole prompt are large, and nobody reads them
        model.base_model(input_ids=tokens, use_cache=False)
        return
    cache = DynamicCache()
    for _ in range(decode_tokens + 1):
        logits = model(input_ids=tokens, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
        tokens = logits[:, -1].argmax(-1, keepdim=True)
