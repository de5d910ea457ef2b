"""What the tests of commands that load models share."""

from __future__ import annotations

import unittest
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transformers

from tests.cli.folders import save_model


@pytest.fixture
def quiet_and_one_thread() -> Iterator[None]:
    """What the command sets for its process goes back; one thread is fastest for tiny models."""
    verbosity, threads = transformers.utils.logging.get_verbosity(), torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    transformers.utils.logging.set_verbosity(verbosity)
    transformers.utils.logging.enable_progress_bar()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model in a folder."""
    return save_model(tmp_path_factory.mktemp("models") / "tiny-random")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a text."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "book.txt").write_text((Path(unittest.__file__).parent / "case.py").read_text())
    return tmp_path
