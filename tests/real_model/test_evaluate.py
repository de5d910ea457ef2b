"""``toptheta evaluate`` of a real model, from the shell."""

from __future__ import annotations

import json
from pathlib import Path
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
    points = [json.loads(line) for line in output.read_text().splitlines()]
    print(points)
