"""Compiled libraries that are kept. A checksum ends each, since a damaged one would crash the process that loads it."""

from __future__ import annotations

import hashlib
from pathlib import Path

_MARK = b"\0toptheta_npu sha256 "


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
