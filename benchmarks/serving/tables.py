"""The tables of docs/serving.md, from the results that were written last."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from toptheta_npu._tables import Table
from toptheta_npu.evaluation.student import student_quantile


def as_tables(found: Mapping[str, Any]) -> dict[str, Table]:
    """Make the tables of the parts that were run, by their names."""
    tables = {"load": _load, "break-even": _break_even, "real": _real}
    return {name: table(found[name]) for name, table in tables.items() if name in found}


def _load(found: Mapping[str, Any]) -> Table:
    columns = ("", "k = 64 over dense vLLM", "kept, V rows read")
    load = found["load"]
    what = (
        f"{load['requests']} requests, {load['at_once']} at a time, prompts of {_range(load['prompts'])} and answers "
        f"of {_range(load['new_tokens'])} tokens"
    )
    # both engines answer the same requests with as many tokens
    names = [f"requests per second, and new tokens per second: {what}"]
    names += [
        f"tokens per second while {each['batch']} sequences of {each['keys']} keys decode" for each in found["decoding"]
    ]
    rows = [
        [name, f"**{_bounded(each['over_dense'])}**", _shares(each["kept"])]
        for name, each in zip(names, (load, *found["decoding"]), strict=True)
    ]
    return Table(f"{found['rounds']} rounds that take turns", columns, rows)


def _break_even(found: Mapping[str, Any]) -> Table:
    lengths = list(dict.fromkeys(each["keys"] for each in found["steps"]))
    rows = [
        [f"{batch}", *(_bounded(each["over_dense"]) for each in found["steps"] if each["batch"] == batch)]
        for batch in dict.fromkeys(each["batch"] for each in found["steps"])
    ]
    columns = ("sequences", *(f"{keys} keys" for keys in lengths))
    return Table(f"{found['rounds']} rounds that take turns", columns, rows)


def _real(found: Mapping[str, Any]) -> Table:
    columns = (
        "prompts", "dense: ms per token, p50 and p95", "Top-θ: ms per token, p50 and p95",
        "**dense over Top-θ, p50**", "p95", "V rows read", "K+V read",
    )  # fmt: skip
    rows = []
    for each in found["decoding"]:
        dense, sparse = (_milliseconds(each["seconds"][name]) for name in ("dense", "sparse"))
        middle, late = (_bounded(_over_rounds(each["by_round"], quantile)) for quantile in ("p50", "p95"))
        share = each["kept"]["value_row_share"]
        rows.append([
            f"{each['prompt']} tokens", dense, sparse, f"**{middle}**", late,
            f"{each['kept']['value_rows']:.0f}, {share:.1%}", f"{(1 + share) / 2:.1%}",
        ])  # fmt: skip
    return Table(f"{found['clients']} clients, answers of {found['new_tokens']} tokens", columns, rows)


def _over_rounds(seconds: Mapping[str, Sequence[Mapping[str, float]]], quantile: str) -> list[float]:
    """Divide dense by sparse times, round by round."""
    pairs = zip(seconds["dense"], seconds["sparse"], strict=True)
    return [dense[quantile] / sparse[quantile] for dense, sparse in pairs]


def _bounded(ratios: Sequence[float]) -> str:
    """Write the geometric mean of ratios with its 95 % bounds, Student's t of their logarithms."""
    logarithms = [math.log(each) for each in ratios]
    mean = statistics.fmean(logarithms)
    if len(ratios) < 2:
        return f"{math.exp(mean):.2f} (one round)"
    half = student_quantile(len(ratios) - 1) * statistics.stdev(logarithms) / math.sqrt(len(ratios))
    return f"{math.exp(mean):.2f} ({math.exp(mean - half):.2f} to {math.exp(mean + half):.2f})"


def _milliseconds(seconds: Mapping[str, float]) -> str:
    return f"{1000 * seconds['p50']:.0f}, {1000 * seconds['p95']:.0f}"


def _shares(found: Mapping[str, float]) -> str:
    return f"{100 * found['kept_share']:.1f} %, {100 * found['value_row_share']:.1f} %"


def _range(ends: Sequence[int]) -> str:
    return f"{ends[0]} to {ends[1]}"
