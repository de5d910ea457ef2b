"""Train the embedded model: a LLaMA of about 5.7 M parameters on the Python standard library's sources.

    python examples/train_tiny_llama.py --output build/tiny_llama

Two stages. The first trains on library text alone; the second continues with tables and needles mixed
in (see tiny_llama/mixture.py), until the model retrieves. ``--from`` names a trained model and skips the
first stage. Runs on a CPU (hours) or a GPU (minutes), and resumes from its last checkpoint when started
again. Every evaluation reports held-out bits per byte and retrieval by length.

Matrices of the MLP, value and output projections are trained by Muon, everything else by AdamW: with
Muon on query and key too, scores grow until a handful of keys hold all the attention mass, and a model
like that proves nothing about thresholds. The script therefore reports, per layer, the share of the
attention mass in the top 128 of 2048 keys, and refuses to export a model outside 0.6 to 0.98.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from tiny_llama.trainer import Stage, Trainer
from tokenizers import ByteLevelBPETokenizer
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from toptheta_npu.evaluation import corpus

VOCABULARY = 2048
END_OF_TEXT = "<|endoftext|>"
TEXT_PHASES = "1150x512x16 500x2560x3"
RETRIEVAL_PHASES = "100x512x8:0.5:0.1 60x2560x2:0.35:0.2 80x4096x2:0.25:0.15 90x2560x2:0.25:0.15"
console = Console()


def build_tokenizer() -> PreTrainedTokenizerFast:
    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator(
        (text for _, text in corpus.read_split("train")),
        vocab_size=VOCABULARY,
        special_tokens=[END_OF_TEXT],
        show_progress=False,
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe._tokenizer, bos_token=END_OF_TEXT, eos_token=END_OF_TEXT, pad_token=END_OF_TEXT
    )


def build_model(seed: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config)


def run_stage(trainer: Trainer, evaluate_every: int, final_prompts: int) -> None:
    """Train from the last checkpoint, if any, to the end of the schedule, and export."""
    trainer.output.mkdir(parents=True, exist_ok=True)
    if trainer.checkpoint.exists():
        trainer.restore()
        console.print(f"resumed at step {trainer.step} of {trainer.stage.total}")
    columns = [TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()]
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("training", total=trainer.stage.total, completed=trainer.step)
        for loss, rate in trainer.train(evaluate_every):
            progress.update(bar, completed=trainer.step, description=f"loss {loss:.3f}, {rate:,.0f} tokens/s")
            if trainer.step % evaluate_every == 0:
                console.print(trainer.log[-1])
    trainer.export(final_prompts)
    console.print(trainer.log[-1])


def main(
    output: Annotated[Path, typer.Option(help="Folder for checkpoints and the exported model.")] = Path(
        "build/tiny_llama"
    ),
    start: Annotated[
        Path | None, typer.Option("--from", help="A trained model; skips the stage on text alone.")
    ] = None,
    text_phases: Annotated[
        str, typer.Option(help="First stage: STEPSxCONTEXTxBATCH of each phase, with spaces between.")
    ] = TEXT_PHASES,
    phases: Annotated[
        str, typer.Option(help="Second stage: STEPSxCONTEXTxBATCH:TABLES:NEEDLES, the last two as shares of windows.")
    ] = RETRIEVAL_PHASES,
    rate: Annotated[float, typer.Option(help="Learning rates of the second stage, relative to the first.")] = 0.5,
    decay: Annotated[float, typer.Option(help="Share of the second stage's steps in which the rates fall.")] = 0.5,
    seed: int = 0,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cuda" if torch.cuda.is_available() else "cpu",
    evaluate_every: int = 200,
    final_prompts: Annotated[int, typer.Option(help="Prompts per kind and length in the last evaluation.")] = 96,
) -> None:
    """Train, report on held-out modules, and export the model."""
    if note := corpus.python_note():
        console.print(note)
    if start is None:
        start = output / "text" / "model"
        if not start.exists():
            stage = Stage.of(text_phases, rate=1.0, decay=0.45, seed=seed)
            trainer = Trainer(build_model(seed), build_tokenizer(), stage, output / "text", device)
            run_stage(trainer, evaluate_every, final_prompts)
    model = LlamaForCausalLM.from_pretrained(start, dtype=torch.float32)
    stage = Stage.of(phases, rate, decay, seed)
    trainer = Trainer(model, AutoTokenizer.from_pretrained(start), stage, output, device)
    run_stage(trainer, evaluate_every, final_prompts)


if __name__ == "__main__":
    typer.run(main)
