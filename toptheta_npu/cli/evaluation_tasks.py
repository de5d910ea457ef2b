"""The tasks of ``toptheta evaluate``: their text and settings, before a model is loaded."""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..calibration.settings import check_int
from ..errors import TopThetaValueError, nearest, shown
from ..texts import Conventions, collect_windows, find_sources
from ..thresholds.checks import MAX_LENGTH
from .loading import Candidate

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ..evaluation.measurement import Task
    from ..evaluation.retrieval import Kind
    from ..thresholds import ThresholdTable
    from .evaluate import Options

PERPLEXITY = "perplexity"
#: Task names and the kinds of prompts.
RETRIEVAL: Mapping[str, Kind] = {"key-value": "key_value", "needle": "needle"}
_DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
#: Windows kept from the scored ones, for methods that calibrate by themselves.
SPARE_WINDOWS = 2
_MOST_LENGTH, _EMBEDDED_LENGTH = 4096, 2560
#: Of a window, predicted by default.
_POSITIONS = 512
#: Lengths of prompts by default, as far as the model has positions.
_PROMPT_LENGTHS = (512, 1024, 2048)


@dataclass(frozen=True)
class PlannedTask:
    """A task before there is a model.

    Attributes:
        settings: for the header of the results.
        samples: how many there are.
        longest: the most keys that a row has; None: not known beforehand.
        make: the task, once there is a model.
    """

    settings: Mapping[str, Any]
    samples: int
    longest: int | None
    make: Callable[[PreTrainedModel], Task]


class Texts:
    """Windows of text, read once for all tasks: to score, and spare ones."""

    def __init__(self, options: Options, candidate: Candidate, tables: Mapping[str, ThresholdTable]) -> None:
        self._options = options
        self._candidate = candidate
        default = _EMBEDDED_LENGTH if options.model is None else _MOST_LENGTH
        calibrated = [int(table.lengths[-1]) for table in tables.values()]
        self.length = _window_length(options.length, candidate.longest, min([default, *calibrated]))
        self._windows: tuple[Tensor, Tensor] | None = None

    @property
    def scored(self) -> Tensor:
        """int64 [W, T]."""
        return self._read()[0]

    @property
    def spare(self) -> Tensor:
        """int64 [2, T]; none of them is scored."""
        return self._read()[1]

    def settings(self) -> dict[str, Any]:
        """What the windows are, without a path of this machine."""
        digest = hashlib.sha256(self.scored.numpy().astype("<i4").tobytes()).hexdigest()
        names = [path.name for path in self._options.text] or ["Python library"]
        return {"text": names, "length": self.length, "windows": len(self.scored), "windows_sha256": digest}

    def _read(self) -> tuple[Tensor, Tensor]:
        if self._windows is None:
            self._windows = self._library() if not self._options.text else self._named()
        return self._windows

    def _library(self) -> tuple[Tensor, Tensor]:
        from ..evaluation import corpus

        if self._options.model is not None:
            expected = "files or folders with text to score"
            raise TopThetaValueError("--text", expected, "none", "such as: --text book.txt")
        tokenizer = self._candidate.tokenizer
        return (
            corpus.token_windows(tokenizer, "evaluation", self.length, self._options.windows),
            corpus.token_windows(tokenizer, "calibration", self.length, SPARE_WINDOWS),
        )

    def _named(self) -> tuple[Tensor, Tensor]:
        found = find_sources(self._options.text, self._options.field, self._options.encoding)
        wanted = self._options.windows + SPARE_WINDOWS
        conventions = Conventions.of(self._candidate.tokenizer)
        windows = collect_windows(found.sources, conventions, self.length, wanted)
        if len(windows) < wanted:
            expected = f"text for {wanted} windows of {self.length} tokens, {SPARE_WINDOWS} of them spare"
            remedy = "name more text, or lower --windows or --length"
            raise TopThetaValueError("--text", expected, f"{len(windows)} windows", remedy)
        every = torch.stack([windows[place] for place in range(wanted)])
        return every[SPARE_WINDOWS:], every[:SPARE_WINDOWS]


def plan_tasks(
    options: Options, candidate: Candidate, texts: Texts, tables: Mapping[str, ThresholdTable]
) -> dict[str, PlannedTask]:
    """The tasks by name, checked as far as that goes without the model.

    Raises:
        TopThetaTypeError, TopThetaValueError: an unknown task, or settings that do not fit it or the model.
    """
    planned = {}
    for name in options.task:
        if name == PERPLEXITY:
            planned[name] = _perplexity(options, texts)
        elif name in RETRIEVAL:
            planned[name] = _retrieval(name, options, candidate, tables)
        else:
            planned[name] = _checked_language_task(name, options, candidate)
    return planned


def check_lengths(tasks: Mapping[str, PlannedTask], tables: Mapping[str, ThresholdTable]) -> None:
    """Raises TopThetaValueError where rows are longer than those that thresholds were calibrated on."""
    for name, task in tasks.items():
        for label, table in tables.items():
            calibrated = int(table.lengths[-1])
            if task.longest is not None and task.longest > calibrated:
                raise TopThetaValueError(
                    "TABLE", f"thresholds for rows of up to {task.longest} keys, as {name} has them",
                    f"{label}, calibrated up to {calibrated}",
                    "calibrate on longer windows, evaluate shorter ones, or add --extrapolate to use the thresholds of "
                    "the longest rows",
                )  # fmt: skip


def _perplexity(options: Options, texts: Texts) -> PlannedTask:
    from ..evaluation.perplexity import PerplexityTask, check_positions

    positions = min(_POSITIONS, max(1, texts.length // 4)) if options.positions is None else options.positions
    check_positions(positions, texts.length)
    place = None if options.popularity is None else _layer_and_head(options.popularity)
    windows = texts.scored

    def make(model: PreTrainedModel) -> Task:
        return PerplexityTask(model, windows, positions, place)

    return PlannedTask(
        texts.settings() | {"positions": positions, "popularity": options.popularity}, len(windows), texts.length, make
    )


def _layer_and_head(text: str) -> tuple[int, int]:
    pair = re.fullmatch(r"(\d{1,6}):(\d{1,6})", text)
    if pair is None:
        raise TopThetaValueError("--popularity", "LAYER:KV_HEAD, two numbers from 0", shown(text), "such as 2:0")
    return int(pair[1]), int(pair[2])


def _retrieval(name: str, options: Options, candidate: Candidate, tables: Mapping[str, ThresholdTable]) -> PlannedTask:
    from ..evaluation.retrieval_task import RetrievalTask

    lengths = options.prompt_length or _default_prompt_lengths(candidate, tables)
    seeds = range(options.seed, options.seed + options.prompts)

    def make(model: PreTrainedModel) -> Task:
        return RetrievalTask(model, candidate.tokenizer, RETRIEVAL[name], lengths, _DEPTHS, seeds)

    settings = {"lengths": lengths, "depths": _DEPTHS, "prompts": options.prompts, "seed": options.seed}
    return PlannedTask(settings, len(lengths) * len(_DEPTHS) * len(seeds), max(lengths), make)


def _checked_language_task(name: str, options: Options, candidate: Candidate) -> PlannedTask:
    """A task of lm-eval; a name that is nearly one of ours was meant so."""
    try:
        return _language_task(name, options, candidate)
    except TopThetaValueError as error:
        ours = (PERPLEXITY, *RETRIEVAL)
        if not difflib.get_close_matches(name, ours, n=1, cutoff=0.8):
            raise
        expected = f"{', '.join(ours)} or a task of lm-eval"
        raise TopThetaValueError("--task", expected, shown(name), nearest(name, ours)) from error


def _language_task(name: str, options: Options, candidate: Candidate) -> PlannedTask:
    from ..evaluation.language_tasks import LmEvalTask

    task = LmEvalTask(
        name, candidate.tokenizer, limit=options.limit, num_fewshot=options.num_fewshot,
        include_path=[options.task_folder] if options.task_folder else (), metadata=_lengths_of_task(options),
        confirm_run_unsafe_code=options.confirm_run_unsafe_code,
    )  # fmt: skip
    settings = {name: getattr(options, name) for name in ("limit", "num_fewshot")} | {"lengths": options.prompt_length}
    return PlannedTask(settings, task.samples, None, lambda model: task)


def _lengths_of_task(options: Options) -> dict[str, Any]:
    """What the tasks of this package and those of RULER call the lengths of their prompts."""
    lengths = options.prompt_length
    return {"lengths": lengths, "max_seq_lengths": lengths} if lengths else {}


def _window_length(length: int | None, longest: int | None, default: int) -> int:
    most = longest or MAX_LENGTH
    wanted = min(default, most) if length is None else length
    check_int("--length", wanted, 4)
    if wanted > most:
        expected = f"at most {most} tokens, for which the model has positions"
        raise TopThetaValueError("--length", expected, str(wanted), f"use --length {most}")
    return wanted


def _default_prompt_lengths(candidate: Candidate, tables: Mapping[str, ThresholdTable]) -> list[int]:
    # the answer's tokens take positions, too
    longest = min([candidate.longest or MAX_LENGTH, *(int(table.lengths[-1]) for table in tables.values())]) - 64
    return [length for length in _PROMPT_LENGTHS if length <= longest] or [max(longest, 1)]
