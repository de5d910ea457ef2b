"""Tiny models: one thread each is fastest, and leaves the other cores to the other tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield
