"""Training windows: library text, tables that are asked about, and needles in library text.

Every token has a weight in the loss. Library text counts 1, an answer more, and what nobody can predict
(the names and values themselves, and the questions) nothing.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from toptheta_npu.evaluation import corpus
from toptheta_npu.evaluation.tasks import retrieval_prompts

Piece = tuple[str, float]

# tokens of a line with the embedded tokenizer, on average
PAIR_TOKENS, QUERY_TOKENS, NEEDLE_TOKENS = 15, 18, 15


@dataclass(frozen=True)
class Mix:
    """The share of windows of each kind (the rest is library text), and the weight of an answer."""

    key_value: float = 0.0
    needle: float = 0.0
    answer_weight: float = 3.0


def answered(query: str, value: str, weight: float) -> list[Piece]:
    return [(query, 0.0), (f" {value}", weight), ("\n", 0.0)]


def source(tokenizer: PreTrainedTokenizerFast, generator: random.Random, tokens: int) -> Piece:
    """Draw whole lines of library text, at most ``tokens`` tokens long where the first line allows it."""
    text = retrieval_prompts.draw_source(generator, "train", 8 * tokens)
    ends = [end for _, end in tokenizer(text, return_offsets_mapping=True, verbose=False)["offset_mapping"]]
    text = text[: ends[min(tokens, len(ends)) - 1]]
    return text[: text.rfind("\n") + 1] or text + "\n", 1.0


def log_uniform(generator: random.Random, low: float, high: float) -> float:
    return math.exp(generator.uniform(math.log(low), math.log(max(low, high))))


def asked_in_turn(generator: random.Random, names: list[str], count: int) -> list[str]:
    """Draw ``count`` names in random order, each once before any comes twice."""
    rounds = [generator.sample(names, len(names)) for _ in range(count // len(names) + 1)]
    return [name for names in rounds for name in names][:count]


def key_value_pieces(
    tokenizer: PreTrainedTokenizerFast, generator: random.Random, length: int, weight: float
) -> list[Piece]:
    """Draw library text, then tables with questions after each. One window in two has a single large table."""
    lead = int(generator.random() ** 3 * length / 2)
    pieces = [source(tokenizer, generator, lead)] if lead > 16 else []
    room = length * 1.3 - lead
    single = generator.random() < 0.5
    while room > 0:
        share = generator.uniform(0.3, 0.95) if single else log_uniform(generator, 0.02, 0.7)
        facts = retrieval_prompts.draw_facts(generator, "train", max(4, int(room * share / PAIR_TOKENS)))
        pieces.append((retrieval_prompts.table_text(facts), 0.0))
        room -= len(facts) * PAIR_TOKENS
        questions = 1 + int(room / QUERY_TOKENS if single else len(facts) * generator.uniform(0.5, 1.5))
        for name in asked_in_turn(generator, list(facts), max(1, questions)):
            pieces += answered(retrieval_prompts.table_query(name), facts[name], weight)
            room -= QUERY_TOKENS
    return pieces


def needle_pieces(
    tokenizer: PreTrainedTokenizerFast, generator: random.Random, length: int, weight: float
) -> list[Piece]:
    """Draw library text with assignments at random places, asked for in between and at the end."""
    facts = retrieval_prompts.draw_facts(generator, "train", round(log_uniform(generator, 1, length / 64)))
    final = round(log_uniform(generator, 1, 2 * len(facts)))
    middle = round(generator.random() * len(facts))
    used = NEEDLE_TOKENS * len(facts) + QUERY_TOKENS * (final + middle)
    lines = source(tokenizer, generator, max(32, length - used))[0].splitlines(keepends=True)
    places = sorted(generator.randrange(len(lines)) for _ in range(len(facts) + middle))
    hidden, known, pieces, at = list(facts), [], [], 0
    for place in places:
        pieces += [(line, 1.0) for line in lines[at:place]]
        at = place
        if hidden and (not known or generator.random() * (len(facts) + middle) < len(facts)):
            known.append(name := hidden.pop())
            pieces.append((retrieval_prompts.needle_line(name, facts[name]), 0.0))
        else:
            name = generator.choice(known)
            pieces += answered(retrieval_prompts.needle_query(name), facts[name], weight)
    pieces += [(line, 1.0) for line in lines[at:]]
    for name in asked_in_turn(generator, known, final + 2 + length // 256):
        pieces += answered(retrieval_prompts.needle_query(name), facts[name], weight)
    return pieces


def encode(tokenizer: PreTrainedTokenizerFast, pieces: list[Piece], length: int) -> tuple[Tensor, Tensor] | None:
    """Encode the first ``length`` tokens with their weights. None where the text is shorter."""
    encoded = tokenizer("".join(text for text, _ in pieces), return_offsets_mapping=True, verbose=False)
    if len(encoded["input_ids"]) < length:
        return None
    ends = list(accumulate(len(text) for text, _ in pieces))
    weights = [pieces[bisect_right(ends, start)][1] for start, _ in encoded["offset_mapping"][:length]]
    return torch.tensor(encoded["input_ids"][:length]), torch.tensor(weights)


def encode_library(tokenizer: PreTrainedTokenizerFast) -> Tensor:
    """Encode all training modules as int16 tokens, each ended by the end-of-text token."""
    tokens: list[int] = []
    for _, text in corpus.read_split("train"):
        tokens += [*tokenizer(text, verbose=False)["input_ids"], tokenizer.eos_token_id]
    return torch.tensor(tokens, dtype=torch.int16)


def draw_window(
    tokenizer: PreTrainedTokenizerFast, library: Tensor, generator: random.Random, mix: Mix, length: int
) -> tuple[Tensor, Tensor]:
    """Draw one window of a random kind: int64 tokens [length] and float32 weights [length]."""
    kind = generator.random()
    if kind >= mix.key_value + mix.needle:
        start = generator.randrange(len(library) - length)
        return library[start : start + length].long(), torch.ones(length)
    pieces = key_value_pieces if kind < mix.key_value else needle_pieces
    while True:
        if window := encode(tokenizer, pieces(tokenizer, generator, length, mix.answer_weight), length):
            return window
