"""Calibrate the embedded model: the thresholds that ship with it, and how well they keep k.

    python examples/calibrate_tiny_llama.py --model build/tiny_llama/model --output toptheta_npu/assets/tiny_llama

Thresholds for k = 32 ... 512 by the pooled estimator, before and after the softmax, from every window of
the calibration modules; then k~/k on held-out modules for the pooled estimator and for Algorithm 1.
"""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import Progress
from transformers import AutoTokenizer, LlamaForCausalLM

from toptheta_npu.evaluation import corpus, methods
from toptheta_npu.evaluation.perplexity import PerplexityTask
from toptheta_npu.models import calibrate
from toptheta_npu.thresholds import ThresholdTable

KS = (32, 64, 128, 256, 512)
LENGTH = 2560


def calibrated(
    model: LlamaForCausalLM, sequences: torch.Tensor, placement: str, estimator: str, ks: tuple[int, ...], rows: float
) -> ThresholdTable:
    """A table with a progress bar; Algorithm 1 applies Top-k while it calibrates, so it takes one k."""
    with Progress(transient=True) as bar:
        task = bar.add_task(f"{placement} {estimator} {list(ks)}", total=len(sequences))
        return calibrate(
            model, sequences, k=ks if len(ks) > 1 else ks[0], placement=placement, estimator=estimator,
            row_fraction=rows, top_k_at_calibration=len(ks) == 1,
            progress=lambda done: bar.update(task, completed=done),
            provenance={
                "text": "Python standard library, calibration modules",
                "python": platform.python_version(),
                "sequences": str(len(sequences)),
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
        tables = {"pooled": calibrated(llama, text, placement, "pooled", KS, rows)}
        tables["pooled"].save(output / f"thresholds_{placement}.safetensors")
        for k in KS:
            tables["algorithm1"] = calibrated(llama, text, placement, "algorithm1", (k,), rows)
            for estimator, table in tables.items():
                result = task.evaluate(methods.top_theta(table, k, compensated=True))
                entry = {"placement": placement, "estimator": estimator, "k": k, "kept_over_k": result.kept_over_k}
                record.append(entry | {"perplexity": result.perplexity})
                console.print(record[-1])
    settings = {"calibration_sequences": sequences, "row_fraction": rows, "held_out_windows": windows}
    (output / "calibration.json").write_text(json.dumps({"settings": settings, "results": record}, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
