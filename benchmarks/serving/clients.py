"""Clients of vLLM's HTTP server, well-behaved and others, and what each may expect of it."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from benchmarks.serving.engines import prompts

#: Seconds within which an answer comes.
PATIENCE = 120.0


class Kind(str, Enum):
    """What a client does."""

    waits = "waits"
    streams = "streams"
    one_token = "one token"
    leaves = "leaves"
    too_long = "too long"


#: How often each comes.
_WEIGHTS = {Kind.waits: 40, Kind.streams: 25, Kind.one_token: 8, Kind.leaves: 17, Kind.too_long: 10}


@dataclass(frozen=True)
class Ask:
    """A request.

    Attributes:
        stays: of a client that leaves, the events that it reads before; with none it leaves before the answer begins.
    """

    kind: Kind
    prompt: list[int]
    new_tokens: int
    stays: int = 0

    @property
    def streamed(self) -> bool:
        return self.kind in (Kind.streams, Kind.leaves)


@dataclass
class Outcome:
    """What came of requests: how many of each kind were answered as they should be, their new tokens, and errors."""

    done: dict[Kind, int] = field(default_factory=lambda: dict.fromkeys(Kind, 0))
    tokens: int = 0
    errors: list[str] = field(default_factory=list)

    @property
    def requests(self) -> int:
        return sum(self.done.values()) + len(self.errors)


class Unexpected(Exception):
    """The server did what no client asked for."""


def draw_requests(count: int, longest: int, seed: int) -> list[Ask]:
    """Draw requests to a server whose sequences have at most ``longest`` tokens. One in four shares a prefix."""
    draw = random.Random(seed)
    prefixes = prompts(*(draw.randint(40, 200) for _ in range(4)), seed=seed)
    kinds = draw.choices(list(_WEIGHTS), list(_WEIGHTS.values()), k=count)
    return [_draw(draw, kind, longest, prefixes, seed=1000 * seed + index) for index, kind in enumerate(kinds)]


def _draw(draw: random.Random, kind: Kind, longest: int, prefixes: Sequence[list[int]], seed: int) -> Ask:
    new_tokens = 1 if kind is Kind.one_token else draw.randint(8, 48)
    length = draw.choice((1, draw.randint(2, 60), draw.randint(60, 250), draw.randint(250, longest - 200)))
    if kind is Kind.too_long:
        length = draw.randint(longest + 1, longest + 300)
    (prompt,) = prompts(length, seed=seed)
    if kind is not Kind.too_long and draw.random() < 0.25:
        prompt = (draw.choice(prefixes) + prompt)[: longest - new_tokens]
    return Ask(kind, prompt, new_tokens, draw.randint(0, new_tokens // 2) if kind is Kind.leaves else 0)


async def ask_all(url: str, requests: Iterable[Ask], clients: int, until: float, outcome: Outcome) -> None:
    """Ask, ``clients`` at a time, until all are answered or the event loop's clock shows ``until``."""
    import aiohttp

    waiting = iter(requests)
    connections = aiohttp.TCPConnector(limit=0)
    patience = aiohttp.ClientTimeout(total=PATIENCE)

    async with aiohttp.ClientSession(url, connector=connections, timeout=patience) as session:

        async def work() -> None:
            while asyncio.get_running_loop().time() < until and (request := next(waiting, None)) is not None:
                try:
                    tokens = await _ask(session, request)
                    outcome.tokens += tokens  # others add to it while this one waits
                    outcome.done[request.kind] += 1
                except (Unexpected, aiohttp.ClientError, TimeoutError, ValueError) as error:
                    outcome.errors.append(f"{request.kind.value}: {type(error).__name__}: {error}"[:300])

        await asyncio.gather(*(work() for _ in range(clients)))


async def _ask(session: Any, request: Ask) -> int:
    """Do what the client does. Count the tokens of an answer that it stayed for.

    Raises:
        Unexpected: the answer is not what the client may expect.
    """
    body = {
        "model": "tiny", "prompt": request.prompt, "max_tokens": request.new_tokens, "temperature": 0,
        "ignore_eos": True, "stream": request.streamed,
    }  # fmt: skip
    if request.streamed:
        body["stream_options"] = {"include_usage": True}
    if request.kind is Kind.leaves and not request.stays:
        return await _leave_at_once(session, body)
    async with session.post("/v1/completions", json=body) as response:
        if request.kind is Kind.too_long:
            return await _refused(response)
        if response.status != 200:
            raise Unexpected(f"expected 200, got {response.status}: {await response.text()}")
        if not request.streamed:
            return check_answer(request, [await response.json()])
        events = await _events(response, request.stays)
        if request.kind is Kind.leaves:
            response.close()
            return 0
        return check_answer(request, events)


async def _leave_at_once(session: Any, body: dict[str, Any]) -> int:
    try:
        async with asyncio.timeout(0.05), session.post("/v1/completions", json=body) as response:
            response.close()
    except TimeoutError:
        pass
    return 0


async def _refused(response: Any) -> int:
    if response.status != 400:
        raise Unexpected(f"expected 400 for too long a prompt, got {response.status}: {await response.text()}")
    await response.read()
    return 0


async def _events(response: Any, stays: int) -> list[dict[str, Any]]:
    """Read the events of a stream, or the first ``stays`` of them."""
    events = []
    async for line in response.content:
        data = line.decode().removeprefix("data:").strip()
        if data and data != "[DONE]":
            events.append(json.loads(data))
        if data == "[DONE]" or (stays and len(events) >= stays):
            break
    return events


def check_answer(request: Ask, events: Sequence[dict[str, Any]]) -> int:
    """Count the tokens of a whole answer.

    Args:
        events: of the stream; of an answer in one piece, this piece.

    Raises:
        Unexpected: it has another number of tokens, ended for another reason, or tells an error.
    """
    usage = next((each["usage"] for each in reversed(events) if each.get("usage")), None)
    reasons = [choice["finish_reason"] for each in events for choice in each.get("choices", ())]
    failed = [each["error"] for each in events if "error" in each]
    if failed or usage is None or usage["completion_tokens"] != request.new_tokens or reasons[-1:] != ["length"]:
        got = failed or (usage, reasons[-1:])
        raise Unexpected(f"expected {request.new_tokens} tokens and the reason 'length', got {got}")
    return request.new_tokens
