"""Where compiled libraries are kept."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import TopThetaBackendError

VARIABLE = "TOPTHETA_CACHE"


def cache_folder() -> Path:
    """Choose the cache: $TOPTHETA_CACHE, or toptheta_npu below $XDG_CACHE_HOME or ~/.cache. It need not exist.

    Raises:
        TopThetaBackendError: none is named and this user has no home.
    """
    if given := os.environ.get(VARIABLE):
        return Path(os.path.abspath(os.path.expanduser(given)))
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):
        base = os.path.join(os.path.expanduser("~"), ".cache")
    if not os.path.isabs(base):
        raise TopThetaBackendError("cache", "a home folder to keep compiled code in", "none", f"name one in {VARIABLE}")
    return Path(base) / "toptheta_npu"
