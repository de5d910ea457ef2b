"""Decode steps of generate(): what is timed, and what the command says."""

from __future__ import annotations

import copy
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
    names = ("dense", "dense, GrowingCache", "same kernel, all of V", "k=32", "k=64")
    assert found == dict(zip(names, (whole, whole, half, half, half), strict=True))
    assert rates[-1].tokens_per_second == pytest.approx(2 / layers)
    # all of the gain is the kernel's, as thresholds save no ticks here
    assert end_to_end.gains(rates, chosen) == {"k=32": (2, 2, 1), "k=64": (2, 2, 1)}


def test_all_of_v_is_read_without_a_threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    """The row "same kernel, all of V" gives every step what dense attention gives, by the operator."""
    model, _ = load_tiny_llama()
    ids, calls = prompt(model), []
    operator = threshold_rule.incremental_attention

    def seen(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any, **options: Any) -> Any:
        out = operator(query, key, value, *rest, **options)
        dense = torch.nn.functional.scaled_dot_product_attention(query, key, value, enable_gqa=True)
        calls.append((out - dense).abs().max().item())
        return out

    monkeypatch.setattr(threshold_rule, "incremental_attention", seen)
    chosen = end_to_end.variants(model, None)
    end_to_end.compare(model, chosen, ids, new_tokens=2, rounds=1)
    assert list(chosen) == ["dense", "dense, GrowingCache", "same kernel, all of V"]
    assert calls
    assert max(calls) < 1e-5


def test_dense_attention_in_the_other_dtype_is_measured_by_that_model(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = load_tiny_llama()
    other = copy.deepcopy(model).to(torch.bfloat16)
    generated = []
    for each in (model, other):
        generate = each.generate

        def watched(*arguments: Any, generate: Any = generate, **options: Any) -> Any:
            generated.append((generate.__self__.dtype, type(options[CACHE_ARGUMENT])))
            return generate(*arguments, **options)

        monkeypatch.setattr(each, "generate", watched)
    chosen = end_to_end.variants(model, None, taus=[0.01], others=[other])
    names = ["dense", "dense, bfloat16", "dense, GrowingCache", "same kernel, all of V", "tau=0.01"]
    rates = end_to_end.compare(model, chosen, prompt(model), new_tokens=2, rounds=1)
    assert [rate.name for rate in rates] == names
    own = torch.float32
    assert generated[-5:] == [
        (own, DynamicCache), (torch.bfloat16, DynamicCache), *[(own, GrowingCache)] * 3,
    ]  # fmt: skip


def test_the_gain_is_over_the_better_dense_row_and_split() -> None:
    model, other = object(), SimpleNamespace(dtype=torch.bfloat16)
    chosen = end_to_end.variants(model, None, taus=[0.001], others=[other])
    seconds = {"dense": 0.6, "dense, bfloat16": 0.3, "dense, GrowingCache": 0.2}
    seconds |= {"same kernel, all of V": 0.15, "tau=0.001": 0.1}
    rates = [end_to_end.Rate(name, Timing(value, value, value)) for name, value in seconds.items()]
    # the cache of this package is no part of the model as it is, so the better dense row is that of 0.3 s
    assert end_to_end.best_dense(rates, chosen).name == "dense, bfloat16"
    split = end_to_end.gains(rates, chosen)
    assert split == {"tau=0.001": pytest.approx((3.0, 2.0, 1.5))}
    assert end_to_end.conclusions(split) == ["tau=0.001: 3.00x = 2.00x by the kernel x 1.50x by the threshold."]
    table = end_to_end.as_table(rates, chosen, "")
    assert [row[4:] for row in table.rows] == [
        ("0.50", "", ""), ("1.00", "", ""), ("1.50", "", ""), ("2.00", "", ""), ("3.00", "2.00", "1.50")
    ]  # fmt: skip
    assert "'dense, bfloat16'" in table.caption
    stored = end_to_end.as_json(rates, chosen)
    assert stored["best_dense"] == "dense, bfloat16"
    assert stored["gains"]["tau=0.001"]["kernel"] == pytest.approx(2.0)


def test_a_threshold_that_gains_nothing_is_told() -> None:
    (line,) = end_to_end.conclusions({"tau=0.001": end_to_end.Gain(1.40, 1.45, 0.97)})
    assert line == (
        "tau=0.001: 1.40x = 1.45x by the kernel x 0.97x by the threshold. The threshold gains next to nothing here; "
        "tau=0 loses no accuracy."
    )
    (line,) = end_to_end.conclusions({"k=64": end_to_end.Gain(0.72, 0.8, 0.9)})
    assert line.endswith("0.90x by the threshold. Dense attention is faster here.")


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
        whole = "same kernel, all of V"
        assert names == ["dense", "dense, GrowingCache", whole, "k=32", f"{whole}, Int8Cache", "k=32, Int8Cache"]
        assert chosen["k=32, Int8Cache"].kernel == f"{whole}, Int8Cache"
        assert [type(cache) for cache in caches[-6:]] == [DynamicCache, *[GrowingCache] * 3, *[Int8Cache] * 2]
        assert {cache.get_seq_length() for cache in caches[-6:]} == {99 + 3}
        assert {each for each in read if each[0] is torch.int8} == {(torch.int8, mode)}


@pytest.mark.parametrize("given", [{"new_tokens": 1}, {"rounds": 0}, {"tokens": torch.zeros(1, 1).long()}])
def test_wrong_use(given: dict[str, Any]) -> None:
    model, _ = load_tiny_llama()
    options = {"tokens": prompt(model), **given}
    with pytest.raises(TopThetaValueError, match=r"^(new_tokens|rounds|tokens): expected"):
        end_to_end.compare(model, end_to_end.variants(model, None), **options)


def test_command_with_the_embedded_model(tmp_path: Path) -> None:
    file = tmp_path / "rates.json"
    arguments = ["--device", "cpu", "--prompt", "96", "--k", "32", "--new-tokens", "3", "--rounds", "2"]
    done = CliRunner().invoke(app, ["benchmark-generate", *arguments, "--json", str(file)])
    assert done.exit_code == 0, done.output
    assert "generate() on cpu, float32, 1 x 96 tokens" in done.output
    stored = json.loads(file.read_text())
    names = ["dense", "dense, bfloat16", "dense, GrowingCache", "same kernel, all of V", "k=32"]
    assert [rate["name"] for rate in stored["rates"]] == names
    assert all(rate["seconds_per_token"]["median"] > 0 for rate in stored["rates"])
    assert stored["best_dense"] in ("dense", "dense, bfloat16")
    gain = stored["gains"]["k=32"]
    assert gain["total"] == pytest.approx(gain["kernel"] * gain["threshold"])
    assert re.search(r"k=32: [\d.]+x = [\d.]+x by the kernel x [\d.]+x by the threshold\.", done.output)


def test_command_by_tau_needs_no_thresholds() -> None:
    arguments = ["--device", "cpu", "--model", str(TINY_LLAMA), "--prompt", "64", "--new-tokens", "2", "--rounds", "1"]
    taus = ["--tau", "0.01", "--tau", "0.001", "--tau", "0"]
    done = CliRunner().invoke(app, ["benchmark-generate", *arguments, *taus, "--no-other-dtype"])
    assert done.exit_code == 0, done.output
    # the folder holds bfloat16, and that is what is timed
    assert "generate() on cpu, bfloat16, 1 x 64 tokens" in done.output
    rows = [name for name in ROWS if re.search(rf"^ +{re.escape(name)} +[\d.]+ +[\d.]+ ", done.output, re.MULTILINE)]
    assert rows == ["dense", "dense, GrowingCache", "same kernel, all of V", "tau=0.01", "tau=0.001"]


ROWS = (
    "dense", "dense, float32", "dense, bfloat16", "dense, GrowingCache", "same kernel, all of V", "tau=0.01",
    "tau=0.001", "tau=0",
)  # fmt: skip


def test_command_with_an_int8_cache() -> None:
    arguments = ["--device", "cpu", "--prompt", "64", "--k", "32", "--new-tokens", "2", "--rounds", "1"]
    done = CliRunner().invoke(app, ["benchmark-generate", *arguments, "--kv-cache", "int8"])
    assert done.exit_code == 0, done.output
    shown = " ".join(done.output.split())
    assert "1 x 64 tokens before the first new one; int8 with a scale per row" in shown
    for name in ("same kernel, all of V, Int8Cache", "k=32, Int8Cache"):
        assert re.search(rf"{name} [\d.]+ [\d.]+ ", shown)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--device: expected one of cpu, cuda, npu, got nothing"),
        (["--device", "host-model"], "--device: expected one of cpu, cuda, npu, got 'host-model'"),
        (["--device", "cpu", "--dtype", "int8"], "--dtype: expected one of auto, float32, bfloat16, float16, got"),
        (["--device", "cpu", "--kv-cache", "int4"], "--kv-cache: expected one of auto, int8, got 'int4'"),
        (["--device", "cpu", "--thresholds", "t.theta"], "--thresholds needs --model; name the model"),
        (["--device", "cpu", "--model", "x"], "--model needs --tau or --thresholds; add --tau 0.0005, or cal"),
        (["--device", "cpu", "--model", "x", "--tau", "0.01", "--k", "9"], "--k needs --thresholds; leave it out, or"),
        (["--device", "cpu", "--tau", "2"], "--tau: expected a probability from 0 to below 1, got 2"),
        (["--device", "cpu", "--k", "100000"], "--k: expected"),
        (["--device", "cpu", "--prompt", "9999"], "--prompt: expected at most 4094 tokens, since the model has 4096 "
         "positions and 2 tokens are new, got 9999; lower it"),
        (["--device", "cpu", "--batch", "99999"], "--batch: expected at most "),
        (["--device", "cpu", "--new-tokens", "9999"], "--new-tokens: expected at most 4096 tokens with the prompt, for "
         "which the model is made, got 64 and 9999 new ones; lower it or --prompt"),
    ],
)  # fmt: skip
def test_wrong_options(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(app, ["benchmark-generate", "--prompt", "64", *arguments])
    assert isinstance(done.exception, TopThetaError)
    assert str(done.exception).startswith(message)
