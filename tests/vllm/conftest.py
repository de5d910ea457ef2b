"""Without vLLM (see make test-vllm) nothing here is collected."""

from __future__ import annotations

import logging
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.vllm.environment import prepare

collect_ignore_glob = [] if find_spec("vllm") else ["test_*.py"]
if find_spec("vllm"):
    prepare()


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
