"""The native CPU kernel with several query tokens in a step, against one token and against itself at θ = -inf.

    python -m benchmarks.query_tokens [--query-tokens 4] [--level avx2]...

Every row of the table comes from one interleaved run, and each level of instructions runs in a process of its own. Two
minutes on two cores.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from benchmarks.tables import Table, rounded, show
from toptheta_npu import incremental_attention, incremental_attention_with_stats, use_backend
from toptheta_npu.cpu import instruction_sets, library
from toptheta_npu.cpu.build import best_library
from toptheta_npu.timing.clocks import interleaved_medians
from toptheta_npu.timing.environment import cache_bytes
from toptheta_npu.timing.inputs import count_copies, make_inputs
from toptheta_npu.timing.measure import TopThetaWrongResultError, relative_error
from toptheta_npu.timing.shapes import Shape

_ROOT = Path(__file__).resolve().parents[1]
SHAPES = (Shape(1, 32, 8, n=8192, k=128, dtype="bfloat16"), Shape(1, 48, 48, n=2048, k=128, dtype="bfloat16"))
LEVELS = ("avx512_bf16", "avx2")
#: How much of a token's query the next one shares: queries of their own, and neighbours in a text.
OVERLAPS = {"independent": 0.0, "alike": 0.95}
_CACHES = ("cold", "hot")
_ROUNDS = 31
_TOLERANCE = 2e-2  # of bfloat16 outputs
_Layers = Sequence[tuple[Tensor, Tensor]]


def compare(shape: Shape, tokens: int, overlap: float) -> dict[str, Any]:
    """Measure seconds of each call, cold and hot, and the share of the V rows that the tokens' union is."""
    copies = count_copies(shape, cache_bytes("cpu"), cold=True)
    inputs = make_inputs(replace(shape, query_tokens=tokens), "cpu", copies, overlap=overlap)
    layers, query, theta = inputs.layers, inputs.query, inputs.threshold
    key, value = layers[0]
    last, of_last = query[:, :, -1:].contiguous(), theta[:, :, -1].contiguous()
    calls = {
        "tokens": _call(layers, query, theta),
        "tokens at -inf": _call(layers, query, torch.full_like(theta, -torch.inf)),
        "one": _call(layers, last, of_last),
        "one at -inf": _call(layers, last, torch.full_like(of_last, -torch.inf)),
        "read of K": lambda copy: library.read(layers[copy][0]),
    }
    check_answer(calls["tokens"](0), query, key, value, theta)
    timings = {
        cache: interleaved_medians(calls, copies if cache == "cold" else 1, _ROUNDS, reheat=cache == "hot")
        for cache in _CACHES
    }
    densities = [
        float(incremental_attention_with_stats(rows, key, value, of_rows)[3].sum()) * shape.row_bytes / shape.key_bytes
        for rows, of_rows in ((query, theta), (last, of_last))
    ]
    seconds = {cache: {name: timing.median for name, timing in found.items()} for cache, found in timings.items()}
    return {"shape": str(shape), "tokens": tokens, "overlap": overlap, "densities": densities, "seconds": seconds}


def _call(layers: _Layers, query: Tensor, theta: Tensor) -> Callable[[int], Tensor]:
    return lambda copy: incremental_attention(query, *layers[copy], theta)


def check_answer(out: Tensor, query: Tensor, key: Tensor, value: Tensor, theta: Tensor) -> None:
    """Compare with the fallback.

    Raises:
        TopThetaWrongResultError: the answer is wrong, and a wrong answer has no time.
    """
    with use_backend("fallback", device="cpu"):
        error = relative_error(out, incremental_attention(query, key, value, theta).float())
    if not error <= _TOLERANCE:
        raise TopThetaWrongResultError(f"expected the fallback's answer within {_TOLERANCE:g}, got an error of {error}")


def measure(tokens: int) -> list[dict[str, Any]]:
    """Compare every shape and overlap on the level that this process runs."""
    with use_backend("native", device="cpu"):
        return [compare(shape, tokens, overlap) for shape in SHAPES for overlap in OVERLAPS.values()]


def measure_levels(tokens: int, levels: Sequence[str]) -> dict[str, Any]:
    """Measure each level in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.query_tokens", "--query-tokens", str(tokens), "--here"]
    results: dict[str, Any] = {}
    for level in levels:
        settings = os.environ | {instruction_sets.VARIABLE: level}
        done = subprocess.run(command, check=True, cwd=_ROOT, env=settings, stdout=subprocess.PIPE, text=True)
        results[level] = json.loads(done.stdout)
    return results


def as_table(results: dict[str, Any]) -> Table:
    """Tabulate gains and times, each with its physical bound, the ratio of bytes."""
    rows = []
    for level, result in _by_level(results):
        of_tokens, of_one = (1 + density for density in result["densities"])
        for cache in _CACHES:
            seconds = result["seconds"][cache]
            gain, times = _gain_and_times(seconds)
            rows.append([
                _name(result), level, cache,
                f"{result['densities'][1]:.3f} → {result['densities'][0]:.3f}",
                f"{gain:.2f}", f"{2 / of_tokens:.2f}", f"{times:.2f}", f"{of_tokens / of_one:.2f}",
                f"{1e3 * seconds['tokens']:.2f}", f"{1e3 * seconds['one']:.2f}",
                f"{1e3 * seconds['read of K'] * of_tokens:.2f}",
            ])  # fmt: skip
    tokens = {result["tokens"] for compared in results.values() for result in compared}
    columns = (
        "shape, bfloat16", "level", "cache", "V rows, 1 → Sq", "over θ=-inf", "bound", "times one token", "bound", "ms",
        "one token, ms", "its bytes read, ms",
    )  # fmt: skip
    return Table(f"Sq = {', '.join(map(str, sorted(tokens)))} query tokens", columns, rows)


def _by_level(results: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    return ((level, result) for level, compared in results.items() for result in compared)


def _gain_and_times(seconds: dict[str, float]) -> tuple[float, float]:
    return seconds["tokens at -inf"] / seconds["tokens"], seconds["tokens"] / seconds["one"]


def _words(result: dict[str, Any]) -> dict[str, str]:
    return dict(word.split("=") for word in result["shape"].split(","))


def _name(result: dict[str, Any]) -> str:
    words = _words(result)
    overlap = next(name for name, overlap in OVERLAPS.items() if overlap == result["overlap"])
    return f"{words['heads']} n={words['n']} k={words['k']}, {overlap}"


def main(
    query_tokens: Annotated[int, typer.Option(min=2, max=16, help="Sq.")] = 4,
    level: Annotated[list[str] | None, typer.Option(help="A level of instructions.  [default: those it has]")] = None,
    here: Annotated[bool, typer.Option("--here", help="Print what this process's level takes, as JSON.")] = False,
) -> None:
    """Measure steps of several query tokens on this CPU."""
    if here:
        best_library(SHAPES[0].dtype)
        print(json.dumps(rounded(measure(query_tokens))))
        return
    results = measure_levels(query_tokens, level or [each for each in LEVELS if each in instruction_sets.available()])
    show(as_table(results))


if __name__ == "__main__":
    typer.run(main)
