"""Rows that are so long that their samples are scored ahead of their keys; shorter ones keep all scores."""

from __future__ import annotations

from typing import Any

from tests.cases import Case

_SAMPLED: dict[str, Any] = {"placement": "sampled_softmax", "heads": 4, "kv_heads": 2, "head_dim": 32}
LONG_SAMPLED = (
    Case("long-sampled", lengths=(4300, 0, 145, 4001), keep=0.05, vmc=True, **_SAMPLED),
    Case("long-sampled-start-mixed", layout="BSND", lengths=(4100, 30), starts=(33, 600), theta="mixed", **_SAMPLED),
    Case("long-sampled-sink", lengths=(4500, 500), keep=0.05, sink=True, vmc=True, **_SAMPLED),
    Case("long-sampled-paged", paged="4d", block_size=48, lengths=(4200, 401), keep=0.05, **_SAMPLED),
    Case("long-sampled-int8-token", int8="both", scales="token", lengths=(4097,), keep=0.05, **_SAMPLED),
    Case("long-sampled-int8-channel-nothing", int8="key", lengths=(4097, 16), theta="nothing", **_SAMPLED),
    Case(
        "long-sampled-tokens", query_tokens=4, lengths=(4090, 4003), query_lengths=(4, 2), keep=0.03,
        **{**_SAMPLED, "heads": 11, "kv_heads": 1},
    ),
    Case("long-sampled-d40", layout="BSH", lengths=(4321,), keep=0.05, **{**_SAMPLED, "head_dim": 40}),
)  # fmt: skip
