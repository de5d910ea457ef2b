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
from ...errors import TopThetaCombinationError
from ...thresholds.uniform import check_tau
from ..common.model import DTYPES
from ..common.options import (
    INT8,
    KV_CACHES,
    DeviceName,
    DtypeName,
    ModelName,
    Tau,
    TextField,
    TextPaths,
    TrustRemoteCode,
)

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
        typer.Argument(
            metavar="TABLE...", help="Tables of thresholds for MODEL. Default: those of the embedded model, else none."
        ),
    ] = dataclasses.field(default_factory=list)
    task: Annotated[
        list[str],
        typer.Option(
            metavar="NAME",
            help="Task to score: perplexity, key-value, needle, or a task of lm-eval. Repeatable. Default: perplexity; "
            "the first three for the embedded model.",
        ),
    ] = dataclasses.field(default_factory=list)
    method: Annotated[
        list[str],
        typer.Option(
            metavar="NAME",
            help="Attention method to compare with dense, such as top-theta or top-theta:sdc=none,vmc=false. "
            "Repeatable. Default: top-theta, top-k and last-k; without a table tau of 0.001, 0.0005 and 0.00025.",
        ),
    ] = dataclasses.field(default_factory=list)
    tau: Tau = dataclasses.field(default_factory=list)
    k: Annotated[
        list[int],
        typer.Option(
            "--k", metavar="INT",
            help="Elements to keep per row, for methods with k. Repeatable. Default: 64, or the nearest k of the "
            "tables.",
        ),
    ] = dataclasses.field(default_factory=list)  # fmt: skip
    kv_cache: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="KV cache of every method but dense: auto (the model's dtype) or int8. With int8, tau=0 is added: it "
            "shows what int8 alone loses.",
        ),
    ] = "auto"
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Where to write the results.")] = Path(
        "evaluation.jsonl"
    )
    restart: Annotated[bool, typer.Option("--restart", help="Drop the results that the file holds.")] = False
    text: TextPaths = dataclasses.field(default_factory=list)
    field: TextField = "text"
    length: Annotated[
        int | None,
        typer.Option(
            metavar="INT",
            help="Tokens in a window of text. Default: as long as the tables reach, at most 4096; 2560 for the "
            "embedded model.",
        ),
    ] = None
    windows: Annotated[int, typer.Option(min=1, metavar="INT", help="Windows of text to score.")] = 16
    positions: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="INT",
            help="Tokens to predict at the end of each window. Default: 512, at most a quarter of the window.",
        ),
    ] = None  # fmt: skip
    prompts: Annotated[
        int,
        typer.Option(
            min=1, metavar="INT", help="Prompts of key-value and needle per prompt length and depth (five depths)."
        ),
    ] = 8
    prompt_length: Annotated[
        list[int],
        typer.Option(
            metavar="INT", help="Tokens in a prompt of key-value and needle. Repeatable. Default: 512, 1024 and 2048."
        ),
    ] = dataclasses.field(default_factory=list)
    seed: Annotated[int, typer.Option(metavar="INT", help="Seed of the prompts of key-value and needle.")] = 0
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="INT", help="Documents to score of a task of lm-eval. Default: all.")
    ] = None
    num_fewshot: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="INT",
            help="Examples before each question of a task of lm-eval. Default: the paper's number, else the task's.",
        ),
    ] = None  # fmt: skip
    task_folder: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder with your own lm-eval tasks (YAML).")
    ] = None
    confirm_run_unsafe_code: Annotated[
        bool, typer.Option("--confirm-run-unsafe-code", help="Run the programs that the model writes (humaneval).")
    ] = False
    dtype: DtypeName = None
    device: DeviceName = None
    trust_remote_code: TrustRemoteCode = False
    extrapolate: Annotated[
        bool,
        typer.Option(
            "--extrapolate", help="Allow rows longer than calibrated; they use the thresholds of the longest."
        ),
    ] = False


def completed(options: Options) -> Options:
    """Check what needs no model, and fill in what was left out, as far as it does not depend on the model.

    Raises:
        TopThetaTypeError, TopThetaValueError: a number is out of its range, or the results cannot be written.
    """
    check_choice("--dtype", options.dtype or "auto", DTYPES)
    check_choice("--kv-cache", options.kv_cache, KV_CACHES)
    for tau in options.tau:
        check_tau(tau)
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
    if options.kv_cache == INT8 and (others := [name for name in task if name not in (PERPLEXITY, *RETRIEVAL)]):
        own = ", ".join((PERPLEXITY, *RETRIEVAL))
        raise TopThetaCombinationError("--kv-cache int8", "needs", f"tasks among {own}", f"leave out {others[0]}")
    method = _methods(options, tables, model is None)
    ks = sorted(set(options.k))
    return dataclasses.replace(options, model=model, tables=tables, task=task, method=method, k=ks)


def _methods(options: Options, tables: list[Path], embedded: bool) -> list[str]:
    """List the methods as text, first the dense one that all others are compared with."""
    if options.method:
        named = options.method
    elif tables or (embedded and not options.tau):
        named = list(DEFAULT_METHODS)
    else:
        named = [] if options.tau else list(UNCALIBRATED)
    alone = [0.0] if options.kv_cache == INT8 else []
    taus = [f"tau:tau={tau}" for tau in (*alone, *options.tau)]
    return list(dict.fromkeys(["dense", *(each for each in (*named, *taus) if each != "dense")]))
