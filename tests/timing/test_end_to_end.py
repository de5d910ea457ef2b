"""Decode steps of generate(): what is timed, and what the command says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

pytest.importorskip("transformers")

from transformers import DynamicCache

from toptheta_npu.assets import TINY_LLAMA, load_tiny_llama, load_tiny_llama_thresholds
from toptheta_npu.cli import app
from toptheta_npu.errors import TopThetaError, TopThetaValueError
from toptheta_npu.models import GrowingCache, Int8Cache, calibrate_cache_scales
from toptheta_npu.models.caches.naming import CACHE_ARGUMENT
from toptheta_npu.models.sparse import threshold_rule
from toptheta_npu.timing import end_to_end
from toptheta_npu.timing.clocks import Timing


def spend(clock: SimpleNamespace, target: Any, name: str, ticks: float, monkeypatch: pytest.MonkeyPatch) -> None:
    original = getattr(target, name)

    def timed(*arguments: Any, **options: Any) -> Any:
        clock.now += ticks
        return original(*arguments, **options)

    monkeypatch.setattr(target, name, timed)


def prompt(model: Any, batch: int = 1) -> torch.Tensor:
    made = torch.Generator().manual_seed(0)
    return torch.randint(model.config.vocab_size, (batch, 100), generator=made)


def test_a_step_takes_what_its_attention_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time passes in attention alone: a tick for a dense layer, and half of one for a layer of ours."""
    (model, _), clock = load_tiny_llama(), SimpleNamespace(now=0.0)
    spend(clock, torch.nn.functional, "scaled_dot_product_attention", 1.0, monkeypatch)
    spend(clock, threshold_rule, "incremental_attention", 0.5, monkeypatch)
    chosen = end_to_end.variants(model, load_tiny_llama_thresholds(), ks=[32, 64])
    rates = end_to_end.compare(model, chosen, prompt(model, 2), new_tokens=4, rounds=3, clock=lambda: clock.now)
    layers = model.config.num_hidden_layers
    found = {rate.name: tuple(rate.seconds) for rate in rates}
    whole, half = (float(layers),) * 3, (layers / 2,) * 3
    names = ("dense", "dense, GrowingCache", "θ=-inf", "k=32", "k=64")
    assert found == dict(zip(names, (whole, whole, half, half, half), strict=True))
    assert rates[-1].tokens_per_second == pytest.approx(2 / layers)


def test_int8_is_generated_with_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kind of scales, from the same prompt and with as many new tokens; the operator gets numbers, not rows."""
    model, _ = load_tiny_llama()
    table, ids = load_tiny_llama_thresholds("post_softmax"), prompt(model)
    generate, caches, operator, read = model.generate, [], threshold_rule.incremental_attention, set()

    def watched(tokens: torch.Tensor, **options: Any) -> Any:
        caches.append(options[CACHE_ARGUMENT])
        return generate(tokens, **options)

    def seen(query: torch.Tensor, key: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        read.add((key.dtype, options.get("key_antiquant_mode", 0)))
        return operator(query, key, *arguments, **options)

    monkeypatch.setattr(model, "generate", watched)
    monkeypatch.setattr(threshold_rule, "incremental_attention", seen)
    for scaled, mode in ((table, 3), (calibrate_cache_scales(model, table, ids), 0)):
        caches.clear(), read.clear()
        chosen = end_to_end.variants(model, scaled, ks=[32], int8=True)
        rates = end_to_end.compare(model, chosen, ids, new_tokens=3, rounds=1)
        names = [rate.name for rate in rates]
        assert names == ["dense", "dense, GrowingCache", "θ=-inf", "k=32", "θ=-inf, Int8Cache", "k=32, Int8Cache"]
        assert [type(cache) for cache in caches[-6:]] == [DynamicCache, *[GrowingCache] * 3, *[Int8Cache] * 2]
        assert {cache.get_seq_length() for cache in caches[-6:]} == {99 + 3}
        assert {each for each in read if each[0] is torch.int8} == {(torch.int8, mode)}


@pytest.mark.parametrize("given", [{"new_tokens": 1}, {"rounds": 0}, {"tokens": torch.zeros(1, 1).long()}])
def test_wrong_use(given: dict[str, Any]) -> None:
    model, _ = load_tiny_llama()
    options = {"tokens": prompt(model), **given}
    with pytest.raises(TopThetaValueError, match=r"^(new_tokens|rounds|tokens): expected"):
        end_to_end.compare(model, end_to_end.variants(model, None), **options)


def test_table_and_json() -> None:
    rates = [
        end_to_end.Rate("dense", Timing(0.2, 0.1, 0.3)),
        end_to_end.Rate("k=64", Timing(0.1, 0.1, 0.1)),
    ]
    cells = list(end_to_end.as_table(rates, "").columns[4].cells)
    assert cells == ["1.00", "2.00"]
    assert end_to_end.as_json(rates)[0]["seconds_per_token"] == {"median": 0.2, "p10": 0.1, "p90": 0.3}


def test_command_with_the_embedded_model(tmp_path: Path) -> None:
    file = tmp_path / "rates.json"
    arguments = ["--device", "cpu", "--prompt", "96", "--k", "32", "--new-tokens", "3", "--rounds", "2"]
    done = CliRunner().invoke(app, ["benchmark-generate", *arguments, "--json", str(file)])
    assert done.exit_code == 0, done.output
    assert "generate() on cpu, float32, 1 x 96 tokens" in done.output
    rates = json.loads(file.read_text())["rates"]
    assert [rate["name"] for rate in rates] == ["dense", "dense, GrowingCache", "θ=-inf", "k=32"]
    assert all(rate["seconds_per_token"]["median"] > 0 for rate in rates)


def test_command_by_tau_needs_no_thresholds() -> None:
    arguments = ["--device", "cpu", "--model", str(TINY_LLAMA), "--prompt", "64", "--new-tokens", "2", "--rounds", "1"]
    done = CliRunner().invoke(app, ["benchmark-generate", *arguments, "--tau", "0.01", "--tau", "0.001"])
    assert done.exit_code == 0, done.output
    shown = [line.split("│")[1].strip() for line in done.output.splitlines() if "│" in line]
    assert shown == ["dense", "dense, GrowingCache", "tau=0.01", "tau=0.001"]


def test_command_with_an_int8_cache() -> None:
    arguments = ["--device", "cpu", "--prompt", "64", "--k", "32", "--new-tokens", "2", "--rounds", "1"]
    done = CliRunner().invoke(app, ["benchmark-generate", *arguments, "--kv-cache", "int8"])
    assert done.exit_code == 0, done.output
    shown = " ".join(done.output.split())
    assert "1 x 64 tokens before the first new one; int8 with a scale per row" in shown
    for name in ("θ=-inf, Int8Cache", "k=32, Int8Cache"):
        assert re.search(rf"{name} │ [\d.]+ │", shown)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--device: expected one of cpu, cuda, npu, got nothing"),
        (["--device", "host-model"], "--device: expected one of cpu, cuda, npu, got 'host-model'"),
        (["--device", "cpu", "--dtype", "int8"], "--dtype: expected one of float16, bfloat16, float32, got 'int8'"),
        (["--device", "cpu", "--kv-cache", "int4"], "--kv-cache: expected one of auto, int8, got 'int4'"),
        (["--device", "cpu", "--thresholds", "t.theta"], "--thresholds needs --model; name the model"),
        (["--device", "cpu", "--model", "x"], "--model needs --tau or --thresholds; time it by --tau 0.0005, or cal"),
        (["--device", "cpu", "--model", "x", "--tau", "0.01", "--k", "9"], "--k needs --thresholds; leave it out, or"),
        (["--device", "cpu", "--tau", "2"], "--tau: expected a probability above 0 and below 1, got 2"),
        (["--device", "cpu", "--k", "100000"], "--k: expected"),
        (["--device", "cpu", "--new-tokens", "9999"], "--new-tokens: expected at most 4096 tokens with the prompt, for "
         "which the model is made, got 64 and 9999 new ones; lower it or --prompt"),
    ],
)  # fmt: skip
def test_wrong_options(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(app, ["benchmark-generate", "--prompt", "64", *arguments])
    assert isinstance(done.exception, TopThetaError)
    assert str(done.exception).startswith(message)
