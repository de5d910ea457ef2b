"""The texts of ``toptheta calibrate``: windows to calibrate on, and windows that are kept from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from ...errors import TopThetaValueError
from ...evaluation import corpus
from ...texts import (
    Conventions,
    PlainText,
    Sources,
    StoredText,
    Windows,
    collect_windows,
    digest_of,
    find_sources,
    held_out_count,
    held_out_places,
)
from .options import Options, Plan

#: The most windows that k̃/k is measured on.
MAX_JUDGED = 8
#: Shorter windows are not proposed.
_SHORTEST = 64
#: The most sources that a table names.
_MAX_NAMED = 50


class Material(NamedTuple):
    """What is calibrated on and judged by.

    Attributes:
        calibration: int64 [length] each, windows to calibrate on.
        held_out: the same, windows to judge by.
        notes: what the user should know.
        provenance: of the table.
    """

    calibration: list[Tensor]
    held_out: list[Tensor]
    notes: list[str]
    provenance: dict[str, str]


class Texts(NamedTuple):
    """Texts to read; none is read yet.

    Attributes:
        calibration: to calibrate on.
        evaluation: to judge by; None: a part of the others is kept back.
    """

    calibration: Sources
    evaluation: Sources | None


def find_texts(options: Options) -> Texts:
    """Find the sources that the options name. Without any, take the Python library for the embedded model.

    Raises:
        TopThetaValueError: none is named for another model, one cannot be read, or one is for both purposes.
    """
    named = find_sources(options.evaluation, options.field) if options.evaluation else None
    if options.text:
        texts = Texts(find_sources(options.text, options.field), named)
        _check_apart(texts)
        return texts
    if options.model is None:
        return Texts(_library("calibration"), named or _library("evaluation"))
    raise TopThetaValueError("--text", "files or folders with text to calibrate on", "none", "such as: --text book.txt")


def _library(split: corpus.Split) -> Sources:
    return Sources([StoredText(name, text) for name, text in corpus.read_split(split)])


def _check_apart(texts: Texts) -> None:
    calibration, evaluation = (
        {source.path.resolve() for source in sources.sources if isinstance(source, PlainText)} if sources else set()
        for sources in texts
    )
    if both := sorted(calibration & evaluation):
        remedy = "name other texts, or leave it out: then a part of --text is kept back"
        raise TopThetaValueError("--evaluation", "texts that are not calibrated on", str(both[0]), remedy)


def windows_wanted(texts: Texts, plan: Plan) -> int | None:
    """Count the windows to cut, those that are kept back included; None: all that there are."""
    if plan.sequences is None:
        return None
    return plan.sequences + _kept_back(texts, plan.sequences)


def _kept_back(texts: Texts, windows: int) -> int:
    return held_out_count(windows) if texts.evaluation is None else 0


def collect(
    texts: Texts, conventions: Conventions, plan: Plan, progress: Callable[[int], None] | None = None
) -> Material:
    """Read as many texts as are needed. Spread the windows that are kept back over all.

    Raises:
        TopThetaTypeError, TopThetaValueError: a text cannot be read, or there is too little of it.
    """
    wanted, most = plan.sequences, windows_wanted(texts, plan)
    windows = collect_windows(texts.calibration.sources, conventions, plan.length, most, progress)
    there = len(windows.tokens)
    kept_back = _kept_back(texts, there if wanted is None or there != most else wanted)
    _check_enough("--text", texts.calibration, windows, conventions, plan.length, min(kept_back, 1))
    places = held_out_places(there, kept_back)
    calibration = [window for place, window in enumerate(windows.tokens) if place not in places][:wanted]
    held_out = [windows.tokens[place] for place in places]
    if texts.evaluation is not None:
        judged = collect_windows(texts.evaluation.sources, conventions, plan.length, MAX_JUDGED)
        _check_enough("--evaluation", texts.evaluation, judged, conventions, plan.length)
        held_out = judged.tokens
    notes = _notes(texts, wanted, len(calibration), plan.length)
    names = [source.name for source in windows.sources]
    more = [f"{len(names) - _MAX_NAMED} more"] if len(names) > _MAX_NAMED else []
    provenance = {
        "texts": ", ".join(names[:_MAX_NAMED] + more), "sequence_length": str(plan.length),
        "windows": str(conventions), "windows_sha256": digest_of(calibration),
    }  # fmt: skip
    return Material(calibration, held_out, notes, provenance)


def _check_enough(
    option: str, sources: Sources, windows: Windows, conventions: Conventions, length: int, kept_back: int = 0
) -> None:
    needed, body = 1 + kept_back, conventions.body(length)
    if len(windows.tokens) >= needed:
        return
    have = len(windows.tokens) * body + windows.rest
    most = have // needed + length - body
    spare = ", of which one is kept back to judge by" * kept_back
    remedy = "name more text" + (f", or use --length {most}" if most >= _SHORTEST else "")
    expected = f"at least {needed * body} tokens for {needed} window{'s' * kept_back} of {length}{spare}"
    raise TopThetaValueError(option, expected, f"{have}{sources.aside()}", remedy)


def _notes(texts: Texts, wanted: int | None, have: int, length: int) -> list[str]:
    notes = []
    if wanted is not None and have < wanted:
        notes.append(f"The texts hold {have} windows of {length} tokens to calibrate on, and not {wanted}.")
    return notes + [note for sources in texts if sources for note in sources.notes()]
