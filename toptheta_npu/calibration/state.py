"""Keeps one shard of a calibration as a file: what was gathered, of which model, and from which sequences.

The file is safetensors with a JSON header and a checksum, like that of a table; it is never unpickled.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import torch

from .._files import file_error, read_bytes, write_atomically
from .._sealed import STATE_KEY, Kind, seal, unseal
from ..errors import TopThetaError, shortened, shown
from ..thresholds import ThresholdTable, fingerprint
from .arrays import take
from .calibrator import Calibrator
from .shard import SeenSequence, Shard, WholeSet, check_texts

#: Larger files are not read: 64 GiB, some hundred times what a state for the largest models takes.
MAX_STATE_BYTES = 2**36

KIND = Kind(
    "the state of a calibration", STATE_KEY,
    {3: {
        "schema": int, "settings": dict, "fingerprint": str, "dtype": str, "run": dict, "provenance": dict,
        "index": int, "count": int, "whole": str, "total": int, "checksum": str,
    }},
    "calibrate from the start without it",
)  # fmt: skip
_DIGEST_BYTES = hashlib.sha256().digest_size


@dataclass(kw_only=True)
class CalibrationState:
    """Hold one shard of a calibration.

    Attributes:
        calibrator: what was gathered.
        fingerprint, dtype: of the model.
        run: how the model was run, for the table's provenance.
        provenance: what the sequences are.
        whole: of all sequences, the other shards' too.
        shard: which of the sequences belong to it.
        seen: those that were observed, in order.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> calibrator = Calibrator(1, 2, k=[8], longest=64, layer_k=[0])
        >>> state = CalibrationState(
        ...     calibrator=calibrator, fingerprint="demo", dtype="float32", run={}, provenance={},
        ...     whole=WholeSet.of([]))
        >>> state.save(Path(tempfile.mkdtemp()) / "state")
    """

    calibrator: Calibrator
    fingerprint: str
    dtype: str
    run: Mapping[str, str]
    provenance: Mapping[str, str]
    whole: WholeSet
    shard: Shard = field(default_factory=Shard)
    seen: list[SeenSequence] = field(default_factory=list)

    @property
    def finished(self) -> bool:
        """Whether all sequences of the shard were observed."""
        return len(self.seen) == len(self.shard.places(self.whole.total))

    def table(self) -> ThresholdTable:
        """Make the thresholds of what was seen.

        Raises:
            TopThetaValueError: a layer was never observed, or no row was longer than some k.
        """
        sizes = {"sequences": str(len(self.seen)), "tokens": str(sum(each.tokens for each in self.seen))}
        return self.calibrator.finish(fingerprint=self.fingerprint, provenance={**sizes, **self.run, **self.provenance})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file, atomically.

        Raises:
            TopThetaTypeError: ``path`` is not a path.
            TopThetaValueError: the file cannot be written; what was there is as it was.
        """
        write_atomically(path, self.to_bytes())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a file that :meth:`save` wrote.

        Raises:
            TopThetaTypeError: ``path`` is not a path.
            TopThetaValueError: the file is missing, unreadable, damaged, of another kind or schema.
        """
        return cls.from_bytes(path, read_bytes(path, KIND.name, MAX_STATE_BYTES))

    def to_bytes(self) -> bytes:
        """Make the content of the file."""
        about, arrays = self.calibrator.state()
        digests = np.frombuffer(b"".join(each.digest for each in self.seen), dtype=np.uint8)
        arrays["seen.digests"] = digests.reshape(-1, _DIGEST_BYTES).copy()
        arrays["seen.tokens"] = np.array([each.tokens for each in self.seen], dtype=np.int64)
        header = {
            **about,
            "fingerprint": self.fingerprint,
            "dtype": self.dtype,
            "run": dict(self.run),
            "provenance": dict(self.provenance),
            "index": self.shard.index,
            "count": self.shard.count,
            "whole": self.whole.digest,
            "total": self.whole.total,
        }
        return seal(KIND, header, {name: torch.from_numpy(array) for name, array in arrays.items()})

    @classmethod
    def from_bytes(cls, name: str | os.PathLike[str], content: bytes) -> Self:
        """Read the state in ``content``; ``name`` is for the error messages."""
        header, tensors = unseal(KIND, name, content)
        try:
            arrays = {key: tensor.numpy() for key, tensor in tensors.items()}
            for mapping in (header["run"], header["provenance"]):
                check_texts("provenance", mapping)
            lengths = take(arrays, "seen.tokens", like=np.zeros(len(tensors["seen.tokens"]), dtype=np.int64))
            like = np.zeros((len(lengths), _DIGEST_BYTES), dtype=np.uint8)
            digests = take(arrays, "seen.digests", like=like)
            return cls(
                calibrator=Calibrator.from_state(header, arrays),
                fingerprint=header["fingerprint"],
                dtype=header["dtype"],
                run=header["run"],
                provenance=header["provenance"],
                shard=Shard(header["index"], header["count"]),
                seen=[SeenSequence(*pair) for pair in zip(map(bytes, digests), lengths.tolist(), strict=True)],
                whole=WholeSet(header["whole"], header["total"]),
            )
        # the checksum fits, but nothing says that this package wrote the file
        except (TopThetaError, TypeError, ValueError, KeyError, OverflowError, MemoryError) as error:
            raise file_error(name, KIND.name, f"other content ({shortened(str(error))})", KIND.again) from error

    def differences(self, other: Self, mine_is: str = "here") -> list[str]:
        """Name what keeps ``other`` from being of the same calibration, each as "name=its value (here mine)"."""
        mine, theirs = self.described(), other.described()
        found = [
            f"{name}={theirs.get(name)} ({mine_is} {mine.get(name)})"
            for name in {**mine, **theirs}
            if mine.get(name) != theirs.get(name)
        ]
        parts = fingerprint.differences(self.fingerprint, other.fingerprint)
        return found + [f"another model (by its {' and '.join(parts)})"] * bool(parts)

    def described(self) -> dict[str, str]:
        """Say what all shards of a calibration share, but for the model and the sequences."""
        values = {name: _shown(value) for name, value in dataclasses.asdict(self.calibrator.settings).items()}
        return {**values, **self.run, "dtype": self.dtype}


def _shown(value: object) -> str:
    return shown(list(value)) if isinstance(value, Sequence) and not isinstance(value, str) else str(value)
