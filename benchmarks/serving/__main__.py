"""vLLM by thresholds: whether its tokens are right, what is kept, how fast it answers, and the memory that it takes.

    build/vllm/bin/python -m benchmarks.serving [equality] [load] [memory] [schedules] [--schedules 200] [--rounds 5]
    build/vllm/bin/python -m benchmarks.serving schedules --engine drafts
    build/vllm/bin/python -m benchmarks.serving break-even [--rounds 15]
    build/vllm/bin/python -m benchmarks.serving soak [--requests 2000] [--minutes 30]
    build/vllm/bin/python -m benchmarks.serving real [--rounds 15] [--model FOLDER] [--texts FOLDER] ...

It needs the environment of ``make test-vllm``. Without names those of the first line run. It writes
docs/results/serving.json, where parts that did not run stay as they are, and prints the tables of docs/serving.md. On
two cores the schedules of an engine take ten minutes, and the others of the first line together six; speeds are ratios
of interleaved rounds in one process. ``real`` needs the model of ``make real-model``.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

# before vLLM is imported: engines live in this process
os.environ.update({"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "HF_HUB_OFFLINE": "1"})

import torch
import typer
import vllm

from benchmarks.real_model_study import texts as study_texts
from benchmarks.serving.break_even import find_break_even
from benchmarks.serving.engines import K
from benchmarks.serving.equality import compare_answers
from benchmarks.serving.int8 import compare_int8
from benchmarks.serving.load import compare_speed
from benchmarks.serving.memory import measure_page_sums
from benchmarks.serving.real import Setting, compare_real
from benchmarks.serving.schedules import ENGINES, run_schedules
from benchmarks.serving.soak import failures, soak
from benchmarks.serving.tables import as_tables
from benchmarks.tables import show
from toptheta_npu.timing.report import one_row_a_line

_ROOT = Path(__file__).resolve().parents[2]
RESULTS = _ROOT / "docs" / "results" / "serving.json"
BUILD = _ROOT / "build"
MODEL, STUDY = BUILD / "real-model" / "smollm2", BUILD / "real_model"


class Part(str, Enum):
    """What can be run for itself."""

    equality = "equality"
    load = "load"
    memory = "memory"
    schedules = "schedules"
    soak = "soak"
    real = "real"
    break_even = "break-even"
    int8 = "int8"


#: What runs where nothing is named.
UNNAMED = (Part.equality, Part.load, Part.memory, Part.schedules)


def known_engines(names: list[str] | None) -> list[str] | None:
    """Refuse names that are none of `ENGINES`."""
    for name in names or ():
        if name not in ENGINES:
            raise typer.BadParameter(f"expected {', '.join(ENGINES)}, got {name}")
    return names


def main(
    parts: Annotated[list[Part] | None, typer.Argument(help="Without names, those that need little time.")] = None,
    schedules: Annotated[int, typer.Option(min=1, help="How many are drawn.")] = 200,
    engine: Annotated[
        list[str] | None,
        typer.Option(callback=known_engines, help="That runs them; may be given again. Others' results stay."),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved rounds of the timing.")] = 5,
    requests: Annotated[int, typer.Option(min=2, help="Of the soak.")] = 2000,
    minutes: Annotated[float, typer.Option(min=0.1, help="That the soak asks at most.")] = 30.0,
    model: Annotated[Path, typer.Option(help="Folder of the real model.")] = MODEL,
    texts: Annotated[Path | None, typer.Option(help="Folder of the study's packages; else a download.")] = None,
    tau: Annotated[float, typer.Option(help="The share of its row that a key must exceed, of that model.")] = 0.0003,
    length: Annotated[list[int] | None, typer.Option(help="Tokens of its prompts; may be given again.")] = None,
    clients: Annotated[int, typer.Option(min=1, help="Sequences that it answers side by side.")] = 8,
    new_tokens: Annotated[int, typer.Option(min=2, help="Of its answers.")] = 128,
    dtype: Annotated[list[str] | None, typer.Option(help="Of its weights and cache; may be given again.")] = None,
    out: Annotated[Path, typer.Option(help="The JSON file; parts that do not run stay in it.")] = RESULTS,
) -> None:
    """Writes what was found to a JSON file, part by part; ends with 1 if a token is wrong or the soak met errors."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # not without ending a server that was started
    stored = json.loads(out.read_text()) if out.exists() else {}
    found: dict[str, Any] = {"model": "the embedded LLaMA, float32", "k": K}
    found |= {part.value: stored[part.value] for part in Part if part.value in stored}

    def real() -> Iterator[dict[str, Any]]:
        packages = texts or study_texts.fetch(STUDY / "packages")
        lengths, dtypes = tuple(length or (3000, 6000)), tuple(dtype or ("float32",))
        setting = Setting(model, packages, tau, lengths, clients, new_tokens, dtypes)
        return compare_real(setting, rounds)

    run: dict[Part, Callable[[], Iterator[dict[str, Any]]]] = {
        Part.equality: compare_answers,
        Part.load: lambda: compare_speed(rounds),
        Part.memory: measure_page_sums,
        Part.schedules: lambda: run_schedules(schedules, engine or (), found.get("schedules", {}).get("engines", ())),
        Part.soak: lambda: soak(requests, minutes),
        Part.real: real,
        Part.break_even: lambda: find_break_even(rounds),
        Part.int8: lambda: compare_int8(rounds),
    }
    for part in parts or UNNAMED:
        for result in run[part]():
            found[part.value] = result | {"on": machine()}
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(one_row_a_line(found) + "\n")
    show(*as_tables(found).values())
    if failed(found):
        raise typer.Exit(1)


def failed(found: Mapping[str, Any]) -> bool:
    """Tell whether a token is wrong anywhere, or the soak met errors."""
    answers = list(found["schedules"]["engines"]) if "schedules" in found else []
    answers += found["equality"]["answers"] if "equality" in found else []
    answers += [found["real"]["answers"]] if "answers" in found.get("real", ()) else []
    return any(each["wrong_tokens"] for each in answers) or ("soak" in found and failures(found["soak"]) > 0)


def machine() -> dict[str, Any]:
    """Describe what a part ran on."""
    return {
        "vllm": vllm.__version__, "torch": torch.__version__, "machine": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
    }  # fmt: skip


if __name__ == "__main__":
    typer.run(main)
