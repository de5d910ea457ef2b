"""Where the plug-in writes what a user has to know."""

from __future__ import annotations

import logging

#: Below vLLM's own logger, whose handler and level it takes.
logger = logging.getLogger("vllm.toptheta_npu")
