"""Drafts that are verified by thresholds: the V rows that several tokens share, and what `generate` gains with both.

    python -m benchmarks.drafts --model build/real-model/smollm2 --table TABLE.theta --texts FOLDER

The union: a prompt fills a cache, and the next 1 to 8 tokens of the text are verified in one call. Speed: the prompt is
a passage twice and its beginning once more, which the model goes on to repeat, so that prompt lookup finds its drafts;
dense and sparse answers, with drafts and without, take turns, and the prompt's call is not counted. Thresholds and
texts are those of the study of the real model. Other programs on the same cores spoil the second part; ``--no-speed``
leaves it out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor
from transformers import PreTrainedModel

from benchmarks.real_model_study import texts
from benchmarks.real_model_study.analysis import Bounded, mean_of
from benchmarks.real_model_study.models import load
from benchmarks.real_model_study.settings import EMBEDDED, SCALES, Scale
from benchmarks.tables import Table, show
from toptheta_npu.assets import load_tiny_llama, load_tiny_llama_thresholds
from toptheta_npu.models import GrowingCache, sparsify
from toptheta_npu.models.sparse import threshold_rule
from toptheta_npu.thresholds import ThresholdTable
from toptheta_npu.timing.measure import TopThetaWrongResultError

_ROOT = Path(__file__).resolve().parents[1]
#: Tokens that are verified together.
TOKENS = (1, 2, 4, 8)
#: Drafts of prompt lookup at a time.
DRAFTS = 7
#: Tokens of the passage that the prompt has for the third time.
_BEGUN = 60
#: Ways to generate, by name: by thresholds or dense, with drafts or without.
WAYS = {"dense": (False, 0), "dense, drafts": (False, DRAFTS), "Top-θ": (True, 0), "Top-θ, drafts": (True, DRAFTS)}


@dataclass(frozen=True)
class Setting:
    """A model and what it is measured on.

    Attributes:
        title: in the tables.
        text, scale: of the study's texts.
        length: keys of the prompts whose unions are counted.
        windows: how many of them.
        passage: tokens of a passage, which the prompt has twice, and its beginning once more.
        k: of the thresholds by which unions are counted.
        answer_k: by which answers are given, which go on with the passage as dense attention does.
    """

    title: str
    text: str
    scale: Scale
    length: int
    windows: int
    passage: int
    k: int
    answer_k: int


REAL = Setting("SmolLM2-135M", "prose", SCALES["headline"], 8192, 4, 3000, 128, 256)
TINY = Setting("embedded model", "python", replace(EMBEDDED, splits={"evaluation": 8}), 2048, 8, 900, 64, 64)


def count_unions(
    setting: Setting, model: PreTrainedModel, windows: texts.Windows, table: ThresholdTable
) -> dict[int, float]:
    """Count the V rows that steps of several tokens need, as shares of their keys: means over layers and KV heads."""
    _, tokens = windows.of(setting.text, "evaluation", setting.length, setting.windows)
    shares: dict[int, list[float]] = {count: [] for count in TOKENS}
    most = max(TOKENS)
    with torch.inference_mode():
        for window in tokens[:, None]:
            cache = GrowingCache(model.config)
            model(window[:, : setting.length - most], past_key_values=cache, logits_to_keep=1)
            with torch.inference_mode(False), torch.no_grad(), sparsify(model, table, k=setting.k):
                for count in TOKENS:
                    with counting_rows() as counted:
                        model(window[:, -most : setting.length - most + count], past_key_values=cache)
                    shares[count].append(sum(counted) / len(counted) / cache.get_seq_length())
                    cache.crop(-count)
            print(f"{setting.title}: union of a window counted", flush=True)
    return {count: mean_of(torch.tensor(found).numpy()).value for count, found in shares.items()}


@contextmanager
def counting_rows() -> Iterator[list[float]]:
    """Note the V rows per KV head of every call of the operator within a `sparsify` context."""
    rows: list[float] = []
    original = threshold_rule.incremental_attention
    with_counts = threshold_rule.incremental_attention_with_stats

    def counted(*arguments: Any, **options: Any) -> Tensor:
        out, _, _, value_rows = with_counts(*arguments, **options)
        rows.append(value_rows.float().mean().item())
        return out

    threshold_rule.incremental_attention = counted
    try:
        yield rows
    finally:
        threshold_rule.incremental_attention = original


def time_answers(
    setting: Setting, model: PreTrainedModel, windows: texts.Windows, table: ThresholdTable, rounds: int, new: int
) -> dict[str, Any]:
    """Time answers that repeat their prompt in turns.

    Raises:
        TopThetaWrongResultError: an answer with drafts is not that without.
    """
    _, passages = windows.of(setting.text, "evaluation", setting.passage, 1)
    prompt = torch.cat([passages, passages, passages[:, :_BEGUN]], 1)
    found: dict[str, list[Answer]] = {name: [] for name in WAYS}
    for number in range(rounds + 1):  # the first one warms up
        for name in list(WAYS)[:: 1 if number % 2 else -1]:
            found[name].append(_answer(setting, model, table, prompt, name, new))
        print(f"{setting.title}: round {number} of {rounds}", flush=True)
    logs = {name: torch.tensor([each.seconds_per_token for each in own[1:]]).log() for name, own in found.items()}
    last = {name: own[-1] for name, own in found.items()}
    for name in WAYS:
        if last[name].tokens != last[without := name.removesuffix(", drafts")].tokens:
            raise TopThetaWrongResultError(f"{setting.title}, {name}: expected the tokens of {without}, got others")

    def ratio(slower: str, quicker: str) -> Bounded:
        return Bounded(*(float(torch.tensor(each).exp()) for each in mean_of((logs[slower] - logs[quicker]).numpy())))

    return {
        "prompt": prompt.shape[1], "k": setting.answer_k, "tokens_per_call": last["Top-θ, drafts"].tokens_per_call,
        "over_dense_with_drafts": ratio("dense, drafts", "Top-θ, drafts"),
        "over_top_theta_alone": ratio("Top-θ", "Top-θ, drafts"), "over_dense": ratio("dense", "Top-θ, drafts"),
    }  # fmt: skip


@dataclass(frozen=True)
class Answer:
    """What an answer took behind the prompt's call, which drafts may have come with already.

    Attributes:
        tokens: of the answer.
        seconds_per_token: of those that came behind that call.
        tokens_per_call: of these.
    """

    tokens: list[int]
    seconds_per_token: float
    tokens_per_call: float


def _answer(
    setting: Setting, model: PreTrainedModel, table: ThresholdTable, prompt: Tensor, name: str, new: int
) -> Answer:
    sparse, drafts = WAYS[name]
    make: Callable[[], AbstractContextManager[Any]] = (
        (lambda: sparsify(model, table, k=setting.answer_k)) if sparse else nullcontext
    )
    cache, begun = GrowingCache(model.config), []

    def begins(*_: Any) -> None:
        begun.append((time.perf_counter(), cache.get_seq_length()))

    options = {"prompt_lookup_num_tokens": drafts} if drafts else {}
    hook = model.register_forward_pre_hook(begins)
    try:
        with make():
            out = model.generate(
                prompt, past_key_values=cache, max_new_tokens=new, min_new_tokens=new, do_sample=False, **options
            )
            end = time.perf_counter()
    finally:
        hook.remove()
    (start, cached), calls = begun[1], len(begun) - 1
    left = prompt.shape[1] + new - (cached + 1)  # the token that a call takes is known, and not in the cache yet
    return Answer(out[0, prompt.shape[1] :].tolist(), (end - start) / left, left / calls)


def union_table(unions: Mapping[str, Mapping[int, float]]) -> Table:
    """Tabulate the V rows that steps of several tokens need, by model."""
    rows = [[title, *(f"{100 * share:.1f} %" for share in shares.values())] for title, shares in unions.items()]
    columns = ("V rows that a step needs, of its keys", *(f"{n} token{'s' * (n > 1)}" for n in TOKENS))
    return Table("Union of V rows", columns, rows)


def speed_table(speeds: Mapping[str, Mapping[str, Any]]) -> Table:
    """Tabulate what drafts gain, by model."""
    rows = [
        [f"{title}, {speed['prompt']} keys, k = {speed['k']}", f"{speed['tokens_per_call']:.1f}",
         f"**{speed['over_dense_with_drafts'].text(2)}**", f"**{speed['over_top_theta_alone'].text(2)}**",
         speed["over_dense"].text(2)]
        for title, speed in speeds.items()
    ]  # fmt: skip
    columns = ("", "tokens per call", "over dense with drafts", "over Top-θ without", "over dense without")
    return Table("Speed with drafts", columns, rows)


def main(
    model: Annotated[Path, typer.Option(help="Folder of SmolLM2.")] = _ROOT / "build" / "real-model" / "smollm2",
    table: Annotated[Path, typer.Option(help="Its thresholds.")] = _ROOT / "build/real_model/pre_softmax_8192.theta",
    packages: Annotated[Path, typer.Option("--texts", help="Folder of the study's packages.")] = _ROOT
    / "build/real_model/packages/root",
    rounds: Annotated[int, typer.Option(help="Rounds of the second part.")] = 5,
    new: Annotated[int, typer.Option(help="Tokens of an answer.")] = 64,
    unions: Annotated[bool, typer.Option(help="Count the V rows that tokens share.")] = True,
    speed: Annotated[bool, typer.Option(help="Time answers.")] = True,
    real: Annotated[bool, typer.Option(help="Measure SmolLM2, too.")] = True,
) -> None:
    """Measure, and print the tables."""
    network, tokenizer = load_tiny_llama()
    chosen = [(TINY, network, tokenizer, None, load_tiny_llama_thresholds("pre_softmax"))]
    if real:
        network, tokenizer = load(model)
        chosen.insert(0, (REAL, network, tokenizer, packages, ThresholdTable.load(table)))
    counted, timed = {}, {}
    for setting, network, tokenizer, root, thresholds in chosen:
        windows = texts.Windows(tokenizer, root, setting.scale)
        if unions:
            counted[setting.title] = count_unions(setting, network, windows, thresholds)
        if speed:
            timed[setting.title] = time_answers(setting, network, windows, thresholds, rounds, new)
    show(*([union_table(counted)] if unions else ()), *([speed_table(timed)] if speed else ()))


if __name__ == "__main__":
    typer.run(main)
