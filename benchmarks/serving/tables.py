"""The table of docs/serving.md, from the results that were written last."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toptheta_npu._tables import Table


def as_tables(found: Mapping[str, Any]) -> dict[str, Table]:
    """By the name of its place in the page."""
    drawn, speed = found["schedules"], found["speed"]
    ratios = speed["ratios"]
    timed = f"{speed['batch']} sequences of {speed['keys']} keys, {speed['rounds']} rounds that take turns"
    rows = [
        ["drawn schedules", f"{drawn['count']}"],
        ["requests, tokens, preemptions in them", f"{drawn['requests']}, {drawn['tokens']}, {drawn['preemptions']}"],
        ["**wrong tokens**", f"**{drawn['wrong_tokens']}**"],
        ["elements kept, V rows read, all layers", _shares(drawn)],
        ["k̃/k", f"{drawn['kept_over_k']:.2f}"],
        [f"tokens per second over dense vLLM, {timed}",
         f"{speed['sparse_over_dense']:.2f} ({min(ratios):.2f} to {max(ratios):.2f})"],
        ["elements kept, V rows read there", _shares(speed)],
    ]  # fmt: skip
    return {"serving": Table(f"vLLM {found['vllm']} on a CPU, k = {found['k']}", ("", "figure"), rows)}


def _shares(found: Mapping[str, float]) -> str:
    return f"{100 * found['kept_share']:.1f} %, {100 * found['value_row_share']:.1f} %"
