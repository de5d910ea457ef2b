"""The tables of docs/serving.md, from the results that were written last."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from toptheta_npu._tables import Table


def as_tables(found: Mapping[str, Any]) -> dict[str, Table]:
    """Make the tables of the parts that were run, by the names of their places in the page."""
    tables = {"equality": _equality, "load": _load, "memory": _memory, "schedules": _schedules}
    return {name: table(found[name]) for name, table in tables.items() if name in found}


def _equality(found: Mapping[str, Any]) -> Table:
    columns = ("", "reference", "tokens", "**wrong**", "largest difference of log-probabilities", "kept, V rows read")
    rows = [
        [each["what"], each["reference"], f"{each['tokens']}", f"**{each['wrong_tokens']}**",
         f"{each['largest_difference']:.1e}", _shares(each)]
        for each in found["answers"]
    ]  # fmt: skip
    return Table(f"{found['new_tokens']} tokens per request", columns, rows)


def _load(found: Mapping[str, Any]) -> Table:
    columns = ("", "k = 64 over dense vLLM", "without `vmc`, for comparison alone", "kept, V rows read")
    load = found["load"]
    what = (
        f"{load['requests']} requests, {load['at_once']} at a time, prompts of {_range(load['prompts'])} and answers "
        f"of {_range(load['new_tokens'])} tokens"
    )
    rows = [
        # every engine answers the same requests with as many tokens
        _speed(f"requests per second, and new tokens per second: {what}", load),
    ]
    rows += [
        _speed(f"tokens per second while {each['batch']} sequences of {each['keys']} keys decode", each)
        for each in found["decoding"]
    ]
    return Table(f"{found['rounds']} rounds that take turns", columns, rows)


def _speed(name: str, found: Mapping[str, Any]) -> list[str]:
    over_dense = found["over_dense"]
    return [
        name,
        f"**{_ratio(over_dense['sparse'])}**",
        _ratio(over_dense["without_vmc"]),
        _shares(found["kept"]["sparse"]),
    ]


def _memory(found: Mapping[str, Any]) -> Table:
    columns = ("cache", "tokens of a page", "pages", "KV cache, bytes", "V sums, bytes", "by the formula", "share")
    rows = [
        [each["dtype"], f"{each['block_size']}", f"{each['pages']}", f"{each['cache_bytes']:,}",
         f"{each['sum_bytes']:,}", f"{each['formula_bytes']:,}", f"{each['sum_bytes'] / each['cache_bytes']:.2%}"]
        for each in found["engines"]
    ]  # fmt: skip
    return Table("V sums of all layers beside the cache", columns, rows)


def _schedules(found: Mapping[str, Any]) -> Table:
    rows = [
        ["drawn schedules", f"{found['count']}"],
        ["requests, tokens, preemptions in them", f"{found['requests']}, {found['tokens']}, {found['preemptions']}"],
        ["**wrong tokens**", f"**{found['wrong_tokens']}**"],
        ["elements kept, V rows read, all layers", _shares(found)],
        ["k̃/k", f"{found['kept_over_k']:.2f}"],
    ]
    return Table("Drawn schedules", ("", "figure"), rows)


def _shares(found: Mapping[str, float]) -> str:
    return f"{100 * found['kept_share']:.1f} %, {100 * found['value_row_share']:.1f} %"


def _range(ends: Sequence[int]) -> str:
    return f"{ends[0]} to {ends[1]}"


def _ratio(ratios: Sequence[float]) -> str:
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
