"""Sealed files: safetensors with one JSON header and a checksum of all that they say. Tables and states are kept so."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from ._files import file_error
from .errors import shortened, shown

Header = dict[str, Any]
Tensors = dict[str, Tensor]
#: The entries of the metadata that mark the files of this package.
TABLE_KEY, STATE_KEY = "toptheta_thresholds", "toptheta_calibration_state"
#: What a file is if it is another one than was wanted, and what takes it.
_OTHERS = {
    TABLE_KEY: ("a threshold table", "see what it holds with toptheta inspect"),
    STATE_KEY: ("the state of a calibration", "calibrate again with the same arguments: it goes on from there"),
}


class Kind(NamedTuple):
    """One kind of file.

    Attributes:
        name: what it holds, with its article, for the error messages.
        key: of its entry in the metadata; several entries would have no fixed order, and the file is to be the same
            byte for byte.
        schema: the version of its form.
        fields: of the header, with their types.
        again: how to make such a file anew.
    """

    name: str
    key: str
    schema: int
    fields: Mapping[str, type | tuple[type, ...]]
    again: str

    @property
    def damaged(self) -> str:
        """The remedy for a damaged file."""
        return f"get a fresh copy, or {self.again}"


def seal(kind: Kind, header: Header, tensors: Tensors) -> bytes:
    """Make the content of a file of ``header``, which has no schema and checksum yet, and of the tensors on the CPU."""
    header = {"schema": kind.schema, **header}
    header["checksum"] = checksum(header, tensors)
    return safetensors.torch.save(tensors, {kind.key: json.dumps(header, sort_keys=True)})


def unseal(kind: Kind, path: str | os.PathLike[str], content: bytes) -> tuple[Header, Tensors]:
    """Read header and tensors of ``content``; verify and leave out the checksum. ``path`` is for error messages.

    Raises:
        TopThetaValueError: damaged, or not of this kind in a known schema.
    """
    try:
        tensors = safetensors.torch.load(content)
    except (SafetensorError, KeyError, ValueError, TypeError, RuntimeError) as error:
        got = f"something else or a damaged file ({error})"
        raise file_error(path, "a safetensors file", got, kind.damaged) from error
    header = _parse_header(kind, path, content)
    if header.pop("checksum") != checksum(header, tensors):
        raise file_error(path, f"{kind.name} with the checksum of its content", "another content", kind.damaged)
    return header, tensors


def checksum(header: Header, tensors: Tensors) -> str:
    """Compute the SHA-256 in hex digits of everything that a file says, but not of how its bytes are arranged."""
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()


def _parse_header(kind: Kind, path: str | os.PathLike[str], content: bytes) -> Header:
    length = int.from_bytes(content[:8], "little")
    metadata = _parse_json(kind, path, content[8 : 8 + length]).get("__metadata__") or {}
    text = metadata.get(kind.key)
    if text is None:
        unknown = ("a safetensors file of another kind", "correct the path")
        raise file_error(path, kind.name, *next((what for key, what in _OTHERS.items() if key in metadata), unknown))
    header = _parse_json(kind, path, text)
    if not isinstance(header, dict):
        raise file_error(path, "a JSON object as header", type(header).__name__, kind.again)
    if header.get("schema") != kind.schema:
        remedy = f"install the toptheta_npu that wrote it, or {kind.again}"
        raise file_error(path, f"schema version {kind.schema}", shown(header.get("schema")), remedy)
    if set(header) != set(kind.fields):
        want, got = ", ".join(sorted(kind.fields)), shortened(", ".join(sorted(header)))
        raise file_error(path, f"the header fields {want}", got, kind.again)
    for name, wanted in kind.fields.items():
        if not isinstance(header[name], wanted):
            raise file_error(path, f"another type of header field {name}", shown(header[name]), kind.again)
    return header


def _parse_json(kind: Kind, path: str | os.PathLike[str], text: bytes | str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise file_error(path, "a JSON header", str(error), kind.damaged) from error
