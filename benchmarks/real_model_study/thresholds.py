"""The thresholds of the study: one table for every length and placement."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console
from transformers import PreTrainedModel

from benchmarks.real_model_study.settings import THRESHOLD_ROWS, Part, Scale, thresholds_settings
from benchmarks.real_model_study.texts import Windows, digest
from toptheta_npu.models import calibrate
from toptheta_npu.models.hook.architecture import num_layers
from toptheta_npu.thresholds import ThresholdTable


def make(
    model: PreTrainedModel, windows: Windows, scale: Scale, part: Part, folder: Path, console: Console
) -> ThresholdTable:
    """Read the table of a part, or make it, from where a killed run left it.

    Args:
        model: in evaluation mode.
        windows: of the texts.
        scale: the ks and the documents.
        part: whose length and placement they are for.
        folder: for the table and what is unfinished.
        console: says what is going on.
    """
    length, placement = part.length, part.placement
    tokens = windows.of(scale.parts[0].text, "thresholds", length, scale.splits["thresholds"])[1]
    made_by = thresholds_settings(scale) | {"thresholds": digest(tokens)}
    # calibrate adds more
    provenance = {name: json.dumps(value) for name, value in made_by.items()}
    file = folder / f"{placement}_{length}.theta"
    table = ThresholdTable.load(file) if file.exists() else None
    if table is None or not provenance.items() <= table.provenance.items():
        folder.mkdir(parents=True, exist_ok=True)
        layers = num_layers(model)
        state = file.with_suffix(".state")
        table = calibrate(
            model, tokens, k=scale.ks, placement=placement, estimator="pooled",
            layer_k=[scale.first_layers_k] * 2 + [0] * (layers - 2), row_fraction=THRESHOLD_ROWS,
            top_k_at_calibration=False, provenance=provenance, checkpoint=state, checkpoint_every=1,
            progress=lambda done: console.print(f"thresholds of {length} tokens: {done} windows"),
        )  # fmt: skip
        table.save(file)
        state.unlink()
    return table
