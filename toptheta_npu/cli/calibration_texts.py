"""The texts of ``toptheta calibrate``: windows to calibrate on, and windows that are kept from it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from torch import Tensor

from ..errors import TopThetaValueError
from ..evaluation import corpus
from ..texts import (
    Conventions,
    Sources,
    StoredText,
    Windows,
    collect_windows,
    find_sources,
    held_out_places,
    overlaps,
)
from ..texts.overlap import RUN, SHARE
from ..texts.packing import MOST_HELD_OUT
from .calibration_options import Options, Plan

#: The most windows that k̃/k is measured on.
MOST_JUDGED = 8
#: Of more sources than these a table names only a digest.
_MOST_NAMED = 50


class Material(NamedTuple):
    """What is calibrated on and judged by.

    Attributes:
        windows: all windows of the texts.
        calibration: which of them to calibrate on.
        held_out: int64 [length] each, the windows that are not.
        notes: what the user should know.
        provenance: of the table.
    """

    windows: Windows
    calibration: list[int]
    held_out: list[Tensor]
    notes: list[str]
    provenance: dict[str, str]

    def sequences(self) -> Iterator[Tensor]:
        """The windows to calibrate on."""
        return (self.windows[place] for place in self.calibration)


class Texts(NamedTuple):
    """What is read; nothing of it is yet.

    Attributes:
        calibration: to calibrate on.
        evaluation: to judge by; None: a part of the others is kept back.
    """

    calibration: Sources
    evaluation: Sources | None


def find_texts(options: Options) -> Texts:
    """The sources that the options name; without any, the Python library for the embedded model.

    Raises:
        TopThetaValueError: none is named for another model, or one cannot be read.
    """
    if not options.text and options.model is None and not options.evaluation:
        return Texts(_library("calibration"), _library("evaluation"))
    if not options.text:
        remedy = "such as: --text book.txt"
        raise TopThetaValueError("--text", "files or folders with text to calibrate on", "none", remedy)
    found = find_sources(options.text, options.field, options.encoding)
    named = find_sources(options.evaluation, options.field, options.encoding) if options.evaluation else None
    return Texts(found, named)


def _library(split: corpus.Split) -> Sources:
    return Sources([StoredText(name, text) for name, text in corpus.read_split(split)])


def collect(
    texts: Texts, conventions: Conventions, plan: Plan, progress: Callable[[int], None] | None = None
) -> Material:
    """Reads as many texts as are needed.

    Raises:
        TopThetaTypeError, TopThetaValueError: a text cannot be read, there is too little of it, or the texts to judge
            by are among those to calibrate on.
    """
    wanted = plan.sequences
    kept_back = texts.evaluation is None
    most = None if wanted is None else wanted + (min(MOST_HELD_OUT, max(1, wanted // 10)) if kept_back else 0)
    windows = collect_windows(texts.calibration.sources, conventions, plan.length, most, progress)
    _check_enough("--text", windows, conventions, 2 if kept_back else 1)
    places = list(range(len(windows)))
    held_places = held_out_places(len(windows)) if kept_back else []
    calibration = [place for place in places if place not in set(held_places)][:wanted]
    notes = _notes(texts, wanted, len(calibration), plan.length)
    if texts.evaluation is None:
        held_out = [windows[place] for place in held_places]
    else:
        others = collect_windows(texts.evaluation.sources, conventions, plan.length, MOST_JUDGED)
        _check_enough("--evaluation", others, conventions, 1)
        held_out = [others[place] for place in range(len(others))]
    shared = overlaps(held_out, (windows[place] for place in calibration))
    if shared and kept_back:
        notes.append(
            f"{len(shared)} of the {len(held_out)} windows that were kept back share more than {SHARE:.0%} of their "
            "tokens with calibrated ones, so k̃/k may look better than it is on new text; name some with --evaluation."
        )
    elif shared:
        worst = max(shared, key=lambda overlap: overlap.share)
        example = " ".join(str(conventions.tokenizer.decode(worst.tokens[:RUN])).split())
        raise TopThetaValueError(
            "--evaluation", f"texts that share at most {SHARE:.0%} of any window with those to calibrate on, "
            f"in runs of {RUN} tokens or more", f'{worst.share:.0%} of window {worst.window}, such as "{example}"',
            "name other texts, or leave it out: then a part of --text is kept back",
        )  # fmt: skip
    provenance = _provenance(texts, conventions, plan, windows, calibration)
    return Material(windows, calibration, held_out, notes, provenance)


def _check_enough(option: str, windows: Windows, conventions: Conventions, needed: int) -> None:
    if len(windows) >= needed:
        return
    have = len(windows) * conventions.body(windows.length) + windows.rest
    most = have // needed + windows.length - conventions.body(windows.length)
    spare = ", of which one is kept back to judge by" if needed > 1 else ""
    remedy = "name more text" + (f", or use --length {most}" if most > 1 else "")
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
            notes.append(f"{files} left out, binary or empty, such as {sources.left_out[0]}.")
    return notes


def _provenance(
    texts: Texts, conventions: Conventions, plan: Plan, windows: Windows, calibration: list[int]
) -> dict[str, str]:
    """Names without folders, and digests: nothing that differs between machines."""
    read = {source.name: source.used() for source in texts.calibration.sources}
    used = {name: text for name, text in read.items() if not text.startswith("first 0 ")}
    named = {f"text {name}": text for name, text in used.items()}
    if len(used) > _MOST_NAMED:
        digest = hashlib.sha256("".join(f"{name}: {text}\n" for name, text in sorted(used.items())).encode())
        named = {"texts": f"{len(used)} files, sha256 of their names and digests {digest.hexdigest()}"}
    return named | {
        "sequence_length": str(plan.length),
        "windows": str(conventions),
        "windows_sha256": windows.digest(calibration),
    }
