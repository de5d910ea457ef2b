"""Answers to questions through the chat template, a line for each question and arm.

The chat up to the question is attended densely, once for all arms; the question and the offered values by the method.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from benchmarks.real_model_study.questions import places, question_of
from benchmarks.real_model_study.results import Lines
from benchmarks.real_model_study.settings import Asked, environment
from benchmarks.real_model_study.texts import Document
from toptheta_npu.evaluation.methods.kinds import make_method
from toptheta_npu.evaluation.methods.method import Method
from toptheta_npu.evaluation.read_counter import ReadCounter
from toptheta_npu.evaluation.tasks.prefix import Prefix, run_prefix, score_all
from toptheta_npu.evaluation.tasks.retrieval_prompts import RetrievalPrompt, choice_tokens
from toptheta_npu.models.fingerprint.model import model_fingerprint


def measure(
    asked: Asked, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, documents: Sequence[Document],
    file: Path, console: Console,
) -> None:  # fmt: skip
    """Ask what was not asked yet.

    Args:
        asked: lengths, depths, how many, and the arms.
        model: in evaluation mode.
        tokenizer: of the model, with a chat template.
        documents: prose to hide numbers in.
        file: of the results.
        console: says what is going on.
    """
    header = {
        "model": model_fingerprint(model), "documents": [each.name for each in documents],
        "environment": environment(),
    }  # fmt: skip
    with Lines(file, header, ("kind", "length", "depth", "seed", "arm")) as lines, torch.inference_mode():
        for place in places(asked.lengths, asked.depths, asked.seeds):
            arms = [arm for arm in asked.arms if not lines.has(**asdict(place), arm=arm.name)]
            if not arms:
                continue
            prompt = question_of(tokenizer, place, documents)
            choices, before = choice_tokens(tokenizer, prompt), run_prefix(model, prompt.tokens[: prompt.query_start])
            for arm in arms:
                found = _answer(model, make_method(arm.method), prompt, choices, before)
                lines.add({**asdict(place), "arm": arm.name, **found})
            console.print(f"retrieval: {place}")


def _answer(
    model: PreTrainedModel, method: Method, prompt: RetrievalPrompt, choices: list[list[int]], before: Prefix
) -> dict[str, Any]:
    counter = ReadCounter(method)
    with method.enter(model) as recording:
        asked = run_prefix(model, prompt.tokens[prompt.query_start :], before)
        likelihoods = [each.log_likelihood for each in score_all(model, asked, choices)]
        counter.add(recording.summaries())
    right = likelihoods.pop(prompt.answer)
    reads = counter.result().reads_all
    return {
        "right": right > max(likelihoods), "margin": round(right - max(likelihoods), 5), "tokens": len(prompt.tokens),
        "value_rows": round(reads.value_rows_mean, 3), "keys": round(reads.keys_mean, 3),
    }  # fmt: skip
