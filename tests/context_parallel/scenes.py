"""Steps over sequences whose keys lie on several ranks: which there are, and what each rank has of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tests.cases import MERGED, Case
from tests.helpers import (
    Inputs,
    by_sequence,
    filled,
    in_layout,
    make_inputs,
    of_tokens,
    page,
    stored_rows,
    whole_row_tensors,
)
from toptheta_npu.context_parallel import Sharding

#: Where the ranks' runs of keys end, as shares of the cache; "interleaved" ones go round in so many keys per block.
RUNS = {
    "even": {2: (0.5,), 3: (0.33, 0.67)},
    "uneven": {2: (0.9,), 3: (0.02, 0.1)},
    "first_empty": {2: (0.0,), 3: (0.0, 0.6)},
    "middle_empty": {2: (0.7,), 3: (0.4, 0.4)},
    "last_empty": {2: (1.0,), 3: (1.0, 1.0)},
}
_MODES = [
    *((sdc, vmc, "pre_softmax") for sdc in ("exact", "exp_threshold", "offline") for vmc in (False, True)),
    ("none", False, "pre_softmax"), ("exact", False, "post_softmax"), ("exact", True, "post_softmax"),
]  # fmt: skip
_HEADS = ("num_heads", "num_key_value_heads")
_BASE = Case("step", heads=8, lengths=(150, 33, 0, 1), lengths_as="int64", head_dim=32, keep=0.1, theta="mixed")


@dataclass(frozen=True)
class Scene:
    """A step, and how its keys are spread: a name of `RUNS`, or the keys per block."""

    case: Case
    spread: str | int


def _scenes() -> dict[str, Scene]:
    modes = [
        Scene(replace(_BASE, sdc=sdc, vmc=vmc, placement=placement), spread)
        for sdc, vmc, placement in _MODES
        for spread in ("uneven", 16)
    ]
    spreads = [Scene(replace(_BASE, vmc=True), spread) for spread in (*RUNS, 1, 7, 1000)]
    post, paged = {"placement": "post_softmax"}, {"paged": "4d", "block_size": 16}
    forms = [
        Scene(replace(_BASE, **options), spread)
        for options in (
            {"dtype": "float16", "vmc": True}, {"dtype": "bfloat16", "vmc": True}, {"dtype": "bfloat16", **post},
            {"layout": "BSND"}, {"layout": "BSH", "dtype": "float16"}, {"kv_heads": 8}, {"kv_heads": 1, "vmc": True},
            {"lengths": (40, 90, 0), "starts": (60, 0, 30), "vmc": True},
            {"lengths": (40, 90), "starts": (60, 5), **post},
            {"lengths": (128,), "lengths_as": "none", "vmc": True}, {"theta": "nothing"}, {"theta": "inf", "vmc": True},
            {"theta": "dense"}, {"theta": "quantile", "shared_theta": True, "lengths": (90, 90)}, {"lengths": (0, 0)},
            *({"int8": int8, "scales": scales, "vmc": True}
              for int8, scales in (("both", "token"), ("both", "channel"), ("key", "token"))),
            {"int8": "both", "scales": "token", **paged}, {"int8": "both", "scales": "token", "theta": "inf", **post},
            *MERGED, {**paged, "vmc": True}, {**paged, **post},
            {**paged, "paged": "3d", "layout": "BSH", "dtype": "bfloat16"},
            *({"query_tokens": 4, "query_lengths": (4, 2, 0, 1), "vmc": True, **options}
              for options in (
                  {}, post, paged, {"layout": "BSH", "dtype": "bfloat16"}, {"sdc": "exp_threshold", "theta": "nothing"},
                  {"sdc": "offline", "sink": True}, {"int8": "both", "scales": "token"},
                  {"layout": "BSND", "lengths": (40, 90, 4, 1), "starts": (60, 0, 30, 2), **post},
              )),
        )
        for spread in ("uneven", 16)
    ]  # fmt: skip
    return {name_of(scene): scene for scene in (*modes, *spreads, *forms)}


def name_of(scene: Scene) -> str:
    default = Case("default")
    given = [f"{name}={value}" for name, value in vars(scene.case).items() if value != getattr(default, name)]
    return " ".join([str(scene.spread), *(part for part in given if not part.startswith("id="))])


SCENES = _scenes()


def share(inputs: Inputs, scene: Scene, rank: int, world_size: int) -> dict[str, Any]:
    """The arguments of one rank, with NaN in the rows that are not valid."""
    case, rows, tokens = inputs.case, inputs.rows, inputs.case.query_tokens
    mine = positions(scene.spread, rows.key.shape[2], rank, world_size)
    first, last = ((mine < edge[:, None]).sum(1) for edge in (rows.starts, rows.starts + rows.lengths))
    column = torch.arange(len(mine))
    seen = (column >= first[:, None]) & (column < last[:, None])  # by each row
    total = rows.value[:, :, mine].float().masked_fill(~seen[:, None, :, None], 0.0).sum(2)
    key, value = (stored_rows(rows, name)[::tokens, :, mine] for name in ("key", "value"))
    valid = by_sequence(case, seen).any(1)[:, None, :, None]
    key, value = (filled(cache, ~valid, torch.nan) for cache in (key, value))
    scales = {name: filled(stored.scale[::tokens, :, mine], ~valid[..., 0], torch.nan) if stored.mode else stored.scale
              for name, stored in rows.stored.items()}  # fmt: skip
    of_rows = set(whole_row_tensors(inputs)) - {"value_mean"}  # that one is of all ranks
    taken = ("query", "threshold", "input_layout", "placement", "sdc", *of_rows, *_HEADS)
    arguments = {name: inputs.arguments[name] for name in taken if name in inputs.arguments}
    for name, scale in scales.items():
        arguments |= {f"{name}_antiquant_scale": scale, f"{name}_antiquant_mode": rows.stored[name].mode}
    if case.paged:
        generator, by_row = (
            torch.Generator().manual_seed(rank),
            {n: s for n, s in scales.items() if rows.stored[n].mode},
        )
        ends = by_sequence(case, last).amax(1)
        arguments |= page(key, value, ends, case.block_size, case.paged, case.blocks, torch.nan, generator, by_row)
    else:
        arguments |= {"key": in_layout(key, case.layout), "value": in_layout(value, case.layout)}
    if case.lengths_as != "none":
        arguments["actual_seq_lengths"] = last - first if tokens == 1 else by_sequence(case, last - first)
    if case.starts:
        arguments["key_start"] = first[::tokens]
    if case.vmc:
        arguments["value_sum"] = of_tokens(case, total)
    return arguments


def positions(spread: str | int, capacity: int, rank: int, world_size: int) -> Tensor:
    """The keys of the whole cache that a rank has."""
    if isinstance(spread, int):
        return Sharding(rank, world_size, spread).positions(0, capacity)
    edges = [0, *(round(edge * capacity) for edge in RUNS[spread][world_size]), capacity]
    return torch.arange(edges[rank], edges[rank + 1])


def inputs_of(scene: Scene) -> Inputs:
    return make_inputs(scene.case)
