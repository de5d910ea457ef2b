"""Digests of settings that do not change in a round trip through a file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping


def digest_of(value: object) -> str:
    """Compute 16 hexadecimal digits of ``value``, from Python or from a file."""
    return hashlib.sha256(json.dumps(_plain(value), sort_keys=True).encode()).hexdigest()[:16]


def _plain(value: object) -> object:
    """Remove from ``value`` what a round trip through a file changes: 1 and 1.0, tuples and lists, None and nothing."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items() if each is not None}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, (int, float)):
        return float(value)
    return None if value is None else str(value)
