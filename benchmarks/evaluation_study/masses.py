"""How far the estimate of exp-threshold SDC lies from the mass that rows discard."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import torch
from torch import Tensor

from toptheta_npu._tables import Table
from toptheta_npu.assets import load_tiny_llama, load_tiny_llama_thresholds
from toptheta_npu.evaluation.corpus import token_windows
from toptheta_npu.evaluation.methods.method import DENSER_LAYERS
from toptheta_npu.fallback.compensation import estimate_discarded_mass
from toptheta_npu.fallback.prefill import RowChunk, Selector
from toptheta_npu.fallback.reference import masses, never_empty
from toptheta_npu.models import apply_selection

LENGTH, GAMMA = 2560, 0.05
QUANTILES = (0.05, 0.5, 0.95)


def measure(file: Path, k: int, windows: int, positions: int) -> None:
    """Write the quantiles over the last ``positions`` rows of each window, layer by layer, unless they are there."""
    if file.exists():
        return
    model, tokenizer = load_tiny_llama()
    at_k = load_tiny_llama_thresholds("pre_softmax").at(k)
    shares: dict[int, list[Tensor]] = defaultdict(list)
    ratios: dict[int, list[Tensor]] = defaultdict(list)

    def rule_of(layer: int) -> Selector:
        def select(chunk: RowChunk) -> Tensor:
            theta = at_k.rows(layer, chunk.n[:, 0]).transpose(1, 2)
            keep = never_empty(chunk.scores > theta[..., None], chunk.scores)
            maximum, _, kept_mass, exact = masses(chunk.scores, keep)
            estimate = estimate_discarded_mass(
                "exp_threshold", exact, chunk.n, keep.sum(-1), maximum, theta, GAMMA, None
            )
            last = chunk.n[0, 0] > LENGTH - positions
            shares[layer].append((exact / (kept_mass + exact))[..., last].flatten())
            ratios[layer].append((estimate / exact)[..., last].flatten())
            return keep

        return select

    with torch.inference_mode(), apply_selection(model, rule_of):
        for window in token_windows(tokenizer, "evaluation", LENGTH, windows):
            model(window[None], use_cache=False, logits_to_keep=1)
    layers = {
        str(layer): {"discarded_share": _quantiles(shares[layer]), "estimate_over_exact": _quantiles(ratios[layer])}
        for layer in shares
        if layer >= DENSER_LAYERS
    }
    settings = {"k": k, "windows": windows, "positions": positions, "gamma": GAMMA, "quantiles": QUANTILES}
    file.write_text(json.dumps({"settings": settings, "layers": layers}, indent=1) + "\n")


def _quantiles(parts: list[Tensor]) -> list[float]:
    figures = torch.cat(parts)
    return torch.quantile(figures[figures.isfinite()], torch.tensor(QUANTILES)).tolist()  # type: ignore[no-any-return]


def as_table(file: Path) -> Table:
    """Tabulate what `measure` wrote last."""
    stored = json.loads(file.read_text())

    def cells(figures: dict[str, list[float]]) -> list[str]:
        low, median, high = (f"{100 * each:.1f} %" for each in figures["discarded_share"])
        least, middle, most = (f"{each:.1f}" for each in figures["estimate_over_exact"])
        return [f"{median} ({low} to {high})", f"{middle} ({least} to {most})"]

    rows = [[layer, *cells(figures)] for layer, figures in stored["layers"].items()]
    columns = ("layer", "share of the row's mass that is discarded", "exp-threshold's estimate over it")
    return Table(f"Discarded mass, k = {stored['settings']['k']}", columns, rows)
