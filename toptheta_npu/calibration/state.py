"""Stores a calibration in a file, so that it can resume: its statistics, its model and its sequences.

The file is safetensors with a JSON header and a checksum, like the file of a table; it is never unpickled.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._files import file_error, read_bytes, write_atomically
from .._sealed import STATE_KEY, Kind, seal, unseal
from ..errors import TopThetaValueError, shown
from ..thresholds import ThresholdTable, fingerprint
from .calibrator import Calibrator

#: The requirements for a state to resume from.
OWN_STATE = "the state of this calibration"
#: Larger files are not read: 64 GiB, some hundred times the size of a state for the largest models.
MAX_STATE_BYTES = 2**36

KIND = Kind(
    "the state of a calibration", STATE_KEY, 4,
    {
        "schema": int, "calibration": dict, "fingerprint": str, "digests": dict,
        "sequences": int, "tokens": int, "digest": str, "checksum": str,
    },
    "calibrate from the start without it",
)  # fmt: skip


class Seen(NamedTuple):
    """The observed sequences: their number, their tokens, and a digest of all of them in order."""

    sequences: int = 0
    tokens: int = 0
    digest: str = ""

    def then(self, tokens: Tensor) -> Seen:
        """Add a sequence, int64 [n]."""
        content = self.digest.encode() + tokens.cpu().numpy().astype("<i8").tobytes()
        return Seen(self.sequences + 1, self.tokens + len(tokens), hashlib.sha256(content).hexdigest())


@dataclass
class CalibrationState:
    """A calibration that can resume from a file.

    Attributes:
        calibrator: the collected statistics.
        fingerprint, dtype: fingerprint and dtype of the model.
        digests: digests of every part of the model; empty for a state without a file.
        run: how the model ran, for the table's provenance.
        seen: the observed sequences.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from toptheta_npu.calibration import CalibrationSettings
        >>> settings = CalibrationSettings(num_layers=1, num_heads=2, k=[8], longest=64, layer_k=[0])
        >>> state = CalibrationState(Calibrator(settings), "demo", "float32", {})
        >>> state.save(Path(tempfile.mkdtemp()) / "state")
    """

    calibrator: Calibrator
    fingerprint: str
    dtype: str
    run: Mapping[str, str]
    digests: Mapping[str, str] = field(default_factory=dict)
    seen: Seen = field(default_factory=Seen)

    def table(self, provenance: Mapping[str, str]) -> ThresholdTable:
        """Make the thresholds from the observed rows; ``provenance`` describes the sequences.

        Raises:
            TopThetaValueError: a layer was never observed, or no row was longer than some k.
        """
        sizes = {"sequences": str(self.seen.sequences), "tokens": str(self.seen.tokens)}
        return self.calibrator.finish(fingerprint=self.fingerprint, provenance={**sizes, **self.run, **provenance})

    def save(self, path: Path) -> None:
        """Write the file, atomically.

        Raises:
            TopThetaValueError: the file cannot be written; an existing file does not change.
        """
        model = {"fingerprint": self.fingerprint, "digests": dict(self.digests)}
        header = {"calibration": self._described(), **model, **self.seen._asdict()}
        tensors = {name: torch.from_numpy(array) for name, array in self.calibrator.arrays().items()}
        write_atomically(path, seal(KIND, header, tensors))

    def resume(self, path: Path, texts: Sequence[Tensor]) -> None:
        """Resume from a file that :meth:`save` wrote for the same calibration of ``texts``.

        Raises:
            TopThetaValueError: the file is unreadable, damaged, or of another kind, schema or calibration.
        """
        header, tensors = unseal(KIND, path, read_bytes(path, KIND.name, MAX_STATE_BYTES))
        _refuse(path, self._differences(header))
        seen = Seen()
        for tokens in texts[: header["sequences"]]:
            seen = seen.then(tokens)
        if seen != Seen(header["sequences"], header["tokens"], header["digest"]):
            _refuse(path, [f"other texts, of {header['sequences']} sequences and {header['tokens']} tokens so far"])
        try:
            self.calibrator.fill({name: tensor.numpy() for name, tensor in tensors.items()})
        except TopThetaValueError as error:
            raise file_error(path, KIND.name, f"other content ({error})", KIND.again) from error
        self.seen = seen

    def _described(self) -> dict[str, Any]:
        """Collect the settings that must match to resume, except the model and the sequences, in JSON types."""
        values = {**dataclasses.asdict(self.calibrator.settings), **self.run, "dtype": self.dtype}
        described: dict[str, Any] = json.loads(json.dumps(values))
        return described

    def _differences(self, header: Mapping[str, Any]) -> list[str]:
        mine, theirs = self._described(), header["calibration"]
        found = [
            f"{name}={shown(theirs.get(name))} (here {shown(value)})"
            for name, value in mine.items()
            if theirs.get(name) != value
        ]
        parts = fingerprint.differences(self.fingerprint, header["fingerprint"])
        # digests of other settings, such as another dtype, say nothing more
        if not found and not parts:
            parts = [name for name, digest in self.digests.items() if header["digests"].get(name) != digest]
        return found + [f"another model (by its {' and '.join(parts)})"] * bool(parts)


def _refuse(path: Path, differences: Sequence[str]) -> None:
    if differences:
        got = f"one with {', '.join(differences)}"
        remedy = "pass the model and the arguments that it was made with, name another file, or delete this one"
        raise TopThetaValueError(str(path), OWN_STATE, got, remedy)
