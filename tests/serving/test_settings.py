"""The plug-in's settings: where they come from, and what is said of wrong ones."""

from __future__ import annotations

import inspect
import logging
import re
from dataclasses import fields
from pathlib import Path

import pytest

from toptheta_npu.errors import TopThetaTypeError, TopThetaValueError
from toptheta_npu.models import sparsify
from toptheta_npu.thresholds.targets import DEFAULT_K
from toptheta_npu.vllm.settings import BREAK_EVEN, Settings, is_configured, read_settings


def test_nothing_is_asked_for_without_settings() -> None:
    assert read_settings(None, {}) is None
    assert read_settings({"other": 1}, {"TOPTHETA_BACKEND": "auto", "TOPTHETA_VLLM_K": ""}) is None
    assert not is_configured({}, {"TOPTHETA_CACHE": "/tmp"})
    assert is_configured({}, {"TOPTHETA_VLLM_TABLE": "a.theta"})
    assert is_configured({}, {"TOPTHETA_VLLM_TAU": "0.001"})
    assert is_configured({"toptheta": {"k": 64}}, {})


def test_variables_without_a_table_change_nothing_and_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    environment = {"TOPTHETA_VLLM_K": "64", "TOPTHETA_VLLM_TABEL": "a.theta"}
    with caplog.at_level(logging.WARNING, "vllm.toptheta_npu"):
        assert not is_configured({}, environment)
        assert [read_settings({}, environment) for _ in range(2)] == [None, None]
    assert caplog.messages == [
        "Top-Theta: TOPTHETA_VLLM_K, TOPTHETA_VLLM_TABEL without TOPTHETA_VLLM_TAU or TOPTHETA_VLLM_TABLE: vLLM stays "
        "as it is; set one of these, or unset them"
    ]


def test_short_rows_are_dense_where_thresholds_would_not_be_faster() -> None:
    measured = Settings(Path("a"))
    assert (measured.dense_below_on("cpu"), measured.dense_below_on("npu")) == (BREAK_EVEN["cpu"], 0)
    chosen = Settings(Path("a"), dense_below=7)
    assert (chosen.dense_below_on("cpu"), chosen.dense_below_on("npu")) == (7, 7)


def test_environment_variables_have_the_types_of_the_settings() -> None:
    environment = {
        "TOPTHETA_VLLM_TABLE": "1.theta",
        "TOPTHETA_VLLM_TARGET_KEPT": "0.125",
        "TOPTHETA_VLLM_VMC": "false",
        "TOPTHETA_VLLM_DENSE_LAYERS": "3,0, 3",
        "TOPTHETA_VLLM_LOG_INTERVAL": "5",
        "TOPTHETA_VLLM_PREFILL": "thresholded",
    }
    assert read_settings({}, environment) == Settings(
        table=Path("1.theta"),
        target_kept=0.125,
        vmc=False,
        dense_layers=(0, 3),
        log_interval=5.0,
        prefill="thresholded",
    )


@pytest.mark.parametrize("text", ["0.001", "1e-3", "1.0e-3"])
def test_tau_is_asked_for_without_a_table(text: str) -> None:
    assert read_settings({}, {"TOPTHETA_VLLM_TAU": text}) == Settings(tau=0.001)
    assert (Settings(tau=0.001).aim, Settings(tau=0.001).rule) == ({}, "tau=0.001")


def test_the_configuration_wins_over_the_environment() -> None:
    environment = {"TOPTHETA_VLLM_TABLE": "a.theta", "TOPTHETA_VLLM_K": "64"}
    settings = read_settings({"toptheta": {"k": 32, "dense_layers": [1]}}, environment)
    assert settings == Settings(table=Path("a.theta"), k=32, dense_layers=(1,))


def test_defaults_are_those_of_sparsify() -> None:
    signature = inspect.signature(sparsify).parameters
    shared = [each for each in fields(Settings) if each.name in signature]
    assert {"k", "vmc", "sdc", "sdc_gamma", "prefill", "dense_below"} <= {each.name for each in shared}
    # a server is to be fast; `sparsify` is also what losses are measured with, on short rows, too
    shared.remove(next(each for each in shared if each.name == "dense_below"))
    assert {each.name: each.default for each in shared} == {each.name: signature[each.name].default for each in shared}


def test_vmc_has_to_be_off_where_there_is_no_mass_to_give_back() -> None:
    with pytest.raises(TopThetaValueError, match=r"^vmc excludes sdc=.none."):
        read_settings({"toptheta": {"table": "a", "sdc": "none"}}, {})
    assert read_settings({"toptheta": {"table": "a", "sdc": "none", "vmc": False}}, {}) is not None


def test_k_is_that_of_sparsify_unless_something_else_is_asked_for() -> None:
    assert Settings(Path("a")).k == DEFAULT_K
    assert Settings(Path("a"), target_kept=0.1).k is None
    assert Settings(Path("a"), target_kept=0.1).aim == {"target_kept": 0.1}


@pytest.mark.parametrize(
    ("section", "environment", "error", "message"),
    [
        ({"k": 64}, {}, TopThetaValueError, "tau: expected a probability, or table in its place, since Top-Theta is "
         "configured, got neither; set TOPTHETA_VLLM_TAU=0.0005, for example, or TOPTHETA_VLLM_TABLE=FILE, or leave "
         "all of its settings out"),
        ({"tau": 0.001, "table": "a"}, {}, TopThetaValueError, "tau excludes table; leave one of them out"),
        ({"tau": 0.001, "k": 64}, {}, TopThetaValueError, "tau excludes k; leave one of them out"),
        ({"tau": 0.001, "extrapolation": "fitted"}, {}, TopThetaValueError,
         "tau excludes extrapolation; leave one of them out"),
        ({"tau": 0.001, "max_length": 512}, {}, TopThetaValueError, "tau excludes max_length; leave one of them out"),
        ({"tau": 0.001, "sdc": "offline"}, {}, TopThetaValueError,
         "sdc='offline' needs a table; use sdc='exact', or name a table"),
        ({"tau": 0.001, "sdc": "exp_threshold"}, {}, TopThetaValueError,
         "sdc='exp_threshold' needs placement='pre_softmax'; post-softmax the denominator is exact by construction: "
         "use sdc='exact'"),
        ({"tau": 1}, {}, TopThetaValueError, "tau: expected a probability above 0 and below 1, got 1.0; such as 0.001"),
        (None, {"TOPTHETA_VLLM_TAU": "nan"}, TopThetaTypeError, "tau: expected a number, got nan"),
        (None, {"TOPTHETA_VLLM_TAU": "small"}, TopThetaTypeError,
         "TOPTHETA_VLLM_TAU: expected a number, got 'small'"),
        ({"table": "a", "kk": 64}, {}, TopThetaValueError,
         "additional_config['toptheta']['kk']: expected the name of a setting, got another; did you mean k?"),
        ({"table": "a", "k": "64"}, {}, TopThetaTypeError,
         "additional_config['toptheta']['k']: expected a whole number, got '64'"),
        ({"table": "a", "k": 64, "target_kept": 0.1}, {}, TopThetaValueError,
         "k=64 excludes target_kept=0.1; leave one of them out"),
        ({"table": "a", "sdc": "exat"}, {}, TopThetaTypeError,
         "additional_config['toptheta']['sdc']: expected one of none, exact, exp_threshold, offline, got 'exat'"),
        ({"table": "a", "sdc": "none", "vmc": True}, {}, TopThetaValueError,
         "vmc excludes sdc='none', which leaves no mass to give back; use sdc='exact', or leave it out"),
        ({"table": "a", "sdc_gamma": -1}, {}, TopThetaValueError, "sdc_gamma: expected a finite number >= 0, got -1.0"),
        ({"table": "a", "dense_layers": [-1]}, {}, TopThetaValueError,
         "dense_layers: expected indices of layers from 0 on, got -1"),
        ({"table": "a", "log_interval": 0}, {}, TopThetaValueError, "log_interval: expected seconds above 0, got 0.0"),
        ({}, {}, TopThetaValueError,
         "additional_config['toptheta']: expected settings, got an empty mapping; set tau, or leave it out"),
        ("a.theta", {}, TopThetaTypeError,
         "additional_config['toptheta']: expected a mapping of settings, got 'a.theta'; "
         'such as {"toptheta": {"tau": 0.0005}}'),
        ({"table": "a"}, {"TOPTHETA_VLLM_TABEL": "a"}, TopThetaValueError,
         "TOPTHETA_VLLM_TABEL: expected the name of a setting, got another; did you mean table?"),
        (None, {"TOPTHETA_VLLM_TABLE": "a", "TOPTHETA_VLLM_K": "many"}, TopThetaTypeError,
         "TOPTHETA_VLLM_K: expected a whole number, got 'many'"),
        (None, {"TOPTHETA_VLLM_TABLE": "a", "TOPTHETA_VLLM_DENSE_LAYERS": "0;1"}, TopThetaTypeError,
         "TOPTHETA_VLLM_DENSE_LAYERS: expected a whole number, or a list of whole numbers, got ['0;1']"),
    ],
)  # fmt: skip
def test_wrong_settings_are_named(
    section: object, environment: dict[str, str], error: type[Exception], message: str
) -> None:
    config = None if section is None else {"toptheta": section}
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        read_settings(config, environment)
