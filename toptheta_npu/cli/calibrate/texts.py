"""The texts of ``toptheta calibrate``: windows to calibrate on, and windows that are kept from it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from ...errors import TopThetaValueError
from ...evaluation import corpus
from ...texts import (
    Conventions,
    Overlap,
    Sources,
    StoredText,
    Windows,
    collect_windows,
    find_sources,
    held_out_count,
    held_out_places,
    overlaps,
    was_read,
)
from ...texts.overlap import RUN, SHARE
from .options import Options, Plan

#: The most windows that k̃/k is measured on.
MAX_JUDGED = 8
#: Shorter windows are not proposed.
_SHORTEST = 64
#: Of more sources than these a table names only a digest.
_MAX_NAMED = 50


class Material(NamedTuple):
    """What is calibrated on and judged by.

    Attributes:
        windows: all windows of the texts.
        calibration: which of them to calibrate on.
        held_out: int64 [length] each, windows to judge by.
        notes: what the user should know.
        provenance: of the table.
    """

    windows: Windows
    calibration: list[int]
    held_out: list[Tensor]
    notes: list[str]
    provenance: dict[str, str]

    def sequences(self) -> list[Tensor]:
        """Give the windows to calibrate on."""
        return [self.windows[place] for place in self.calibration]


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
        TopThetaValueError: none is named for another model, or one cannot be read.
    """
    named = find_sources(options.evaluation, options.field) if options.evaluation else None
    if options.text:
        return Texts(find_sources(options.text, options.field), named)
    if options.model is None:
        return Texts(_library("calibration"), named or _library("evaluation"))
    raise TopThetaValueError("--text", "files or folders with text to calibrate on", "none", "such as: --text book.txt")


def _library(split: corpus.Split) -> Sources:
    return Sources([StoredText(name, text) for name, text in corpus.read_split(split)])


def windows_wanted(texts: Texts, plan: Plan) -> int | None:
    """Count the windows to cut, those for other purposes included; None: all that there are."""
    if plan.sequences is None:
        return None
    return plan.sequences + _kept_back(texts, plan.sequences)


def _kept_back(texts: Texts, windows: int) -> int:
    return held_out_count(windows) if texts.evaluation is None else 0


def collect(
    texts: Texts, conventions: Conventions, plan: Plan, progress: Callable[[int], None] | None = None
) -> Material:
    """Read as many texts as are needed.

    Raises:
        TopThetaTypeError, TopThetaValueError: a text cannot be read, there is too little of it, or the texts to judge
            by are among those to calibrate on.
    """
    wanted = plan.sequences
    most = windows_wanted(texts, plan)
    windows = collect_windows(texts.calibration.sources, conventions, plan.length, most, progress)
    split = _split(texts, plan, windows, conventions)
    judged, held_places = windows, split.held_out
    if texts.evaluation is not None:
        judged = collect_windows(texts.evaluation.sources, conventions, plan.length, MAX_JUDGED)
        _check_enough("--evaluation", judged, conventions)
        held_places = list(range(len(judged)))
    held_out = [judged[place] for place in held_places]
    shared = overlaps(held_out, (windows[place] for place in split.calibration))
    if shared and texts.evaluation is not None:
        raise _calibrated_on(shared, conventions)
    notes = [
        *_shared_note(len(shared)),
        *_notes(texts, wanted, len(split.calibration), plan.length),
    ]
    provenance = _provenance(texts, conventions, plan, windows, split.calibration)
    return Material(windows, split.calibration, held_out, notes, provenance)


class _Split(NamedTuple):
    """Say which windows of the texts to calibrate on are for what."""

    held_out: list[int]
    calibration: list[int]


def _split(texts: Texts, plan: Plan, windows: Windows, conventions: Conventions) -> _Split:
    """Spread the windows that are kept back over all."""
    there, wanted = len(windows), plan.sequences
    kept_back = _kept_back(texts, there if wanted is None or there != windows_wanted(texts, plan) else wanted)
    _check_enough("--text", windows, conventions, min(kept_back, 1))
    held_out = held_out_places(there, kept_back)
    return _Split(held_out, [place for place in range(there) if place not in held_out][:wanted])


def _shared_note(count: int) -> list[str]:
    if not count:
        return []
    return [
        f"Of the windows that were kept back, {count} share more than {100 * SHARE:.0f} % of their tokens with "
        "calibrated ones, so k̃/k may look better than it is on new text; name other text with --evaluation."
    ]


def _calibrated_on(shared: list[Overlap], conventions: Conventions) -> TopThetaValueError:
    worst = max(shared, key=lambda overlap: overlap.share)
    example = " ".join(str(conventions.tokenizer.decode(worst.tokens[:RUN])).split())
    return TopThetaValueError(
        "--evaluation",
        f"texts of which at most {100 * SHARE:.0f} % of any window is calibrated on, in runs of {RUN} tokens or more",
        f'{100 * worst.share:.0f} % of window {worst.window}, such as "{example}"',
        "name other texts, or leave it out: then a part of --text is kept back",
    )


def _check_enough(option: str, windows: Windows, conventions: Conventions, kept_back: int = 0) -> None:
    needed = 1 + kept_back
    if len(windows) >= needed:
        return
    have = len(windows) * conventions.body(windows.length) + windows.rest
    most = have // needed + windows.length - conventions.body(windows.length)
    spare = ", of which one is kept back to judge by" * kept_back
    remedy = "name more text" + (f", or use --length {most}" if most >= _SHORTEST else "")
    raise TopThetaValueError(
        option, f"at least {needed * conventions.body(windows.length)} tokens for {needed} "
        f"{'window' if needed == 1 else 'windows'} of {windows.length}{spare}", str(have), remedy,
    )  # fmt: skip


def _notes(texts: Texts, wanted: int | None, have: int, length: int) -> list[str]:
    notes = []
    if wanted is not None and have < wanted:
        notes.append(f"The texts hold {have} windows of {length} tokens to calibrate on, and not {wanted}.")
    for sources in filter(None, texts):
        if sources.left_out:
            count = len(sources.left_out)
            files = "1 file is" if count == 1 else f"{count} files are"
            notes.append(f"{files} left out, binary, empty or JSON, such as {sources.left_out[0]}.")
    return notes


def _provenance(
    texts: Texts, conventions: Conventions, plan: Plan, windows: Windows, calibration: list[int]
) -> dict[str, str]:
    """Collect names without folders, and digests: nothing that differs between machines."""
    used = [(source.name, source.used()) for source in texts.calibration.sources if was_read(source)]
    names = [name for name, _ in used]
    # files of two folders may have one name
    named = {
        f"text {name}" + f" ({names[:place].count(name) + 1})" * (name in names[:place]): text
        for place, (name, text) in enumerate(used[: _MAX_NAMED + 1])
    }
    if len(used) > _MAX_NAMED:
        digest = hashlib.sha256("".join(f"{name}: {text}\n" for name, text in used).encode())
        named = {"texts": f"{len(used)} files, sha256 of their names and digests {digest.hexdigest()}"}
    return named | {
        "sequence_length": str(plan.length),
        "windows": str(conventions),
        "windows_sha256": windows.digest(calibration),
    }
