"""Time per token of a real model's answers after long prompts, dense and by thresholds, in rounds that take turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.real_model_study.settings import SCALES
from benchmarks.real_model_study.texts import Windows
from benchmarks.serving.engines import layers_of, make_engine, totals
from benchmarks.serving.load import likeliest, shares

DENSE, SPARSE = "dense", "sparse"
#: vLLM's own choice on a CPU.
BLOCK_SIZE = 128


@dataclass(frozen=True)
class Setting:
    """What is measured.

    Attributes:
        model: a folder of transformers.
        packages: where the texts of the real model's study are unpacked.
        tau: the share of its row's attention that a key must exceed.
        lengths: tokens of the prompts; one after the other.
        clients: sequences that are answered side by side, each after a prompt of its own.
    """

    model: Path
    packages: Path
    tau: float = 0.0003
    lengths: tuple[int, ...] = (3000, 6000)
    clients: int = 8
    new_tokens: int = 128

    def prompts(self, length: int, count: int) -> list[list[int]]:
        """Cut prompts from documents of the evaluation split, one from each."""
        from transformers import AutoTokenizer

        windows = Windows(AutoTokenizer.from_pretrained(self.model), self.packages, SCALES["headline"])
        _, tokens = windows.of("prose", "evaluation", length, count)
        return [row.tolist() for row in tokens]

    @property
    def settings(self) -> dict[str, Any]:
        """Give the settings of the plug-in."""
        return {"tau": self.tau, "dense_below": None}

    def engine(self, name: str) -> Any:
        """Make one of the engines that take turns."""
        longest = max(self.lengths) + self.new_tokens
        options = {
            "model": str(self.model), "max_model_len": longest, "max_num_seqs": self.clients,
            "block_size": BLOCK_SIZE, "enable_prefix_caching": True,
            "kv_cache_memory_bytes": self._cache_bytes(),
        }  # fmt: skip
        return make_engine(self.settings if name == SPARSE else None, **options)

    def _cache_bytes(self) -> int:
        """Compute what the sequences need in float32, and some pages more.

        An answer writes pages of its own. With as many to spare as the last answer had, none of a prompt is taken.
        """
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(self.model)
        width = config.num_key_value_heads * (config.head_dim or config.hidden_size // config.num_attention_heads)
        pages = self.clients * -(-(max(self.lengths) + 3 * self.new_tokens + 4 * BLOCK_SIZE) // BLOCK_SIZE)
        return int(pages * BLOCK_SIZE * config.num_hidden_layers * 2 * width * 4)


def compare_real(setting: Setting, rounds: int) -> Iterator[dict[str, Any]]:
    """Yield what was found so far after every round: seconds per token, and what was read."""
    found: dict[str, Any] = {
        "model": setting.model.name, "tau": setting.tau, "clients": setting.clients, "new_tokens": setting.new_tokens,
        "decoding": [],
    }  # fmt: skip
    engines = {name: setting.engine(name) for name in (DENSE, SPARSE)}
    for length in setting.lengths:
        found["decoding"].append({})
        for row in _decoding(engines, setting.prompts(length, setting.clients), setting.new_tokens, rounds):
            found["decoding"][-1] = {"prompt": length, **row}
            yield found


def _decoding(
    engines: dict[str, Any], prompts: list[list[int]], new_tokens: int, rounds: int
) -> Iterator[dict[str, Any]]:
    for engine in engines.values():
        token_seconds(engine, prompts, 8, "warm")  # and the prompts are in the cache
    before, heads = totals(engines[SPARSE]), layers_of(engines[SPARSE])[0].impl.num_kv_heads
    gaps: dict[str, list[list[float]]] = {name: [] for name in engines}
    for round_ in range(rounds):
        names = list(engines) if round_ % 2 == 0 else list(reversed(engines))
        for name in names:
            found, computed = token_seconds(engines[name], prompts, new_tokens, f"round {round_}")
            if computed > BLOCK_SIZE:  # the last page is always computed
                raise RuntimeError(f"{name}: expected prompts from the cache, but {computed} tokens were computed")
            gaps[name].append(found)
        added = totals(engines[SPARSE]) - before
        yield {
            "rounds": round_ + 1,
            "seconds": {name: _quantiles([gap for each in rounds_ for gap in each]) for name, rounds_ in gaps.items()},
            "by_round": {name: [_quantiles(each) for each in rounds_] for name, rounds_ in gaps.items()},
            "kept": shares(added) | {"value_rows": added.value_rows / added.rows / heads},
        }  # fmt: skip


def token_seconds(engine: Any, prompts: list[list[int]], new_tokens: int, name: str) -> tuple[list[float], int]:
    """Answer all prompts side by side.

    Returns:
        (seconds between one token of a sequence and its next, of all sequences; the most tokens of a prompt that
        were computed, and not taken from the cache).
    """
    llm, last, gaps, computed = engine.llm_engine, {}, [], 0
    for index, ids in enumerate(prompts):
        llm.add_request(f"{name}:{len(ids)}:{index}", {"prompt_token_ids": ids}, likeliest(new_tokens))
    while llm.has_unfinished_requests():
        outputs, now = llm.step(), time.perf_counter()  # in this order
        for output in outputs:
            if output.request_id in last:
                gaps.append(now - last[output.request_id])
            last[output.request_id] = now
            computed = max(computed, len(output.prompt_token_ids) - output.num_cached_tokens)
    return gaps, computed


def _quantiles(gaps: Sequence[float]) -> dict[str, float]:
    cuts = statistics.quantiles(gaps, n=20, method="inclusive")
    return {"p50": cuts[9], "p95": cuts[18]}
