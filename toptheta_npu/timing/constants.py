"""Constants of the model of time, as ``toptheta verify`` fits them on a device and writes them into a file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._files import file_error, read_bytes
from ..errors import shown

SCHEMA = 1
_MAX_BYTES = 16 << 20
_REMEDY = "write one with: toptheta verify --output FILE"


@dataclass(frozen=True)
class Constant:
    """A fitted number; 0 or more.

    Attributes:
        standard_error: of the fit, in the same unit.
    """

    value: float
    standard_error: float
    unit: str


@dataclass(frozen=True)
class Constants:
    """What a file holds.

    Attributes:
        device: name of the device that was measured.
        by_name: the constants by their names in emulator/ascendc/machine/cost.h, in Python's spelling.
    """

    device: str
    by_name: Mapping[str, Constant]

    @property
    def values(self) -> dict[str, float]:
        return {name: constant.value for name, constant in self.by_name.items()}


def read_constants(path: Path) -> Constants:
    """Read the constants from a file of ``toptheta verify``.

    Raises:
        TopThetaValueError: there is no such file, it is none of these, or it holds something else than numbers from 0.

    Example:
        >>> import pathlib, tempfile
        >>> file = pathlib.Path(tempfile.mkdtemp()) / "constants.json"
        >>> entry = '{"value": 2.0, "standard_error": 0.1, "unit": "us"}'
        >>> _ = file.write_text('{"schema": 1, "device": "NPU", "constants": {"sync_all_microseconds": %s}}' % entry)
        >>> read_constants(file).values
        {'sync_all_microseconds': 2.0}
    """
    text = read_bytes(path, "a file of toptheta verify", _MAX_BYTES)
    try:
        stored = json.loads(text)
    except (ValueError, RecursionError) as cause:
        raise file_error(path, "JSON of toptheta verify", f"something else ({cause})", _REMEDY) from cause
    if not isinstance(stored, dict) or stored.get("schema") != SCHEMA:
        found = stored.get("schema") if isinstance(stored, dict) else None
        raise file_error(path, f"a file of toptheta verify with schema {SCHEMA}", f"schema {found!r}", _REMEDY)
    entries = stored.get("constants")
    if not isinstance(entries, dict) or not entries:
        raise file_error(path, "constants that were fitted", "none", "run toptheta verify without --no-times")
    return Constants(str(stored.get("device")), {name: _constant(path, name, entries[name]) for name in entries})


def _constant(path: Path, name: str, entry: Any) -> Constant:
    try:
        constant = Constant(float(entry["value"]), float(entry["standard_error"]), str(entry["unit"]))
    except (TypeError, KeyError, ValueError) as error:
        raise file_error(path, f"value, standard_error and unit of {name}", shown(entry), _REMEDY) from error
    if not (0 <= constant.value < math.inf and 0 <= constant.standard_error < math.inf):
        raise file_error(path, f"a value and a standard_error from 0 for {name}", shown(entry), _REMEDY)
    return constant
