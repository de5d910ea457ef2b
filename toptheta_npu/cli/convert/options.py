"""The options of ``toptheta convert``: some for thresholds, some for models."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer


@dataclass(frozen=True)
class Options:
    """What the command line says; ``typed`` names what of it was typed."""

    source: Annotated[Path, typer.Argument(help="The file to read: thresholds, or a model, model.gguf.")]
    folder: Annotated[
        Path | None, typer.Argument(help="Of a model: the folder to write, a new or empty one.", show_default=False)
    ] = None
    dtype: Annotated[
        str, typer.Option(help="Of a model: float32, which keeps its weights exactly, bfloat16 or float16.")
    ] = "float32"
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Of thresholds: the file to write.")
    ] = None
    source_form: Annotated[
        str | None, typer.Option("--from", help="theta or th. Default: by the name: .theta, .txt.")
    ] = None
    output_form: Annotated[
        str | None, typer.Option("--to", help="theta, th or sdc. Default: by the name; sdc.txt for sdc.")
    ] = None
    sdc: Annotated[Path | None, typer.Option(help="Add the discarded mass of this sdc.txt.")] = None
    k: Annotated[int | None, typer.Option("--k", help="Of a table of several k, the one to write.")] = None
    fingerprint_of: Annotated[
        Path | None, typer.Option(help="Folder of the model that th.txt thresholds belong to.")
    ] = None
    placement: Annotated[str | None, typer.Option(help="Of th.txt thresholds. Default: pre_softmax.")] = None
    estimator: Annotated[str | None, typer.Option(help="Of th.txt thresholds. Default: algorithm1.")] = None
    alpha: Annotated[
        float | None, typer.Option(help="Of th.txt thresholds, the standard deviations added. Default: 0.1.")
    ] = None
    force: Annotated[bool, typer.Option("--force", help="Replace the file of thresholds that is there.")] = False
    typed: Collection[str] = ()
