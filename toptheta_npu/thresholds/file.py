"""The table's own file: safetensors with a JSON header, read strictly and written atomically."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors.torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from toptheta_npu.errors import TopThetaValueError
from toptheta_npu.thresholds.checks import DTYPES, OPTIONAL, UNITS

if TYPE_CHECKING:
    from toptheta_npu.thresholds.table import ThresholdTable

SCHEMA_VERSION = 1

# One metadata entry: the order of several is not fixed, and the file is to be the same byte for byte.
_METADATA_KEY = "toptheta_thresholds"
_HEADER_TYPES: dict[str, type | tuple[type, ...]] = {
    "placement": str,
    "unit": str,
    "estimator": str,
    "alpha": (int, float),
    "layer_k": list,
    "fingerprint": str,
    "provenance": dict,
}
_RECALIBRATE = "calibrate the model again"


def save_table(table: ThresholdTable, path: str | Path) -> None:
    """The work of ``ThresholdTable.save``."""
    header = {
        "schema": SCHEMA_VERSION,
        "placement": table.placement,
        "unit": table.unit,
        "estimator": table.estimator,
        "alpha": float(table.alpha),
        "layer_k": list(table.layer_k),
        "fingerprint": table.fingerprint,
        "provenance": dict(table.provenance),
    }
    tensors = {name: getattr(table, name) for name in DTYPES if getattr(table, name) is not None}
    metadata = {_METADATA_KEY: json.dumps(header, sort_keys=True)}
    write_atomically(path, safetensors.torch.save(tensors, metadata))


def read_table(path: str | Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Header without schema and unit, and the tensors of a table file; their names and dtypes are checked.

    Raises:
        TopThetaValueError: the file cannot be read, is not safetensors, or not a table of this schema.
    """
    if not Path(path).is_file():
        raise file_error(path, "a threshold table", "no such file", "calibrate, or correct the path")
    try:
        with safe_open(str(path), framework="pt") as file:
            header = _parse_header(path, (file.metadata() or {}).get(_METADATA_KEY))
            names = set(file.keys())
            _check_names(path, names)
            tensors = {name: file.get_tensor(name) for name in names}
    except (SafetensorError, OSError) as error:
        got = f"something else or a damaged file ({error})"
        raise file_error(path, "a safetensors file", got, _RECALIBRATE) from error
    for name, tensor in tensors.items():
        if tensor.dtype != DTYPES[name]:
            raise file_error(path, f"{name} as {DTYPES[name]}", str(tensor.dtype), _RECALIBRATE)
    return header, tensors


def write_atomically(path: str | Path, content: bytes) -> None:
    """Writes beside ``path`` and then replaces it, so that no reader ever sees half a file.

    Raises:
        TopThetaValueError: the folder of ``path`` does not exist.
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise file_error(path, "a file in an existing folder", "no such folder", f"create {target.parent}")
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def file_error(path: str | Path, expected: str, got: str, remedy: str | None = None) -> TopThetaValueError:
    """The error for something wrong with the file at ``path``."""
    return TopThetaValueError(str(path), expected, got, remedy)


def _parse_header(path: str | Path, text: str | None) -> dict[str, Any]:
    if text is None:
        raise file_error(path, "a threshold table", "a safetensors file of another kind", _RECALIBRATE)
    try:
        header: Any = json.loads(text)
    except json.JSONDecodeError as error:
        raise file_error(path, "a JSON header", str(error), _RECALIBRATE) from error
    if not isinstance(header, dict):
        raise file_error(path, "a JSON object as header", type(header).__name__, _RECALIBRATE)
    version = header.pop("schema", None)
    if version != SCHEMA_VERSION:
        remedy = "install the toptheta_npu that wrote it, or calibrate again"
        raise file_error(path, f"schema version {SCHEMA_VERSION}", repr(version), remedy)
    if set(header) != set(_HEADER_TYPES):
        want, got = ", ".join(sorted(_HEADER_TYPES)), ", ".join(sorted(header))
        raise file_error(path, f"the header fields {want}", got, _RECALIBRATE)
    for name, kind in _HEADER_TYPES.items():
        if not isinstance(header[name], kind):
            raise file_error(path, f"another type of header field {name}", repr(header[name]), _RECALIBRATE)
    unit = header.pop("unit")
    if unit != UNITS.get(header["placement"]):
        expected = f"one of the placements and units {UNITS}"
        raise file_error(path, expected, f"{header['placement']!r} in {unit!r}", _RECALIBRATE)
    return header


def _check_names(path: str | Path, names: set[str]) -> None:
    missing = set(DTYPES) - OPTIONAL - names
    if missing:
        raise file_error(path, "every tensor of a table", f"no {', '.join(sorted(missing))}", _RECALIBRATE)
    extra = names - set(DTYPES)
    if extra:
        raise file_error(path, f"no tensors but {', '.join(DTYPES)}", f"also {', '.join(sorted(extra))}", _RECALIBRATE)
