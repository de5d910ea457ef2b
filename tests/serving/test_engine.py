"""What of an engine does not depend on its platform: refusals, versions, which layers stay dense."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from toptheta_npu._warnings import SDC_WITHOUT_VMC
from toptheta_npu.assets import TINY_LLAMA, load_tiny_llama_thresholds
from toptheta_npu.errors import TopThetaBackendError, TopThetaNotImplementedError, TopThetaValueError
from toptheta_npu.thresholds.uniform import UniformLookup
from toptheta_npu.vllm.engine import DENSE, EngineLayers, check_covered, has_window
from toptheta_npu.vllm.layers import LayerRule
from toptheta_npu.vllm.metrics import Metrics
from toptheta_npu.vllm.settings import Settings
from toptheta_npu.vllm.steps import Step
from toptheta_npu.vllm.versions import TRIED_ON_CPU, check_version

TABLE = TINY_LLAMA / "thresholds_pre_softmax.theta"


class FullAttentionSpec:
    pass


class MambaSpec:
    pass


def engine(metrics: Metrics | None = None, drafts: int = 0, **options: Any) -> EngineLayers:
    table, settings = load_tiny_llama_thresholds("pre_softmax"), Settings(TABLE, k=64, **options)
    return EngineLayers(settings, table.at(64, dense_below=settings.dense_below or 0), metrics, drafts)


def layer(sliding_window: object = None) -> Any:
    impl = SimpleNamespace(rule=None, num_heads=8, num_kv_heads=2, scale=0.1, sliding_window=sliding_window)
    return SimpleNamespace(impl=impl)


def test_layers_with_a_window_stay_dense_and_are_named(caplog: pytest.LogCaptureFixture) -> None:
    layers = {f"model.layers.{index}.attn": layer(128 if index in (0, 1, 3) else -1) for index in range(6)}
    with caplog.at_level(logging.INFO, "vllm.toptheta_npu"):
        engine(dense_layers=(5,)).give_rules(FullAttentionSpec(), layers)
    rules = [each.impl.rule for each in layers.values()]
    assert [rule is DENSE for rule in rules] == [True, True, False, True, False, True]
    assert isinstance(rules[2], LayerRule)
    assert rules[2].layer == 2
    assert rules[2].group is rules[4].group
    assert (rules[2].group.first, rules[2].group.last) == (2, 4)
    assert caplog.messages == [
        f"Top-Theta: layers 2, 4 decode by the thresholds of {TABLE}, k=64, sdc=exact, vmc=True; dense: layers 0-1, 3 "
        "(a sliding window), layers 5 (dense_layers), prompts (prefill=dense)"
    ]


def test_by_tau_nothing_is_calibrated_that_could_not_fit(caplog: pytest.LogCaptureFixture) -> None:
    settings = Settings(tau=0.001)
    made = EngineLayers(settings, UniformLookup(0.001, 6, 8).anywhere(), None, 0)
    with caplog.at_level(logging.INFO, "vllm.toptheta_npu"):
        made.give_rules(FullAttentionSpec(), {f"model.layers.{index}.attn": layer() for index in range(6)})
        made._warn(10**6)
    assert caplog.messages == [
        "Top-Theta: layers 0-5 decode by tau=0.001, sdc=exact, vmc=True; dense: prompts (prefill=dense)"
    ]


def test_a_tau_of_zero_keeps_all_and_warns_of_nothing(caplog: pytest.LogCaptureFixture) -> None:
    thresholds = UniformLookup(0, 6, 8).anywhere()
    assert thresholds.placement == "pre_softmax"
    assert all((theta == -torch.inf).all() for theta in thresholds.theta)
    made = EngineLayers(Settings(tau=0), thresholds, None, 0)
    with caplog.at_level(logging.INFO, "vllm.toptheta_npu"):
        layers = {f"model.layers.{index}.attn": layer() for index in range(6)}
        made.give_rules(FullAttentionSpec(), layers)
        made._warn(10**6)
    assert not any(each.impl.rule.vmc for each in layers.values())
    assert caplog.messages == [
        "Top-Theta: layers 0-5 decode by tau=0, sdc=exact, vmc=False; dense: prompts (prefill=dense)"
    ]


@pytest.mark.parametrize(
    ("window", "has"), [(None, False), (-1, False), ((-1, -1), False), (128, True), ((127, 0), True)]
)
def test_windows_are_known_in_all_their_forms(window: object, has: bool) -> None:
    assert has_window(window) is has


def test_another_backend_is_not_passed_over() -> None:
    stranger = SimpleNamespace(impl=SimpleNamespace())
    with pytest.raises(TopThetaBackendError, match=r"Top-Theta's backend in model\.layers\.0\.attn, got S"):
        engine().give_rules(FullAttentionSpec(), {"model.layers.0.attn": stranger})


def test_a_model_whose_layers_all_have_windows_is_refused() -> None:
    some = engine()
    layers = {f"model.layers.{index}.attn": layer(128) for index in range(6)}
    some.give_rules(FullAttentionSpec(), dict(list(layers.items())[:4]))  # a group of layers, or a pipeline stage
    with pytest.raises(
        TopThetaNotImplementedError,
        match=r"^layers: expected one that sees all tokens, got a sliding window in each of them; leave Top-Theta out$",
    ):
        some.give_rules(FullAttentionSpec(), dict(list(layers.items())[4:]))


def test_a_layer_beyond_the_table_is_refused() -> None:
    with pytest.raises(TopThetaValueError, match=r"model: expected layers 0 to \d+, got 32"):
        engine().give_rules(FullAttentionSpec(), {"model.layers.32.attn": layer()})


def test_a_cache_of_another_kind_is_refused() -> None:
    with pytest.raises(
        TopThetaNotImplementedError, match="kv_cache_spec: expected none of it with Top-Theta, got MambaS"
    ):
        engine().give_rules(MambaSpec(), {"model.layers.0.attn": layer()})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("alibi_slopes", True),
        ("kv_cache_dtype", "fp8"),
        ("kv_transfer_config", "LMCache"),
        ("speculative_config", "eagle"),
    ],
)
def test_what_is_not_covered_is_refused_by_name(name: str, value: object) -> None:
    got = "it" if value is True else value
    with pytest.raises(TopThetaNotImplementedError, match=f"^{name}: expected none of it with Top-Theta, got {got}; "):
        check_covered({"sinks": None, name: value})


def test_versions_that_were_not_tried_are_refused() -> None:
    check_version("vllm (cpu)", TRIED_ON_CPU, "0.32.0+cpu")
    with pytest.raises(
        TopThetaNotImplementedError,
        match=r"vllm \(cpu\): expected version 0\.32\.0, got 0\.33\.1; install such a",
    ):
        check_version("vllm (cpu)", TRIED_ON_CPU, "0.33.1")
    check_version("vllm (cpu)", TRIED_ON_CPU, "0.33.1", untried=True)


def test_tokens_are_counted_once_however_many_groups_see_a_step() -> None:
    metrics = Metrics(1000)
    counting = engine(metrics, drafts=2)
    step = Step.of(torch.tensor([0, 1, 4, 9, 10]), torch.tensor([5, 9, 9, 3]), torch.zeros(4, 1, dtype=torch.int32))
    for group in ("first", "second", "first"):
        counting.note(step, group)
    totals = metrics.totals()
    assert (totals.decode_tokens, totals.prompt_tokens, totals.draft_tokens) == (4, 10, 6)
    assert totals.thresholded_tokens == 0


def test_engines_of_two_threads_are_made_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """What they share in a process, names of counters and the table of engines, has one writer."""
    made, second = list[str](), threading.Barrier(2)

    def make(settings: Settings, config: Any, device: torch.device, draft_models: bool) -> EngineLayers:
        made.append("begins")
        with suppress(threading.BrokenBarrierError):
            second.wait(0.2)  # for another thread, if nothing holds it up
        second.reset()
        made.append("ends")
        return engine()

    monkeypatch.setattr(EngineLayers, "_make", make)
    arguments = Settings(TABLE, k=64), object(), torch.device("cpu")
    threads = [threading.Thread(target=EngineLayers.of, args=arguments) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == ["begins", "ends"] * 2


@pytest.mark.parametrize(
    ("options", "below", "dense"),
    [
        ({"dense_below": 300}, 300, "rows of fewer than 300 keys (dense_below), prompts (prefill=dense)"),
        ({"prefill": "thresholded"}, 0, "nothing"),
        ({"drafts": 15}, 0, "prompts (prefill=dense)"),
        (
            {"drafts": 16},
            0,
            "prompts (prefill=dense), drafts of sequences with more than 16 new tokens (the operator "
            "takes 16 tokens of a sequence)",
        ),
        ({"dense_below": 300, "prefill": "thresholded"}, 0, "rows of fewer than 300 keys (dense_below)"),
    ],
)
def test_one_line_says_what_is_sparse_and_what_is_not(
    options: dict[str, Any], below: int, dense: str, caplog: pytest.LogCaptureFixture
) -> None:
    told = engine(**options)
    with caplog.at_level(logging.INFO, "vllm.toptheta_npu"):
        told.give_rules(FullAttentionSpec(), {f"model.layers.{index}.attn": layer() for index in range(6)})
    [line] = caplog.messages
    assert line.startswith(f"Top-Theta: layers 0-5 decode by the thresholds of {TABLE}, k=64, ")
    assert line.endswith(f"; dense: {dense}")
    assert told.dense_below == below


def test_tokens_of_steps_of_short_rows_are_counted_by_themselves() -> None:
    metrics = Metrics(1000)
    counting = engine(metrics, drafts=2, dense_below=10)
    pages = torch.zeros(3, 1, dtype=torch.int32)
    for lengths in ([5, 9, 9], [5, 9, 10]):
        step = Step.of(torch.tensor([0, 1, 4, 5]), torch.tensor(lengths), pages, counting.dense_below)
        counting.note(step, "group")
    totals = metrics.totals()
    assert (totals.short_tokens, totals.decode_tokens, totals.draft_tokens, totals.prompt_tokens) == (2, 2, 6, 0)
    assert "; 2 decoded densely in steps of short rows" in str(totals)


def test_importing_the_plug_in_does_not_import_vllm() -> None:
    import subprocess
    import sys

    code = "import sys, toptheta_npu.vllm.engine; assert not {'vllm', 'transformers'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parent)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("settings", "warns"), [({"vmc": False}, True), ({}, False), ({"vmc": False, "sdc": "none"}, False)]
)
def test_exact_sdc_without_vmc_is_warned_of(
    settings: dict[str, Any], warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "vllm.toptheta_npu"):
        engine(**settings)._warn(128)
    assert [message.endswith(SDC_WITHOUT_VMC) for message in caplog.messages] == [True] * warns
