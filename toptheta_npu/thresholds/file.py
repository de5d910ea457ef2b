"""Reads and writes the table's own file: safetensors with a JSON header and a checksum."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from .._files import file_error, read_bytes, write_atomically
from .._sealed import TABLE_KEY, Kind, checksum, seal, unseal
from .checks import DTYPES
from .grid import ThresholdGrid
from .kinds import UNITS
from .text import form_of

#: Larger files are not read: 4 GiB, several times the size of a table for the largest models.
MAX_FILE_BYTES = 2**32

METADATA_KEY = TABLE_KEY
_FIELDS: dict[str, type | tuple[type, ...]] = {
    "schema": int,
    "placement": str,
    "unit": str,
    "estimator": str,
    "alpha": (int, float),
    "layer_k": list,
    "fingerprint": str,
    "provenance": dict,
    "discarded_statistic": (str, type(None)),
    "checksum": str,
}
_KIND = Kind("a threshold table", METADATA_KEY, 6, _FIELDS, "calibrate the model again")

__all__ = ["MAX_FILE_BYTES", "METADATA_KEY", "checksum", "read_table", "save_table"]


def save_table(table: ThresholdGrid, path: str | Path) -> None:
    """Do the work of ``ThresholdTable.save``."""
    header = {
        "placement": table.placement,
        "unit": table.unit,
        "estimator": table.estimator,
        "alpha": float(table.alpha),
        "layer_k": list(table.layer_k),
        "fingerprint": table.fingerprint,
        "provenance": dict(table.provenance),
        "discarded_statistic": table.discarded_statistic,
    }
    tensors = {name: getattr(table, name) for name in DTYPES if getattr(table, name) is not None}
    write_atomically(path, seal(_KIND, header, tensors))


def read_table(path: str | Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read the header's fields of a table and its tensors, and check the checksum.

    Raises:
        TopThetaTypeError: ``path`` is not a path.
        TopThetaValueError: the file cannot be read, is damaged or not a table of a known schema.
    """
    content = read_bytes(path, _KIND.name, MAX_FILE_BYTES)
    if form := form_of(content):
        remedy = (
            f"make a table of it: toptheta convert {form.as_input} --fingerprint-of MODEL_FOLDER -o thresholds.theta"
        )
        raise file_error(path, _KIND.name, f"a {form.name} of the paper's authors", remedy)
    header, tensors = unseal(_KIND, path, content)
    if header["unit"] != UNITS.get(header["placement"]):
        expected = f"one of the placements and units {UNITS}"
        raise file_error(path, expected, f"{header['placement']!r} in {header['unit']!r}", _KIND.again)
    del header["schema"], header["unit"]
    return header, tensors
