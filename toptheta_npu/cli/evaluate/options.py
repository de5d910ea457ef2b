"""What ``toptheta evaluate`` is asked for."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..._checks import check_choice, check_int
from ..._files import check_writable
from ..._gguf import is_gguf
from ..common.model import DTYPES
from ..common.options import DeviceName, DtypeName, ModelName, TrustRemoteCode

if TYPE_CHECKING:
    from ...evaluation.tasks.retrieval_prompts import Kind

DEFAULT_METHODS = ("dense", "top-theta", "top-k", "last-k")
#: Those for a model that nothing was calibrated for.
UNCALIBRATED = ("dense", "tau:tau=0.001", "tau:tau=0.0005", "tau:tau=0.00025")
#: The tasks of this package; others are of lm-eval.
PERPLEXITY = "perplexity"
#: Tasks that ask prompts, and of which kind.
RETRIEVAL: Mapping[str, Kind] = {"key-value": "key_value", "needle": "needle"}


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of the command."""

    model: ModelName = None
    tables: Annotated[
        list[Path],
        typer.Argument(metavar="TABLE...", help="Thresholds of this model. Default: those of the embedded model."),
    ] = dataclasses.field(default_factory=list)
    task: Annotated[
        list[str],
        typer.Option(
            help="perplexity, key-value, needle, or a task of lm-eval; may be given again. Default: "
            "perplexity; the first three for the embedded model."
        ),
    ] = dataclasses.field(default_factory=list)
    method: Annotated[
        list[str],
        typer.Option(
            help="A method, such as top-theta, or top-theta:sdc=none,vmc=false; may be given again. "
            "Default: dense, top-theta, top-k and last-k; of a model without a table dense, and tau of 0.001, "
            "0.0005 and 0.00025."
        ),
    ] = dataclasses.field(default_factory=list)
    k: Annotated[
        list[int],
        typer.Option(help="Elements to keep; may be given again. Default: 64, or the nearest k of the tables."),
    ] = dataclasses.field(default_factory=list)
    output: Annotated[Path, typer.Option("--output", "-o", help="The results.")] = Path("evaluation.jsonl")
    restart: Annotated[bool, typer.Option("--restart", help="Leave out what is in the results.")] = False
    text: Annotated[
        list[Path], typer.Option(help="Text for perplexity, as toptheta calibrate takes it; may be given again.")
    ] = dataclasses.field(default_factory=list)
    field: Annotated[str, typer.Option(help="Field of .jsonl files.")] = "text"
    length: Annotated[
        int | None,
        typer.Option(help="Tokens in a window. Default: as long as the tables reach, at most 4096; embedded 2560."),
    ] = None
    windows: Annotated[int, typer.Option(min=1, help="Windows to score.")] = 16
    positions: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens to predict, at the end of every window. Default: 512, at most a quarter."),
    ] = None
    prompts: Annotated[
        int, typer.Option(min=1, help="Prompts of key-value and of needle, for each length and each of five depths.")
    ] = 8
    prompt_length: Annotated[
        list[int], typer.Option(help="Tokens of a prompt; may be given again. Default: 512, 1024 and 2048.")
    ] = dataclasses.field(default_factory=list)
    seed: Annotated[int, typer.Option(help="Of the prompts.")] = 0
    limit: Annotated[int | None, typer.Option(min=1, help="Documents of a task of lm-eval. Default: all.")] = None
    num_fewshot: Annotated[
        int | None, typer.Option(min=0, help="Examples before a question. Default: the paper's, else the task's.")
    ] = None
    task_folder: Annotated[Path | None, typer.Option(help="Folder with tasks of lm-eval of yours, YAML.")] = None
    confirm_run_unsafe_code: Annotated[
        bool, typer.Option("--confirm-run-unsafe-code", help="Run what the model writes (humaneval).")
    ] = False
    dtype: DtypeName = None
    device: DeviceName = None
    trust_remote_code: TrustRemoteCode = False
    extrapolate: Annotated[
        bool, typer.Option("--extrapolate", help="Rows longer than calibrated ones take the thresholds of the longest.")
    ] = False


def completed(options: Options) -> Options:
    """Check what needs no model, and fill in what was left out, as far as it does not depend on the model.

    Raises:
        TopThetaTypeError, TopThetaValueError: a number is out of its range, or the results cannot be written.
    """
    check_choice("--dtype", options.dtype or "auto", DTYPES)
    for k in options.k:
        check_int("--k", k, 1)
    for length in options.prompt_length:
        check_int("--prompt-length", length, 1)
    check_writable(options.output, "--output")
    model, tables = options.model, options.tables
    if model is not None and os.path.isfile(model) and not is_gguf(Path(model)):  # a table of the embedded model
        tables = [Path(model), *tables]
        model = None
    task = list(dict.fromkeys(options.task)) or [PERPLEXITY, *(RETRIEVAL if model is None else ())]
    usual = DEFAULT_METHODS if tables or model is None else UNCALIBRATED
    # what all others are compared with
    method = ["dense", *(each for each in options.method or usual if each != "dense")]
    ks = sorted(set(options.k))
    return dataclasses.replace(options, model=model, tables=tables, task=task, method=method, k=ks)
