"""Measures the perplexity of the last positions of long windows, and the reads of attention there.

The prefix of a window is computed once, dense, and shared by all methods. The last positions then run under the
method, each row exactly like its decode step.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from ...errors import TopThetaValueError
from ...models.caches.naming import CACHE_ARGUMENT
from ..measurement import Measurement, check_layers
from ..methods.method import Method
from ..read_counter import ReadCounter
from .prefix import Prefix, Prefixes, check_tokens

_METRIC = "nats per token"


class PerplexityTask:
    """Predict the ends of windows of held-out text, after dense prefixes.

    Args:
        model: the model, in evaluation mode.
        windows: int64 [W, T] tokens.
        positions: number of last positions to predict under a method.
        prefix_bytes: memory limit for the keys and values of dense prefixes, in bytes. Prefixes of the first windows
            stay in memory; the others run again for every method.

    Raises:
        TopThetaValueError: the model has no layer from 2 on, the windows leave no prefix, or a token has no embedding.

    Example:
        >>> from statistics import fmean
        >>> from toptheta_npu.assets import load_tiny_llama, load_tiny_llama_thresholds
        >>> from toptheta_npu.evaluation import corpus
        >>> from toptheta_npu.evaluation.methods.kinds import make_method
        >>> model, tokenizer = load_tiny_llama()
        >>> task = PerplexityTask(model, corpus.token_windows(tokenizer, "evaluation", 700, 1), positions=64)
        >>> method = make_method("top-theta", 64, load_tiny_llama_thresholds("post_softmax"))
        >>> theta, dense = (fmean(task.measure(each, model).scores) for each in (method, make_method("dense")))
        >>> theta - dense < 0.1
        True
    """

    def __init__(
        self,
        model: PreTrainedModel,
        windows: Tensor,
        positions: int = 512,
        prefix_bytes: int = 2**30,
    ) -> None:
        length = windows.shape[1]
        check_positions(positions, length)
        check_layers(model)
        check_tokens(model, windows)
        self.model = model
        self.windows = windows
        self.positions = positions
        self._prefix_bytes = prefix_bytes
        self._prefixes = Prefixes(model, list(windows[:, : length - positions - 1]), prefix_bytes)

    @property
    def name(self) -> str:
        """``"perplexity"``."""
        return "perplexity"

    @property
    def samples(self) -> int:
        """The number of windows."""
        return len(self.windows)

    def windows_run_again(self, count: int) -> int:
        """Count how many of ``count`` windows like these run again for every method, for lack of memory."""
        if not self._prefixes.kept:
            return count
        return max(0, count - self._prefix_bytes // max(1, self._prefixes.kept[0].num_bytes))

    def measure(
        self, method: Method, model: PreTrainedModel, progress: Callable[[int], None] = lambda done: None
    ) -> Measurement:
        """Measure the nats per token of every window under a method, and the reads of attention.

        Args:
            method: method to measure.
            model: the task's model.
            progress: called with the number of finished windows after each.
        """
        counter, nats = ReadCounter(method), []
        with torch.inference_mode(), method.enter(model) as recording:
            for done, (window, prefix) in enumerate(zip(self.windows, self._prefixes, strict=True), start=1):
                kept = prefix.kept_by(method.cache_of)
                nats.append(_negative_log_likelihood(model, window[-self.positions - 1 :], kept))
                counter.add(recording.summaries())
                recording.clear()
                progress(done)
        return Measurement(_METRIC, False, tuple(nats), **counter.result()._asdict())


def check_positions(positions: int, length: int) -> None:
    """Raise TopThetaValueError unless windows of ``length`` tokens leave a prefix before their last ``positions``."""
    if not 1 <= positions <= length - 2:
        raise TopThetaValueError("positions", f"1 to {length - 2}, for windows of {length} tokens", str(positions))


def _negative_log_likelihood(model: PreTrainedModel, tokens: Tensor, prefix: Prefix) -> float:
    """Average the nats of all tokens but the first, after a prefix."""
    tokens = tokens.to(model.device)
    logits = model(tokens[None, :-1], **{CACHE_ARGUMENT: prefix.to_continue()}).logits[0]
    return F.cross_entropy(logits.float(), tokens[1:], reduction="mean").item()
