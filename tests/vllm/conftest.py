"""Without vLLM (see make test-vllm) nothing here is collected."""

from __future__ import annotations

import logging
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

collect_ignore_glob = [] if find_spec("vllm") else ["test_*.py"]
if find_spec("vllm"):
    # before vLLM is imported: engines live in this process, and nothing asks the network
    os.environ.update({
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    })  # fmt: skip


@pytest.fixture(scope="session")
def stock() -> Any:
    """vLLM as it is."""
    from benchmarks.serving.engines import make_engine

    return make_engine()


@pytest.fixture(scope="session")
def keeping_all(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Our operator with thresholds of -inf."""
    from benchmarks.serving.engines import dense_table, make_engine

    folder: Path = tmp_path_factory.mktemp("tables")
    return make_engine({"table": str(dense_table(folder)), "k": 64})


@pytest.fixture(scope="session")
def sparse() -> Any:
    """k=64, and the other settings as they are by default."""
    from benchmarks.serving.engines import make_engine

    return make_engine({"k": 64})


def pytest_unconfigure() -> None:
    """vLLM's log goes to a stream that pytest has closed by the time engines say their last."""
    logging.raiseExceptions = False
