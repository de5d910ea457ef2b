"""``toptheta benchmark-generate``: tokens per second of a model, dense and by thresholds."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import torch
import typer
from rich.console import Console

from ..._checks import PLACEMENTS, check_choice
from ..._files import write_atomically
from ..._gguf import how_to_convert, is_gguf
from ...errors import TopThetaCombinationError, TopThetaValueError
from ...thresholds.uniform import check_tau
from ..common.devices import check_device
from ..common.model import FOLDER
from ..common.options import INT8, KV_CACHES
from ..common.options import command as make_command
from .command import MAX_ROUNDS, prepare_outputs

if TYPE_CHECKING:
    from ...thresholds import Placement, ThresholdTable


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of the command."""

    device: Annotated[str | None, typer.Option(help="cpu, cuda or npu.")] = None
    model: Annotated[
        str | None, typer.Option(help="A transformers model, by folder or name. Default: the embedded one.")
    ] = None
    thresholds: Annotated[Path | None, typer.Option(help="Its thresholds, a .theta file; or --tau.")] = None
    tau: Annotated[
        list[float], typer.Option(help="Share of a row's attention to be kept, such as 0.0005; may be given again.")
    ] = field(default_factory=list)
    k: Annotated[list[int], typer.Option(help="Elements to keep per row; may be given again.")] = field(
        default_factory=list
    )
    placement: Annotated[str, typer.Option(help="Which of the embedded model's thresholds.")] = "post_softmax"
    kv_cache: Annotated[str, typer.Option(help="int8: also by thresholds over an Int8Cache; auto: not.")] = "auto"
    prompt: Annotated[int, typer.Option(min=2, help="Tokens in each prompt.")] = 2048
    batch: Annotated[int, typer.Option(min=1, help="Prompts at a time.")] = 1
    dtype: Annotated[str, typer.Option(help="float16, bfloat16 or float32.")] = "float32"
    new_tokens: Annotated[int, typer.Option(min=2, help="New tokens of each variant and round.")] = 32
    rounds: Annotated[int, typer.Option(min=1, max=MAX_ROUNDS, help="In each, every variant runs in turn.")] = 9
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures here.")] = None


def benchmark_generate(options: Options) -> None:
    """Measure the decode steps of generate(), dense and by thresholds in turns; the prompt is not counted."""
    from ...evaluation.corpus import token_windows
    from ...timing import end_to_end
    from ...timing.clocks import make_timer
    from ...timing.shapes import DTYPES

    device = check_device(options.device)
    make_timer(device)  # refuses an emulated one
    check_choice("--dtype", options.dtype, tuple(DTYPES))
    check_choice("--kv-cache", options.kv_cache, KV_CACHES)
    for tau in options.tau:
        check_tau(tau)
    prepare_outputs(options.json_file)
    network, tokenizer, table = _load(options, DTYPES[options.dtype], device)
    prompt, new_tokens, int8 = options.prompt, options.new_tokens, options.kv_cache == INT8
    most = getattr(network.config, "max_position_embeddings", None)
    if most is not None and prompt + new_tokens > most:
        raise TopThetaValueError(
            "--new-tokens", f"at most {most} tokens with the prompt, for which the model is made",
            f"{prompt} and {new_tokens} new ones", "lower it or --prompt",
        )  # fmt: skip
    tokens = token_windows(tokenizer, "evaluation", prompt, options.batch).to(device)
    ks = options.k or ([] if table is None else [int(table.k[len(table.k) // 2])])
    chosen = end_to_end.variants(network, table, ks=ks, taus=options.tau, int8=int8)
    rates = end_to_end.compare(network, chosen, tokens, new_tokens=new_tokens, rounds=options.rounds)
    title = f"generate() on {device}, {options.dtype}, {options.batch} x {prompt} tokens before the first new one"
    if int8:
        title += f"; int8 with a scale per {'channel' if end_to_end.has_channel_scales(table) else 'row'}"
    console = Console()
    console.print(end_to_end.as_table(rates, title))
    if options.json_file is not None:
        stored = {"title": title, "rates": end_to_end.as_json(rates)}
        write_atomically(options.json_file, json.dumps(stored, indent=1) + "\n")
        console.print(f"{options.json_file} written.")


#: The command of `benchmark_generate`.
command = make_command(Options, benchmark_generate)


def _load(options: Options, dtype: torch.dtype, device: str) -> tuple[Any, Any, ThresholdTable | None]:
    model, thresholds, placement = options.model, options.thresholds, options.placement
    if model is None:
        from ...assets import load_tiny_llama, load_tiny_llama_thresholds

        if thresholds is not None:
            remedy = "name the model they belong to, or leave both out"
            raise TopThetaCombinationError("--thresholds", "needs", "--model", remedy)
        check_choice("--placement", placement, PLACEMENTS)
        network, tokenizer = load_tiny_llama(dtype, device)
        return network, tokenizer, load_tiny_llama_thresholds(cast("Placement", placement))
    if thresholds is None:
        calibration = f"calibrate it: {shlex.join(['toptheta', 'calibrate', model])} --text FILE"
        if not options.tau:
            remedy = f"time it by --tau 0.0005, or {calibration}"
            raise TopThetaCombinationError("--model", "needs", "--tau or --thresholds", remedy)
        if options.k:
            raise TopThetaCombinationError("--k", "needs", "--thresholds", f"leave it out, or {calibration}")
        return *_load_transformers(model, dtype, device), None
    from ...thresholds import ThresholdTable

    table = ThresholdTable.load(thresholds)
    return *_load_transformers(model, dtype, device), table


def _load_transformers(model: str, dtype: torch.dtype, device: str) -> tuple[Any, Any]:
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if is_gguf(Path(model)):
        raise TopThetaValueError("--model", "a model that transformers can load", model, how_to_convert(Path(model)))
    try:
        network: torch.nn.Module = AutoModelForCausalLM.from_pretrained(model, dtype=dtype)
        return network.to(device).eval(), AutoTokenizer.from_pretrained(model)
    # whatever foreign files make transformers stumble over
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RuntimeError, SafetensorError) as cause:
        reason = str(cause).split("\n")[0]
        got = f"{model} ({reason})"
        raise TopThetaValueError("--model", "a model that transformers can load", got, FOLDER) from cause
