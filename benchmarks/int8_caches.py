"""Perplexity over int8 caches, dense and by thresholds, of SmolLM2-135M and of the embedded model.

    python -m benchmarks.int8_caches --model build/real-model/smollm2 --table TABLE.theta --texts FOLDER

A window's prefix fills a cache of each kind; then its last tokens are predicted by dense attention and by thresholds,
each row as its decode step would. What is measured is kept line by line in docs/results/int8_caches_*.jsonl, so that a
run that was stopped goes on. Thresholds and texts are those of the study of the real model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import torch.nn.functional as F
import typer
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import Cache

from benchmarks.real_model_study import texts
from benchmarks.real_model_study.analysis import Bounded, mean_of, percent
from benchmarks.real_model_study.models import load
from benchmarks.real_model_study.results import Lines, read
from benchmarks.real_model_study.settings import EMBEDDED, SCALES, Scale, environment
from benchmarks.tables import Table, show
from toptheta_npu.assets import load_tiny_llama, load_tiny_llama_thresholds
from toptheta_npu.evaluation.sweep import table_digest
from toptheta_npu.models import Int8Cache, calibrate_cache_scales, sparsify
from toptheta_npu.thresholds import ThresholdTable

_ROOT = Path(__file__).resolve().parents[1]
RESULTS = _ROOT / "docs" / "results"
#: Kinds of caches; the first is that of the model's own dtype.
OWN, PER_ROW, PER_CHANNEL = "own", "int8, a scale per row", "int8, a scale per channel"
CACHES = (OWN, PER_ROW, PER_CHANNEL)
METHODS = ("dense", "top-theta")


@dataclass(frozen=True)
class Setting:
    """A model and what it is measured on.

    Attributes:
        file: of the results.
        title: in the table.
        text, length, windows, positions: the text, tokens of a window, how many, and the last ones that are predicted.
        k: of the thresholds.
        scale: the splits of the texts; channels get their scales on "thresholds".
    """

    file: str
    title: str
    text: str
    length: int
    windows: int
    positions: int
    k: int
    scale: Scale


REAL = Setting("int8_caches_smollm2.jsonl", "SmolLM2-135M", "prose", 2048, 36, 512, 128, SCALES["full"])
TINY = Setting(
    "int8_caches_embedded.jsonl", "embedded model", "python", 1024, 36, 256, 64,
    replace(EMBEDDED, splits={"thresholds": 4, "evaluation": 36}),
)  # fmt: skip
SETTINGS = (REAL, TINY)


def measure(
    setting: Setting, model: PreTrainedModel, windows: texts.Windows, table: ThresholdTable, file: Path
) -> None:
    """Measure the windows that are missing: nats per token by every kind of cache and method."""
    names, tokens = windows.of(setting.text, "evaluation", setting.length, setting.windows)
    scaled = calibrate_cache_scales(
        model, table, windows.of(setting.text, "thresholds", setting.length, setting.scale.splits["thresholds"])[1]
    )
    make: Mapping[str, Callable[[], Cache]] = {
        OWN: lambda: DynamicCache(config=model.config), PER_ROW: lambda: Int8Cache(model.config),
        PER_CHANNEL: lambda: Int8Cache(model.config, table=scaled),
    }  # fmt: skip
    header = {
        "thresholds": table_digest(table), "k": setting.k, "text": setting.text, "length": setting.length,
        "positions": setting.positions, "windows": texts.digest(tokens), "documents": names,
        "environment": environment(),
    }  # fmt: skip
    with Lines(file, header, ("window", "cache", "method")) as lines, torch.inference_mode():
        for number, window in enumerate(tokens):
            for kind in CACHES:
                if all(lines.has(window=number, cache=kind, method=method) for method in METHODS):
                    continue
                for method, nats in _nats(setting, model, table, window, make[kind]()):
                    lines.add({"window": number, "cache": kind, "method": method, "nats": round(nats, 8)})
                print(f"{setting.title}, window {number + 1} of {len(tokens)}: {kind}", flush=True)


def _nats(
    setting: Setting, model: PreTrainedModel, table: ThresholdTable, window: Tensor, cache: Cache
) -> Iterator[tuple[str, float]]:
    """Yield each method and its nats per token at the end of a window."""
    tail = window[-setting.positions - 1 :]
    model(window[None, : -setting.positions - 1], past_key_values=cache, logits_to_keep=1)

    def nats() -> float:
        logits = model(tail[None, :-1], past_key_values=cache).logits[0]
        cache.crop(-setting.positions)
        return F.cross_entropy(logits.float(), tail[1:]).item()

    yield METHODS[0], nats()
    with sparsify(model, table, k=setting.k, prefill="thresholded"):
        yield METHODS[1], nats()


@dataclass(frozen=True)
class Changes:
    """What caches and thresholds change, in percent of perplexity, and percentage points.

    Attributes:
        dense: by the cache under dense attention.
        sparse: by the cache under thresholds.
        beyond: how much more that is, in points.
    """

    dense: Bounded
    sparse: Bounded
    beyond: Bounded


def changes(lines: list[dict[str, Any]], cache: str) -> Changes:
    """Compare a kind of cache with that of the model's own dtype, window by window."""
    nats = {(line["cache"], line["method"], line["window"]): line["nats"] for line in lines}
    windows = sorted({line["window"] for line in lines if line["cache"] == CACHES[-1] and line["method"] == METHODS[1]})

    def change(method: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        return np.array([nats[cache, method, window] - nats[OWN, method, window] for window in windows])

    dense, sparse = map(change, METHODS)
    return Changes(percent(mean_of(dense)), percent(mean_of(sparse)), _points(mean_of(sparse - dense)))


def _points(nats: Bounded) -> Bounded:
    return Bounded(*(100 * each for each in nats))


def table_of(results: Path = RESULTS) -> Table:
    """Tabulate what int8 caches cost."""
    rows = []
    for setting in SETTINGS:
        _, lines = read(results / setting.file)
        count = len({line["window"] for line in lines if line["cache"] == CACHES[-1] and line["method"] == METHODS[1]})
        for cache in CACHES[1:] if count else ():
            found = changes(lines, cache)
            what = f"{setting.title}, {count} windows of {setting.length} tokens, k = {setting.k}"
            rows.append([what, cache.removeprefix("int8, "), *(
                each.text(3, sign=True, unit="%") for each in (found.dense, found.sparse)),
                f"**{found.beyond.text(3, sign=True)}**"])  # fmt: skip
    columns = ("model", "scales", "dense: int8 over 16 or 32 bits", "Top-θ: the same", "Top-θ beyond dense, points")
    return Table("int8 caches", columns, rows)


def main(
    model: Annotated[Path, typer.Option(help="Folder of SmolLM2.")] = _ROOT / "build" / "real-model" / "smollm2",
    table: Annotated[Path, typer.Option(help="Its thresholds.")] = _ROOT / "build/real_model/pre_softmax_4096.theta",
    packages: Annotated[Path, typer.Option("--texts", help="Folder of the study's packages.")] = _ROOT
    / "build/real_model/packages/root",
    stored: Annotated[bool, typer.Option("--stored", help="Measure nothing, print the table.")] = False,
) -> None:
    """Measure what is missing, and print the table."""
    if not stored:
        network, tokenizer = load_tiny_llama()
        windows = texts.Windows(tokenizer, None, TINY.scale)
        measure(TINY, network, windows, load_tiny_llama_thresholds("pre_softmax"), RESULTS / TINY.file)
        network, tokenizer = load(model)
        windows = texts.Windows(tokenizer, packages, REAL.scale)
        measure(REAL, network, windows, ThresholdTable.load(table), RESULTS / REAL.file)
    show(table_of())


if __name__ == "__main__":
    typer.run(main)
