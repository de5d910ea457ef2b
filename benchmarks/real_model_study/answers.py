"""Long answers to long prompts: how far they are those of dense attention, and whether as much is kept to their end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from benchmarks.real_model_study.results import Lines, read
from benchmarks.real_model_study.settings import DENSE, FIRST_CHARACTER, Answered, Arm, environment
from benchmarks.real_model_study.texts import CHARACTERS_PER_TOKEN, Document
from toptheta_npu.evaluation.methods.names import parse_method
from toptheta_npu.evaluation.methods.spec import make_method
from toptheta_npu.evaluation.tasks.prefix import Prefix, run_prefix
from toptheta_npu.models import sparsify
from toptheta_npu.models.fingerprint.model import model_fingerprint
from toptheta_npu.models.sparse.statistics import LayerStatistics

#: Tokens that the chat around a text has at most.
_CHAT_TOKENS = 80
_QUESTION = "Summarise this text in a few paragraphs."
#: Parts of an answer in which kept elements are told apart.
PARTS = 6


def measure(
    answered: Answered, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, documents: Sequence[Document],
    file: Path, console: Console,
) -> None:  # fmt: skip
    """Answer what was not answered yet, a line for each prompt and arm.

    Args:
        answered: how many prompts, how long, and the arms of which the first is dense.
        model: in evaluation mode.
        tokenizer: of the model, with a chat template.
        documents: to summarise, one for each prompt.
        file: of the results.
        console: says what is going on.
    """
    lengths = np.linspace(answered.shortest, answered.longest, answered.prompts).round().astype(int).tolist()
    header = {
        "model": model_fingerprint(model), "lengths": lengths, "tokens": answered.tokens,
        "documents": [each.name for each in documents[: answered.prompts]], "environment": environment(),
    }  # fmt: skip
    with Lines(file, header, ("prompt", "arm")) as lines, torch.inference_mode():
        dense = {line["prompt"]: line["answer"] for line in read(file)[1] if line["arm"] == DENSE.name}
        for number, (length, document) in enumerate(zip(lengths, documents, strict=False)):
            arms = [arm for arm in (DENSE, *answered.arms) if not lines.has(prompt=number, arm=arm.name)]
            if not arms:
                continue
            prompt = prompt_of(tokenizer, document, length)
            # its last token makes the answer's first one, by the arm
            before = run_prefix(model, prompt[:-1])
            for arm in arms:
                found = _answer(arm, model, prompt, before, answered.tokens)
                answer = found.pop("answer")
                theirs = dense.setdefault(number, answer)
                found |= _compared(answer, theirs) | {"agreed": _agreed(arm, model, prompt, before, theirs)}
                lines.add({"prompt": number, "arm": arm.name, **found, **({"answer": answer} if arm == DENSE else {})})
                console.print(f"answers, prompt {number + 1} of {length} tokens: {arm.name}")


def prompt_of(tokenizer: PreTrainedTokenizerBase, document: Document, length: int) -> Tensor:
    """Write a chat that asks for a summary, of about ``length`` tokens: int64 [T]."""
    text = document.text[FIRST_CHARACTER : FIRST_CHARACTER + CHARACTERS_PER_TOKEN * length]
    tokens = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"][: length - _CHAT_TOKENS]
    chat = [{"role": "user", "content": f"{tokenizer.decode(tokens)}\n\n{_QUESTION}"}]
    whole = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    return torch.tensor(tokenizer(whole, verbose=False)["input_ids"])


def _answer(arm: Arm, model: PreTrainedModel, prompt: Tensor, before: Prefix, tokens: int) -> dict[str, Any]:
    if arm == DENSE:
        return {"answer": _generated(model, prompt, before, tokens), "kept": None}
    options = parse_method(arm.method).options
    with sparsify(model, tau=options["tau"], lse=options["lse"], statistics="rows") as run:
        answer = _generated(model, prompt, before, tokens)
        return {"answer": answer, "kept": _kept(run.statistics())}


def _generated(model: PreTrainedModel, prompt: Tensor, before: Prefix, tokens: int) -> list[int]:
    """Generate greedily, never ending early."""
    found = model.generate(  # type: ignore[operator]
        prompt[None], past_key_values=before.to_continue(), max_new_tokens=tokens, min_new_tokens=tokens,
        do_sample=False,
    )  # fmt: skip
    return found[0, len(prompt) :].tolist()  # type: ignore[no-any-return]


def _kept(layers: Sequence[LayerStatistics]) -> list[float]:
    """Give the mean number of kept elements of a row, in `PARTS` parts of the answer."""
    kept = torch.stack([layer.kept[layer.decode] for layer in layers]).double()  # [L, steps, Hq]
    return [round(float(part.mean()), 3) for part in kept.chunk(PARTS, dim=1)]


def _compared(answer: Sequence[int], dense: Sequence[int]) -> dict[str, Any]:
    """Compare an answer with that of dense attention: the share of places with the same token, and the first other."""
    same = np.array(answer) == np.array(dense)
    return {"identical": round(float(same.mean()), 5), "first": len(same) if same.all() else int(same.argmin())}


def _agreed(arm: Arm, model: PreTrainedModel, prompt: Tensor, before: Prefix, dense: Sequence[int]) -> float:
    """Give the dense answer, and tell at which share of its tokens the arm would have chosen the same."""
    given = torch.tensor([int(prompt[-1]), *dense[:-1]])
    with make_method(parse_method(arm.method)).enter(model):
        logits = model(given[None], past_key_values=before.to_continue()).logits[0]
    return round(float((logits.argmax(-1) == torch.tensor(dense)).double().mean()), 5)
