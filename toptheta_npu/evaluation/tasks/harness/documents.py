"""Makes the documents of the local lm-eval tasks when a task is loaded: nothing is downloaded or written.

The YAML files in ``tasks`` name these functions. lm-eval calls them with the metadata of the YAML file and of its
`TaskManager`: the tokenizer by name or path (``tokenizer``, ``pretrained`` or ``model``), and what may be changed, such
as ``lengths``.
"""

from __future__ import annotations

import dataclasses
import random
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ....errors import TopThetaValueError
from ... import corpus
from .. import retrieval_prompts
from ..retrieval_prompts import RetrievalPrompt, prompts_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

#: Characters that the line to be guessed has at least, without its indentation.
_LINE = 16
#: How many continuations are offered.
_LINES = 4
_ATTEMPTS = 50  # lines looked at per document before a length counts as out of reach


def key_value(**metadata: Any) -> dict[str, Any]:
    """Make `retrieval_prompts.key_value_prompt` at every length and depth, seed after seed."""
    return _retrieval("key_value", metadata)


def needle(**metadata: Any) -> dict[str, Any]:
    """Make `retrieval_prompts.needle_prompt` at every length and depth, seed after seed."""
    return _retrieval("needle", metadata)


def key_value_token(**metadata: Any) -> dict[str, Any]:
    """Make the same key-value prompts with answers of one token: the first of each value."""
    return _retrieval("key_value", metadata, one_token=True)


def needle_token(**metadata: Any) -> dict[str, Any]:
    """Make the same needle prompts with answers of one token: the first of each value."""
    return _retrieval("needle", metadata, one_token=True)


def next_line(**metadata: Any) -> dict[str, Any]:
    """Show library source, its next line, and three other lines of the same module."""
    tokenizer = _tokenizer(metadata)
    return _dataset(
        document
        for length in metadata["lengths"]
        for document in next_lines(tokenizer, length, metadata["count"] // len(metadata["lengths"]))
    )


def next_lines(tokenizer: PreTrainedTokenizerBase, length: int, count: int) -> Iterator[dict[str, Any]]:
    """Draw ``count`` places in library source after at most ``length`` tokens, and at least seven eighths of them.

    Raises:
        TopThetaValueError: the library has no such places.
    """
    generator = random.Random(f"next line {length}")
    modules = [text for _, text in corpus.read_split("evaluation")]
    seen: set[tuple[str, str]] = set()
    for _ in range(_ATTEMPTS * count):
        if len(seen) == count:
            return
        place = _draw_line(tokenizer, generator, generator.choice(modules), length)
        if place is not None and (key := (place["text"], place["choices"][place["answer"]])) not in seen:
            seen.add(key)
            yield place | {"length": length}
    if len(seen) < count:
        got = f"{len(seen)} of {length} tokens"
        raise TopThetaValueError("lengths", f"{count} places in the library", got, "ask for fewer or shorter ones")


def one_token_choices(tokenizer: PreTrainedTokenizerBase, prompt: RetrievalPrompt) -> RetrievalPrompt:
    """Offer the first tokens of values as choices: the right one, and up to seven that differ from it.

    Raises:
        TopThetaValueError: the tokenizer has less than four tokens that a value can begin with.

    Example:
        >>> from toptheta_npu.assets import load_tiny_llama
        >>> _, tokenizer = load_tiny_llama()
        >>> prompt = one_token_choices(tokenizer, retrieval_prompts.needle_prompt(tokenizer, 256))
        >>> {len(tokens) for tokens in retrieval_prompts.choice_tokens(tokenizer, prompt)}
        {1}
    """
    generator = random.Random(prompt.text)
    answer = prompt.choices[prompt.answer]
    values = _other_values(prompt, generator)
    generator.shuffle(values)
    query = prompt.text[prompt.text.rindex("\n") + 1 :]
    starts = dict.fromkeys(filter(None, (_first_token(tokenizer, query, value) for value in (answer, *values))))
    right = _first_token(tokenizer, query, answer)
    if right is None or len(starts) < _LINES:
        raise TopThetaValueError(
            "tokenizer", f"one with {_LINES} or more tokens such as {answer[:2]!r}, with which a value begins",
            f"{len(starts)}", "use the task without _token in its name",
        )  # fmt: skip
    choices = list(starts)[: retrieval_prompts.CHOICES]
    generator.shuffle(choices)
    return dataclasses.replace(prompt, choices=tuple(choices), answer=choices.index(right))


def _retrieval(kind: retrieval_prompts.Kind, metadata: dict[str, Any], one_token: bool = False) -> dict[str, Any]:
    tokenizer = _tokenizer(metadata)
    prompts = prompts_of(tokenizer, kind, metadata["lengths"], metadata["depths"], range(metadata["seeds"]))
    return _dataset(
        _document(tokenizer, one_token_choices(tokenizer, prompt) if one_token else prompt) for prompt in prompts
    )


def _document(tokenizer: PreTrainedTokenizerBase, prompt: RetrievalPrompt) -> dict[str, Any]:
    retrieval_prompts.choice_tokens(tokenizer, prompt)  # raises where an answer has no tokens of its own
    return {
        "text": prompt.text,
        "choices": list(prompt.choices),
        "answer": prompt.answer,
        "value": prompt.choices[prompt.answer].strip(),
        "length": len(prompt.tokens),
        "depth": prompt.depth,
    }


def _tokenizer(metadata: dict[str, Any]) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    names = [name for key in ("tokenizer", "pretrained", "model") if (name := metadata.get(key))]
    if not names:
        remedy = "pass --model_args pretrained=PATH, or TaskManager(metadata={'tokenizer': PATH})"
        raise TopThetaValueError("metadata", "the tokenizer's name or path", "none", remedy)
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(names[0])
    return tokenizer


def _dataset(documents: Iterable[dict[str, Any]]) -> dict[str, Any]:
    import datasets

    # in memory: datasets that are loaded from files leave copies in the user's cache
    return {"test": datasets.Dataset.from_list(list(documents))}


def _other_values(prompt: RetrievalPrompt, generator: random.Random) -> list[str]:
    """Find values that the prompt's own could be mistaken for: those of its table, or as good as any."""
    if prompt.kind == "key_value":
        found = re.findall(r'^    "\w+":( \d{5}),$', prompt.text, re.MULTILINE)
    else:
        found = [f" {value}" for value in retrieval_prompts.draw_facts(generator, "evaluation", 64).values()]
    return [value for value in found if value != prompt.choices[prompt.answer]]


def _first_token(tokenizer: PreTrainedTokenizerBase, query: str, value: str) -> str | None:
    """Take the beginning of a value that is its first token after the question, also when nothing follows."""
    before, *ends = (
        tokenizer(query + value[:end], add_special_tokens=False)["input_ids"] for end in range(len(value) + 1)
    )
    first = ends[-1][: len(before) + 1]
    return next((value[: end + 1] for end, tokens in enumerate(ends) if tokens == first), None)


def _draw_line(
    tokenizer: PreTrainedTokenizerBase, generator: random.Random, module: str, length: int
) -> dict[str, Any] | None:
    """Draw a line of a module with what precedes it and three others; None where too little does."""
    lines = module.split("\n")
    candidates = [
        index for index, line in enumerate(lines) if len(line.strip()) >= _LINE and index and lines[index - 1].strip()
    ]
    if len(candidates) <= _LINES:
        return None
    index = generator.choice(candidates)
    others = sorted({lines[other] for other in candidates} - {lines[index]})
    text = _text_before(tokenizer, lines[:index], length)
    if text is None or len(others) < _LINES - 1:
        return None
    # a line break belongs to the answer: lm-eval moves white space at the end of a text there anyway
    choices = ["\n" + line for line in (lines[index], *generator.sample(others, _LINES - 1))]
    right = choices[0]
    generator.shuffle(choices)
    return {"text": text, "choices": choices, "answer": choices.index(right)}


def _text_before(tokenizer: PreTrainedTokenizerBase, lines: Sequence[str], length: int) -> str | None:
    """Take the last of ``lines`` that make at most ``length`` tokens; None if these are much fewer."""
    lines = lines[-length:]  # more than fit

    def tokens(start: int) -> int:
        return len(tokenizer("\n".join(lines[start:]), verbose=False)["input_ids"])

    if tokens(0) < length * 7 // 8:
        return None
    start = bisect_left(range(len(lines)), True, key=lambda start: tokens(start) <= length)
    return "\n".join(lines[start:]).rstrip() if tokens(start) >= length * 7 // 8 else None
