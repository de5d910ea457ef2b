"""``toptheta benchmark-generate``: tokens per second of a model, dense, by our kernel, and by thresholds."""

from __future__ import annotations

import copy
import json
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import torch
import typer
from rich.markup import escape

from ..._checks import PLACEMENTS, check_choice
from ..._files import write_atomically
from ..._gguf import how_to_convert, is_gguf
from ...errors import TopThetaCombinationError, TopThetaValueError
from ...thresholds.uniform import check_tau
from ..common import printing
from ..common.devices import check_device
from ..common.model import DTYPES, FOLDER, default_dtype
from ..common.options import INT8, KV_CACHES, DtypeName, Tau
from ..common.options import command as make_command
from .command import MAX_ROUNDS, prepare_outputs

if TYPE_CHECKING:
    from ...thresholds import Placement, ThresholdTable


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of the command."""

    device: Annotated[str | None, typer.Option(metavar="NAME", help="Device to run on: cpu, cuda or npu.")] = None
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Model to time: the folder or Hub name of a transformers model. Default: the embedded model.",
        ),
    ] = None
    thresholds: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Table of thresholds of --model, a .theta file.")
    ] = None
    tau: Tau = field(default_factory=list)
    k: Annotated[
        list[int],
        typer.Option(
            "--k", metavar="INT", help="Elements to keep per row by the table. Repeatable. Default: its middle k."
        ),
    ] = field(default_factory=list)
    placement: Annotated[
        str,
        typer.Option(metavar="NAME", help="Thresholds of the embedded model to use: post_softmax or pre_softmax."),
    ] = "post_softmax"
    kv_cache: Annotated[
        str, typer.Option(metavar="NAME", help="KV caches to time: auto, or int8 for an Int8Cache as well.")
    ] = "auto"
    prompt: Annotated[int, typer.Option(min=2, metavar="INT", help="Tokens in each prompt.")] = 2048
    batch: Annotated[int, typer.Option(min=1, metavar="INT", help="Number of prompts in a batch.")] = 1
    dtype: DtypeName = None
    other_dtype: Annotated[
        bool,
        typer.Option(
            help="Also time dense attention in the other of float32 and bfloat16. Takes memory for a second model."
        ),
    ] = True
    new_tokens: Annotated[int, typer.Option(min=2, metavar="INT", help="Tokens to generate in each round.")] = 32
    rounds: Annotated[
        int, typer.Option(min=1, max=MAX_ROUNDS, metavar="INT", help="Rounds; each runs every variant in turn.")
    ] = 9
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Where to write all figures as JSON.")
    ] = None


def benchmark_generate(options: Options) -> None:
    """Time generate() with your model.

    The gain of a decode step is split into kernel and threshold. The row "same kernel, all of V" runs our kernel at
    tau=0, which loses nothing. Prompts are not timed.
    """
    from ...models.caches.int8 import has_channel_scales
    from ...timing import end_to_end
    from ...timing.clocks import make_timer

    device = check_device(options.device)
    make_timer(device)  # refuses an emulated one
    check_choice("--dtype", options.dtype or "auto", DTYPES)
    check_choice("--kv-cache", options.kv_cache, KV_CACHES)
    for tau in options.tau:
        check_tau(tau)
    prepare_outputs(options.json_file)
    network, tokenizer, table = _load(options, options.dtype or default_dtype(options.model), device)
    tokens = _prompts(options, network, tokenizer).to(device)
    int8 = options.kv_cache == INT8
    ks = options.k or ([] if table is None else [int(table.k[len(table.k) // 2])])
    others = _in_other_dtypes(network) if options.other_dtype else []
    chosen = end_to_end.variants(network, table, ks=ks, taus=options.tau, int8=int8, others=others)
    rates = end_to_end.compare(network, chosen, tokens, new_tokens=options.new_tokens, rounds=options.rounds)
    dtype = str(network.dtype).removeprefix("torch.")
    title = f"generate() on {device}, {dtype}, {options.batch} x {options.prompt} tokens before the first new one"
    if int8:
        title += f"; int8 with a scale per {'channel' if has_channel_scales(table) else 'row'}"
    console = printing.console()
    printing.print_table(console, end_to_end.as_table(rates, chosen, title))
    for line in end_to_end.conclusions(end_to_end.gains(rates, chosen)):
        console.print(escape(line))
    if options.json_file is not None:
        stored = {"title": title, **end_to_end.as_json(rates, chosen)}
        write_atomically(options.json_file, json.dumps(stored, indent=1) + "\n")
        console.print(escape(f"{options.json_file} written."))


#: The command of `benchmark_generate`.
command = make_command(Options, benchmark_generate)


def _prompts(options: Options, network: Any, tokenizer: Any) -> torch.Tensor:
    """Cut the prompts out of the Python library, int64 [batch, prompt].

    Raises:
        TopThetaValueError: the model has too few positions, or the library too little text.
    """
    from ...evaluation.corpus import token_windows

    prompt, new_tokens = options.prompt, options.new_tokens
    most = getattr(network.config.get_text_config(decoder=True), "max_position_embeddings", None)
    if most is not None and prompt + 2 > most:
        expected = f"at most {most - 2} tokens, since the model has {most} positions and 2 tokens are new"
        raise TopThetaValueError("--prompt", expected, str(prompt), "lower it")
    if most is not None and prompt + new_tokens > most:
        raise TopThetaValueError(
            "--new-tokens", f"at most {most} tokens with the prompt, for which the model is made",
            f"{prompt} and {new_tokens} new ones", "lower it or --prompt",
        )  # fmt: skip
    try:
        return token_windows(tokenizer, "evaluation", prompt, options.batch)
    except TopThetaValueError as error:
        if error.argument != "count":
            raise
        raise TopThetaValueError("--batch", error.expected, error.got, "lower it or --prompt") from error


def _in_other_dtypes(network: Any) -> list[Any]:
    """Copy the model into float32 and bfloat16, but for the one that it has. A quantised model has one dtype."""
    if getattr(network.config, "quantization_config", None) is not None:
        return []
    dtypes = (torch.float32, torch.bfloat16)
    return [copy.deepcopy(network).to(dtype) for dtype in dtypes if dtype != network.dtype]


def _load(options: Options, dtype: str, device: str) -> tuple[Any, Any, ThresholdTable | None]:
    model, thresholds, placement = options.model, options.thresholds, options.placement
    if model is None:
        from ...assets import load_tiny_llama, load_tiny_llama_thresholds

        if thresholds is not None:
            remedy = "name the model they belong to, or leave both out"
            raise TopThetaCombinationError("--thresholds", "needs", "--model", remedy)
        check_choice("--placement", placement, PLACEMENTS)
        network, tokenizer = load_tiny_llama(torch.float32 if dtype == "auto" else getattr(torch, dtype), device)
        return network, tokenizer, load_tiny_llama_thresholds(cast("Placement", placement))
    if thresholds is None:
        calibration = f"calibrate it: {shlex.join(['toptheta', 'calibrate', model])} --text FILE"
        if not options.tau:
            remedy = f"add --tau 0.0005, or {calibration}"
            raise TopThetaCombinationError("--model", "needs", "--tau or --thresholds", remedy)
        if options.k:
            raise TopThetaCombinationError("--k", "needs", "--thresholds", f"leave it out, or {calibration}")
        return *_load_transformers(model, dtype, device), None
    from ...thresholds import ThresholdTable

    table = ThresholdTable.load(thresholds)
    return *_load_transformers(model, dtype, device), table


def _load_transformers(model: str, dtype: str, device: str) -> tuple[Any, Any]:
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
