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

    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="File to read: thresholds, or a model (.gguf).")]
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="FOLDER", help="Where to write a model: a new or empty folder.", show_default=False),
    ] = None
    dtype: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Dtype to write a model in: float32 (keeps the weights exactly), bfloat16 (half the size) or float16.",
        ),
    ] = "float32"
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where to write thresholds.")
    ] = None
    source_form: Annotated[
        str | None,
        typer.Option("--from", metavar="NAME", help="Format to read: theta or th. Default: by the file name."),
    ] = None
    output_form: Annotated[
        str | None,
        typer.Option("--to", metavar="NAME", help="Format to write: theta, th or sdc. Default: by the file name."),
    ] = None
    sdc: Annotated[Path | None, typer.Option(metavar="FILE", help="The sdc.txt whose discarded mass to add.")] = None
    k: Annotated[int | None, typer.Option("--k", metavar="INT", help="The k to write, of a table with several.")] = None
    fingerprint_of: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder of the model that a th.txt belongs to.")
    ] = None
    placement: Annotated[
        str | None, typer.Option(metavar="NAME", help="Placement of a th.txt. Default: pre_softmax.")
    ] = None
    estimator: Annotated[
        str | None, typer.Option(metavar="NAME", help="Estimator of a th.txt. Default: algorithm1.")
    ] = None
    alpha: Annotated[
        float | None, typer.Option(metavar="FLOAT", help="Standard deviations that a th.txt adds. Default: 0.1.")
    ] = None
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file of thresholds.")] = False
    typed: Collection[str] = ()
