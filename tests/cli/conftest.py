"""What the tests of commands that load models share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import transformers


@pytest.fixture
def quiet_and_one_thread() -> Iterator[None]:
    """What the command sets for its process goes back; one thread is fastest for tiny models."""
    verbosity, threads = transformers.utils.logging.get_verbosity(), torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    transformers.utils.logging.set_verbosity(verbosity)
    transformers.utils.logging.enable_progress_bar()
