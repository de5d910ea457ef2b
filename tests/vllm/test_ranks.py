"""Two ranks that share the heads, or the layers."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.serving.engines import TABLE, generated, prompts, wrong_tokens
from tests.vllm.server import serve, settings


@pytest.mark.parametrize(
    ("option", "layers"),
    [("--tensor-parallel-size", ["0-5"]), ("--pipeline-parallel-size", ["0-2", "3-5"])],
)
def test_two_ranks_answer_as_one_process(option: str, layers: list[str], tmp_path: Path) -> None:
    asked = prompts(700, 300, seed=9)
    with serve(tmp_path, settings(table=TABLE, k=64), option, "2") as server:
        for ids in asked:
            assert not wrong_tokens(server.complete(ids, 16), generated(ids, 16, k=64))
        log = server.log.read_text()
        for listed in layers:
            assert f"Top-Theta: layers {listed} decode by the thresholds" in log
