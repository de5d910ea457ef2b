"""A server under clients of all kinds: errors that are not the clients' own, memory, and answers after it."""

from __future__ import annotations

import asyncio
import json
import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.serving.clients import Ask, Outcome, ask_all, draw_requests
from benchmarks.serving.engines import INT8, TABLE, Answer, K, prompts, wrong_tokens
from benchmarks.serving.schedules import SMALL_CACHE, undisturbed, wrong_in
from benchmarks.serving.server import Server, metric, serve, settings

CLIENTS = 16
#: Requests come in as many parts, of at least so many; after each the memory is measured, while nothing runs. The first
#: ones warm up.
PARTS, MIN_OF_A_PART, WARM_PARTS = 20, 40, 4
#: Prompts that are answered one by one before the clients come, and again afterwards.
SAMPLE, SAMPLE_TOKENS = (37, 210, 480), 24
#: Seconds within which the engine has to let go of requests whose clients have left.
LETS_GO_WITHIN = 30.0


@dataclass(frozen=True)
class Phase:
    """A server and its clients.

    Attributes:
        drafts: vLLM proposes tokens by n-grams and verifies them.
        sparse: the plug-in is on. Without it vLLM shows what memory it keeps by itself.
        int8: the cache is.
    """

    name: str
    drafts: bool = False
    sparse: bool = True
    int8: bool = False

    @property
    def options(self) -> list[str]:
        """What the server is started with."""
        cache = [f"--{name.replace('_', '-')}={value}" for name, value in SMALL_CACHE.items()]
        speculation = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
        dtype = [f"--{name.replace('_', '-')}={value}" for name, value in INT8.items()] if self.int8 else []
        return [*cache, *dtype, *(["--speculative-config", json.dumps(speculation)] if self.drafts else [])]


PHASES = (
    Phase("one token a step"), Phase("drafts by n-grams", drafts=True), Phase("vLLM alone", sparse=False),
)  # fmt: skip
#: oneDNN keeps a kernel for every number of tokens that it has seen, up to 1024 of them. By these alone vLLM grows by a
#: tenth over the soak, which would hide whatever else grows.
_FEW_KERNELS = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "16"}


def soak(requests: int, minutes: float, phases: Sequence[Phase] = PHASES) -> Iterator[dict[str, Any]]:
    """Yield what was found so far, after each phase.

    Args:
        requests: of all phases with the plug-in together.
        minutes: that their clients ask at most; starts of servers are not in them.
        phases: one after the other.
    """
    found: list[dict[str, Any]] = []
    sparse = sum(phase.sparse for phase in phases)
    for seed, phase in enumerate(phases):
        # vLLM alone gets the requests of the first server
        asked = draw_requests(requests // sparse, SMALL_CACHE["max_model_len"], seed if phase.sparse else 0)
        with tempfile.TemporaryDirectory() as folder:
            found.append(_run(phase, asked, 60 * minutes / sparse, Path(folder)))
        yield {"k": K, "clients": CLIENTS, "phases": found}


def _run(phase: Phase, asked: list[Ask], seconds: float, folder: Path) -> dict[str, Any]:
    counts = folder / "counts"
    counts.mkdir()
    options = (*phase.options, *(settings(table=TABLE, k=K) if phase.sparse else ()))
    environment = _FEW_KERNELS | {"PROMETHEUS_MULTIPROC_DIR": str(counts)}
    with serve(folder, *options, environment=environment) as server:
        before = _answers(server)
        outcome, memory, spent = Outcome(), [server.resident_bytes()], 0.0
        size = max(math.ceil(len(asked) / PARTS), MIN_OF_A_PART)
        for first in range(0, len(asked), size):
            start = time.perf_counter()
            asyncio.run(_ask(server, asked[first : first + size], seconds - spent, outcome))
            spent += time.perf_counter() - start
            if not _lets_go(server):
                outcome.errors.append(f"requests were left in the engine: {_left(server)}")
                break
            memory.append(server.resident_bytes())
        after = _answers(server)
        return {
            "name": phase.name, "requests": outcome.requests, "asked": len(asked), "seconds": spent,
            "done": {kind.value: count for kind, count in outcome.done.items()}, "tokens": outcome.tokens,
            "errors": len(outcome.errors), "first_errors": outcome.errors[:10],
            "preemptions": int(metric(server, "vllm:num_preemptions_total")),
            "draft_tokens": int(metric(server, "toptheta_draft_tokens_total")),
            "decode_tokens": int(metric(server, "toptheta_decode_tokens_total")),
            "kept_share": metric(server, "toptheta_kept_total") / max(1.0, metric(server, "toptheta_elements_total")),
            "sample_tokens": SAMPLE_TOKENS * len(SAMPLE), "wrong_tokens": len(_wrong(phase, before, after)),
            "wrong": _wrong(phase, before, after)[:10], "memory": memory, **_growth(memory),
        }  # fmt: skip


async def _ask(server: Server, asked: Sequence[Ask], seconds: float, outcome: Outcome) -> None:
    until = asyncio.get_running_loop().time() + seconds
    await ask_all(server.url, asked, CLIENTS, until, outcome)


def _answers(server: Server) -> list[Answer]:
    """Answer the sample, one by one."""
    return [server.complete(ids, SAMPLE_TOKENS) for ids in prompts(*SAMPLE, seed=9)]


def _wrong(phase: Phase, before: Sequence[Answer], after: Sequence[Answer]) -> list[str]:
    """Find tokens that differ from those before; by thresholds without drafts, also from those of `sparsify`.

    A token that was drafted is verified densely, and which ones are drafted is no business of `sparsify`.
    """
    found = []
    for ids, first, second in zip(prompts(*SAMPLE, seed=9), before, after, strict=True):
        found += wrong_tokens(second, first, tolerance=math.inf)
        if phase.sparse and not phase.drafts:
            for answer in (first, second):
                found += wrong_in(undisturbed(ids, answer), int8=phase.int8, k=K)[0]
    return found


def _lets_go(server: Server) -> bool:
    """Wait until no request and no page is in use."""
    until = time.monotonic() + LETS_GO_WITHIN
    while time.monotonic() < until:
        server.complete([1], 1)  # the engine tells its state after a step
        if not any(_left(server).values()):
            return True
        time.sleep(0.5)
    return False


def _left(server: Server) -> dict[str, float]:
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    return {name: metric(server, f"vllm:{name}") for name in names}


def _growth(memory: Sequence[dict[str, int]]) -> dict[str, Any]:
    """Compare the memory of all processes after the warm-up with that at the end."""
    sums = [sum(each.values()) for each in memory]
    warm = sums[min(WARM_PARTS, len(sums) - 1)]
    return {"warm_bytes": warm, "end_bytes": sums[-1], "growth": sums[-1] / warm - 1}


def failures(found: dict[str, Any]) -> int:
    """Count errors that are not the clients' own, and wrong tokens."""
    return sum(each["errors"] + each["wrong_tokens"] for each in found["phases"])
