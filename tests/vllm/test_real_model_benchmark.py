"""The benchmark of a real model, on the embedded one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.serving.engines import prompts
from benchmarks.serving.real import SPARSE, Setting, compare_real, token_seconds
from benchmarks.serving.tables import as_tables
from toptheta_npu.assets import TINY_LLAMA

CLIENTS, NEW_TOKENS, LENGTH, ROUNDS = 2, 24, 600, 2


@dataclass(frozen=True)
class Embedded(Setting):
    """The embedded model and its text."""

    def prompts(self, length: int, count: int) -> list[list[int]]:
        return prompts(*[length] * count, seed=16)

    @property
    def settings(self) -> dict[str, Any]:
        return {"tau": 0.003, "dense_below": 0}


SETTING = Embedded(
    TINY_LLAMA, packages=Path(), lengths=(LENGTH,), clients=CLIENTS, new_tokens=NEW_TOKENS
)  # fmt: skip


def test_rounds_take_turns() -> None:
    *_, found = compare_real(SETTING, ROUNDS)
    (row,) = found["decoding"]
    assert row["rounds"] == ROUNDS == len(row["by_round"]["dense"]) == len(row["by_round"]["sparse"])
    assert all(0 < each["p50"] <= each["p95"] for each in row["seconds"].values())
    assert 16 < row["kept"]["value_rows"] < LENGTH
    assert row["kept"]["value_row_share"] < 0.8
    assert "600 tokens" in as_tables({"real": found})["real"].as_markdown()


def test_a_prompt_that_is_not_in_the_cache_is_noticed() -> None:
    engine = SETTING.engine(SPARSE)
    asked = SETTING.prompts(LENGTH, CLIENTS)
    gaps, computed = token_seconds(engine, asked, 4, "first")
    assert (len(gaps), computed) == (CLIENTS * 3, LENGTH)
    gaps, computed = token_seconds(engine, asked, 4, "second")
    assert (len(gaps), computed) == (CLIENTS * 3, LENGTH % 128)
