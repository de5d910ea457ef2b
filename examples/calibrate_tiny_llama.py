"""Calibrate the embedded model: the thresholds that ship with it, and how well they keep k.

    python examples/calibrate_tiny_llama.py --model build/tiny_llama/model --output toptheta_npu/assets/tiny_llama

Thresholds for k = 32 ... 512 by the pooled estimator, before and after the softmax, from every window of
the calibration modules; then k~/k on held-out modules for the pooled estimator and for Algorithm 1, with and
without Top-k at calibration.
"""

from __future__ import annotations

import json
import platform
from pathlib import Path
from statistics import fmean
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import Progress
from transformers import AutoTokenizer, LlamaForCausalLM

from toptheta_npu.evaluation import corpus
from toptheta_npu.evaluation.measurement import perplexity
from toptheta_npu.evaluation.methods.kinds import make_method
from toptheta_npu.evaluation.tasks.perplexity import PerplexityTask
from toptheta_npu.models import calibrate
from toptheta_npu.thresholds import ThresholdTable

KS = (32, 64, 128, 256, 512)
PAPER_KS = (64,)  # Top-k at calibration takes a pass per k
LENGTH = 2560


def calibrated(
    model: LlamaForCausalLM,
    sequences: torch.Tensor,
    placement: str,
    estimator: str,
    ks: tuple[int, ...],
    rows: float,
    *,
    top_k: bool,
) -> ThresholdTable:
    """Calibrate a table, with a progress bar. With ``top_k`` every layer passes on its Top-k output (one k only)."""
    with Progress(transient=True) as bar:
        task = bar.add_task(f"{placement} {estimator} {list(ks)}", total=len(sequences))
        return calibrate(
            model, sequences, k=ks, placement=placement, estimator=estimator, row_fraction=rows,
            top_k_at_calibration=top_k, progress=lambda done: bar.update(task, completed=done),
            provenance={
                "text": "Python standard library, calibration modules",
                "python": platform.python_version(),
                "sequence_length": str(LENGTH),
                "row_fraction": str(rows),
            },
        )  # fmt: skip


def main(
    model: Annotated[Path, typer.Option(help="Folder of the trained model.")] = Path("build/tiny_llama/model"),
    output: Annotated[Path, typer.Option(help="Folder for the thresholds.")] = Path("toptheta_npu/assets/tiny_llama"),
    sequences: Annotated[int, typer.Option(help="Calibration windows.")] = 64,
    rows: Annotated[float, typer.Option(help="Share of the rows observed.")] = 0.25,
    windows: Annotated[int, typer.Option(help="Held-out windows for k~/k.")] = 8,
) -> None:
    """Write the threshold files and `calibration.json`."""
    console = Console()
    tokenizer = AutoTokenizer.from_pretrained(model)
    llama = LlamaForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    text = corpus.token_windows(tokenizer, "calibration", LENGTH, sequences)
    task = PerplexityTask(llama, corpus.token_windows(tokenizer, "evaluation", LENGTH, windows))
    record = []
    for placement in ("pre_softmax", "post_softmax"):
        pooled = calibrated(llama, text, placement, "pooled", KS, rows, top_k=False)
        pooled.save(output / f"thresholds_{placement}.theta")
        tables = [
            ("pooled", KS, pooled),
            (
                "algorithm1 on dense activations",
                KS,
                calibrated(llama, text, placement, "algorithm1", KS, rows, top_k=False),
            ),
            ("algorithm1", PAPER_KS, calibrated(llama, text, placement, "algorithm1", PAPER_KS, rows, top_k=True)),
        ]
        for name, ks, table in tables:
            for k in ks:
                found = task.measure(make_method("top-theta", k, table), llama)
                entry = {"placement": placement, "estimator": name, "k": k, "kept_over_k": found.reads.kept_mean / k}
                record.append(entry | {"perplexity": perplexity(fmean(found.scores))})
                console.print(record[-1])
    settings = {"calibration_sequences": sequences, "row_fraction": rows, "held_out_windows": windows}
    (output / "calibration.json").write_text(json.dumps({"settings": settings, "results": record}, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
