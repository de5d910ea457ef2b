"""The text of ``toptheta evaluate``: windows to score, and windows for methods that calibrate by themselves."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..._checks import check_int
from ...errors import TopThetaValueError
from ...texts import Conventions, Source, collect_windows, find_sources, read_before, was_read
from ...thresholds.kinds import MAX_LENGTH
from ..common.model import Candidate
from .options import Options

if TYPE_CHECKING:
    from ...thresholds import ThresholdTable

PERPLEXITY = "perplexity"
#: Windows kept from the scored ones, for methods that calibrate by themselves.
SPARE_WINDOWS = 2
_MOST_LENGTH, _EMBEDDED_LENGTH = 4096, 2560


class Texts:
    """Windows of text to score, and spare ones. They are read once for all tasks."""

    def __init__(self, options: Options, candidate: Candidate, tables: Mapping[str, ThresholdTable]) -> None:
        self._options = options
        self._candidate = candidate
        self._tables = tables
        self._sources: list[Source] = []
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

    def spare_settings(self) -> dict[str, Any]:
        """Describe the spare windows, for methods that calibrate on them."""
        return {"length": self.length, "windows_sha256": _digest(self.spare)}

    def notes(self) -> list[str]:
        """Write a sentence for each table that was calibrated on text that is scored."""
        if PERPLEXITY not in self._options.task:
            return []
        known = {name: read_before(self._sources, table.provenance.values()) for name, table in self._tables.items()}
        return [
            f"{table} was calibrated on {', '.join(names)}, which is scored here; name text that is new to it."
            for table, names in known.items()
            if names
        ]

    def settings(self) -> dict[str, Any]:
        """Describe the windows, without a path of this machine."""
        digest = _digest(self.scored)
        names = [path.name for path in self._options.text] or ["Python library"]
        return {"text": names, "length": self.length, "windows": len(self.scored), "windows_sha256": digest}

    def _read(self) -> tuple[Tensor, Tensor]:
        if self._windows is None:
            self._windows = self._library() if not self._options.text else self._named()
        return self._windows

    def _library(self) -> tuple[Tensor, Tensor]:
        from ...evaluation import corpus

        if self._options.model is not None:
            expected = "files or folders with text to score"
            raise TopThetaValueError("--text", expected, "none", "such as: --text book.txt")
        tokenizer, count = self._candidate.tokenizer, self._options.windows
        try:
            scored = corpus.token_windows(tokenizer, "evaluation", self.length, count)
        except TopThetaValueError as error:
            if error.argument != "count":
                raise
            raise TopThetaValueError("--windows", error.expected, error.got, error.remedy) from error
        return scored, corpus.token_windows(tokenizer, "calibration", self.length, SPARE_WINDOWS)

    def _named(self) -> tuple[Tensor, Tensor]:
        found = find_sources(self._options.text, self._options.field, self._options.encoding)
        wanted = self._options.windows + SPARE_WINDOWS
        conventions = Conventions.of(self._candidate.tokenizer)
        windows = collect_windows(found.sources, conventions, self.length, wanted)
        if len(windows) < wanted:
            expected = f"text for {wanted} windows of {self.length} tokens, {SPARE_WINDOWS} of them spare"
            remedy = "name more text, or lower --windows or --length"
            raise TopThetaValueError("--text", expected, f"{len(windows)} windows", remedy)
        self._sources = [source for source in found.sources if was_read(source)]
        every = torch.stack([windows[place] for place in range(wanted)])
        return every[SPARE_WINDOWS:], every[:SPARE_WINDOWS]


def _digest(windows: Tensor) -> str:
    return hashlib.sha256(windows.numpy().astype("<i4").tobytes()).hexdigest()


def _window_length(length: int | None, longest: int | None, default: int) -> int:
    most = longest or MAX_LENGTH
    wanted = min(default, most) if length is None else length
    check_int("--length", wanted, 4)
    if wanted > most:
        expected = f"at most {most} tokens, for which the model has positions"
        raise TopThetaValueError("--length", expected, str(wanted), f"use --length {most}")
    return wanted
