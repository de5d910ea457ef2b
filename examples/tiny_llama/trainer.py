"""One stage of training: model, optimizers, schedule, checkpoints, evaluation and export."""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from tiny_llama import mixture
from toptheta_npu.evaluation import corpus
from toptheta_npu.evaluation.tasks import retrieval_prompts
from toptheta_npu.evaluation.tasks.prefix import run_prefix, score_all

MASS_BOUNDS = (0.6, 0.98)
SAVE_EVERY = 50
RETRIEVAL_LENGTHS = (512, 1024, 2048, 4096)


@dataclass(frozen=True)
class Phase:
    """A stretch of training: ``steps`` batches of ``batch`` windows of ``context`` tokens, and their kinds."""

    steps: int
    context: int
    batch: int
    mix: mixture.Mix = field(default_factory=mixture.Mix)

    @classmethod
    def parse(cls, text: str) -> Phase:
        """Parse ``"400x512x16:0.3:0.1"``: 400 steps at context 512, 16 windows each, 30 % tables, 10 % needles."""
        shape, *shares = text.split(":")
        return cls(*(int(part) for part in shape.split("x")), mixture.Mix(*(float(share) for share in shares)))


@dataclass(frozen=True)
class Stage:
    """What a run must have in common with its checkpoint. Rates are factors of the optimizers' own."""

    phases: tuple[Phase, ...]
    rate: float
    decay_steps: int
    seed: int

    @classmethod
    def of(cls, phases: str, rate: float, decay: float, seed: int) -> Stage:
        """Make a stage of some phases. ``decay`` is the share of all steps in which the learning rates fall."""
        parsed = tuple(Phase.parse(phase) for phase in phases.split())
        return cls(parsed, rate, round(decay * sum(phase.steps for phase in parsed)), seed)

    @property
    def total(self) -> int:
        return sum(phase.steps for phase in self.phases)

    def phase_at(self, step: int) -> Phase:
        for phase in self.phases:
            if step < phase.steps:
                return phase
            step -= phase.steps
        return self.phases[-1]

    def learning_rate_factor(self, step: int, warmup: int = 50) -> float:
        """Compute the factor: linear warm-up, flat, then linear decay over the last ``decay_steps``."""
        return self.rate * min((step + 1) / warmup, 1.0, (self.total - step) / self.decay_steps)


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


@torch.no_grad()
def held_out_bits_per_byte(model: LlamaForCausalLM, windows: Tensor, text_bytes: int) -> float:
    nats = 0.0
    for window in windows:
        logits = model(window[None]).logits[0, :-1].float()
        nats += nn.functional.cross_entropy(logits, window[1:], reduction="sum").item()
    return nats / math.log(2) / text_bytes


@torch.no_grad()
def top_mass_per_layer(model: LlamaForCausalLM, windows: Tensor, k: int = 128, rows: int = 64) -> list[float]:
    """Measure the mean share of the attention mass in the ``k`` largest of a row, per layer, over the last rows."""
    model.set_attn_implementation("eager")
    shares = []
    for window in windows:
        attentions = model(window[None], output_attentions=True).attentions
        shares.append([a[0, :, -rows:].float().topk(k).values.sum(-1).mean().item() for a in attentions])
    model.set_attn_implementation("sdpa")
    return torch.tensor(shares).mean(0).tolist()


def weighted_loss(logits: Tensor, tokens: Tensor, weights: Tensor) -> Tensor:
    """Average the negative log-likelihood of each next token, by its weight."""
    losses = nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten(), reduction="none"
    )
    return (losses * weights[:, 1:].flatten()).sum() / weights[:, 1:].sum()


class Trainer:
    """The model, its optimizers and the position in the schedule. They are saved and restored as one."""

    def __init__(
        self, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, stage: Stage, output: Path, device: str
    ) -> None:
        self.model, self.tokenizer, self.stage, self.output = model.to(device).train(), tokenizer, stage, output
        self.device = device
        self.library = mixture.encode_library(tokenizer)
        self.optimizers = build_optimizers(self.model)
        self.step = 0
        self.log: list[dict[str, object]] = []
        self.checkpoint = output / "checkpoint.pt"
        self.held_out = corpus.token_windows(tokenizer, "evaluation", 2048, 8).to(device)
        texts = tokenizer.batch_decode(self.held_out[:, 1:])
        self.held_out_bytes = sum(len(text.encode()) for text in texts)

    def draw_batch(self) -> tuple[Tensor, Tensor]:
        phase = self.stage.phase_at(self.step)
        generator = random.Random(f"{self.stage.seed} {self.step}")
        windows = [
            mixture.draw_window(self.tokenizer, self.library, generator, phase.mix, phase.context)
            for _ in range(phase.batch)
        ]
        tokens, weights = (torch.stack(part).to(self.device) for part in zip(*windows, strict=True))
        return tokens, weights

    def train_step(self) -> float:
        tokens, weights = self.draw_batch()
        with torch.autocast(self.device.split(":")[0], dtype=torch.bfloat16):
            logits = self.model(tokens).logits
        loss = weighted_loss(logits, tokens, weights)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        factor = self.stage.learning_rate_factor(self.step)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group.setdefault("base_lr", group["lr"]) * factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return loss.item()

    def train(self, evaluate_every: int) -> Iterator[tuple[float, float]]:
        """Train to the end of the schedule. Yield the loss and the tokens per second of each step."""
        while self.step < self.stage.total:
            started = time.perf_counter()
            phase = self.stage.phase_at(self.step)
            loss = self.train_step()
            rate = phase.context * phase.batch / (time.perf_counter() - started)
            if self.step % evaluate_every == 0:
                self.evaluate()
            if self.step % SAVE_EVERY == 0 or self.step % evaluate_every == 0:
                self.save()
            yield loss, rate

    def evaluate(self, prompts: int = 16, lengths: tuple[int, ...] = RETRIEVAL_LENGTHS) -> dict[str, object]:
        self.model.eval()
        shares = top_mass_per_layer(self.model, self.held_out[:2])
        entry: dict[str, object] = {
            "step": self.step,
            "held_out_bits_per_byte": held_out_bits_per_byte(self.model, self.held_out, self.held_out_bytes),
            "top128_of_2048_mass_per_layer": shares,
            "top128_of_2048_mass_layers_from_2": sum(shares[2:]) / len(shares[2:]),
            "retrieval": {kind: self.retrieval_by_length(kind, lengths, prompts) for kind in ("key_value", "needle")},
        }
        self.model.train()
        self.log.append(entry)
        return entry

    def retrieval_by_length(
        self, kind: retrieval_prompts.Kind, lengths: tuple[int, ...], count: int
    ) -> dict[str, object]:
        """Count right answers of all, by prompt length, on held-out names, values and modules."""
        found = {}
        for length in lengths:
            depths = torch.linspace(0, 1, count).tolist()
            prompts = list(retrieval_prompts.prompts_of(self.tokenizer, kind, (length,), depths, (0,)))
            found[str(length)] = {"correct": sum(map(self.answers, prompts)), "total": len(prompts)}
        return found

    def answers(self, prompt: retrieval_prompts.RetrievalPrompt) -> bool:
        """Tell whether the model finds the right answer the most likely one."""
        with torch.inference_mode():
            asked = run_prefix(self.model, prompt.tokens)
            likelihoods = score_all(self.model, asked, retrieval_prompts.choice_tokens(self.tokenizer, prompt))
        return likelihoods.index(max(likelihoods)) == prompt.answer

    def save(self) -> None:
        state = {
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "step": self.step,
            "log": self.log,
            "stage": asdict(self.stage),
        }
        partial = self.checkpoint.with_suffix(".partial")
        torch.save(state, partial)
        partial.replace(self.checkpoint)

    def restore(self) -> None:
        state = torch.load(self.checkpoint, map_location=self.device, weights_only=True)
        if state["stage"] != asdict(self.stage):
            raise SystemExit(
                f"{self.checkpoint} is of another run: {state['stage']}, not {asdict(self.stage)}. "
                "Name another --output."
            )
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.step, self.log = state["step"], state["log"]

    def export(self, prompts: int) -> None:
        """Write the bfloat16 model, tokenizer and training record that the package embeds."""
        self.model.to(torch.bfloat16)
        final = self.evaluate(prompts) | {"stage": asdict(self.stage)}
        share = final["top128_of_2048_mass_layers_from_2"]
        if not (isinstance(share, float) and MASS_BOUNDS[0] <= share <= MASS_BOUNDS[1]):
            raise SystemExit(f"top-128 share of the attention mass is {share}, outside {MASS_BOUNDS}: not exported")
        self.model.generation_config.max_length = None
        self.model.save_pretrained(self.output / "model")
        self.tokenizer.save_pretrained(self.output / "model")
        record = {"final": final, "log": self.log[:-1]}
        (self.output / "model" / "training.json").write_text(json.dumps(record, indent=1) + "\n")
