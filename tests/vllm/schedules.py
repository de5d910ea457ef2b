"""Schedules drawn from a seed: arrivals and lengths of requests, what vLLM made of them, and what is wrong."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import Any

from benchmarks.serving.engines import (
    NGRAM,
    TIE,
    TOLERANCE,
    Answer,
    K,
    Segment,
    answer_of,
    greedy,
    make_engine,
    prompts,
    replayed,
)

#: Scores nearer to their thresholds are the same up to rounding.
ROUNDING = 1e-5
#: Options of an engine whose cache is so small that requests are preempted, and whose prompts come in chunks.
SMALL_CACHE = {"num_gpu_blocks_override": 24, "max_num_batched_tokens": 256, "max_model_len": 704}
#: Steps after which a client gives up.
PATIENCE = 4


@dataclass(frozen=True)
class Variant:
    """An engine that schedules run in.

    Attributes:
        settings: of the plug-in, and of `sparsify` for the replay.
        options: of vLLM.
        replay: more of the replay's.
    """

    settings: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)
    replay: dict[str, Any] = field(default_factory=dict)

    def make(self) -> Any:
        """Make the engine in this process, with a cache so small that requests are preempted."""
        return make_engine(self.settings, **SMALL_CACHE, **self.options)

    def wrong_in(self, request: Request) -> tuple[list[str], list[str]]:
        """Find what is wrong in an answer of the engine, as `wrong_in` does."""
        return wrong_in(request, **self.settings, **self.replay)


#: Mixed: short rows are dense, in vLLM's own kernel, or in ours beside longer ones. Drafts come last, since vLLM starts
#: no engine in a process where one has drafted by n-grams.
ENGINES: dict[str, Variant] = {
    "plain": Variant({"k": K}),
    "mixed": Variant({"k": K, "dense_below": 200}),
    "drafts": Variant({"k": K}, {"speculative_config": NGRAM}, {"verify_tokens": 1 + NGRAM["num_speculative_tokens"]}),
}


@dataclass(frozen=True)
class Arrival:
    """A request: the engine's step at which it comes, its prompt and how many tokens it wants."""

    step: int
    prompt: list[int]
    new_tokens: int


@dataclass
class Request:
    """A request that was answered.

    Attributes:
        tokens: of prompt and answer.
        answer: the latter.
        segments: the tokens that were computed together, in the order of the steps.
    """

    prompt: list[int]
    answer: Answer | None = None
    segments: list[Segment] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        assert self.answer is not None
        return self.prompt + self.answer.tokens

    @property
    def preemptions(self) -> int:
        """How often its cache was taken away."""
        firsts = [segment.first for segment in self.segments]
        return sum(second < first for first, second in pairwise(firsts))


def undisturbed(prompt: list[int], answer: Answer) -> Request:
    """Record an answer whose prompt came in one piece, and its tokens one by one."""
    end = len(prompt)
    steps = [Segment(known - 1, known, known) for known in range(end + 1, end + len(answer.tokens))]
    return Request(prompt, answer, [Segment(0, end, end), *steps])


def draw_schedule(seed: int) -> list[Arrival]:
    """Draw five to ten requests. Together they need far more than the cache of `SMALL_CACHE` holds."""
    draw = random.Random(seed)
    count = draw.randint(5, 10)
    lengths = [
        draw.choice((1, draw.randint(2, 60), draw.randint(60, 250), draw.randint(250, 600))) for _ in range(count)
    ]
    asked = prompts(*lengths, seed=seed)
    steps = sorted(draw.randint(0, 30) for _ in range(count))
    return [Arrival(step, ids, draw.randint(8, 48)) for step, ids in zip(steps, asked, strict=True)]


def run_schedule(engine: Any, arrivals: list[Arrival], give_up: Collection[int] = ()) -> list[Request]:
    """Answer a schedule by an engine in this process, and record how it got there.

    Args:
        engine: in this process.
        arrivals: the requests.
        give_up: which of them are aborted `PATIENCE` steps after they came, and have no answer.
    """
    llm = engine.llm_engine
    requests = [Request(arrival.prompt) for arrival in arrivals]
    waiting, step = dict(enumerate(arrivals)), 0
    with scheduled(llm) as segments:
        while waiting or llm.has_unfinished_requests():
            for index in [index for index, arrival in waiting.items() if arrival.step <= step]:
                arrival = waiting.pop(index)
                llm.add_request(str(index), {"prompt_token_ids": arrival.prompt}, greedy(arrival.new_tokens))
            llm.abort_request([str(index) for index in give_up if arrivals[index].step + PATIENCE == step])
            for output in llm.step():
                if output.finished and output.outputs[0].finish_reason != "abort":
                    requests[int(output.request_id)].answer = answer_of(output)
            step += 1
    for index, request in enumerate(requests):
        request.segments = segments[str(index)]
    return requests


def wrong_in(request: Request, **settings: Any) -> tuple[list[str], list[str]]:
    """Find what is wrong with the answer to one request, token by token, given the tokens before it.

    Returns:
        (wrong tokens; logarithms of probabilities that differ). Two implementations round differently. A score at its
        threshold may fall on either side of it, so the latter are those that differ with thresholds moved by
        `ROUNDING`, too, up or down.
    """
    assert request.answer is not None

    @cache
    def replay(shift: float) -> dict[int, dict[int, float]]:
        return replayed(request.tokens, request.segments, shift, **settings)

    wrong, different = [], []
    for index, token in enumerate(request.answer.tokens):
        place, found = len(request.prompt) + index, request.answer.best[index][token]
        known = replay(0.0)[place]
        expected, leading = next(iter(known.items()))
        ours = known.get(token, -math.inf)
        if leading - ours > TIE:
            wrong.append(f"token {place} is {token}, not {expected}, which leads by {leading - ours:.2g}")
        if all(
            abs(found - replay(shift)[place].get(token, -math.inf)) > TOLERANCE for shift in (0.0, ROUNDING, -ROUNDING)
        ):
            different.append(f"token {place} has a log-probability that differs by {abs(found - ours):.2g}")
    return wrong, different


@contextmanager
def scheduled(llm: Any) -> Iterator[dict[str, list[Segment]]]:
    """Record which tokens of every request the scheduler of an engine in this process sends off together."""
    scheduler = llm.engine_core.engine_core.scheduler
    original, segments = scheduler.schedule, defaultdict(list)

    def schedule(*arguments: Any, **options: Any) -> Any:
        output = original(*arguments, **options)
        cached = output.scheduled_cached_reqs
        computed = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        computed |= {request.req_id: request.num_computed_tokens for request in output.scheduled_new_reqs}
        for name, count in output.num_scheduled_tokens.items():
            # vLLM makes names unlike each other by a suffix
            known = scheduler.requests[name].num_tokens
            segments[name.partition("-")[0]].append(Segment(computed[name], computed[name] + count, known))
        return output

    scheduler.schedule = schedule
    try:
        yield segments
    finally:
        scheduler.schedule = original
