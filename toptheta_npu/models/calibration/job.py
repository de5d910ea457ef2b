"""One part of a calibration of a model: checked, resumed where it had stopped, run and kept in a file."""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torch import Tensor
from transformers import PreTrainedModel

from ..._checks import check_choice, check_int, check_modes
from ..._files import check_writable, checked_path
from ..._warnings import warn_of_sdc_without_vmc
from ...calibration import Calibrator
from ...calibration.part import Part, SeenSequence, WholeSet, check_texts, refuse_other
from ...calibration.state import CalibrationState
from ...errors import (
    Setting,
    TopThetaCombinationError,
    TopThetaTypeError,
    TopThetaValueError,
    shown,
)
from ...thresholds import Estimator, Placement
from ...thresholds.kinds import MAX_LENGTH
from ...thresholds.summary import told_dense
from ..fingerprint.model import model_fingerprint
from ..hook.architecture import num_heads, num_layers, sliding_layers, window_in_words
from ..hook.attach import check_model, check_switches
from ..hook.attention import AttentionCall
from .observe import Attend, observe_model
from .rows import TopK
from .texts import CalibrationTexts, Sequences
from .token_sequences import can_be_read_twice

Progress = Callable[[int], None]
Meanwhile = Callable[[], None]


@dataclass(frozen=True, kw_only=True)
class CalibrationOptions:
    """What `calibrate` can be told. Its docstring says what each means."""

    k: int | Sequence[int] = 128
    placement: Placement = "post_softmax"
    estimator: Estimator = "algorithm1"
    alpha: float = 0.1
    quantile: float | None = None
    layer_k: Sequence[int] | None = None
    row_fraction: float = 1.0
    top_k_at_calibration: bool = True
    sdc: Literal["none", "exact"] = "exact"
    vmc: bool = True
    seed: int = 0
    decode_tokens: int = 0
    longest: int | None = None
    progress: Progress | None = None
    provenance: Mapping[str, str] | None = None

    def checked_k(self) -> list[int]:
        """Check all options as far as that needs no model. Return the k asked for.

        Raises:
            TopThetaTypeError, TopThetaValueError: an option is unusable.
        """
        targets = _checked_k(self.k, self.top_k_at_calibration)
        check_choice("sdc", self.sdc, ("none", "exact"))
        check_options(self.progress, self.provenance, top_k_at_calibration=self.top_k_at_calibration, vmc=self.vmc)
        check_modes(self.placement, self.sdc, 0.0, None, "vmc" if self.vmc else None)
        return targets

    def attend_of(self, calibrator: Calibrator) -> Callable[[int], Attend | TopK]:
        """Choose what each layer passes on while it is calibrated."""

        def attend_of(layer: int) -> Attend | TopK:
            if not self.top_k_at_calibration:
                return AttentionCall.dense
            return TopK(calibrator.settings.targets(layer)[0], self.sdc, self.vmc)

        return attend_of


class CalibrationJob:
    """One part of a calibration, ready to run.

    Args:
        model, sequences, options: as in `calibrate`.
        part: which sequences to run.
        checkpoint: the file of the state; None: none is kept. The work goes on from what is there.
        every: sequences from one writing of it to the next.

    Attributes:
        state: of the part.

    Raises:
        TopThetaTypeError, TopThetaValueError, TopThetaNotImplementedError: as `calibrate`; or the file cannot be read
            or written, or holds something else.

    Warns:
        SdcWithoutVmcWarning: as `calibrate`, where the caller of this class is called.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        sequences: Sequences,
        options: CalibrationOptions,
        *,
        part: Part,
        checkpoint: str | os.PathLike[str] | None,
        every: int,
    ) -> None:
        check_model(model)
        targets = options.checked_k()
        if options.top_k_at_calibration:
            warn_of_sdc_without_vmc(options.sdc, options.vmc, stacklevel=3)
        check_int("checkpoint_every", every, 1)
        self._model, self._options = model, options
        self._texts = texts = PartOfTexts(model, sequences, options.longest, options.decode_tokens, min(targets))
        calibrator = self._calibrator(targets, texts.longest_row)
        if can_be_read_twice(sequences):
            calibrator.settings.check_rows(texts.rows())
        fresh = CalibrationState(
            calibrator=calibrator, fingerprint=model_fingerprint(model),
            dtype=dtype_of(model), run=_run_of(options), part=part,
            provenance={**told_dense(sliding_layers(model), window_in_words(model)), **(options.provenance or {})},
        )  # fmt: skip
        self._every = every
        self._checkpoint = None if checkpoint is None else checked_path(checkpoint)
        self.state = fresh if self._checkpoint is None else _resumed(self._checkpoint, fresh)

    def _calibrator(self, targets: Sequence[int], longest: int) -> Calibrator:
        model, options = self._model, self._options
        return Calibrator(
            num_layers(model), num_heads(model), k=targets, longest=longest,
            placement=options.placement, estimator=options.estimator, alpha=options.alpha, layer_k=options.layer_k,
            row_fraction=options.row_fraction, seed=options.seed, dense_layers=sliding_layers(model),
            quantile=options.quantile,
        )  # fmt: skip

    def digest_of_texts(self) -> str | None:
        """Compute the digest of all sequences. Return None where they can be read only once."""
        return self._texts.digest()

    def run(self, meanwhile: Meanwhile | None = None) -> CalibrationState:
        """Run what is left of the part. Call ``meanwhile`` as often as the state is kept.

        Raises:
            TopThetaValueError: the sequences are not those of the state, or it cannot be written.
        """
        state, before, progress = self.state, len(self.state.seen), self._options.progress
        calibrator, attend_of = state.calibrator, self._options.attend_of(state.calibrator)
        self._texts.begin(state.part, list(state.seen), self._checkpoint)

        def rows(count: int, index: int) -> Tensor:
            return calibrator.rows_to_observe(count, state.part.index + (before + index) * state.part.count)

        def done(_: int) -> None:
            state.seen.append(self._texts.handed_out.popleft())
            if len(state.seen) % self._every == 0:
                self._keep()
                if meanwhile is not None:
                    meanwhile()
            if progress is not None:
                progress(len(state.seen))

        observe_model(self._model, self._texts, rows, calibrator, attend_of, done)
        state.whole = self._texts.whole
        self._keep()
        return state

    def _keep(self) -> None:
        """Write the state to its file.

        Raises:
            TopThetaValueError: it cannot be written.
        """
        if self._checkpoint is None:
            return
        try:
            self.state.save(self._checkpoint)
        except TopThetaValueError as error:
            cause = error.__cause__
            if not isinstance(cause, OSError):
                raise
            got = f"{cause.strerror or cause} after {len(self.state.seen)} sequences"
            remedy = "what was written before is intact: make room and call again, and the work goes on from there"
            raise TopThetaValueError(str(self._checkpoint), "a place for the state", got, remedy) from error


class PartOfTexts(CalibrationTexts):
    """Hands out the sequences of one part that were not seen before, and looks at all of them.

    Attributes:
        handed_out: entries for those that were.
        whole: of all sequences, once all were read.
    """

    handed_out: deque[SeenSequence]
    whole: WholeSet | None = None

    def begin(self, part: Part, seen: list[SeenSequence], checkpoint: Path | None) -> None:
        """Hand out those of ``part`` that are not among ``seen``, which comes from the file ``checkpoint``."""
        self._part, self._seen, self._checkpoint = part, seen, checkpoint

    def __iter__(self) -> Iterator[Tensor]:
        self.handed_out = deque()
        digest, total = hashlib.sha256(), 0
        for total, tokens in enumerate(self._checked(), start=1):
            entry = SeenSequence.of(tokens)
            digest.update(entry.digest)
            position, other = divmod(total - 1 - self._part.index, self._part.count)
            if other:
                continue
            if position >= len(self._seen):
                self.handed_out.append(entry)
                yield tokens[None]
            elif entry != self._seen[position]:
                refuse_other(self._checkpoint, [f"another sequence {total - 1}"])
        own = len(range(self._part.index, total, self._part.count))
        if own < len(self._seen):
            refuse_other(self._checkpoint, [f"more sequences, {len(self._seen)} (here {own})"])
        self.whole = WholeSet(digest.hexdigest(), total)

    def digest(self) -> str | None:
        """Compute the digest of all sequences, as in ``whole``. Return None where they can be read only once."""
        if not can_be_read_twice(self._batches):
            return None
        digest = hashlib.sha256()
        for tokens in self._checked():
            digest.update(SeenSequence.of(tokens).digest)
        return digest.hexdigest()


def dtype_of(model: PreTrainedModel) -> str:
    """Name the dtype of a model."""
    return str(model.dtype).removeprefix("torch.")


def _resumed(path: Path, fresh: CalibrationState) -> CalibrationState:
    """Load the state in ``path`` and check it against ``fresh``. Return ``fresh`` itself where there is no file yet."""
    check_writable(path)
    if not os.path.lexists(path):
        return fresh
    found = CalibrationState.load(path)
    different = fresh.differences(found)
    for name in ("index", "count"):
        mine, theirs = getattr(fresh.part, name), getattr(found.part, name)
        different += [f"{name}={theirs} (here {mine})"] * (mine != theirs)
    refuse_other(path, different)
    found.provenance, found.whole = fresh.provenance, None
    return found


def _run_of(options: CalibrationOptions) -> dict[str, str]:
    names = ("decode_tokens", "top_k_at_calibration", "sdc", "vmc")
    return {name: str(getattr(options, name)) for name in names}


def check_options(progress: object, provenance: object, **switches: object) -> None:
    """Raise TopThetaTypeError for an option of the wrong type."""
    check_switches(**switches)
    if progress is not None and not callable(progress):
        raise TopThetaTypeError("progress", "a function of the sequences done", shown(progress))
    if provenance is not None:
        check_texts("provenance", provenance)


def _checked_k(k: int | Sequence[int], top_k_at_calibration: bool) -> list[int]:
    if type(k) is not int and not isinstance(k, (list, tuple)):
        raise TopThetaTypeError("k", "an int, or a list or tuple of them", shown(k))
    targets = [k] if isinstance(k, int) else list(k)
    for each in targets:
        check_int("k", each, 1, MAX_LENGTH)
    if not targets:
        raise TopThetaValueError("k", "one or more ints", "none")
    if top_k_at_calibration and len(targets) > 1:
        raise TopThetaCombinationError(
            "top_k_at_calibration", "needs", "one k, which decides what later layers see",
            ("calibrate each k by itself, or pass ", Setting("top_k_at_calibration", False)),
        )  # fmt: skip
    return targets
