"""Compiled libraries: those that this process has mapped, and those that are kept for later ones.

A checksum ends each kept library, since a damaged one would crash the process that loads it.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

_MAPS = Path("/proc/self/maps")
_MARK = b"\0toptheta_npu sha256 "


def mapped_files() -> list[str]:
    """List the files that this process has mapped; none where the system does not tell."""
    try:
        lines = _MAPS.read_bytes().splitlines()
    except OSError:
        return []
    # names of files are any bytes
    fields = (os.fsdecode(line).split(maxsplit=5) for line in lines)
    return list(dict.fromkeys(field[5].strip() for field in fields if len(field) == 6))


def seal(library: Path) -> None:
    """Append the checksum of a library. What loads programs ignores such bytes, and one file cannot be half new."""
    digest = hashlib.sha256(library.read_bytes()).digest()
    with library.open("ab") as file:
        file.write(_MARK + digest)


def is_whole(library: Path) -> bool:
    """Tell whether a library is as it was sealed, neither cut short nor changed, and can be read."""
    try:
        content = library.read_bytes()
    except OSError:
        return False
    start = len(content) - len(_MARK) - hashlib.sha256().digest_size
    return start >= 0 and content[start:] == _MARK + hashlib.sha256(content[:start]).digest()
