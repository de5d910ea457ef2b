"""SmolLM2-135M-Instruct and thresholds for it. Without its folder (see make real-model) nothing here is collected."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.real_model.places import FOLDER, TABLE, TEXTS, VARIABLE
from tests.vllm.environment import prepare

# it needs llama-cpp-python, which none of the environments has
collect_ignore = ["record_llama_cpp.py"]
collect_ignore_glob = [] if find_spec("vllm") else ["test_vllm.py"]
if not (FOLDER / "config.json").exists():
    if os.environ.get(VARIABLE) == "1":
        raise pytest.UsageError(f"{VARIABLE}=1: expected a model in {FOLDER}, got none; see: make real-model")
    collect_ignore_glob = ["test_*.py"]
if find_spec("vllm"):
    prepare()

#: A little of what calibration deserves.
_BRIEFLY = ("--sequences", "5", "--length", "1024", "--k", "32", "--k", "64", "--k", "128")


@pytest.fixture(scope="session")
def texts() -> dict[str, Path]:
    """Prose for calibration and other prose to judge by: the reference that comes with Python, every other topic."""
    from pydoc_data.topics import topics

    TEXTS.mkdir(exist_ok=True)
    names = sorted(topics)
    parts = {"calibration": names[::2], "evaluation": names[1::2]}
    files = {name: TEXTS / f"{name}.txt" for name in parts}
    for name, chosen in parts.items():
        files[name].write_text("\n\n".join(topics[topic] for topic in chosen))
    return files


@pytest.fixture(scope="session")
def table(texts: dict[str, Path]) -> Path:
    """Thresholds of the model, made here, as a user makes them."""
    shell("calibrate", FOLDER, "--text", texts["calibration"], "-o", TABLE, "--force", *_BRIEFLY)
    return TABLE


def shell(*arguments: object) -> str:
    """What ``toptheta`` prints."""
    command = [sys.executable, "-m", "toptheta_npu", *map(str, arguments)]
    done = subprocess.run(command, cwd=FOLDER.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def toptheta() -> Any:
    return shell


@pytest.fixture(scope="session")
def model() -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(FOLDER).eval()


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(FOLDER)


def pytest_unconfigure() -> None:
    """vLLM's log goes to a stream that pytest has closed by the time engines say their last."""
    logging.raiseExceptions = False
