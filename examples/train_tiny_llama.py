"""Train the embedded model: a LLaMA of about 5.7 M parameters on the Python standard library's sources.

    python examples/train_tiny_llama.py --output build/tiny_llama

Runs on a CPU (hours) or a GPU (minutes), and resumes from its last checkpoint when started again.
Matrices of the MLP, value and output projections are trained by Muon, everything else by AdamW: with
Muon on query and key too, scores grow until a handful of keys hold all the attention mass, and a model
like that proves nothing about thresholds. The script therefore reports, per layer, the share of the
attention mass in the top 128 of 2048 keys, and refuses to export a model outside 0.6 to 0.98.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from tokenizers import ByteLevelBPETokenizer
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from toptheta_npu.evaluation import corpus

VOCABULARY = 2048
END_OF_TEXT = "<|endoftext|>"
MASS_BOUNDS = (0.6, 0.98)
console = Console()


@dataclass(frozen=True)
class Phase:
    """A stretch of training: ``steps`` batches of ``batch`` windows of ``context`` tokens."""

    steps: int
    context: int
    batch: int


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


def encode_training_text(tokenizer: PreTrainedTokenizerFast) -> Tensor:
    tokens: list[int] = []
    for _, text in corpus.read_split("train"):
        tokens += [*tokenizer(text, verbose=False)["input_ids"], tokenizer.eos_token_id]
    return torch.tensor(tokens, dtype=torch.int16)


def build_optimizers(model: nn.Module) -> list[torch.optim.Optimizer]:
    muon, decayed, plain = [], [], []
    for name, parameter in model.named_parameters():
        if any(part in name for part in ("mlp", "v_proj", "o_proj")):
            muon.append(parameter)
        elif parameter.ndim == 2:
            decayed.append(parameter)
        else:
            plain.append(parameter)
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    return [
        torch.optim.Muon(muon, lr=0.02, weight_decay=0.01, momentum=0.95),
        torch.optim.AdamW(groups, lr=2e-3, betas=(0.9, 0.95)),
    ]


def schedule(step: int, total: int, warmup: int = 50, decay: float = 0.45) -> float:
    """Learning-rate factor: linear warm-up, flat, then linear decay over the last ``decay`` of all steps."""
    return min((step + 1) / warmup, 1.0, (total - step) / (decay * total))


def sample_batch(tokens: Tensor, phase: Phase, step: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    starts = torch.randint(len(tokens) - phase.context, (phase.batch,), generator=generator)
    return torch.stack([tokens[s : s + phase.context] for s in starts.tolist()]).long()


@torch.no_grad()
def held_out_bits_per_byte(model: LlamaForCausalLM, windows: Tensor, text_bytes: int) -> float:
    nats = 0.0
    for window in windows:
        logits = model(window[None]).logits[0, :-1].float()
        nats += nn.functional.cross_entropy(logits, window[1:], reduction="sum").item()
    return nats / math.log(2) / text_bytes


@torch.no_grad()
def top_mass_per_layer(model: LlamaForCausalLM, windows: Tensor, k: int = 128, rows: int = 64) -> list[float]:
    """Mean share of the attention mass in the ``k`` largest of a row, per layer, over the last rows."""
    model.set_attn_implementation("eager")
    shares = []
    for window in windows:
        attentions = model(window[None], output_attentions=True).attentions
        shares.append([a[0, :, -rows:].float().topk(k).values.sum(-1).mean().item() for a in attentions])
    model.set_attn_implementation("sdpa")
    return torch.tensor(shares).mean(0).tolist()


class Trainer:
    """The model, its optimizers and the position in the schedule; saved and restored as one."""

    def __init__(self, output: Path, phases: list[Phase], seed: int, device: str) -> None:
        self.output, self.phases, self.seed, self.device = output, phases, seed, device
        self.tokenizer = build_tokenizer()
        self.tokens = encode_training_text(self.tokenizer)
        self.model = build_model(seed).to(device)
        self.optimizers = build_optimizers(self.model)
        self.step = 0
        self.log: list[dict[str, object]] = []
        self.checkpoint = output / "checkpoint.pt"
        self.held_out = corpus.token_windows(self.tokenizer, "evaluation", 2048, 8).to(device)
        texts = self.tokenizer.batch_decode(self.held_out[:, 1:])
        self.held_out_bytes = sum(len(text.encode()) for text in texts)

    @property
    def settings(self) -> dict[str, object]:
        """What a run must have in common with its checkpoint."""
        return {"phases": [asdict(phase) for phase in self.phases], "seed": self.seed}

    @property
    def total(self) -> int:
        return sum(phase.steps for phase in self.phases)

    def phase_at(self, step: int) -> Phase:
        for phase in self.phases:
            if step < phase.steps:
                return phase
            step -= phase.steps
        return self.phases[-1]

    def train_step(self) -> float:
        factor = schedule(self.step, self.total)
        batch = sample_batch(self.tokens, self.phase_at(self.step), self.step, self.seed).to(self.device)
        with torch.autocast(self.device.split(":")[0], dtype=torch.bfloat16):
            loss: Tensor = self.model(batch, labels=batch).loss
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group.setdefault("base_lr", group["lr"]) * factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return loss.item()

    def evaluate(self) -> dict[str, object]:
        self.model.eval()
        shares = top_mass_per_layer(self.model, self.held_out[:2])
        entry: dict[str, object] = {
            "step": self.step,
            "held_out_bits_per_byte": held_out_bits_per_byte(self.model, self.held_out, self.held_out_bytes),
            "top128_of_2048_mass_per_layer": shares,
            "top128_of_2048_mass_layers_from_2": sum(shares[2:]) / len(shares[2:]),
        }
        self.model.train()
        self.log.append(entry)
        return entry

    def save(self) -> None:
        state = {
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "step": self.step,
            "log": self.log,
        } | self.settings
        partial = self.checkpoint.with_suffix(".partial")
        torch.save(state, partial)
        partial.replace(self.checkpoint)

    def restore(self) -> None:
        state = torch.load(self.checkpoint, map_location=self.device, weights_only=True)
        found = {name: state[name] for name in self.settings}
        if found != self.settings:
            raise SystemExit(
                f"{self.checkpoint} is of another run: {found}, not {self.settings}. Name another --output."
            )
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.step, self.log = state["step"], state["log"]

    def export(self) -> None:
        """Write the bfloat16 model, tokenizer and training record that the package embeds."""
        self.model.to(torch.bfloat16)
        final = self.evaluate() | self.settings
        share = final["top128_of_2048_mass_layers_from_2"]
        if not (isinstance(share, float) and MASS_BOUNDS[0] <= share <= MASS_BOUNDS[1]):
            raise SystemExit(f"top-128 share of the attention mass is {share}, outside {MASS_BOUNDS}: not exported")
        self.model.generation_config.max_length = None
        self.model.save_pretrained(self.output / "model")
        self.tokenizer.save_pretrained(self.output / "model")
        record = {"final": final, "log": self.log[:-1]}
        (self.output / "model" / "training.json").write_text(json.dumps(record, indent=1) + "\n")


def main(
    output: Annotated[Path, typer.Option(help="Folder for checkpoints and the exported model.")] = Path(
        "build/tiny_llama"
    ),
    short_steps: Annotated[int, typer.Option(help="Steps at context 512.")] = 2000,
    long_steps: Annotated[int, typer.Option(help="Steps at context 2560.")] = 800,
    seed: int = 0,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cuda" if torch.cuda.is_available() else "cpu",
    evaluate_every: int = 200,
) -> None:
    """Train, report on held-out modules, and export the model."""
    if note := corpus.python_note():
        console.print(note)
    output.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(output, [Phase(short_steps, 512, 16), Phase(long_steps, 2560, 3)], seed, device)
    if trainer.checkpoint.exists():
        trainer.restore()
        console.print(f"resumed at step {trainer.step} of {trainer.total}")
    size = sum(p.numel() for p in trainer.model.parameters())
    console.print(f"{size / 1e6:.2f} M parameters, {len(trainer.tokens) / 1e6:.2f} M training tokens")
    columns = [TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()]
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("training", total=trainer.total, completed=trainer.step)
        while trainer.step < trainer.total:
            started = time.perf_counter()
            loss = trainer.train_step()
            phase = trainer.phase_at(trainer.step - 1)
            rate = phase.context * phase.batch / (time.perf_counter() - started)
            progress.update(bar, advance=1, description=f"loss {loss:.3f}, {rate:,.0f} tokens/s")
            if trainer.step % evaluate_every == 0:
                console.print(trainer.evaluate() | {"tokens/s": round(rate)})
                trainer.save()
    trainer.export()
    console.print(trainer.log[-1])


if __name__ == "__main__":
    typer.run(main)
