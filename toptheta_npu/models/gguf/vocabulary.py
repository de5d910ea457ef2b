"""The vocabulary of a GGUF file, checked: which tokens there are, of which types, and which of them end an answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..._files import file_error
from ...errors import TopThetaNotImplementedError, shown
from .contents import AGAIN, NO_WAY, Contents
from .header import plain, text_of

#: ``tokenizer.ggml.pre`` by the way in which it splits text.
_BYTES = ("gpt-2",)
DIGITS_AND_BYTES = ("smollm", "starcoder", "refact", "command-r")
LLAMA_3 = ("llama-bpe", "llama3", "llama-v3")
QWEN_2 = ("qwen2",)
_KNOWN = (*_BYTES, *DIGITS_AND_BYTES, *LLAMA_3, *QWEN_2)

#: Types of tokens, as gguf.TokenType numbers them.
UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4
_TYPES = range(7)
_PREFIX = "tokenizer.ggml."
_IDS = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
#: What llama.cpp takes where the file has none: of SentencePiece.
_USUAL_IDS = {"bos": 1, "eos": 2, "unk": 0}
#: Tokens at which llama.cpp ends an answer: those that the file names, and those of these texts (llama-vocab.cpp of
#: https://github.com/ggml-org/llama.cpp, special_eog_ids). Files mostly name one.
_ENDS = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")
_TEXTS_OF_ENDS = frozenset({
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>",
    "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>",
    "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>", "<\uff5cend▁of▁sentence\uff5c>", "[e~[",
    "<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]",
    "<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>", "<|file_sep|>",
})  # fmt: skip
#: In a vocabulary with all of the first texts, the second stands in the midst of answers.
_NO_ENDS = (
    ({"<|return|>", "<|call|>"}, "<|end|>"), ({"<|return|>", "<|calls|>"}, "<|end|>"),
    ({"<|flush|>", "<|call|>"}, "<|end|>"), ({"<|flush|>", "<|calls|>"}, "<|end|>"), ({"<|tool_response>"}, "</s>"),
)  # fmt: skip


@dataclass(frozen=True)
class Vocabulary:
    """What a GGUF file says of its tokenizer.

    Attributes:
        kind: "gpt2", of bytes, or "llama", SentencePiece.
        pre: how it splits text.
        tokens: their texts, all different.
        types: of each token.
        merges: pairs of texts; of "gpt2".
        scores: of each token; of "llama".
        ids: of the special tokens that there are: bos, eos, unk, pad.
        ends: tokens that end an answer, the end of the text first.
        first, last: the ids that go before and after every text, if any.
        blank_first: every text gets a blank before it; of "llama".
        chat_template: None if there is none.
    """

    kind: str
    pre: str
    tokens: list[str]
    types: list[int]
    merges: list[tuple[str, str]]
    scores: list[float]
    ids: dict[str, int]
    ends: list[int]
    first: int | None
    last: int | None
    blank_first: bool
    chat_template: str | None

    @property
    def special(self) -> list[int]:
        """Tokens that are found whole in a text and left out of what a user reads."""
        ends = set(self.ends)
        return [token for token, kind in enumerate(self.types) if kind in (UNKNOWN, CONTROL) or token in ends]

    @property
    def whole(self) -> list[int]:
        """All tokens that are found whole in a text."""
        return sorted({*self.special, *(token for token, kind in enumerate(self.types) if kind == USER_DEFINED)})


def read_vocabulary(contents: Contents) -> Vocabulary:
    """Read what the tokenizer is made of.

    Raises:
        TopThetaValueError: something of it is missing, or cannot be.
        TopThetaNotImplementedError: it is of another kind than those that were compared with llama.cpp.
    """
    _check_complete(contents)
    kind, pre = text_of(contents, f"{_PREFIX}model") or "", text_of(contents, f"{_PREFIX}pre") or ""
    _check_known(contents, kind, pre)
    tokens = _tokens(contents)
    types = _numbers(contents, "token_type", len(tokens))
    if wrong := [found for found in types if found not in _TYPES]:
        raise file_error(contents.file, "token types from 0 to 6", str(wrong[0]), AGAIN)
    usual = _USUAL_IDS if kind == "llama" else {}
    ids = {
        name: found
        for name, key in _IDS.items()
        if (found := _id(contents, key, len(tokens), usual.get(name))) is not None
    }
    return Vocabulary(
        kind, pre, tokens, types,
        merges=_merges(contents, set(tokens)) if kind == "gpt2" else [],
        scores=_numbers(contents, "scores", len(tokens)) if kind == "llama" else [],
        ids=ids, ends=_ends(contents, tokens, ids),
        first=_added(contents, "bos", kind == "llama" or pre in LLAMA_3, ids),
        last=_added(contents, "eos", False, ids),
        blank_first=_flag(contents, "add_space_prefix", True),
        chat_template=text_of(contents, "tokenizer.chat_template"),
    )  # fmt: skip


def _check_complete(contents: Contents) -> None:
    needed = [f"{_PREFIX}{name}" for name in ("model", "tokens", "token_type")]
    if needed[0] in contents.values:
        needed.append(f"{_PREFIX}{'merges' if contents.values[needed[0]] == 'gpt2' else 'scores'}")
    if missing := [name for name in needed if name not in contents.values]:
        remedy = "use a GGUF file that has its vocabulary"
        raise file_error(contents.file, "a GGUF file with a tokenizer", f"one without {', '.join(missing)}", remedy)


def _check_known(contents: Contents, kind: str, pre: str) -> None:
    if kind not in ("gpt2", "llama"):
        raise TopThetaNotImplementedError(str(contents.file), "a tokenizer 'gpt2' or 'llama'", shown(kind), NO_WAY)
    if kind == "gpt2" and pre not in _KNOWN:
        expected = f"a pre-tokenizer of {', '.join(_KNOWN)}"
        raise TopThetaNotImplementedError(str(contents.file), expected, shown(pre) if pre else "none", NO_WAY)


def _tokens(contents: Contents) -> list[str]:
    # llama.cpp's name for a token without a text
    tokens = [text or f"[EMPTY_{token}]" for token, text in enumerate(_texts(contents, "tokens"))]
    ids: dict[str, int] = {}
    for token, text in enumerate(tokens):
        if (before := ids.setdefault(text, token)) != token:
            got = f"{shown(text)} as token {before} and as token {token}"
            raise file_error(contents.file, "a vocabulary of different tokens", got, AGAIN)
    return tokens


def _texts(contents: Contents, name: str) -> list[str]:
    found = contents.values[f"{_PREFIX}{name}"]
    if not isinstance(found, list):
        raise file_error(contents.file, f"a list of texts as {_PREFIX}{name}", plain(found), AGAIN)
    return found


def _numbers(contents: Contents, name: str, length: int) -> list[Any]:
    """Return a number for each token."""
    found = contents.values[f"{_PREFIX}{name}"]
    if not isinstance(found, np.ndarray) or len(found) != length or not np.isfinite(found).all():
        got = plain(found)
        if isinstance(found, (list, np.ndarray)) and len(found) != length:
            got = f"{len(found)} for {length} tokens"
        raise file_error(contents.file, f"a number for each token as {_PREFIX}{name}", got, AGAIN)
    numbers: list[Any] = found.tolist()
    return numbers


def _merges(contents: Contents, tokens: set[str]) -> list[tuple[str, str]]:
    merges = []
    for merge in _texts(contents, "merges"):
        left, _, right = merge.partition(" ")
        if not {left, right, left + right} <= tokens:
            expected = f"pairs of tokens, and together a token, as {_PREFIX}merges"
            raise file_error(contents.file, expected, shown(merge), AGAIN)
        merges.append((left, right))
    return merges


def _id(contents: Contents, name: str, tokens: int, usual: int | None = None) -> int | None:
    key = f"{_PREFIX}{name}_token_id"
    if key not in contents.values:
        return usual if usual is not None and usual < tokens else None
    found = contents.values[key]
    if type(found) is not int or not 0 <= found < tokens:
        raise file_error(contents.file, f"one of the {tokens} tokens as {key}", plain(found), AGAIN)
    return found


def _flag(contents: Contents, name: str, usual: bool) -> bool:
    found = contents.values.get(f"{_PREFIX}{name}", usual)
    if type(found) is not bool:
        raise file_error(contents.file, f"true or false as {_PREFIX}{name}", plain(found), AGAIN)
    return found


def _added(contents: Contents, name: str, usual: bool, ids: dict[str, int]) -> int | None:
    if not _flag(contents, f"add_{name}_token", usual):
        return None
    if name not in ids:
        expected = f"a token to add to every text as {_PREFIX}{name}_token_id"
        raise file_error(contents.file, expected, "none", NO_WAY)
    return ids[name]


def _ends(contents: Contents, tokens: list[str], ids: dict[str, int]) -> list[int]:
    named = [ids.get("eos"), *(_id(contents, name, len(tokens)) for name in _ENDS)]
    by_text = [token for token, text in enumerate(tokens) if text in _TEXTS_OF_ENDS]
    ends = list(dict.fromkeys(token for token in (*named, *by_text) if token is not None))
    texts = {tokens[token] for token in ends}
    never = {text for beside, text in _NO_ENDS if beside <= texts}
    return [token for token in ends if tokens[token] not in never]
