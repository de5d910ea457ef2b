"""The tables of docs/serving.md, from the results that were written last."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from toptheta_npu._tables import Table
from toptheta_npu.evaluation.verdict import student_quantile


def as_tables(found: Mapping[str, Any]) -> dict[str, Table]:
    """Make the tables of the parts that were run, by their names."""
    tables = {
        "equality": _equality, "load": _load, "memory": _memory, "schedules": _schedules, "soak": _soak, "real": _real,
        "break-even": _break_even, "int8": _int8,
    }  # fmt: skip
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
    columns = ("", "k = 64 over dense vLLM", "kept, V rows read")
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
    return [name, f"**{_bounded(found['over_dense']['sparse'])}**", _shares(found["kept"]["sparse"])]


def _int8(found: Mapping[str, Any]) -> Table:
    columns = ("model in", "what decodes", "int8 over the model's dtype", "bytes of a token, all layers", "share")
    rows = []
    for each in found["decoding"]:
        same, int8 = each["token_bytes"]
        rows.append([
            each["dtype"], f"{each['batch']} sequences of {each['keys']} keys", f"**{_bounded(each['over_same'])}**",
            f"{same:,}, {int8:,}", f"{int8 / same:.3f}",
        ])  # fmt: skip
    return Table(f"Tokens per second; {found['rounds']} rounds that take turns", columns, rows)


def _memory(found: Mapping[str, Any]) -> Table:
    columns = ("cache", "tokens of a page", "pages", "KV cache, bytes", "V sums, bytes", "by the formula", "share")
    rows = [
        [each["dtype"], f"{each['block_size']}", f"{each['pages']}", f"{each['cache_bytes']:,}",
         f"{each['sum_bytes']:,}", f"{each['formula_bytes']:,}", f"{each['sum_bytes'] / each['cache_bytes']:.2%}"]
        for each in found["engines"]
    ]  # fmt: skip
    return Table("V sums of all layers beside the cache", columns, rows)


def _schedules(found: Mapping[str, Any]) -> Table:
    engines = found["engines"]
    figures: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "drawn schedules": lambda each: f"{each['count']}",
        "requests, tokens, preemptions in them": lambda each: (
            f"{each['requests']}, {each['tokens']}, {each['preemptions']}"
        ),
        "tokens by thresholds; in vLLM's own kernel": lambda each: f"{each['decode_tokens']}; {each['short_tokens']}",
        "tokens of sequences with drafts; by thresholds": lambda each: (
            f"{each['draft_tokens']}; {each['thresholded_tokens']}" if each.get("draft_tokens") else "none"
        ),
        "**wrong tokens**": lambda each: f"**{each['wrong_tokens']}**",
        "elements kept, V rows read, all layers": _shares,
        "k̃/k": lambda each: f"{each['kept_over_k']:.2f}",
    }
    rows = [[name, *map(figure, engines)] for name, figure in figures.items()]
    return Table("Drawn schedules", ("", *(each["name"] for each in engines)), rows)


def _break_even(found: Mapping[str, Any]) -> Table:
    lengths = list(dict.fromkeys(each["keys"] for each in found["steps"]))
    rows = [
        [f"{batch}", *(_bounded(each["over_dense"]) for each in found["steps"] if each["batch"] == batch)]
        for batch in dict.fromkeys(each["batch"] for each in found["steps"])
    ]
    columns = ("sequences", *(f"{keys} keys" for keys in lengths))
    return Table(f"{found['rounds']} rounds that take turns", columns, rows)


def overhead_table(found: Mapping[str, Any]) -> Table:
    """Make the table of what `benchmarks.serving.overhead` measures, which no page shows."""
    columns = ("sequences, keys", "**above the native kernel**", "above the operator's call", "floor", "reads")
    rows = [
        [f"{each['batch']}, {each['keys']}", f"**{_middle(each['above_kernel'])}**",
         *(_middle(each[name]) for name in ("above_operator", "floor", "reads"))]
        for each in found["steps"]
    ]  # fmt: skip
    return Table(f"Microseconds per layer and step; {found['rounds']} rounds that take turns", columns, rows)


def _soak(found: Mapping[str, Any]) -> Table:
    phases = found["phases"]

    def row(name: str, figure: Callable[[Mapping[str, Any]], str]) -> list[str]:
        return [name, *map(figure, phases)]

    rows = [
        row("requests", lambda each: f"{each['requests']}"),
        *(row(f"of these: {kind}", lambda each, kind=kind: f"{each['done'][kind]}") for kind in phases[0]["done"]),  # type: ignore[misc]
        row("minutes", lambda each: f"{each['seconds'] / 60:.1f}"),
        row("preemptions", lambda each: f"{each['preemptions']}"),
        row(
            "tokens by thresholds; with drafts",
            lambda each: f"{each['decode_tokens']}; {each['draft_tokens']}",
        ),
        row("**errors that are not the client's**", lambda each: f"**{each['errors']}**"),
        row("**wrong tokens of the sample, before and after**", lambda each: f"**{each['wrong_tokens']}**"),
        row("memory after a fifth of the requests, MB", lambda each: f"{each['warm_bytes'] / 1e6:.0f}"),
        row("memory at the end, MB", lambda each: f"{each['end_bytes'] / 1e6:.0f}"),
        row("**growth**", lambda each: f"**{each['growth']:+.2%}**"),
    ]
    return Table("Soak", ("", *(each["name"] for each in phases)), rows)


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
            f"{each['prompt']} tokens, {each['dtype']}", dense, sparse, f"**{middle}**", late,
            f"{each['kept']['value_rows']:.0f}, {share:.1%}", f"{(1 + share) / 2:.1%}",
        ])  # fmt: skip
    answers = found.get("answers")
    if answers:
        rows.append([
            f"**wrong** of {answers['tokens']} tokens after {answers['requests']} prompts of {answers['prompt']}",
            "", "", f"**{answers['wrong_tokens']}**", "", "", "",
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


def _middle(quartiles: Sequence[float]) -> str:
    low, middle, high = quartiles
    return f"{middle:.0f} ({low:.0f} to {high:.0f})"


def _milliseconds(seconds: Mapping[str, float]) -> str:
    return f"{1000 * seconds['p50']:.0f}, {1000 * seconds['p95']:.0f}"


def _shares(found: Mapping[str, float]) -> str:
    return f"{100 * found['kept_share']:.1f} %, {100 * found['value_row_share']:.1f} %"


def _range(ends: Sequence[int]) -> str:
    return f"{ends[0]} to {ends[1]}"
