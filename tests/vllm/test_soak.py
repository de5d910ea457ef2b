"""A little of the soak: clients of all kinds, a cache so small that requests are preempted, and drafts."""

from __future__ import annotations

from benchmarks.serving.soak import PHASES, soak

REQUESTS = 60


def test_clients_that_leave_and_prompts_that_are_too_long_hurt_nobody() -> None:
    (found,) = soak(REQUESTS, minutes=10, phases=PHASES[1:2])
    (phase,) = found["phases"]
    assert phase["first_errors"] == []
    assert phase["wrong"] == []
    assert sum(phase["done"].values()) == REQUESTS
    assert min(phase["done"].values()) > 0
    assert phase["preemptions"] > 0
    assert phase["draft_tokens"] > 0
    assert phase["decode_tokens"] > 0
