"""Makes the documents of the local lm-eval tasks when a task is loaded: nothing is downloaded or written.

The YAML files in ``tasks`` name these functions. lm-eval calls them with the metadata of the YAML file and of its
`TaskManager`: the tokenizer by name or path (``tokenizer``, ``pretrained`` or ``model``), and what may be changed, such
as ``lengths``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ....errors import TopThetaValueError
from .. import retrieval_prompts
from ..retrieval_prompts import RetrievalPrompt, prompts_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def key_value(**metadata: Any) -> dict[str, Any]:
    """Make key-value prompts of `retrieval_prompts.make_prompt` at every length and depth, seed after seed."""
    return _retrieval("key_value", metadata)


def needle(**metadata: Any) -> dict[str, Any]:
    """Make needle prompts of `retrieval_prompts.make_prompt` at every length and depth, seed after seed."""
    return _retrieval("needle", metadata)


def _retrieval(kind: retrieval_prompts.Kind, metadata: dict[str, Any]) -> dict[str, Any]:
    import datasets

    tokenizer = _tokenizer(metadata)
    prompts = prompts_of(tokenizer, kind, metadata["lengths"], metadata["depths"], range(metadata["seeds"]))
    # in memory: datasets that are loaded from files leave copies in the user's cache
    return {"test": datasets.Dataset.from_list([_document(tokenizer, prompt) for prompt in prompts])}


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
