"""``toptheta evaluate`` of a real model, from the shell."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean
from typing import Any

from tests.real_model.places import FOLDER


def test_thresholds_lose_little_and_the_last_keys_alone_much(
    table: Path, texts: dict[str, Path], tmp_path: Path, toptheta: Any
) -> None:
    output = tmp_path / "results.jsonl"
    options = ("--windows", 3, "--length", 1024, "--positions", 64, "--k", 64, "--task", "perplexity")
    methods = ("--method", "top-theta", "--method", "last-k")
    printed = toptheta("evaluate", FOLDER, table, "--text", texts["evaluation"], "-o", output, *options, *methods)
    assert "top-theta" in printed
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    points = {line["point"]["method"]: line["measurement"] for line in lines if "point" in line}
    dense, ours, last = (fmean(points[method]["scores"]) for method in ("dense", "top-theta", "last-k"))
    # nats per token: 2.35, and here a change of 0.05 is one of 5 % of perplexity
    assert 1.5 < dense < 3.5
    assert abs(ours - dense) < 0.1
    assert last > dense + 0.2
    reads = points["top-theta"]["reads"]
    assert reads["value_rows_mean"] < 0.3 * reads["keys_mean"]
    assert 0.7 < reads["kept_over_target"] < 1.5
