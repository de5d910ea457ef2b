"""One shard of a calibration of a model: checked, resumed where it had stopped, run and kept in a file."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torch import Tensor
from transformers import PreTrainedModel

from ..._checks import check_choice, check_int, check_modes
from ..._files import check_writable, checked_path
from ..._warnings import warn_of_sdc_without_vmc
from ...calibration import Calibrator
from ...calibration.shard import SeenSequence, Shard, WholeSet, check_texts, refuse_other
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
from .sequence_rows import TopK
from .texts import Sequences, checked_texts

Progress = Callable[[int], None]


@dataclass(frozen=True, kw_only=True)
class CalibrationOptions:
    """What `calibrate` can be told. Its docstring says what each means."""

    k: int | Sequence[int] = 128
    placement: Placement = "post_softmax"
    estimator: Estimator = "algorithm1"
    alpha: float = 0.1
    layer_k: Sequence[int] | None = None
    row_fraction: float = 1.0
    top_k_at_calibration: bool = True
    sdc: Literal["none", "exact"] = "exact"
    vmc: bool = True
    seed: int = 0
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
    """One shard of a calibration, ready to run.

    Args:
        model, sequences, options: as in `calibrate`.
        shard: which sequences to run.
        checkpoint: the file of the state; None: none is kept. The work goes on from what is there.
        every: sequences from one writing of it to the next.

    Attributes:
        state: of the shard.

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
        shard: Shard,
        checkpoint: str | os.PathLike[str] | None,
        every: int,
    ) -> None:
        check_model(model)
        targets = options.checked_k()
        if options.top_k_at_calibration:
            warn_of_sdc_without_vmc(options.sdc, options.vmc, stacklevel=3)
        check_int("checkpoint_every", every, 1)
        self._model, self._options = model, options
        self._texts = texts = checked_texts(model, sequences, min(targets))
        calibrator = self._calibrator(targets, max(map(len, texts)))
        calibrator.settings.check_rows(map(len, texts))
        self._entries = [SeenSequence.of(tokens) for tokens in texts]
        fresh = CalibrationState(
            calibrator=calibrator, fingerprint=model_fingerprint(model),
            dtype=dtype_of(model), run=_run_of(options), shard=shard,
            whole=WholeSet.of(self._entries),
            provenance={**told_dense(sliding_layers(model), window_in_words(model)), **(options.provenance or {})},
        )  # fmt: skip
        self._every = every
        self._checkpoint = None if checkpoint is None else checked_path(checkpoint)
        self.state = fresh if self._checkpoint is None else _resumed(self._checkpoint, fresh, self._entries)

    def _calibrator(self, targets: Sequence[int], longest: int) -> Calibrator:
        model, options = self._model, self._options
        return Calibrator(
            num_layers(model), num_heads(model), k=targets, longest=longest,
            placement=options.placement, estimator=options.estimator, alpha=options.alpha, layer_k=options.layer_k,
            row_fraction=options.row_fraction, seed=options.seed, dense_layers=sliding_layers(model),
        )  # fmt: skip

    def run(self) -> CalibrationState:
        """Run what is left of the shard.

        Raises:
            TopThetaValueError: the state cannot be written.
        """
        state, progress = self.state, self._options.progress
        calibrator, attend_of = state.calibrator, self._options.attend_of(state.calibrator)
        places = state.shard.places(len(self._texts))[len(state.seen) :]

        def rows(count: int, index: int) -> Tensor:
            return calibrator.rows_to_observe(count, places[index])

        def done(count: int) -> None:
            state.seen.append(self._entries[places[count - 1]])
            if len(state.seen) % self._every == 0:
                self._keep()
            if progress is not None:
                progress(len(state.seen))

        observe_model(self._model, [self._texts[place] for place in places], rows, calibrator, attend_of, done)
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


def dtype_of(model: PreTrainedModel) -> str:
    """Name the dtype of a model."""
    return str(model.dtype).removeprefix("torch.")


def _resumed(path: Path, fresh: CalibrationState, entries: Sequence[SeenSequence]) -> CalibrationState:
    """Load the state in ``path`` and check it against ``fresh`` and the ``entries`` of all sequences.

    Return ``fresh`` itself where there is no file yet.
    """
    check_writable(path)
    if not os.path.lexists(path):
        return fresh
    found = CalibrationState.load(path)
    different = fresh.differences(found)
    for name in ("index", "count"):
        mine, theirs = getattr(fresh.shard, name), getattr(found.shard, name)
        different += [f"{name}={theirs} (here {mine})"] * (mine != theirs)
    refuse_other(path, different)
    own = fresh.shard.places(len(entries))
    for place, seen in zip(own, found.seen, strict=False):
        if entries[place] != seen:
            refuse_other(path, [f"another sequence {place}"])
    if len(own) < len(found.seen):
        refuse_other(path, [f"more sequences, {len(found.seen)} (here {len(own)})"])
    found.provenance, found.whole = fresh.provenance, fresh.whole
    return found


def _run_of(options: CalibrationOptions) -> dict[str, str]:
    names = ("top_k_at_calibration", "sdc", "vmc")
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
