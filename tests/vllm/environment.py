"""What has to be set before vLLM is imported."""

from __future__ import annotations

import os


def prepare() -> None:
    """Let engines live in this process, and nothing ask the network."""
    os.environ.update({
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    })  # fmt: skip
