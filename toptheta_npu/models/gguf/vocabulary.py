"""The vocabulary of a GGUF file, checked: which tokens there are, of which types, and which of them end an answer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..._files import file_error
from ...errors import TopThetaNotImplementedError, shown
from .contents import AGAIN, NO_WAY, Contents

#: ``tokenizer.ggml.pre`` by the way in which it splits text.
_BYTES = ("gpt-2",)
DIGITS_AND_BYTES = ("smollm", "starcoder", "refact", "command-r")
LLAMA_3 = ("llama-bpe", "llama3", "llama-v3")
QWEN_2 = ("qwen2",)
_KNOWN = (*_BYTES, *DIGITS_AND_BYTES, *LLAMA_3, *QWEN_2)

#: Types of tokens, as gguf.TokenType numbers them.
UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4
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
    found = {name.removeprefix(_PREFIX): value for name, value in contents.values.items() if name.startswith(_PREFIX)}
    kind, pre = found.get("model", ""), found.get("pre", "")
    needed = ("model", "tokens", "token_type", "merges" if kind == "gpt2" else "scores")
    if missing := [f"{_PREFIX}{name}" for name in needed if name not in found]:
        remedy = "use a GGUF file that has its vocabulary"
        raise file_error(contents.file, "a GGUF file with a tokenizer", f"one without {', '.join(missing)}", remedy)
    _check_known(contents.file, kind, pre)
    # llama.cpp's name for a token without a text
    tokens = [text or f"[EMPTY_{token}]" for token, text in enumerate(found["tokens"])]
    ids = _special_ids(contents.file, found, kind, len(tokens))
    adds = {
        "bos": found.get("add_bos_token", kind == "llama" or pre in LLAMA_3), "eos": found.get("add_eos_token", False),
    }  # fmt: skip
    if missing := [f"{_PREFIX}{name}_token_id" for name, added in adds.items() if added and name not in ids]:
        raise file_error(contents.file, f"a token to add to every text as {missing[0]}", "none", NO_WAY)
    vocabulary = Vocabulary(
        kind, pre, tokens, np.asarray(found["token_type"]).tolist(),
        merges=[tuple(merge.split(" ", 1)) for merge in found["merges"]] if kind == "gpt2" else [],
        scores=np.asarray(found["scores"]).tolist() if kind == "llama" else [],
        ids=ids, ends=_ends(found, tokens, ids),
        first=ids["bos"] if adds["bos"] else None, last=ids["eos"] if adds["eos"] else None,
        blank_first=found.get("add_space_prefix", True),
        chat_template=contents.values.get("tokenizer.chat_template"),
    )  # fmt: skip
    _check_whole(contents.file, vocabulary)
    return vocabulary


def _check_known(file: Path, kind: str, pre: str) -> None:
    if kind not in ("gpt2", "llama"):
        raise TopThetaNotImplementedError(str(file), "a tokenizer 'gpt2' or 'llama'", shown(kind), NO_WAY)
    if kind == "gpt2" and pre not in _KNOWN:
        expected = f"a pre-tokenizer of {', '.join(_KNOWN)}"
        raise TopThetaNotImplementedError(str(file), expected, shown(pre) if pre else "none", NO_WAY)


def _special_ids(file: Path, found: dict[str, Any], kind: str, tokens: int) -> dict[str, int]:
    for name, token in found.items():
        if name.endswith("_token_id") and not 0 <= token < tokens:
            raise file_error(file, f"one of the {tokens} tokens as {_PREFIX}{name}", str(token), AGAIN)
    usual = _USUAL_IDS if kind == "llama" else {}
    named = {name: found.get(f"{key}_token_id", usual.get(name)) for name, key in _IDS.items()}
    return {name: token for name, token in named.items() if token is not None}


def _check_whole(file: Path, vocabulary: Vocabulary) -> None:
    tokens = vocabulary.tokens
    if len(set(tokens)) != len(tokens):
        raise file_error(file, "a vocabulary of different tokens", "one with a token twice", AGAIN)
    if len(vocabulary.types) != len(tokens) or (vocabulary.kind == "llama" and len(vocabulary.scores) != len(tokens)):
        raise file_error(file, "a type and a score for each token", f"others for {len(tokens)} tokens", AGAIN)


def _ends(found: dict[str, Any], tokens: list[str], ids: dict[str, int]) -> list[int]:
    named = [ids.get("eos"), *(found.get(f"{name}_token_id") for name in _ENDS)]
    by_text = [token for token, text in enumerate(tokens) if text in _TEXTS_OF_ENDS]
    ends = list(dict.fromkeys(token for token in (*named, *by_text) if token is not None))
    texts = {tokens[token] for token in ends}
    never = {text for beside, text in _NO_ENDS if beside <= texts}
    return [token for token in ends if tokens[token] not in never]
