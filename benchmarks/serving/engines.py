"""Engines on the embedded model, what they answer, and when an answer is wrong."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from toptheta_npu.assets import TINY_LLAMA, load_tiny_llama, load_tiny_llama_thresholds
from toptheta_npu.evaluation import corpus
from toptheta_npu.models import sparsify
from toptheta_npu.models.caches.naming import CACHE_ARGUMENT
from toptheta_npu.thresholds import ThresholdTable
from toptheta_npu.vllm.engine import engine_of
from toptheta_npu.vllm.metrics import Totals
from toptheta_npu.vllm.settings import SECTION

K = 64
TABLE = TINY_LLAMA / "thresholds_pre_softmax.theta"
#: A token is wrong only where the reference's two best differ by more.
TIE = 1e-3
#: Logarithms of probabilities may differ by as much.
TOLERANCE = 1e-4
#: Drafts by n-grams, three at a time.
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
LONGEST = 2048


@dataclass(frozen=True)
class Answer:
    """Tokens, and for each the best logarithms of probabilities by token. That of the token itself is among them."""

    tokens: list[int]
    best: list[dict[int, float]]


class Segment(NamedTuple):
    """Tokens of a request that an engine computes together, from the first to the one before the end.

    Attributes:
        known: tokens of prompt and answer at that time; what lies behind them are drafts.
    """

    first: int
    end: int
    known: int


def make_engine(settings: Mapping[str, Any] | None = None, **options: Any) -> Any:
    """Make an engine in this process. ``settings`` are those of the plug-in; by themselves, short rows follow, too."""
    from vllm import LLM

    config = {}
    if settings is not None:
        source = {} if "tau" in settings else {"table": str(TABLE)}
        config = {SECTION: {**source, "dense_below": 0, **settings}}
    defaults = {
        "dtype": "float32", "enforce_eager": True, "max_model_len": LONGEST, "max_num_seqs": 16,
        "kv_cache_memory_bytes": 1 << 28, "enable_prefix_caching": False, "block_size": 32, "async_scheduling": False,
    }  # fmt: skip
    engine = LLM(additional_config=config, **{"model": str(TINY_LLAMA), **defaults, **options})
    _ALIVE.append(engine)
    return engine


# the clean-up of an engine, whenever it comes, would end what the others of the process need
_ALIVE: list[Any] = []


def answers(engine: Any, prompts: Sequence[Sequence[int]], new_tokens: int = 32) -> list[Answer]:
    """Generate what the engine answers greedily to all prompts at once."""
    outputs = engine.generate([{"prompt_token_ids": list(ids)} for ids in prompts], greedy(new_tokens), use_tqdm=False)
    return [answer_of(output) for output in outputs]


def greedy(new_tokens: int) -> Any:
    """Make the parameters that sample the likeliest token and tell the five best."""
    from vllm import SamplingParams

    return SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True, logprobs=5, detokenize=False)


def answer_of(output: Any) -> Answer:
    """Read the answer from vLLM's output of one request."""
    (choice,) = output.outputs
    best = [{token: entry.logprob for token, entry in entries.items()} for entries in choice.logprobs]
    return Answer(list(choice.token_ids), best)


@cache
def text() -> tuple[int, ...]:
    """Read tokens of text that the model was not trained on."""
    _, tokenizer = load_tiny_llama()
    windows = corpus.token_windows(tokenizer, "evaluation", LONGEST, 4)
    return tuple(windows.flatten().tolist())


def prompts(*lengths: int, seed: int = 0) -> list[list[int]]:
    """Draw pieces of the text."""
    draw = random.Random(seed)
    starts = [draw.randrange(len(text()) - length) for length in lengths]
    return [list(text()[start : start + length]) for start, length in zip(starts, lengths, strict=True)]


def dense_table(folder: Path) -> Path:
    """Save a table whose thresholds are all -inf. Our operator keeps everything by it."""
    table = load_tiny_llama_thresholds("pre_softmax")
    path = folder / "dense.theta"
    dataclasses.replace(
        table,
        theta=torch.full_like(table.theta, -torch.inf),
        layer_k=[0] * table.num_layers,
    ).save(path)
    return path


@cache
def reference_model() -> tuple[Any, ThresholdTable]:
    """Load the embedded model in transformers, and its thresholds."""
    model, _ = load_tiny_llama()
    return model, load_tiny_llama_thresholds("pre_softmax")


def generated(prompt: Sequence[int], new_tokens: int, **settings: Any) -> Answer:
    """Generate an answer by `sparsify` and transformers' generate(). Without settings, call generate() alone."""
    return generated_by(*reference_model(), prompt, new_tokens, **settings)


def generated_by(
    model: Any, table: ThresholdTable | None, prompt: Sequence[int], new_tokens: int, **settings: Any
) -> Answer:
    """Generate an answer as `generated` does, by another model and its thresholds."""
    # the end of a text ends no answer, as in `greedy`: in its place stands a token that there is not
    ends = {"eos_token_id": model.config.vocab_size, "pad_token_id": 0}
    thresholds = None if "tau" in settings else table
    with sparsify(model, thresholds, **settings) if settings else nullcontext():
        out = model.generate(
            torch.tensor([list(prompt)]), max_new_tokens=new_tokens, do_sample=False, **ends,
            output_logits=True, return_dict_in_generate=True,
        )  # fmt: skip
    return Answer(out.sequences[0, len(prompt) :].tolist(), [best_of(logits[0]) for logits in out.logits])


def replayed(
    tokens: Sequence[int], segments: Sequence[Segment], shift: float = 0.0, **settings: Any
) -> dict[int, dict[int, float]]:
    """Compute the logarithms of probabilities after every segment by transformers, as an engine scheduled them.

    Args:
        tokens: prompt and answer.
        segments: in the order in which they were computed.
        shift: of all thresholds.
        settings: of `sparsify`.

    Returns:
        By the position of the token that follows a segment, or one of its tokens if they may be drafts.
    """
    from transformers import DynamicCache

    model, table = reference_model()
    table = dataclasses.replace(table, theta=table.theta + shift)
    found: dict[int, dict[int, float]] = {}
    settings = {"verify_tokens": 1} | settings
    with torch.inference_mode(), sparsify(model, table, **settings):
        cache = DynamicCache()
        for first, end, known in segments:
            if first == 0:
                cache = DynamicCache()
            elif first < cache.get_seq_length():
                cache.crop(first)
            ids = torch.tensor([list(tokens[first:end])])
            drafts = ids.shape[1] <= settings["verify_tokens"]  # vLLM drafts for a prompt of one token, too
            logits = model(ids, **{CACHE_ARGUMENT: cache}, logits_to_keep=ids.shape[1] if drafts else 1).logits[0]
            for place, of_token in enumerate(logits, first + ids.shape[1] + 1 - len(logits)):
                # a known token is not sampled again; one that followed a draft in vain is
                if place >= known:
                    found[place] = best_of(of_token)
    return found


def best_of(logits: torch.Tensor) -> dict[int, float]:
    """Find the best logarithms of probabilities by token, the best first."""
    values, order = logits.double().log_softmax(-1).topk(20)
    return dict(zip(order.tolist(), values.tolist(), strict=True))


def wrong_tokens(ours: Answer, reference: Answer, tolerance: float = TOLERANCE) -> list[str]:
    """Find what is wrong in an answer, up to the first token that differs. At a tie, that one is not wrong."""
    wrong = []
    for index, (token, expected) in enumerate(zip(ours.tokens, reference.tokens, strict=True)):
        if token != expected:
            first, second = sorted(reference.best[index].values(), reverse=True)[:2]
            if first - second > TIE:
                wrong.append(f"token {index} is {token}, not {expected}, which leads by {first - second:.2g}")
            return wrong
        difference = abs(ours.best[index][token] - reference.best[index][token])
        if difference > tolerance:
            wrong.append(f"token {index} has a log-probability that differs by {difference:.2g}")
    return wrong


def totals(engine: Any) -> Totals:
    """Read what an engine in this process has counted."""
    layers = engine_of(engine.llm_engine.vllm_config)
    assert layers is not None
    assert layers.metrics is not None
    return layers.metrics.totals()


def layers_of(engine: Any) -> list[Any]:
    """List vLLM's layers of attention of an engine in this process."""
    return list(engine.llm_engine.vllm_config.compilation_config.static_forward_context.values())
