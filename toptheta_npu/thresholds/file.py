"""Reads and writes the table's own file: safetensors with a JSON header and a checksum."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from .._files import file_error, read_bytes, write_atomically
from .._sealed import TABLE_KEY, Header, Kind, Tensors, checksum, seal, unseal
from ..errors import shortened
from . import curves
from .checks import DTYPES, OPTIONAL
from .grid import ThresholdGrid
from .kinds import UNITS
from .text_lines import form_of

#: Larger files are not read: 4 GiB, several times what a table for the largest models takes.
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
    "quantile": (float, type(None)),
    "calibrated_layer_k": list,
    "curves": (dict, type(None)),
}
#: What the names of the tensors of error curves begin with.
_CURVES = "curves."
_KIND = Kind("a threshold table", METADATA_KEY, {4: _FIELDS}, "calibrate the model again")

__all__ = ["MAX_FILE_BYTES", "METADATA_KEY", "checksum", "content_of", "read_table", "save_table"]


def save_table(table: ThresholdGrid, path: str | Path) -> None:
    """Do the work of ``ThresholdTable.save``."""
    header, tensors = content_of(table)
    write_atomically(path, seal(_KIND, {**header, "unit": table.unit}, tensors))


def content_of(table: ThresholdGrid) -> tuple[Header, Tensors]:
    """Take a table apart: ``ThresholdTable(**put_together(header, tensors))`` is the same."""
    header = {
        "placement": table.placement,
        "estimator": table.estimator,
        "alpha": float(table.alpha),
        "layer_k": list(table.layer_k),
        "calibrated_layer_k": list(table.calibrated_layer_k),
        "fingerprint": table.fingerprint,
        "provenance": dict(table.provenance),
        "discarded_statistic": table.discarded_statistic,
        "quantile": table.quantile and float(table.quantile),
    }
    tensors = {name: getattr(table, name) for name in DTYPES if getattr(table, name) is not None}
    if table.curves is None:
        return {**header, "curves": None}, tensors
    measured = {_CURVES + name: getattr(table.curves, name) for name in curves.DTYPES}
    return {**header, "curves": {"sdc": table.curves.sdc, "vmc": table.curves.vmc}}, {**tensors, **measured}


def put_together(header: Header, tensors: Tensors) -> dict[str, Any]:
    """Make the fields of a table of what `content_of` gave.

    Raises:
        TopThetaTypeError, TopThetaValueError: the error curves are none.
    """
    fields: dict[str, Any] = {**header, **tensors}
    measured = {name.removeprefix(_CURVES): fields.pop(name) for name in tensors if name.startswith(_CURVES)}
    if header["curves"] is not None:
        about = header["curves"]
        fields["curves"] = curves.ErrorCurves(**measured, sdc=about.get("sdc"), vmc=about.get("vmc"))
    return fields


def read_table(path: str | Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read the header's fields of a table and its tensors, and check names, dtypes and the checksum.

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
    _check_tensors(path, tensors, header["curves"] is not None)
    del header["schema"], header["unit"]
    return header, tensors


def _check_tensors(path: str | Path, tensors: Tensors, has_curves: bool) -> None:
    known = {**DTYPES, **{_CURVES + name: dtype for name, dtype in curves.DTYPES.items()}}
    measured = {name for name in known if name.startswith(_CURVES)}
    wanted = set(DTYPES) - OPTIONAL | (measured if has_curves else set())
    missing = wanted - set(tensors)
    if missing:
        raise file_error(path, "every tensor of a table", f"no {', '.join(sorted(missing))}", _KIND.again)
    extra = set(tensors) - set(known) | (set() if has_curves else measured & set(tensors))
    if extra:
        got = shortened(f"also {', '.join(sorted(extra))}")
        raise file_error(path, f"no tensors but {', '.join(DTYPES)}", got, _KIND.again)
    for name, tensor in tensors.items():
        if tensor.dtype != known[name]:
            raise file_error(path, f"{name} as {known[name]}", str(tensor.dtype), _KIND.again)
