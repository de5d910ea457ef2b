"""Measures how often the model chooses the true value, for each prompt length and depth of the fact.

The text up to the question runs dense, once for all methods. The question and the offered values then run under the
method, each row exactly like its decode step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, get_args

import torch
from transformers import PreTrainedModel

from ..._checks import check_choice
from ...errors import TopThetaValueError
from .. import corpus
from ..measurement import Measurement, check_layers
from ..methods.method import Method
from ..read_counter import ReadCounter
from . import retrieval_prompts
from .prefix import Prefix, Prefixes, run_prefix, score_all
from .retrieval_prompts import choice_tokens, prompts_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class RetrievalTask:
    """Ask key-value or needle prompts, with eight answers each.

    A prompt scores 1 if the true value is the most likely one, else 0; guessing gives 1/8.

    Args:
        model: the model, in evaluation mode.
        tokenizer: tokenizer of the model.
        kind: ``"key_value"`` or ``"needle"``.
        lengths: prompt lengths in tokens.
        depths: positions of the fact, from 0 (the start) to 1 (the end).
        seeds: seeds of the prompts; each gives one prompt per length and depth.
        split: split of the library that provides names, values and source.
        prefix_bytes: memory limit for the keys and values of dense texts, in bytes. Texts of the first prompts stay in
            memory; the others run again for every method.

    Raises:
        TopThetaValueError: the model has no layer from 2 on, an argument is unusable, or the tokenizer has no answers
            of its own, as `retrieval_prompts.choice_tokens` says.

    Example:
        >>> from toptheta_npu.assets import load_tiny_llama, load_tiny_llama_thresholds
        >>> from toptheta_npu.evaluation.methods.kinds import make_method
        >>> model, tokenizer = load_tiny_llama()
        >>> task = RetrievalTask(model, tokenizer, "needle", lengths=(256,), depths=(0.0, 1.0), seeds=(0,))
        >>> method = make_method("top-theta", 64, load_tiny_llama_thresholds("post_softmax"))
        >>> measurement = task.measure(method, model)
        >>> measurement.scores, measurement.details["depth"]
        ((1.0, 1.0), [0.0, 1.0])
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        kind: retrieval_prompts.Kind,
        lengths: Sequence[int] = (512, 1024, 2048),
        depths: Sequence[float] = (0.0, 0.25, 0.5, 0.75, 1.0),
        seeds: Sequence[int] = range(8),
        *,
        split: corpus.Split = "evaluation",
        prefix_bytes: int = 2**30,
    ) -> None:
        check_choice("kind", kind, get_args(retrieval_prompts.Kind))
        for name, values in (("lengths", lengths), ("depths", depths), ("seeds", seeds)):
            if not values:
                raise TopThetaValueError(name, "at least one", "none")
        check_layers(model)
        self._name = kind
        self.prompts = list(prompts_of(tokenizer, kind, lengths, depths, seeds, split))
        self._choices = [choice_tokens(tokenizer, prompt) for prompt in self.prompts]
        texts = [prompt.tokens[: prompt.query_start] for prompt in self.prompts]
        self._prefixes = Prefixes(model, texts, prefix_bytes)

    @property
    def name(self) -> str:
        """The kind of the prompts."""
        return self._name

    @property
    def samples(self) -> int:
        """The number of prompts."""
        return len(self.prompts)

    def measure(
        self, method: Method, model: PreTrainedModel, progress: Callable[[int], None] = lambda done: None
    ) -> Measurement:
        """Score every prompt, as `Task.measure`.

        The details have ``length``, ``depth`` and ``margin`` of each prompt. The margin is the log-likelihood of the
        true value minus the log-likelihood of the most likely other one, in nats.
        """
        counter, margins = ReadCounter(method), []
        with torch.inference_mode(), method.enter(model) as recording:
            asked = zip(self.prompts, self._choices, self._prefixes, strict=True)
            for done, (prompt, choices, before) in enumerate(asked, start=1):
                kept = before.kept_by(method.cache_of)
                question = run_prefix(model, prompt.tokens[prompt.query_start :], kept)
                margins.append(_margin(model, question, choices, prompt.answer))
                counter.add(recording.summaries())
                recording.clear()
                progress(done)
        scores = tuple(float(margin > 0) for margin in margins)
        details = {
            "prefill": "dense", "length": [len(prompt.tokens) for prompt in self.prompts],
            "depth": [prompt.depth for prompt in self.prompts], "margin": margins,
        }  # fmt: skip
        return Measurement("accuracy", True, scores, details=details, **counter.result()._asdict())


def _margin(model: PreTrainedModel, prompt: Prefix, choices: list[list[int]], answer: int) -> float:
    """Tell how much more likely the answer is than the most likely other choice, in nats."""
    likelihoods = [each.log_likelihood for each in score_all(model, prompt, choices)]
    return likelihoods[answer] - max(each for index, each in enumerate(likelihoods) if index != answer)
