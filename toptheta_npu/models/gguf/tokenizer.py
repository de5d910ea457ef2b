"""The tokenizer of a GGUF file, built as llama.cpp builds it.

Compared with llama.cpp on the texts that come with its vocabularies (llama-spm, llama-bpe, gpt-2, starcoder).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import TopThetaNotImplementedError, shown
from .contents import NO_WAY
from .vocabulary import DIGITS_AND_BYTES, LLAMA_3, QWEN_2, Vocabulary

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase

_BLANK = "\N{LOWER ONE EIGHTH BLOCK}"
#: As GPT-4 splits text, with so many digits together.
_GPT_4_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,{digits}}}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DIGITS = dict.fromkeys(LLAMA_3, 3) | dict.fromkeys(QWEN_2, 1)


def make_tokenizer(vocabulary: Vocabulary, longest: int) -> PreTrainedTokenizerBase:
    """Build the tokenizer; ``longest``: tokens of the model's context."""
    from tokenizers import AddedToken
    from transformers import PreTrainedTokenizerFast

    backend = _byte_level(vocabulary) if vocabulary.kind == "gpt2" else _sentencepiece(vocabulary)
    special = set(vocabulary.special)
    # each is in the vocabulary already, and keeps its id
    backend.add_tokens([
        AddedToken(vocabulary.tokens[token], normalized=False, special=token in special) for token in vocabulary.whole
    ])  # fmt: skip
    _set_first_and_last(backend, vocabulary)
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend, model_max_length=longest, clean_up_tokenization_spaces=False,
        chat_template=vocabulary.chat_template,
        **{f"{name}_token": vocabulary.tokens[token] for name, token in vocabulary.ids.items()},
    )  # fmt: skip


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, vocabulary: Vocabulary, file: Path) -> None:
    """Check that each token that stands for itself in a text becomes its own id, and no token another's.

    Raises:
        TopThetaNotImplementedError: one becomes something else.
    """
    whole = vocabulary.whole
    texts = [vocabulary.tokens[token] for token in whole]
    for token, text in zip(whole, texts, strict=True):
        found = tokenizer.encode(text, add_special_tokens=False)
        if found != [token]:
            expected = "a vocabulary whose control and user-defined tokens stay whole"
            got = f"{shown(text)}, token {token}, as the tokens {shown(found)}"
            raise TopThetaNotImplementedError(str(file), expected, got, NO_WAY)
    if len(tokenizer) != len(vocabulary.tokens):
        expected, got = f"a tokenizer of {len(vocabulary.tokens)} tokens", f"one of {len(tokenizer)}"
        raise TopThetaNotImplementedError(str(file), expected, got, NO_WAY)


def _byte_level(vocabulary: Vocabulary) -> Tokenizer:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    # words that no merges lead to: llama-bpe has such, and takes them from its vocabulary all the same
    backend = Tokenizer(models.BPE(_ids(vocabulary), vocabulary.merges, ignore_merges=vocabulary.pre in LLAMA_3))
    backend.decoder = decoders.ByteLevel()
    digits = _DIGITS.get(vocabulary.pre)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=digits is None)
    before: list[Any] = []
    if digits is not None:
        before.append(pre_tokenizers.Split(Regex(_GPT_4_SPLIT.format(digits=digits)), behavior="isolated"))
    elif vocabulary.pre in DIGITS_AND_BYTES:
        before.append(pre_tokenizers.Digits(individual_digits=True))
    backend.pre_tokenizer = pre_tokenizers.Sequence([*before, byte_level])
    return backend


def _sentencepiece(vocabulary: Vocabulary) -> Tokenizer:
    """Put a blank before every text, also before one that begins with a blank."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    unknown = vocabulary.tokens[vocabulary.ids["unk"]] if "unk" in vocabulary.ids else None
    backend = Tokenizer(
        models.BPE(_ids(vocabulary), _merges(vocabulary), unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    blank = normalizers.Replace(pattern=" ", content=_BLANK)
    prefix = [normalizers.Prepend(prepend=_BLANK)] if vocabulary.blank_first else []
    backend.normalizer = normalizers.Sequence([*prefix, blank])
    strip = [decoders.Strip(content=" ", left=1)] if vocabulary.blank_first else []
    backend.decoder = decoders.Sequence(
        [decoders.Replace(_BLANK, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return backend


def _ids(vocabulary: Vocabulary) -> dict[str, int]:
    return {text: token for token, text in enumerate(vocabulary.tokens)}


def _merges(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """List the pairs of tokens that together are a token: those of the best token first."""
    ids = _ids(vocabulary)
    pairs = [
        (vocabulary.scores[token], left, right)
        for token, text in enumerate(vocabulary.tokens)
        for left, right in ((text[:at], text[at:]) for at in range(1, len(text)))
        if left in ids and right in ids
    ]
    pairs.sort(key=lambda pair: (pair[0], len(pair[1]), len(pair[2])), reverse=True)
    return [(left, right) for _, left, right in pairs]


def _set_first_and_last(backend: Tokenizer, vocabulary: Vocabulary) -> None:
    from tokenizers import processors

    first, last = (None if token is None else vocabulary.tokens[token] for token in (vocabulary.first, vocabulary.last))

    def around(text: str) -> list[str]:
        before, after = ([] if token is None else [f"{token}{text[2:]}"] for token in (first, last))
        return [*before, text, *after]

    added = dict.fromkeys(token for token in (first, last) if token is not None)
    backend.post_processor = processors.TemplateProcessing(
        single=around("$A:0"), pair=[*around("$A:0"), *around("$B:1")],
        special_tokens=[(token, backend.token_to_id(token)) for token in added],
    )  # fmt: skip
