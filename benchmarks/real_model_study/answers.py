"""Long answers to long prompts: how far they are those of dense attention, and whether they keep k to their end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from benchmarks.real_model_study.perplexity import own_method
from benchmarks.real_model_study.results import Lines, read
from benchmarks.real_model_study.settings import DENSE, FIRST_CHARACTER, Answered, Arm, environment
from benchmarks.real_model_study.texts import CHARACTERS_PER_TOKEN, Document
from toptheta_npu.evaluation.methods.names import parse_method
from toptheta_npu.evaluation.sweep import table_digest
from toptheta_npu.evaluation.tasks.prefix import Prefix, run_prefix
from toptheta_npu.models import sparsify
from toptheta_npu.models.fingerprint.model import model_fingerprint
from toptheta_npu.models.sparse.statistics import LayerStatistics
from toptheta_npu.thresholds import ThresholdTable

#: Tokens that the chat around a text has at most.
_CHAT_TOKENS = 80
_QUESTION = "Summarise this text in a few paragraphs."
#: Parts of an answer in which k~/k is told apart.
PARTS = 6


def measure(
    answered: Answered, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, documents: Sequence[Document],
    table: ThresholdTable, file: Path, console: Console,
) -> None:  # fmt: skip
    """Answer what was not answered yet, a line for each prompt and arm.

    Args:
        answered: how many prompts, how long, and the arms of which the first is dense.
        model: in evaluation mode.
        tokenizer: of the model, with a chat template.
        documents: to summarise, one for each prompt.
        table: thresholds for prompts and answers together.
        file: of the results.
        console: says what is going on.
    """
    lengths = np.linspace(answered.shortest, answered.longest, answered.prompts).round().astype(int).tolist()
    header = {
        "model": model_fingerprint(model), "thresholds": table_digest(table), "lengths": lengths,
        "tokens": answered.tokens, "documents": [each.name for each in documents[: answered.prompts]],
        "environment": environment(),
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
                found = _answer(arm, model, table, prompt, before, answered.tokens)
                answer = found.pop("answer")
                theirs = dense.setdefault(number, answer)
                found |= _compared(answer, theirs) | {"agreed": _agreed(arm, model, table, prompt, before, theirs)}
                lines.add({"prompt": number, "arm": arm.name, **found, **({"answer": answer} if arm == DENSE else {})})
                console.print(f"answers, prompt {number + 1} of {length} tokens: {arm.name}")


def prompt_of(tokenizer: PreTrainedTokenizerBase, document: Document, length: int) -> Tensor:
    """Write a chat that asks for a summary, of about ``length`` tokens: int64 [T]."""
    text = document.text[FIRST_CHARACTER : FIRST_CHARACTER + CHARACTERS_PER_TOKEN * length]
    tokens = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"][: length - _CHAT_TOKENS]
    chat = [{"role": "user", "content": f"{tokenizer.decode(tokens)}\n\n{_QUESTION}"}]
    whole = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    return torch.tensor(tokenizer(whole, verbose=False)["input_ids"])


def _answer(
    arm: Arm, model: PreTrainedModel, table: ThresholdTable, prompt: Tensor, before: Prefix, tokens: int
) -> dict[str, Any]:
    if arm == DENSE:
        return {"answer": _generated(model, prompt, before, tokens), "kept_over_target": None}
    budget = parse_method(arm.method).budget
    if budget:
        aims = table.budget(**budget).head_k  # type: ignore[arg-type]
    else:
        aims = torch.tensor(table.layer_targets(int(arm.k or 0)))[:, None].expand(-1, table.num_heads)
    with sparsify(model, table, k=arm.k, statistics="rows", **budget) as run:  # type: ignore[arg-type]
        answer = _generated(model, prompt, before, tokens)
        return {"answer": answer, "kept_over_target": _kept_over_target(run.statistics(), aims)}


def _generated(model: PreTrainedModel, prompt: Tensor, before: Prefix, tokens: int) -> list[int]:
    """Generate greedily, never ending early."""
    found = model.generate(  # type: ignore[operator]
        prompt[None], past_key_values=before.to_continue(), max_new_tokens=tokens, min_new_tokens=tokens,
        do_sample=False,
    )  # fmt: skip
    return found[0, len(prompt) :].tolist()  # type: ignore[no-any-return]


def _kept_over_target(layers: Sequence[LayerStatistics], aims: Tensor) -> list[float]:
    """Divide kept elements by those aimed at, in `PARTS` parts of the answer, of heads that aim at more than one."""
    kept = torch.stack([layer.kept[layer.decode] for layer in layers]).double()  # [L, steps, Hq]
    counted = (aims > 1)[:, None]
    wanted = aims[:, None].expand_as(kept)
    parts = zip((kept * counted).chunk(PARTS, dim=1), (wanted * counted).chunk(PARTS, dim=1), strict=True)
    return [round(float(ours.sum() / theirs.sum()), 5) for ours, theirs in parts]


def _compared(answer: Sequence[int], dense: Sequence[int]) -> dict[str, Any]:
    """Compare an answer with that of dense attention: the share of places with the same token, and the first other."""
    same = np.array(answer) == np.array(dense)
    return {"identical": round(float(same.mean()), 5), "first": len(same) if same.all() else int(same.argmin())}


def _agreed(
    arm: Arm, model: PreTrainedModel, table: ThresholdTable, prompt: Tensor, before: Prefix, dense: Sequence[int]
) -> float:
    """Give the dense answer, and tell at which share of its tokens the arm would have chosen the same."""
    given = torch.tensor([int(prompt[-1]), *dense[:-1]])
    with own_method(arm, table).enter(model):
        logits = model(given[None], past_key_values=before.to_continue()).logits[0]
    return round(float((logits.argmax(-1) == torch.tensor(dense)).double().mean()), 5)
