"""What the slowest core does at the paper's point, from its trace: where the time goes, and a picture of its pipes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Event = Mapping[str, Any]
#: Parts of the kernel by the source file that issues an instruction.
_PARTS = {
    "query_key_product.h": "scores: q · k",
    "chunk.h": "threshold test, softmax",
    "chunk_selection.h": "threshold test, softmax",
    "list_entries.h": "threshold test, softmax",
    "reductions.h": "threshold test, softmax",
    "weighted_sum.h": "weighted sum of V rows",
    "own_rows.h": "weighted sum of V rows",
}
_OTHER = "parameters, output"
_COLOURS = {
    "K tiles": "tab:blue",
    "V rows": "tab:orange",
    "scores: q · k": "tab:cyan",
    "threshold test, softmax": "tab:red",
    "weighted sum of V rows": "gold",
    "reads of the row list": "tab:brown",
    _OTHER: "tab:gray",
}


def ledger(events: Sequence[Event]) -> dict[str, float]:
    """Split a core's time, in microseconds from its trace, when the copies of a whole unit set the pace."""
    copies = sorted((event for event in events if "buffer" in event["args"]), key=lambda event: float(event["ts"]))
    stream = [event for event in copies if event["args"]["buffer"] in ("key", "value")]
    last, output = stream[-1], copies[-1]
    begin, end = float(stream[0]["ts"]), float(last["ts"]) + float(last["dur"])
    busy = sum(float(event["dur"]) for event in stream)
    return {
        "tiling data, parameters, first K copy issued": begin,
        "K tiles and V rows": busy,
        "no copy under way: scores and test of the last chunk": max(0.0, end - begin - busy),
        "the last V rows arrive": float(last["args"]["done"]) - end,
        "their weighted sum, compensation, division": float(output["ts"]) - float(last["args"]["done"]),
        "output row written": float(output["args"]["done"]) - float(output["ts"]),
    }


def vector_work(events: Sequence[Event]) -> dict[str, float]:
    """Sum the microseconds of the vector unit by part of the kernel. They are the same cold and hot."""
    work = dict.fromkeys([*dict.fromkeys(_PARTS.values()), _OTHER], 0.0)
    for event in events:
        if event["tid"] == 1:
            work[part_of(event)] += event["dur"]
    return work


def part_of(event: Event) -> str:
    """Name the part of the kernel that an instruction belongs to."""
    if "buffer" in event["args"]:
        return {"key": "K tiles", "value": "V rows"}.get(event["args"]["buffer"], _OTHER)
    source = event["args"]["at"].split(":")[0]
    if event["name"] == "CreateVecIndex":  # once for each core
        return _OTHER
    return "reads of the row list" if source in ("value_fetch.h", "cache_rows.h") else _PARTS.get(source, _OTHER)


def plot_timeline(traces: Mapping[str, Sequence[Event]], path: Path) -> None:
    """Plot the pipes of one core at the paper's point, cold above hot."""
    from matplotlib import pyplot
    from matplotlib.patches import Patch

    figure, panels = pyplot.subplots(2, 1, figsize=(11, 4.6), layout="constrained", sharex=True)
    for axes, (mode, events) in zip(panels, traces.items(), strict=True):
        for event in events:
            if event["tid"] <= 2:
                bar = [(event["ts"], event["dur"])]
                axes.broken_barh(bar, (event["tid"] - 0.4, 0.8), facecolors=_COLOURS[part_of(event)], linewidth=0)
        axes.set_yticks([2, 1, 0], ["copies in (MTE2)", "vector (V)", "scalar (S)"])
        axes.set_xlim(0)
        axes.set_title(f"{mode}: data in {'HBM' if mode == 'cold' else 'the L2'}", loc="left", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    panels[-1].set_xlabel("µs, modelled, uncalibrated (48 heads, 2048 keys, 128 kept; one core)")
    patches = [Patch(color=colour, label=name) for name, colour in _COLOURS.items()]
    figure.legend(handles=patches, loc="outside upper center", ncols=len(patches), fontsize=8, frameon=False)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
