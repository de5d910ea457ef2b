"""Two ranks that share the heads."""

from __future__ import annotations

from pathlib import Path

from benchmarks.serving.engines import TABLE, generated, prompts, wrong_tokens
from tests.vllm.server import serve, settings


def test_two_ranks_answer_as_one_process(tmp_path: Path) -> None:
    asked = prompts(700, 300, seed=9)
    with serve(tmp_path, *settings(table=TABLE, k=64), "--tensor-parallel-size", "2") as server:
        for ids in asked:
            assert not wrong_tokens(server.complete(ids, 16), generated(ids, 16, k=64))
        assert "Top-Theta: layers 0-5 decode by the thresholds" in server.log.read_text()
