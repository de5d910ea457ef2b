"""vLLM by thresholds: whether its tokens are right, what is kept, how fast it answers, and the memory that it takes.

    build/vllm/bin/python -m benchmarks.serving [equality] [load] [memory] [schedules] [--schedules 200] [--rounds 5]

It needs the environment of ``make test-vllm``. Without names all parts run. It writes docs/results/serving.json, where
parts that did not run stay as they are, and the tables of docs/serving.md. On two cores the schedules take six minutes
and the others together as long; speeds are ratios of interleaved rounds in one process.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

# before vLLM is imported: engines live in this process
os.environ.update({"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "HF_HUB_OFFLINE": "1"})

import torch
import typer
import vllm

from benchmarks.serving.engines import K
from benchmarks.serving.equality import compare_answers
from benchmarks.serving.load import compare_speed
from benchmarks.serving.memory import measure_page_sums
from benchmarks.serving.schedules import run_schedules
from benchmarks.serving.tables import as_tables
from benchmarks.tables import renew
from toptheta_npu.timing.report import one_row_a_line

PAGE = Path(__file__).resolve().parents[2] / "docs" / "serving.md"
RESULTS = PAGE.parent / "results" / "serving.json"


class Part(str, Enum):
    """What can be run for itself."""

    equality = "equality"
    load = "load"
    memory = "memory"
    schedules = "schedules"


def main(
    parts: Annotated[list[Part] | None, typer.Argument(help="What runs; all, if nothing is named.")] = None,
    schedules: Annotated[int, typer.Option(min=1, help="How many are drawn.")] = 200,
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved rounds of the timing.")] = 5,
    out: Annotated[Path, typer.Option(help="The JSON file; parts that do not run stay in it.")] = RESULTS,
) -> None:
    """Writes what was found to a JSON file, part by part; ends with 1 if a token is wrong."""
    stored = json.loads(out.read_text()) if out.exists() else {}
    found: dict[str, Any] = {"model": "the embedded LLaMA, float32", "k": K}
    found |= {part.value: stored[part.value] for part in Part if part.value in stored}
    run: dict[Part, Iterator[dict[str, Any]]] = {
        Part.equality: compare_answers(),
        Part.load: compare_speed(rounds),
        Part.memory: measure_page_sums(),
        Part.schedules: run_schedules(schedules),
    }
    for part in parts or list(Part):
        for result in run[part]:
            found[part.value] = result | {"on": machine()}
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(one_row_a_line(found) + "\n")
        typer.echo(json.dumps({part.value: found[part.value]}, indent=1, ensure_ascii=False))
    if out == RESULTS:
        renew(PAGE, as_tables(found))
    answers = [found[name] for name in ("schedules",) if name in found]
    answers += found["equality"]["answers"] if "equality" in found else []
    if any(each["wrong_tokens"] for each in answers):
        raise typer.Exit(1)


def machine() -> dict[str, Any]:
    """Describe what a part ran on."""
    return {
        "vllm": vllm.__version__, "torch": torch.__version__, "machine": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
    }  # fmt: skip


if __name__ == "__main__":
    typer.run(main)
