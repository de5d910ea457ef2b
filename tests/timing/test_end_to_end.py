"""Tokens per second of generate(): the slope, and what the command says."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

pytest.importorskip("transformers")

from toptheta_npu.assets import load_tiny_llama_thresholds
from toptheta_npu.cli import app
from toptheta_npu.errors import TopThetaError, TopThetaValueError
from toptheta_npu.timing import end_to_end
from toptheta_npu.timing.clocks import Timing


class _Clock:
    """A model whose prefill takes 5 s and each token 0.25 s, on a clock of its own."""

    def __init__(self) -> None:
        self.now = 0.0

    def generate(self, tokens: torch.Tensor, max_new_tokens: int, **_: Any) -> torch.Tensor:
        self.now += 5.0 + 0.25 * max_new_tokens
        return tokens


def test_the_prefill_cancels(monkeypatch: pytest.MonkeyPatch) -> None:
    model = _Clock()
    monkeypatch.setattr(end_to_end, "time", SimpleNamespace(perf_counter=lambda: model.now))
    (dense,) = end_to_end.compare(model, load_tiny_llama_thresholds("post_softmax"), [], torch.zeros(1, 4).long())
    assert dense.seconds.median == pytest.approx(0.25)
    assert dense.tokens_per_second == pytest.approx(4.0)


@pytest.mark.parametrize("given", [{"new_tokens": (5, 5)}, {"new_tokens": (0, 5)}, {"rounds": 0}])
def test_wrong_use(given: dict[str, Any]) -> None:
    with pytest.raises(TopThetaValueError, match=r"^(new_tokens|rounds): expected"):
        end_to_end.compare(_Clock(), load_tiny_llama_thresholds("post_softmax"), [], torch.zeros(1, 4).long(), **given)


def test_a_slope_that_is_noise_is_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(100, 0, -1))
    monkeypatch.setattr(end_to_end, "_seconds", lambda *_: float(next(ticks)))
    with pytest.raises(TopThetaValueError, match=r"^rounds: expected a machine quiet enough .* use more rounds"):
        end_to_end.compare(_Clock(), load_tiny_llama_thresholds("post_softmax"), [], torch.zeros(1, 4).long())


def test_table_and_json() -> None:
    rates = [
        end_to_end.Rate("dense", Timing(0.2, 0.1, 0.3)),
        end_to_end.Rate("k=64", Timing(0.1, 0.1, 0.1)),
    ]
    cells = list(end_to_end.as_table(rates, "").columns[4].cells)
    assert cells == ["1.00", "2.00"]
    assert end_to_end.as_json(rates)[0]["seconds_per_token"] == {"median": 0.2, "p10": 0.1, "p90": 0.3}


def test_command_with_the_embedded_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = end_to_end._seconds

    def one_second_per_token(model: Any, tokens: torch.Tensor, count: int, context: Any) -> float:
        assert measured(model, tokens, count, context) > 0
        return float(count)

    monkeypatch.setattr(end_to_end, "_seconds", one_second_per_token)  # a busy machine's slopes may be below 0
    file = tmp_path / "rates.json"
    arguments = ["--device", "cpu", "--prompt", "96", "--k", "32", "--new-tokens", "2", "10", "--rounds", "3"]
    done = CliRunner().invoke(app, ["benchmark-generate", *arguments, "--json", str(file)])
    assert done.exit_code == 0, done.output
    assert "generate() on cpu, float32, 1 x 96 tokens" in done.output
    rates = json.loads(file.read_text())["rates"]
    assert [(rate["name"], rate["seconds_per_token"]["median"]) for rate in rates] == [("dense", 1.0), ("k=32", 1.0)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--device: expected one of cpu, cuda, npu, got nothing"),
        (["--device", "host-model"], "--device: expected one of cpu, cuda, npu, got 'host-model'"),
        (["--device", "cpu", "--dtype", "int8"], "--dtype: expected one of float16, bfloat16, float32, got 'int8'"),
        (["--device", "cpu", "--thresholds", "t.theta"], "--thresholds: expected the model they belong to"),
        (["--device", "cpu", "--model", "x"], "--thresholds: expected a file for --model, got none"),
        (["--device", "cpu", "--k", "100000"], "--k: expected"),
    ],
)
def test_wrong_options(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(app, ["benchmark-generate", "--prompt", "64", *arguments])
    assert isinstance(done.exception, TopThetaError)
    assert str(done.exception).startswith(message)
