"""The file that stores the state of a calibration, so that it can resume after an interruption."""

from __future__ import annotations

import os
from collections.abc import Sequence

from torch import Tensor

from ..._checks import check_int
from ..._files import check_writable, checked_path
from ...calibration.state import CalibrationState
from ...errors import TopThetaValueError


class StateFile:
    """Writes the state of a calibration after every so many sequences.

    Args:
        state: the state to write.
        path: the file; None: no file.
        every: number of sequences between two writes.
    """

    def __init__(self, state: CalibrationState, path: str | os.PathLike[str] | None, every: int) -> None:
        check_int("checkpoint_every", every, 1)
        self._state, self._every = state, every
        self._path = None if path is None else checked_path(path)

    def resume(self, texts: Sequence[Tensor]) -> None:
        """Resume from the file if it exists.

        Raises:
            TopThetaValueError: it cannot be read or written, or belongs to another calibration than ``texts``.
        """
        if self._path is not None:
            check_writable(self._path)
            if os.path.lexists(self._path):
                self._state.resume(self._path, texts)

    def add(self, tokens: Tensor) -> None:
        """Note that a sequence was observed."""
        self._state.seen = self._state.seen.then(tokens)
        if self._state.seen.sequences % self._every == 0:
            self.keep()

    def keep(self) -> None:
        """Write the state.

        Raises:
            TopThetaValueError: it cannot be written.
        """
        if self._path is None:
            return
        try:
            self._state.save(self._path)
        except TopThetaValueError as error:
            cause = error.__cause__
            if not isinstance(cause, OSError):
                raise
            got = f"{cause.strerror or cause} after {self._state.seen.sequences} sequences"
            remedy = "what was written before is intact: make room and call again, and the work goes on from there"
            raise TopThetaValueError(str(self._path), "a place for the state", got, remedy) from error
