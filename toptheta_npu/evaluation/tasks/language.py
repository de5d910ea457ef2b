"""Runs tasks of lm-eval with its own prompts and scores: those of the paper, the local ones, and your own.

Texts that are only scored run under the method as a whole, as in the paper's question answering. If the model writes
the answer, the prompt is dense and every decode step uses the method.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import hashlib
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import PreTrainedModel

from ...errors import TopThetaValueError
from ..measurement import Measurement, check_layers
from ..methods.method import Method
from ..read_counter import ReadCounter
from .harness.lookup import check_code, find_task, load_task
from .harness.model import harness_model
from .harness.requests import build_requests, check_room, most_tokens
from .harness.scores import details_of, scores_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_BUILDING = threading.Lock()
_CPU = torch.device("cpu")


#: The paper's tasks (section "Evaluations") by lm-eval's names, with the examples in the prompt of its published runs;
#: they hold unless others are asked for.
PAPER_SHOTS: Mapping[str, int] = MappingProxyType({
    "arc_challenge": 25, "arc_easy": 25, "hellaswag": 10, "medmcqa": 0, "humaneval": 0, "longbench_qmsum": 0,
    "longbench_gov_report": 0,
})  # fmt: skip
#: What the paper told ``generate``.
PAPER_GENERATION: Mapping[str, Mapping[str, Any]] = MappingProxyType({
    # prompt and program together
    "humaneval": {"do_sample": False, "max_length": 2048},
    "longbench_qmsum": {"do_sample": False},
    "longbench_gov_report": {"do_sample": False},
})  # fmt: skip


class LmEvalTask:
    """Measure a task of lm-eval; a document is a sample.

    Args:
        name: name of a task of lm-eval, or of a local task: toptheta_key_value, toptheta_needle or
            toptheta_key_value_generate.
        tokenizer: tokenizer of the model.
        limit: number of documents to score, from the first on; None for all.
        num_fewshot: number of examples in the prompt; None: as in `PAPER_SHOTS`, else the task's own number.
        include_path: folders with further YAML files.
        metadata: settings for the task's own documents, such as ``{"lengths": [2048]}`` for the local tasks and
            ``{"max_seq_lengths": [4096]}`` for the RULER tasks.
        confirm_run_unsafe_code: whether a task such as humaneval may run the model's code on this machine.

    Raises:
        ModuleNotFoundError: lm-eval is missing; install the extra ``eval``.
        TopThetaValueError: the task does not exist, runs code without permission, or its data or modules cannot be
            loaded.

    Example:
        >>> from toptheta_npu.assets import load_tiny_llama, load_tiny_llama_thresholds
        >>> from toptheta_npu.evaluation.methods.kinds import make_method
        >>> model, tokenizer = load_tiny_llama()
        >>> task = LmEvalTask("toptheta_needle", tokenizer, limit=2, metadata={"lengths": [256]})
        >>> method = make_method("top-theta", 64, load_tiny_llama_thresholds("post_softmax"))
        >>> measurement = task.measure(method, model)
        >>> measurement.metric, measurement.scores, measurement.details["prefill"]
        ('acc', (1.0, 1.0), 'thresholded')
    """

    def __init__(
        self,
        name: str,
        tokenizer: PreTrainedTokenizerBase,
        limit: int | None = None,
        num_fewshot: int | None = None,
        include_path: Sequence[str | Path] = (),
        metadata: Mapping[str, Any] | None = None,
        confirm_run_unsafe_code: bool = False,
    ) -> None:
        if limit is not None and limit < 1:
            raise TopThetaValueError("limit", "at least 1, or None for all documents", str(limit))
        self._name = name
        self._tokenizer = tokenizer
        self._limit = limit
        self._unsafe = confirm_run_unsafe_code
        entry = find_task(name, include_path)
        check_code(entry, confirm_run_unsafe_code)
        shots = _num_fewshot(name, (entry.cfg or {}).get("num_fewshot"), num_fewshot)
        with _BUILDING, _seeded():
            self._task = load_task(entry, tokenizer, metadata or {})
            self._configure(shots)
            build_requests(self._task, name, limit)

    @property
    def name(self) -> str:
        """The task's name in lm-eval."""
        return self._name

    @property
    def samples(self) -> int:
        """The number of documents."""
        return len({instance.doc_id for instance in self._task.instances})

    @property
    def prefill(self) -> str:
        """``"dense"`` if the model writes the answer, ``"thresholded"`` if a text is only scored."""
        return "dense" if self._task.OUTPUT_TYPE == "generate_until" else "thresholded"

    @property
    def longest(self) -> int:
        """The most tokens of a request, prompt and answer together; a model cuts what is longer than its context."""
        return max(map(self._length, self._task.instances))

    def check_room(self, context: int) -> None:
        """Raise TopThetaValueError where the model writes the answers and a ``context`` has no room for one."""
        if self.prefill == "dense":
            for instance in self._task.instances:
                check_room(self._tokens(instance.args[0]), instance.args[1], context)

    def _length(self, instance: Any) -> int:
        if self.prefill == "dense":
            return most_tokens(self._tokens(instance.args[0]), instance.args[1])
        return self._tokens("".join(instance.args))

    def _tokens(self, text: str) -> int:
        return len(self._tokenizer(text, verbose=False)["input_ids"])

    @property
    def digest(self) -> str:
        """SHA-256 of the task's documents, prompts and settings."""
        asked = [(instance.request_type, instance.doc_id, instance.args) for instance in self._task.instances]
        return hashlib.sha256(repr(asked).encode()).hexdigest()

    def measure(
        self, method: Method, model: PreTrainedModel, progress: Callable[[int], None] = lambda done: None
    ) -> Measurement:
        """Score every document by the task's first metric of acc_norm, acc, exact_match and others, as `Task.measure`.

        The details have ``prefill``, lm-eval's own ``metrics``, ``num_fewshot``, ``version`` and ``filter``, how many
        requests were ``truncated`` to the model's context, and, document by document, the ``length``, ``depth`` and
        ``margin`` that it has.

        Raises:
            TopThetaValueError: the model has no layer from 2 on, its context has no room for an answer, it writes one
                token per answer at most, or the task has no metric that is a number for each document.
        """
        from lm_eval import evaluate

        check_layers(model)
        task, counter = self._unused_task(), ReadCounter(method)
        done = 0

        def answered(requests: int) -> None:
            nonlocal done
            counter.add(recording.summaries())
            recording.clear()
            done += requests
            progress(done * self.samples // len(task.instances))

        harness = harness_model(model, self._tokenizer, answered)
        self.check_room(harness.max_length)
        enter = method.enter_decoding if self.prefill == "dense" else method.enter
        with _seeded(model.device), enter(model) as recording:
            results = evaluate(
                harness, {"tasks": {self._name: task}}, limit=self._limit, bootstrap_iters=0, log_samples=True,
                confirm_run_unsafe_code=self._unsafe,
            )  # fmt: skip
        metric, better, scores = scores_of(results["samples"][self._name], results["higher_is_better"][self._name])
        details = {"prefill": self.prefill, "truncated": harness.truncated, **details_of(self._name, results)}
        read = counter.result()
        if not read.reads.keys_mean:
            remedy = "let the task generate several tokens"
            raise TopThetaValueError("task", "decode steps, which attend by the method", "none", remedy)
        return Measurement(metric, better, tuple(scores), details=details, **read._asdict())

    def _configure(self, num_fewshot: int) -> None:
        self._task.set_config("num_fewshot", num_fewshot)
        self._task.set_fewshot_seed(1234)  # lm-eval's
        if self._name in PAPER_GENERATION:
            self._task.set_config("generation_kwargs", dict(PAPER_GENERATION[self._name]), update=True)

    def _unused_task(self) -> Any:
        """Give the task with requests that wait for answers, the same ones each time."""
        task = copy.copy(self._task)
        task._instances = [
            dataclasses.replace(instance, resps=[], filtered_resps={}) for instance in self._task.instances
        ]
        task.build_all_requests = _built_already
        return task


def _num_fewshot(name: str, own: int | None, wanted: int | None) -> int:
    """Choose the examples in the prompt; lm-eval lets nobody add some to a task that is defined to have none."""
    if wanted is None:
        return PAPER_SHOTS.get(name, own or 0)
    if wanted < 0 or (own == 0 and wanted):
        raise TopThetaValueError("num_fewshot", f"0, as {name} has it" if own == 0 else "0 or more", str(wanted))
    return wanted


def _built_already(**_: object) -> None:
    return None


@contextlib.contextmanager
def _seeded(device: torch.device = _CPU) -> Iterator[None]:
    """Set the seeds of lm-eval's command line, and afterwards the caller's random state."""
    state, numbers = random.getstate(), np.random.get_state()
    others: dict[str, Any] = {} if device.type == "cpu" else {"device_type": device.type}
    with torch.random.fork_rng([device] if others else [], **others):
        random.seed(0)
        np.random.seed(1234)
        torch.manual_seed(1234)
        try:
            yield
        finally:
            random.setstate(state)
            np.random.set_state(numbers)
