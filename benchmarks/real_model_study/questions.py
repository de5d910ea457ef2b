"""Questions through the chat template: a number, or a list of numbers, hidden in prose, and eight to choose from."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from benchmarks.real_model_study.texts import CHARACTERS_PER_TOKEN, Document
from toptheta_npu.errors import TopThetaValueError
from toptheta_npu.evaluation.tasks.retrieval_prompts import CHOICES, Kind, RetrievalPrompt, draw_facts

#: Numbers in a list.
_LISTED = 12


@dataclass(frozen=True)
class Place:
    """A question: what kind, at most how many tokens, how deep the fact stands from 0 to 1, and which of several."""

    kind: Kind
    length: int
    depth: float
    seed: int


def places(lengths: Sequence[int], depths: Sequence[float], seeds: int) -> Iterator[Place]:
    """List the questions, seed after seed of a length, so that the first ones are of all kinds."""
    kinds: tuple[Kind, ...] = ("needle", "key_value")
    for length, seed, kind, depth in itertools.product(lengths, range(seeds), kinds, depths):
        yield Place(kind, length, depth, seed)


def question_of(tokenizer: PreTrainedTokenizerBase, place: Place, documents: Sequence[Document]) -> RetrievalPrompt:
    """Write a question, with as much text before it as fits; its choices are the values that are offered.

    Args:
        tokenizer: with a chat template.
        place: the question.
        documents: prose to hide a number in.

    Raises:
        TopThetaValueError: there is no room for a text.
    """
    generator = random.Random(str(place))
    facts = draw_facts(generator, "evaluation", _LISTED)
    values, words = list(facts.values()), _words(generator, place.length, documents)
    least, most = 0, len(words)
    while least < most:
        middle = (least + most + 1) // 2
        fits = len(_tokens(tokenizer, _chat(tokenizer, place, facts, words[:middle])[0])) <= place.length
        least, most = (middle, most) if fits else (least, middle - 1)
    if not least:
        raise TopThetaValueError("length", "room for a text and a question", f"{place.length} tokens")
    whole, asked = _chat(tokenizer, place, facts, words[:least])
    tokens, before = _tokens(tokenizer, whole), _tokens(tokenizer, whole[:asked])
    choices = [f" {value}" for value in (values[0], *generator.sample(values[1:], CHOICES - 1))]
    generator.shuffle(choices)
    # a first token that the question shares with the text belongs to the question
    start = sum(itertools.takewhile(bool, (ours == theirs for ours, theirs in zip(tokens, before, strict=False))))
    answer = choices.index(f" {values[0]}")
    return RetrievalPrompt(place.kind, whole, tuple(tokens), start, tuple(choices), answer, place.depth)


def _chat(
    tokenizer: PreTrainedTokenizerBase, place: Place, facts: dict[str, str], words: Sequence[str]
) -> tuple[str, int]:
    """Write the chat up to the number, and tell where in it the question begins. The first fact is asked for."""
    name = next(iter(facts))
    if place.kind == "needle":
        hidden, what = f"The secret number of {name} is {facts[name]}.", "secret number"
    else:
        lines = sorted(f"{each}: {value}" for each, value in facts.items())
        hidden, what = "\n\n" + "\n".join(lines) + "\n\n", "number"
    at = round(place.depth * len(words))
    text, question = " ".join([*words[:at], hidden, *words[at:]]), f"What is the {what} of {name}?"
    chat = [{"role": "user", "content": f"{text}\n\n{question}"}]
    whole = str(tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True))
    return f"{whole}The {what} of {name} is", whole.rindex(question)


def _words(generator: random.Random, length: int, documents: Sequence[Document]) -> list[str]:
    text = generator.choice(documents).text
    size = min(CHARACTERS_PER_TOKEN * length, len(text))
    start = generator.randrange(len(text) - size + 1)
    return text[start : start + size].split(" ")


def _tokens(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    tokens: list[int] = tokenizer(text, verbose=False)["input_ids"]
    return tokens
