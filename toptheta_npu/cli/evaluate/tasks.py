"""What ``toptheta evaluate`` scores: text and tasks, looked at before a model is loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..._checks import check_int
from ...errors import TopThetaCombinationError, TopThetaValueError
from ...texts import Conventions, Source, collect_windows, digest_of, find_sources
from ..common.model import Candidate
from .options import PERPLEXITY, RETRIEVAL, Options

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ...evaluation.measurement import Task
    from ...thresholds import ThresholdTable

_MAX_LENGTH, _EMBEDDED_LENGTH = 4096, 2560
_DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
#: Of a window, predicted by default.
_POSITIONS = 512
#: Lengths of prompts by default, as far as the model has positions.
_PROMPT_LENGTHS = (512, 1024, 2048)


class Texts:
    """Windows of text to score, which are read when they are asked for."""

    def __init__(self, options: Options, candidate: Candidate, tables: Mapping[str, ThresholdTable]) -> None:
        self._options = options
        self._candidate = candidate
        self._tables = tables
        self._sources: list[Source] = []
        self._left_out: list[str] = []
        default = _EMBEDDED_LENGTH if options.model is None else _MAX_LENGTH
        calibrated = [int(table.lengths[-1]) for table in tables.values()]
        self.length = _window_length(options.length, candidate.longest, min([default, *calibrated]))
        self._windows: Tensor | None = None

    @property
    def scored(self) -> Tensor:
        """int64 [W, T]."""
        if self._windows is None:
            from ...evaluation.tasks.prefix import check_tokens

            self._windows = self._library() if not self._options.text else self._named()
            check_tokens(self._candidate.skeleton, self._windows)
        return self._windows

    def notes(self) -> list[str]:
        """Say what of the text is not read, and which tables were calibrated on text of the same name."""
        if PERPLEXITY not in self._options.task:
            return []
        names = {source.name for source in self._sources}
        shared = {
            table: sorted(names & set(content.provenance.get("texts", "").split(", ")))
            for table, content in self._tables.items()
        }
        return self._left_out + [
            f"{table} was calibrated on text named {', '.join(same)}, as is scored here; name text that is new to it."
            for table, same in shared.items()
            if same
        ]

    def settings(self) -> dict[str, Any]:
        """Describe the windows, without a path of this machine."""
        names = [path.name for path in self._options.text] or ["Python library"]
        digest = digest_of(self.scored)
        return {"text": names, "length": self.length, "windows": len(self.scored), "windows_sha256": digest}

    def _library(self) -> Tensor:
        from ...evaluation import corpus

        if self._options.model is not None:
            expected = "files or folders with text to score"
            raise TopThetaValueError("--text", expected, "none", "such as: --text book.txt")
        try:
            return corpus.token_windows(self._candidate.tokenizer, "evaluation", self.length, self._options.windows)
        except TopThetaValueError as error:
            if error.argument != "count":
                raise
            raise TopThetaValueError("--windows", error.expected, error.got, error.remedy) from error

    def _named(self) -> Tensor:
        found = find_sources(self._options.text, self._options.field)
        self._left_out = found.notes()
        wanted = self._options.windows
        conventions = Conventions.of(self._candidate.tokenizer)
        windows = collect_windows(found.sources, conventions, self.length, wanted)
        if (there := len(windows.tokens)) < wanted:
            expected = f"text for {wanted} windows of {self.length} tokens"
            remedy = "name more text, or lower --windows or --length"
            raise TopThetaValueError("--text", expected, f"{there} windows{found.aside()}", remedy)
        self._sources = windows.sources
        return torch.stack(windows.tokens)


@dataclass(frozen=True)
class PlannedTask:
    """A task before there is a model.

    Attributes:
        settings: for the header of the results.
        samples: how many there are.
        unit: what the samples are.
        longest: the most keys that a row has.
        make: the task, once there is a model.
    """

    settings: Mapping[str, Any]
    samples: int
    unit: str
    longest: int
    make: Callable[[PreTrainedModel], Task]


def plan_tasks(
    options: Options, candidate: Candidate, texts: Texts, tables: Mapping[str, ThresholdTable]
) -> dict[str, PlannedTask]:
    """Plan the tasks by name, and check them as far as that goes without the model.

    Raises:
        TopThetaTypeError, TopThetaValueError: an unknown task, settings that do not fit it or the model, or options for
            tasks that are not asked for.
    """
    foreign = [name for name in options.task if name != PERPLEXITY and name not in RETRIEVAL]
    for option, given, wanted in (
        ("--limit", options.limit, foreign), ("--num-fewshot", options.num_fewshot, foreign),
        ("--task-folder", options.task_folder, foreign),
    ):  # fmt: skip
        if given is not None and not wanted:
            other = f"a task of lm-eval, and --task is {', '.join(options.task)}"
            raise TopThetaCombinationError(option, "needs", other, "leave it out, or add --task with one")
    planned = {}
    for name in options.task:
        if name == PERPLEXITY:
            planned[name] = _perplexity(options.positions, texts)
        elif name in RETRIEVAL:
            planned[name] = _retrieval(name, options, candidate, tables)
        else:
            planned[name] = _language_task(name, options, candidate)
    return planned


def check_lengths(tasks: Mapping[str, PlannedTask], tables: Mapping[str, ThresholdTable]) -> None:
    """Raise TopThetaValueError where rows are longer than those that thresholds were calibrated on."""
    for name, task in tasks.items():
        for label, table in tables.items():
            calibrated = int(table.lengths[-1])
            if task.longest > calibrated:
                raise TopThetaValueError(
                    "TABLE", f"thresholds for rows of up to {task.longest} keys, as {name} has them",
                    f"{label}, calibrated up to {calibrated}",
                    "calibrate on longer windows, evaluate shorter ones, or add --extrapolate to use the thresholds of "
                    "the longest rows",
                )  # fmt: skip


def _perplexity(positions: int | None, texts: Texts) -> PlannedTask:
    from ...evaluation.tasks.perplexity import PerplexityTask, check_positions

    if positions is None:
        positions = min(_POSITIONS, max(1, texts.length // 4))
    check_positions(positions, texts.length)
    windows = texts.scored

    def make(model: PreTrainedModel) -> Task:
        return PerplexityTask(model, windows, positions)

    return PlannedTask(texts.settings() | {"positions": positions}, len(windows), "windows", texts.length, make)


def _retrieval(name: str, options: Options, candidate: Candidate, tables: Mapping[str, ThresholdTable]) -> PlannedTask:
    from ...evaluation.tasks.retrieval import RetrievalTask
    from ...evaluation.tasks.retrieval_prompts import choice_tokens, prompts_of

    lengths = sorted(set(options.prompt_length)) or _default_prompt_lengths(candidate, tables)
    seeds = range(options.seed, options.seed + options.prompts)
    # one of each length, to know before the weights are loaded whether they can be made
    try:
        first = list(prompts_of(candidate.tokenizer, RETRIEVAL[name], lengths, _DEPTHS[:1], seeds[:1]))
    except TopThetaValueError as error:
        if error.argument != "length":
            raise
        raise TopThetaValueError("--prompt-length", error.expected, error.got, "ask for longer prompts") from error
    answers = [len(tokens) for prompt in first for tokens in choice_tokens(candidate.tokenizer, prompt)]
    longest = max(lengths) + max(answers)
    if longest > candidate.longest:
        expected = f"prompts and answers of at most {candidate.longest} tokens, for which the model has positions"
        raise TopThetaValueError("--prompt-length", expected, str(longest), "ask for shorter ones")
    if min(options.k, default=0) >= max(lengths):
        expected = f"less than {max(lengths)}, the tokens of the longest prompt of {name}"
        raise TopThetaValueError("--k", expected, str(min(options.k)), "lower it: rows of at most k keys are dense")

    def make(model: PreTrainedModel) -> Task:
        return RetrievalTask(model, candidate.tokenizer, RETRIEVAL[name], lengths, _DEPTHS, seeds)

    settings = {"lengths": lengths, "depths": _DEPTHS, "prompts": options.prompts, "seed": options.seed}
    return PlannedTask(settings, len(lengths) * len(_DEPTHS) * len(seeds), "prompts", longest, make)


def _language_task(name: str, options: Options, candidate: Candidate) -> PlannedTask:
    from ...evaluation.tasks.harness.lookup import KNOWN_TASK
    from ...evaluation.tasks.language import LmEvalTask

    own = ", ".join((PERPLEXITY, *RETRIEVAL))
    if find_spec("lm_eval") is None:
        expected = f"{own}, or {KNOWN_TASK}, which is not installed"
        raise TopThetaValueError("--task", expected, repr(name), "correct the name, or install the extra eval")
    try:
        task = LmEvalTask(
            name, candidate.tokenizer, limit=options.limit, num_fewshot=options.num_fewshot,
            include_path=[options.task_folder] if options.task_folder else (), metadata=_lengths_of_task(options),
            confirm_run_unsafe_code=options.confirm_run_unsafe_code,
        )  # fmt: skip
    except TopThetaValueError as error:
        if error.expected != KNOWN_TASK:
            raise
        raise TopThetaValueError("--task", f"{own}, or {KNOWN_TASK}", error.got, error.remedy) from error
    task.check_room(candidate.longest)
    settings = {"requests_sha256": task.digest, "lm_eval": version("lm_eval")}
    longest = min(task.longest, candidate.longest)
    return PlannedTask(settings, task.samples, "requests", longest, lambda model: task)


def _lengths_of_task(options: Options) -> dict[str, Any]:
    """Give the lengths of prompts by the names that the tasks of this package and those of RULER use."""
    lengths = options.prompt_length
    return {"lengths": lengths, "max_seq_lengths": lengths} if lengths else {}


def _default_prompt_lengths(candidate: Candidate, tables: Mapping[str, ThresholdTable]) -> list[int]:
    # the answer's tokens take positions, too
    longest = min([candidate.longest, *(int(table.lengths[-1]) for table in tables.values())]) - 64
    return [length for length in _PROMPT_LENGTHS if length <= longest] or [max(longest, 1)]


def _window_length(length: int | None, most: int, default: int) -> int:
    wanted = min(default, most) if length is None else length
    check_int("--length", wanted, 4)
    if wanted > most:
        expected = f"at most {most} tokens, for which the model has positions"
        raise TopThetaValueError("--length", expected, str(wanted), f"use --length {most}")
    return wanted
