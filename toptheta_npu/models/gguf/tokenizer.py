"""The tokenizer of a GGUF file: that of transformers, with what it takes wrongly set right.

Compared with llama.cpp on the texts that come with its vocabularies (llama-spm, llama-bpe, gpt-2, starcoder).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import TopThetaNotImplementedError
from .header import NO_WAY

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase

    from .header import Header

#: ``tokenizer.ggml.pre`` by the way in which it splits text; transformers knows "llama-bpe" alone of them.
_BYTES = ("gpt-2",)
_DIGITS_AND_BYTES = ("smollm", "starcoder", "refact", "command-r")
_LLAMA_3 = ("llama-bpe", "llama3", "llama-v3")
_KNOWN = (*_BYTES, *_DIGITS_AND_BYTES, *_LLAMA_3)


def check_tokenizer(header: Header) -> None:
    """Check that the tokenizer can be built.

    Raises:
        TopThetaNotImplementedError: it is of another kind than those that were compared with llama.cpp.
    """
    kind, pre = _kind(header)
    if kind not in ("gpt2", "llama"):
        raise TopThetaNotImplementedError(str(header.file), "a tokenizer 'gpt2' or 'llama'", repr(kind), NO_WAY)
    if kind == "gpt2" and pre not in _KNOWN:
        expected = f"a pre-tokenizer of {', '.join(_KNOWN)}"
        raise TopThetaNotImplementedError(str(header.file), expected, repr(pre) if pre else "none", NO_WAY)


def load_tokenizer(header: Header, folder: Path, name: str) -> PreTrainedTokenizerBase:
    """Load the tokenizer by transformers, and set its splitting, merging and first token as llama.cpp does.

    Args:
        header: of the file.
        folder, name: where it lies, with nothing beside it that transformers would read too.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    loaded = AutoTokenizer.from_pretrained(folder, gguf_file=name, local_files_only=True)
    backend = loaded.backend_tokenizer
    kind, pre = _kind(header)
    if kind == "llama":
        _set_sentencepiece(backend, header.tokenizer.get("tokenizer.ggml.add_space_prefix", True))
    else:
        _set_byte_level(backend, pre)
    begins = header.tokenizer.get("tokenizer.ggml.add_bos_token", kind == "llama" or pre in _LLAMA_3)
    _set_first_and_last(
        backend,
        loaded.bos_token if begins else None,
        loaded.eos_token if header.tokenizer.get("tokenizer.ggml.add_eos_token", False) else None,
    )
    special = {name: getattr(loaded, name) for name in ("bos_token", "eos_token", "unk_token", "pad_token")}
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend, model_max_length=header.longest, clean_up_tokenization_spaces=False,
        chat_template=header.tokenizer.get("tokenizer.chat_template"),
        **{name: token for name, token in special.items() if token is not None},
    )  # fmt: skip


def _kind(header: Header) -> tuple[str, str]:
    return header.tokenizer["tokenizer.ggml.model"], header.tokenizer.get("tokenizer.ggml.pre", "")


def _set_byte_level(backend: Tokenizer, pre: str) -> None:
    from tokenizers import pre_tokenizers

    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if pre in _BYTES:
        backend.pre_tokenizer = byte_level
    elif pre in _DIGITS_AND_BYTES:
        backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    else:
        # its vocabulary has words that no merges lead to
        backend.model.ignore_merges = True


def _set_sentencepiece(backend: Tokenizer, with_prefix: bool) -> None:
    """Put a blank before every text, also before one that begins with a blank."""
    from tokenizers import normalizers

    blank = normalizers.Replace(pattern=" ", content="\N{LOWER ONE EIGHTH BLOCK}")
    prefix = [normalizers.Prepend(prepend="\N{LOWER ONE EIGHTH BLOCK}")] if with_prefix else []
    backend.normalizer = normalizers.Sequence([*prefix, blank])
    backend.pre_tokenizer = None


def _set_first_and_last(backend: Tokenizer, first: str | None, last: str | None) -> None:
    from tokenizers import processors

    added = [token for token in (first, last) if token is not None]

    def around(text: str) -> list[str]:
        before, after = ([] if token is None else [f"{token}{text[2:]}"] for token in (first, last))
        return [*before, text, *after]

    backend.post_processor = processors.TemplateProcessing(
        single=around("$A:0"), pair=[*around("$A:0"), *around("$B:1")],
        special_tokens=[(token, backend.token_to_id(token)) for token in dict.fromkeys(added)],
    )  # fmt: skip
