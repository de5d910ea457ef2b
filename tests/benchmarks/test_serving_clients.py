"""Clients of the soak without a server that serves: what they take for an error, and what is drawn."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from benchmarks.serving.clients import Ask, Kind, Outcome, Unexpected, ask_all, check_answer, draw_requests

pytest.importorskip("aiohttp")

LONGEST = 704
WHOLE = Ask(Kind.waits, [1, 2, 3], 4)
USAGE = {"completion_tokens": 4}


def test_requests_are_of_all_kinds_and_fit_but_those_that_are_too_long() -> None:
    drawn = draw_requests(200, LONGEST, seed=0)
    assert {each.kind for each in drawn} == set(Kind)
    assert drawn == draw_requests(200, LONGEST, seed=0) != draw_requests(200, LONGEST, seed=1)
    for each in drawn:
        assert (len(each.prompt) > LONGEST) == (each.kind is Kind.too_long)
        assert each.kind is Kind.too_long or len(each.prompt) + each.new_tokens <= LONGEST
    assert {each.stays > 0 for each in drawn if each.kind is Kind.leaves} == {True, False}


def test_a_whole_answer_counts_its_tokens() -> None:
    assert check_answer(WHOLE, [{"usage": USAGE, "choices": [{"finish_reason": "length"}]}]) == 4
    stream = [
        {"choices": [{"finish_reason": None}]}, {"choices": [{"finish_reason": "length"}]},
        {"choices": [], "usage": USAGE},
    ]  # fmt: skip
    assert check_answer(WHOLE, stream) == 4


@pytest.mark.parametrize(
    "events",
    [
        [],
        [{"choices": [{"finish_reason": "length"}]}],
        [{"usage": {"completion_tokens": 3}, "choices": [{"finish_reason": "length"}]}],
        [{"usage": USAGE, "choices": [{"finish_reason": "abort"}]}],
        [{"usage": USAGE, "choices": [{"finish_reason": "length"}]}, {"error": {"message": "engine died"}}],
    ],
)
def test_another_answer_is_an_error(events: list[dict[str, Any]]) -> None:
    with pytest.raises(Unexpected):
        check_answer(WHOLE, events)


@asynccontextmanager
async def answering(status: int, body: bytes) -> AsyncIterator[str]:
    """A server that answers everything alike."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        sizes = re.findall(rb"(?i)content-length: (\d+)", head)
        await reader.readexactly(int(sizes[0]))
        lines = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        writer.write(f"{lines}Connection: close\r\n\r\n".encode() + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        yield f"http://{host}:{port}"


def asked(status: int, body: bytes, *requests: Ask, seconds: float = 60) -> Outcome:
    async def ask() -> Outcome:
        outcome = Outcome()
        async with answering(status, body) as url:
            await ask_all(url, requests, 2, asyncio.get_running_loop().time() + seconds, outcome)
        return outcome

    return asyncio.run(ask())


ANSWER = json.dumps({"usage": USAGE, "choices": [{"finish_reason": "length"}]}).encode()
TOO_LONG = Ask(Kind.too_long, [1] * 9, 4)


def test_an_answer_is_done_and_its_tokens_are_counted() -> None:
    found = asked(200, ANSWER, WHOLE, WHOLE, WHOLE)
    assert (found.done[Kind.waits], found.tokens, found.errors, found.requests) == (3, 12, [], 3)


@pytest.mark.parametrize(("status", "body"), [(500, b"{}"), (200, b"no JSON"), (200, b"{}")])
def test_a_server_that_fails_is_an_error(status: int, body: bytes) -> None:
    found = asked(status, body, WHOLE)
    assert len(found.errors) == found.requests == 1
    assert not found.done[Kind.waits]


def test_too_long_a_prompt_has_to_be_refused() -> None:
    assert asked(400, b"{}", TOO_LONG).done[Kind.too_long] == 1
    assert len(asked(200, ANSWER, TOO_LONG).errors) == 1
    assert len(asked(500, b"{}", TOO_LONG).errors) == 1


def test_who_leaves_expects_nothing_but_a_beginning() -> None:
    early, late = Ask(Kind.leaves, [1], 8), Ask(Kind.leaves, [1], 8, stays=1)
    assert asked(200, b'data: {"choices": []}\n\n', early, late).done[Kind.leaves] == 2
    assert len(asked(500, b"{}", late).errors) == 1


def test_nobody_asks_after_the_time() -> None:
    assert asked(200, ANSWER, WHOLE, seconds=0).requests == 0


def test_a_server_that_is_gone_is_an_error() -> None:
    async def ask() -> Outcome:
        outcome = Outcome()
        async with answering(200, ANSWER) as url:
            gone = url
        await ask_all(gone, [WHOLE], 1, asyncio.get_running_loop().time() + 60, outcome)
        return outcome

    assert len(asyncio.run(ask()).errors) == 1
