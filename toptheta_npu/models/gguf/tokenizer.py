"""The tokenizer of a GGUF file, built as llama.cpp builds it.

It was compared with llama.cpp on the texts of its vocabularies (llama-spm, llama-bpe, gpt-2, starcoder).
transformers' own loader splits digits and blanks differently.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..._files import file_error
from ...errors import TopThetaNotImplementedError, shown
from .model import NO_WAY

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase

_PREFIX = "tokenizer.ggml."
_BLANK = "\N{LOWER ONE EIGHTH BLOCK}"
#: Splits text like GPT-4, with this many digits together.
_GPT_4_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,{digits}}}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
#: How each ``tokenizer.ggml.pre`` splits text: digits one by one, like GPT-4, or by bytes only.
_DIGITS_AND_BYTES = ("smollm", "starcoder", "refact", "command-r")
_LLAMA_3 = ("llama-bpe", "llama3", "llama-v3")
_DIGITS_OF_GPT_4 = dict.fromkeys(_LLAMA_3, 3) | {"qwen2": 1}
_KNOWN = ("gpt-2", *_DIGITS_AND_BYTES, *_DIGITS_OF_GPT_4)
#: Types of tokens, as gguf.TokenType numbers them.
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
_IDS = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
#: What llama.cpp takes where the file has none: of SentencePiece.
_USUAL_IDS = {"bos": 1, "eos": 2, "unk": 0}
#: Tokens at which llama.cpp ends an answer: those that the file names, and those of these texts (llama-vocab.cpp of
#: https://github.com/ggml-org/llama.cpp, special_eog_ids). Files mostly name one.
_ENDS = ("eot", "eom", "fim_pad", "fim_rep", "fim_sep")
_TEXTS_OF_ENDS = frozenset({
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>",
    "[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<\uff5cend▁of▁sentence\uff5c>",
    "<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]",
    "<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>", "<|file_sep|>",
})  # fmt: skip


def make_tokenizer(file: Path, values: Mapping[str, Any]) -> PreTrainedTokenizerBase:
    """Build the tokenizer of a file's settings.

    Raises:
        TopThetaValueError: something of it is missing, or cannot be.
        TopThetaNotImplementedError: it is of another kind than those that were compared with llama.cpp, or tokens that
            stand for themselves in a text do not stay whole.
    """
    own = {name.removeprefix(_PREFIX): value for name, value in values.items() if name.startswith(_PREFIX)}
    kind, pre = own.get("model", ""), own.get("pre", "")
    needed = ("model", "tokens", "token_type", "merges" if kind == "gpt2" else "scores")
    if missing := [f"{_PREFIX}{name}" for name in needed if name not in own]:
        remedy = "use a GGUF file that has its vocabulary"
        raise file_error(file, "a GGUF file with a tokenizer", f"one without {', '.join(missing)}", remedy)
    if kind not in ("gpt2", "llama"):
        raise TopThetaNotImplementedError(str(file), "a tokenizer 'gpt2' or 'llama'", shown(kind), NO_WAY)
    if kind == "gpt2" and pre not in _KNOWN:
        expected = f"a pre-tokenizer of {', '.join(_KNOWN)}"
        raise TopThetaNotImplementedError(str(file), expected, shown(pre) if pre else "none", NO_WAY)
    tokens, whole = _tokens(own), _whole(values, own)
    try:
        tokenizer = _tokenizer(values, own, tokens, whole)
    # whatever tokenizers stumbles over
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).split("\n")[0]
        raise file_error(file, "a GGUF file whose tokenizer can be built", reason, NO_WAY) from error
    _check_whole(file, tokenizer, tokens, sorted(whole))
    return tokenizer


def special_ids(values: Mapping[str, Any]) -> dict[str, int | None]:
    """Look up the tokens bos, eos, unk and pad; None for a missing one."""
    usual = _USUAL_IDS if values.get(f"{_PREFIX}model") == "llama" else {}
    return {name: values.get(f"{_PREFIX}{key}_token_id", usual.get(name)) for name, key in _IDS.items()}


def ends_of_answers(values: Mapping[str, Any]) -> list[int]:
    """List the tokens that end an answer, the end of the text first."""
    named = [special_ids(values)["eos"], *(values.get(f"{_PREFIX}{name}_token_id") for name in _ENDS)]
    by_text = [token for token, text in enumerate(values[f"{_PREFIX}tokens"]) if text in _TEXTS_OF_ENDS]
    return list(dict.fromkeys(token for token in (*named, *by_text) if token is not None))


def _tokens(own: Mapping[str, Any]) -> list[str]:
    # llama.cpp's name for a token without a text
    return [text or f"[EMPTY_{token}]" for token, text in enumerate(own["tokens"])]


def _whole(values: Mapping[str, Any], own: Mapping[str, Any]) -> dict[int, bool]:
    """Find the tokens that match whole in a text, and whether they are hidden from the user."""
    ends = set(ends_of_answers(values))
    special = {token: kind in (_UNKNOWN, _CONTROL) or token in ends for token, kind in enumerate(own["token_type"])}
    return {token: special[token] for token, kind in enumerate(own["token_type"])
            if special[token] or kind == _USER_DEFINED}  # fmt: skip


def _tokenizer(
    values: Mapping[str, Any], own: Mapping[str, Any], tokens: list[str], whole: Mapping[int, bool]
) -> PreTrainedTokenizerBase:
    from tokenizers import AddedToken
    from transformers import PreTrainedTokenizerFast

    is_sentencepiece, pre = own["model"] == "llama", own.get("pre", "")
    special = {name: tokens[token] for name, token in special_ids(values).items() if token is not None}
    backend = _sentencepiece(own, tokens, special.get("unk")) if is_sentencepiece else _byte_level(own, tokens, pre)
    # each is in the vocabulary already, and keeps its id
    backend.add_tokens([AddedToken(tokens[token], normalized=False, special=whole[token]) for token in sorted(whole)])
    first = special["bos"] if own.get("add_bos_token", is_sentencepiece or pre in _LLAMA_3) else None
    _set_first_and_last(backend, first, special["eos"] if own.get("add_eos_token", False) else None)
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend, model_max_length=values[f"{values['general.architecture']}.context_length"],
        clean_up_tokenization_spaces=False, chat_template=values.get("tokenizer.chat_template"),
        **{f"{name}_token": text for name, text in special.items()},
    )  # fmt: skip


def _byte_level(own: Mapping[str, Any], tokens: list[str], pre: str) -> Tokenizer:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    merges = [tuple(merge.split(" ", 1)) for merge in own["merges"]]
    # words that no merges lead to: llama-bpe has some, and still takes them from its vocabulary
    backend = Tokenizer(models.BPE(_ids(tokens), merges, ignore_merges=pre in _LLAMA_3))
    backend.decoder = decoders.ByteLevel()
    digits = _DIGITS_OF_GPT_4.get(pre)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=digits is None)
    before: list[Any] = []
    if digits is not None:
        before.append(pre_tokenizers.Split(Regex(_GPT_4_SPLIT.format(digits=digits)), behavior="isolated"))
    elif pre in _DIGITS_AND_BYTES:
        before.append(pre_tokenizers.Digits(individual_digits=True))
    backend.pre_tokenizer = pre_tokenizers.Sequence([*before, byte_level])
    return backend


def _sentencepiece(own: Mapping[str, Any], tokens: list[str], unknown: str | None) -> Tokenizer:
    """Put a blank before every text, also before one that begins with a blank, unless the file says otherwise."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    merges = _merges(tokens, own["scores"])
    backend = Tokenizer(models.BPE(_ids(tokens), merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    blank_first = own.get("add_space_prefix", True)
    prefix = [normalizers.Prepend(prepend=_BLANK)] if blank_first else []
    backend.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(pattern=" ", content=_BLANK)])
    strip = [decoders.Strip(content=" ", left=1)] if blank_first else []
    backend.decoder = decoders.Sequence(
        [decoders.Replace(_BLANK, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return backend


def _ids(tokens: list[str]) -> dict[str, int]:
    return {text: token for token, text in enumerate(tokens)}


def _merges(tokens: list[str], scores: list[float]) -> list[tuple[str, str]]:
    """List the pairs of tokens that form a token together, the best token's pairs first."""
    ids = _ids(tokens)
    pairs = [
        (score, left, right)
        for text, score in zip(tokens, scores, strict=True)
        for left, right in ((text[:at], text[at:]) for at in range(1, len(text)))
        if left in ids and right in ids
    ]
    pairs.sort(key=lambda pair: (pair[0], len(pair[1]), len(pair[2])), reverse=True)
    return [(left, right) for _, left, right in pairs]


def _set_first_and_last(backend: Tokenizer, first: str | None, last: str | None) -> None:
    from tokenizers import processors

    def around(text: str) -> list[str]:
        before, after = ([] if token is None else [f"{token}{text[2:]}"] for token in (first, last))
        return [*before, text, *after]

    added = dict.fromkeys(token for token in (first, last) if token is not None)
    backend.post_processor = processors.TemplateProcessing(
        single=around("$A:0"), pair=[*around("$A:0"), *around("$B:1")],
        special_tokens=[(token, backend.token_to_id(token)) for token in added],
    )  # fmt: skip


def _check_whole(file: Path, tokenizer: PreTrainedTokenizerBase, tokens: list[str], whole: list[int]) -> None:
    """Check that each token that matches whole in a text gets its own id, and that no token gets another's."""
    for token in whole:
        if (found := tokenizer.encode(tokens[token], add_special_tokens=False)) != [token]:
            expected = "a vocabulary whose control and user-defined tokens stay whole"
            got = f"{shown(tokens[token])}, token {token}, as the tokens {shown(found)}"
            raise TopThetaNotImplementedError(str(file), expected, got, NO_WAY)
    if len(tokenizer) != len(tokens):
        expected, got = f"a tokenizer of {len(tokens)} tokens", f"one of {len(tokenizer)}"
        raise TopThetaNotImplementedError(str(file), expected, got, NO_WAY)
