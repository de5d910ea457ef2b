"""Shows a transformers model to lm-eval, one request at a time.

The batch size is 1: lm-eval pads texts on the right and gives no mask, and the padding would count as rows that attend.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedModel

from ....errors import TopThetaValueError
from ..prefix import Likelihood, run_prefix, score

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

#: Context, continuation, and the tokens of both.
_Request = tuple[Any, list[int], list[int]]


def harness_model(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, answered: Callable[[int], None] = lambda requests: None
) -> Any:
    """Make lm-eval's ``HFLM`` for a model, which runs a context once for all of its continuations.

    Its attribute ``truncated`` counts the requests that were longer than the model's context and lost their beginning.

    Args:
        model: in evaluation mode.
        tokenizer: of the model; lm-eval changes a copy of it.
        answered: called after every text that ran, with the number of requests that it answered.

    Raises:
        ModuleNotFoundError: lm-eval is missing; it comes with the extra ``eval``.
    """
    harness = _model_class()(pretrained=model, tokenizer=copy.deepcopy(tokenizer), batch_size=1)
    harness.answered = answered
    harness.set_cache_hook(_Listener(answered))
    return harness


class _Listener:
    """Take the place of lm-eval's request cache, which is told of every generated text and every whole document."""

    def __init__(self, answered: Callable[[int], None]) -> None:
        self._answered = answered

    def add_partial(self, *_: object) -> None:
        self._answered(1)


@cache
def _model_class() -> type:
    from lm_eval.models.huggingface import HFLM  # takes seconds

    class HarnessModel(HFLM):  # type: ignore[misc, unused-ignore]
        answered: Callable[[int], None]
        truncated = 0

        def loglikelihood(self, requests: Any, disable_tqdm: bool = True) -> Any:
            return super().loglikelihood(requests, disable_tqdm=True)

        def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = True) -> Any:
            return super().loglikelihood_rolling(requests, disable_tqdm=True)

        def generate_until(self, requests: Any, disable_tqdm: bool = True) -> Any:
            return super().generate_until(requests, disable_tqdm=True)

        def tok_batch_encode(
            self, strings: Any, *args: Any, left_truncate_len: int | None = None, **kwargs: Any
        ) -> Any:
            if left_truncate_len:
                self.truncated += sum(len(self.tok_encode(text)) > left_truncate_len for text in strings)
            return super().tok_batch_encode(strings, *args, left_truncate_len=left_truncate_len, **kwargs)

        def _loglikelihood_tokens(self, requests: list[_Request], *_: Any, **__: Any) -> list[Likelihood]:
            contexts: dict[tuple[int, ...], dict[int, _Request]] = {}
            for index, request in enumerate(requests):
                contexts.setdefault(self._cut(*request[1:]), {})[index] = request
            answers: dict[int, Likelihood] = {}
            for context, of_context in contexts.items():
                answers |= self._answer(context, of_context)
            return [answers[index] for index in range(len(requests))]

        def _cut(self, context: list[int], continuation: list[int]) -> tuple[int, ...]:
            """Take the end of a context that leaves room for the continuation but its last token."""
            if not context or not continuation:
                expected = "prompts and answers that have tokens of their own"
                raise TopThetaValueError(
                    "task", expected, "one without", "mend such documents, or leave them out of the task"
                )
            room = self.max_length + 1 - len(continuation)
            if room < 1:
                raise TopThetaValueError(
                    "task", f"answers of at most {self.max_length} tokens, the model's context", str(len(continuation)),
                    "use another task or a model with a longer context",
                )  # fmt: skip
            self.truncated += len(context) > room
            return tuple(context[-room:])

        def _answer(self, context: tuple[int, ...], requests: dict[int, _Request]) -> dict[int, Likelihood]:
            with torch.inference_mode():
                prefix = run_prefix(self.model, context)
                answers = {
                    index: score(self.model, prefix, continuation) for index, (_, _, continuation) in requests.items()
                }
            # what has no text is a window of a longer document
            self.answered(sum(text is not None for text, _, _ in requests.values()))
            return answers

    return HarnessModel
