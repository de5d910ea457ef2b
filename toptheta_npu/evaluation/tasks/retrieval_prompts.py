"""Makes retrieval prompts in the embedded model's own domain, key-value tables and needles.

A key-value prompt is a dict literal whose end asks for one of its values. A needle prompt is ordinary
library source with one assignment hidden in it, asked for at the end. Names and values belong to one
split each, like the library's modules, so that what a model trained on never serves to evaluate it.

    table = {                          def lookup(self, key):
        "lomeva": 48213,               secret_zuqipo = 90311
        "tikare": 10377,                   return self.data[key]
    }                                  ...
    assert table["lomeva"] ==          assert secret_zuqipo ==

Eight values are offered as answers and the model's log-likelihood chooses, so guessing scores 1 in 8.
"""

from __future__ import annotations

import itertools
import random
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from ...errors import TopThetaValueError
from .. import corpus

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Kind = Literal["key_value", "needle"]

#: How many answers a prompt offers.
CHOICES = 8

_CONSONANTS, _VOWELS = "bdfgklmnprstvz", "aeiou"
_SYLLABLES = 3
_LONGEST_TOKEN = 8  # characters of source per token, more than a window of source has on average
_ATTEMPTS = 64  # cuts of the source tried before a length counts as out of reach
_SOURCE_LINE = 8  # tokens of source that precede a table at least


def draw_name(generator: random.Random, split: corpus.Split) -> str:
    """Draw a pronounceable name of three syllables that belongs to ``split``.

    Example:
        >>> name = draw_name(random.Random(0), "evaluation")
        >>> len(name), corpus.split_of_name(name)
        (6, 'evaluation')
    """
    while True:
        syllables = [generator.choice(_CONSONANTS) + generator.choice(_VOWELS) for _ in range(_SYLLABLES)]
        if corpus.split_of_name(name := "".join(syllables)) == split:
            return name


def draw_value(generator: random.Random, split: corpus.Split) -> str:
    """Draw a number of five digits that belongs to ``split``.

    Example:
        >>> corpus.split_of_name(draw_value(random.Random(0), "train"))
        'train'
    """
    while corpus.split_of_name(value := str(generator.randrange(10_000, 100_000))) != split:
        pass
    return value


def draw_facts(generator: random.Random, split: corpus.Split, count: int) -> dict[str, str]:
    """Draw ``count`` names with a value each; no two names and no two values are equal."""
    facts: dict[str, str] = {}
    values: set[str] = set()
    while len(facts) < count:
        name, value = draw_name(generator, split), draw_value(generator, split)
        if name not in facts and value not in values:
            facts[name] = value
            values.add(value)
    return facts


def draw_source(generator: random.Random, split: corpus.Split, characters: int) -> str:
    """Draw consecutive library source of ``split``, from the start of a random line on."""
    text = _library(split)
    start = text.index("\n", generator.randrange(len(text) - 1)) + 1
    while len(text) < start + characters:
        text += text
    return text[start : start + characters]


def pair_line(name: str, value: str) -> str:
    """Write one line of a table."""
    return f'    "{name}": {value},\n'


def table_text(facts: dict[str, str]) -> str:
    """Write a dict literal of names and values."""
    return "table = {\n" + "".join(pair_line(name, value) for name, value in facts.items()) + "}\n"


def table_query(name: str) -> str:
    """Ask for a value of the table; the answer follows as ``" 48213"``."""
    return f'assert table["{name}"] =='


def needle_line(name: str, value: str) -> str:
    """Write the assignment hidden in source text."""
    return f"secret_{name} = {value}\n"


def needle_query(name: str) -> str:
    """Ask for a hidden assignment; the answer follows as ``" 48213"``."""
    return f"assert secret_{name} =="


@dataclass(frozen=True)
class RetrievalPrompt:
    """A question at the end of a long text, and the values offered as its answer.

    ``tokens`` encode ``text``, after the special tokens that the tokenizer puts before a text; the question starts at
    token ``query_start``. Each choice begins with a space; `choice_tokens` are its tokens.
    """

    kind: Kind
    text: str
    tokens: tuple[int, ...]
    query_start: int
    choices: tuple[str, ...]
    answer: int
    depth: float


class _Question(NamedTuple):
    """What is asked at the end of a text, the right answer and the other choices, and the text around some source."""

    query: str
    value: str
    others: Sequence[str]
    text: Callable[[str], str]


def make_prompt(
    tokenizer: PreTrainedTokenizerBase,
    kind: Kind,
    length: int,
    depth: float = 0.5,
    seed: int = 0,
    split: corpus.Split = "evaluation",
) -> RetrievalPrompt:
    """Make a table with a question about one of its values, or source with a question about a hidden assignment.

    Args:
        tokenizer: tokenizer of the model.
        kind: ``"key_value"`` or ``"needle"``.
        length: exact number of tokens, including special ones; library source fills the prompt up.
        depth: position of the fact, from 0 (the first pair of the table, the start) to 1 (the last, the end).
        seed: seed of the prompt; the same arguments give the same prompt.
        split: split that provides names, values and source.

    Raises:
        TopThetaValueError: ``depth`` is outside 0 to 1, ``split`` is unknown, or ``length`` has no room: a needle needs
            64 tokens, a table eight pairs.

    Example:
        >>> from toptheta_npu.assets import load_tiny_llama
        >>> prompt = make_prompt(load_tiny_llama()[1], "key_value", 256, depth=0.25)
        >>> len(prompt.tokens), len(prompt.choices), prompt.text.count(prompt.choices[prompt.answer])
        (256, 8, 1)
    """
    if not 0 <= depth <= 1:
        raise TopThetaValueError("depth", "0 (the start) to 1 (the end)", str(depth))
    if split not in get_args(corpus.Split):
        raise TopThetaValueError("split", f"one of {', '.join(get_args(corpus.Split))}", repr(split))
    generator = random.Random(f"{kind} {split} {length} {float(depth)} {seed}")
    if kind == "needle":
        question = _needle(generator, length, depth, split)
    else:
        question = _key_value(tokenizer, generator, length, depth, split)
    source = draw_source(generator, split, _LONGEST_TOKEN * length)
    text, tokens = _fit(tokenizer, length, source, question.text)
    if kind == "key_value":  # of which all pairs of the table may be among the choices
        question = question._replace(others=generator.sample(question.others, CHOICES - 1))
    choices = [f" {choice}" for choice in (question.value, *question.others)]
    generator.shuffle(choices)
    start = _question_start(tokenizer, tokens, question.query)
    return RetrievalPrompt(kind, text, tokens, start, tuple(choices), choices.index(f" {question.value}"), depth)


def _key_value(
    tokenizer: PreTrainedTokenizerBase, generator: random.Random, length: int, depth: float, split: corpus.Split
) -> _Question:
    facts = _facts_that_fit(tokenizer, generator, split, length)
    name = list(facts)[round(depth * (len(facts) - 1))]
    table, query = table_text(facts), table_query(name)
    others = [value for value in facts.values() if value != facts[name]]
    return _Question(query, facts[name], others, lambda source: f"{source}\n{table}{query}")


def _needle(generator: random.Random, length: int, depth: float, split: corpus.Split) -> _Question:
    if length < 64:
        raise TopThetaValueError("length", "at least 64 tokens for a needle prompt", str(length))
    (name, value), *others = draw_facts(generator, split, CHOICES).items()
    needle, query = needle_line(name, value), needle_query(name)

    def text(source: str) -> str:
        lines = [0, *(i + 1 for i, character in enumerate(source) if character == "\n")]
        at = min(lines, key=lambda line: abs(line - depth * len(source)))
        return f"{source[:at]}{needle}{source[at:]}\n{query}"

    return _Question(query, value, [other for _, other in others], text)


def prompts_of(
    tokenizer: PreTrainedTokenizerBase,
    kind: Kind,
    lengths: Sequence[int],
    depths: Sequence[float],
    seeds: Sequence[int],
    split: corpus.Split = "evaluation",
) -> Iterator[RetrievalPrompt]:
    """Make a prompt for every length and depth, seed after seed, so that the first ones are of all kinds."""
    for seed, length, depth in itertools.product(seeds, lengths, depths):
        yield make_prompt(tokenizer, kind, length, depth, seed, split)


def choice_tokens(tokenizer: PreTrainedTokenizerBase, prompt: RetrievalPrompt) -> list[list[int]]:
    """Return the tokens of each choice that follow the prompt when both are encoded together.

    Raises:
        TopThetaValueError: the tokenizer encodes the end of the prompt differently when a choice follows, so that the
            prompt and its answer have no likelihood of their own.

    Example:
        >>> from toptheta_npu.assets import load_tiny_llama
        >>> _, tokenizer = load_tiny_llama()
        >>> prompt = make_prompt(tokenizer, "needle", 256)
        >>> tokenizer.decode(choice_tokens(tokenizer, prompt)[prompt.answer]) == prompt.choices[prompt.answer]
        True
    """
    leading, tokens = leading_tokens(tokenizer), list(prompt.tokens)
    wholes: list[list[int]] = _encode(tokenizer, [prompt.text + choice for choice in prompt.choices])
    for choice, whole in zip(prompt.choices, wholes, strict=True):
        if (leading + whole)[: len(tokens)] != tokens or len(leading + whole) == len(tokens):
            end = prompt.text[prompt.text.rindex("\n") + 1 :]
            raise TopThetaValueError(
                "tokenizer", f"one that encodes {end!r} in the same way whether or not {choice!r} follows",
                type(tokenizer).__name__, "use tasks of lm-eval for this model, such as niah_single_1",
            )  # fmt: skip
    return [(leading + whole)[len(tokens) :] for whole in wholes]


@cache
def _library(split: corpus.Split) -> str:
    return "\n".join(text for _, text in corpus.read_split(split))


def leading_tokens(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the special tokens that the tokenizer puts before a text."""
    plain = _encode(tokenizer, "x")
    whole: list[int] = tokenizer("x")["input_ids"]
    return whole[: whole.index(plain[0])]


def _encode(tokenizer: PreTrainedTokenizerBase, text: str | list[str]) -> Any:
    """Encode a text, or each text of a list, without special tokens."""
    return tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]


def _count(tokenizer: PreTrainedTokenizerBase, text: str) -> int:
    return len(_encode(tokenizer, text))


def _facts_that_fit(
    tokenizer: PreTrainedTokenizerBase, generator: random.Random, split: corpus.Split, length: int
) -> dict[str, str]:
    """Draw as many pairs as leave room for a line of source and the question."""
    facts = list(draw_facts(generator, split, length // 8).items())
    question = max((_count(tokenizer, table_query(name)) for name, _ in facts), default=0)
    room = length - len(leading_tokens(tokenizer)) - _SOURCE_LINE - question
    # the largest number of pairs whose table fits
    sizes = range(len(facts) + 1)
    fitting = bisect_right(sizes, room, key=lambda size: _count(tokenizer, table_text(dict(facts[:size])))) - 1
    if fitting < CHOICES:
        raise TopThetaValueError("length", f"room for a table of {CHOICES} pairs", f"{length} tokens")
    return dict(facts[:fitting])


def _fit(
    tokenizer: PreTrainedTokenizerBase, length: int, source: str, compose: Callable[[str], str]
) -> tuple[str, tuple[int, ...]]:
    """Write the text around as much of ``source`` as makes it exactly ``length`` tokens."""
    leading = leading_tokens(tokenizer)
    for start in range(_ATTEMPTS):
        end, excess = len(source), length
        while excess > 0 and end > start:
            text = compose(source[start:end])
            tokens = leading + _encode(tokenizer, text)
            excess = len(tokens) - length
            if excess == 0:
                return text, tuple(tokens)
            # a token has at least one character, so this hardly ever passes the length; if so, start one later
            end -= excess
    raise TopThetaValueError("length", "room for the question", f"{length} tokens")


def _question_start(tokenizer: PreTrainedTokenizerBase, tokens: tuple[int, ...], query: str) -> int:
    """Find the first token of the question; where it shares a token with the text before, that one."""
    alone = tuple(_encode(tokenizer, query))
    if tokens[-len(alone) :] == alone:
        return len(tokens) - len(alone)
    for start in reversed(range(1, len(tokens))):
        if query in tokenizer.decode(list(tokens[start:])):
            return start
    raise TopThetaValueError("tokenizer", f"one whose tokens give back {query!r}", type(tokenizer).__name__)
