"""The table's own file: safetensors with a JSON header and a checksum, read strictly and written atomically.

Schema 3 has the quantile of that estimator. Schema 2 does not, and schema 1 has neither a checksum nor the statistic
behind the discarded mass. All are read.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from .._files import file_error, read_bytes, write_atomically
from ..errors import shortened, shown
from .checks import DTYPES, OPTIONAL, UNITS

if TYPE_CHECKING:
    from .table import ThresholdTable

SCHEMA_VERSION = 3
#: Larger files are not read: 4 GiB, several times what a table for the largest models takes.
MAX_FILE_BYTES = 2**32

# One metadata entry: the order of several is not fixed, and the file is to be the same byte for byte.
METADATA_KEY = "toptheta_thresholds"
_SCHEMA_1: dict[str, type | tuple[type, ...]] = {
    "schema": int,
    "placement": str,
    "unit": str,
    "estimator": str,
    "alpha": (int, float),
    "layer_k": list,
    "fingerprint": str,
    "provenance": dict,
}
_SCHEMA_2 = {**_SCHEMA_1, "discarded_statistic": (str, type(None)), "checksum": str}
_FIELDS = {1: _SCHEMA_1, 2: _SCHEMA_2, 3: {**_SCHEMA_2, "quantile": (float, type(None))}}
_RECALIBRATE = "calibrate the model again"
_DAMAGED = "get a fresh copy, or calibrate the model again"


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
        "discarded_statistic": table.discarded_statistic,
        "quantile": table.quantile and float(table.quantile),
    }
    tensors = {name: getattr(table, name) for name in DTYPES if getattr(table, name) is not None}
    header["checksum"] = checksum(header, tensors)
    metadata = {METADATA_KEY: json.dumps(header, sort_keys=True)}
    write_atomically(path, safetensors.torch.save(tensors, metadata))


def read_table(path: str | Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The header's fields of the table and its tensors; their names and dtypes and the checksum are right.

    Raises:
        TopThetaTypeError: ``path`` is not a path.
        TopThetaValueError: the file cannot be read, is damaged or not a table of a known schema.
    """
    content = read_bytes(path, "a threshold table", MAX_FILE_BYTES)
    try:
        tensors = safetensors.torch.load(content)
    except (SafetensorError, KeyError, ValueError, TypeError, RuntimeError) as error:
        raise file_error(path, "a safetensors file", f"something else or a damaged file ({error})", _DAMAGED) from error
    try:
        header = _parse_header(path, content)
        _check_tensors(path, tensors)
        if "checksum" in header and header.pop("checksum") != checksum(header, tensors):
            raise file_error(path, "a table with the checksum of its content", "another content", _DAMAGED)
    except RecursionError as error:
        raise file_error(path, "a flat JSON header", "deeply nested JSON", _RECALIBRATE) from error
    if header.pop("schema") == 1:
        header["discarded_statistic"] = "mean" if "discarded_mass" in tensors else None
    del header["unit"]
    return header, tensors


def checksum(header: dict[str, Any], tensors: dict[str, Tensor]) -> str:
    """SHA-256 in hexadecimal digits of everything that a file says, but not of how its bytes are arranged."""
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()


def _parse_header(path: str | Path, content: bytes) -> dict[str, Any]:
    length = int.from_bytes(content[:8], "little")
    text = (_parse_json(path, content[8 : 8 + length]).get("__metadata__") or {}).get(METADATA_KEY)
    if text is None:
        raise file_error(path, "a threshold table", "a safetensors file of another kind", _RECALIBRATE)
    header = _parse_json(path, text)
    if not isinstance(header, dict):
        raise file_error(path, "a JSON object as header", type(header).__name__, _RECALIBRATE)
    version = header.get("schema")
    if type(version) is not int or version not in _FIELDS:
        remedy = "install the toptheta_npu that wrote it, or calibrate again"
        raise file_error(path, f"schema version {' or '.join(map(str, _FIELDS))}", shown(version), remedy)
    if set(header) != set(_FIELDS[version]):
        want, got = ", ".join(sorted(_FIELDS[version])), shortened(", ".join(sorted(header)))
        raise file_error(path, f"the header fields {want}", got, _RECALIBRATE)
    for name, kind in _FIELDS[version].items():
        if not isinstance(header[name], kind):
            raise file_error(path, f"another type of header field {name}", shown(header[name]), _RECALIBRATE)
    if header["unit"] != UNITS.get(header["placement"]):
        expected = f"one of the placements and units {UNITS}"
        raise file_error(path, expected, f"{header['placement']!r} in {header['unit']!r}", _RECALIBRATE)
    return header


def _parse_json(path: str | Path, text: bytes | str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise file_error(path, "a JSON header", str(error), _DAMAGED) from error


def _check_tensors(path: str | Path, tensors: dict[str, Tensor]) -> None:
    missing = set(DTYPES) - OPTIONAL - set(tensors)
    if missing:
        raise file_error(path, "every tensor of a table", f"no {', '.join(sorted(missing))}", _RECALIBRATE)
    extra = set(tensors) - set(DTYPES)
    if extra:
        got = shortened(f"also {', '.join(sorted(extra))}")
        raise file_error(path, f"no tensors but {', '.join(DTYPES)}", got, _RECALIBRATE)
    for name, tensor in tensors.items():
        if tensor.dtype != DTYPES[name]:
            raise file_error(path, f"{name} as {DTYPES[name]}", str(tensor.dtype), _RECALIBRATE)
