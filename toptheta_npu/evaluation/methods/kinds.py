"""All methods: by name in `KINDS`, and the functions that make them."""

from __future__ import annotations

from .dense import KIND as DENSE
from .dense import dense
from .last_k import KIND as LAST_K
from .last_k import last_k
from .quest import KIND as PAGES
from .quest import pages
from .spec import MethodKind
from .tau import KIND as TAU
from .tau import probable
from .top_k import KIND as TOP_K
from .top_k import top_k
from .top_theta import CAPPED, top_theta, top_theta_capped
from .top_theta import KIND as TOP_THETA

#: Every method that ``toptheta evaluate`` knows, in the order of the pages.
KINDS: dict[str, MethodKind] = {kind.name: kind for kind in (DENSE, TOP_THETA, CAPPED, TAU, TOP_K, LAST_K, PAGES)}

__all__ = ["KINDS", "dense", "last_k", "pages", "probable", "top_k", "top_theta", "top_theta_capped"]
