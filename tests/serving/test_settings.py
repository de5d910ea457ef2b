"""The plug-in's settings: where they come from, and what is said of wrong ones."""

from __future__ import annotations

import inspect
import json
import math
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest

from toptheta_npu.errors import TopThetaTypeError, TopThetaValueError
from toptheta_npu.models import sparsify
from toptheta_npu.thresholds.targets import DEFAULT_K
from toptheta_npu.vllm.settings import BREAK_EVEN, Settings, is_configured, read_settings


@pytest.mark.parametrize("config", [None, {}, {"enable_cpu_binding": True}, {"top_theta": None}, "of another kind"])
def test_nothing_is_asked_for_without_settings(config: object) -> None:
    assert read_settings(config) is None
    assert not is_configured(config)


def test_wrong_settings_are_a_request_too() -> None:
    assert is_configured({"top_theta": {"k": 64}})


@pytest.mark.parametrize("key", ["toptheta", "TopTheta", "top-theta"])
@pytest.mark.parametrize("read", [read_settings, is_configured])
def test_a_key_that_is_written_in_another_way_is_refused(read: Callable[[object], object], key: str) -> None:
    message = f"^additional_config: expected the key 'top_theta', got '{key}'; write it so$"
    with pytest.raises(TopThetaValueError, match=message):
        read({key: {"tau": 0.001}})


def test_short_rows_are_dense_where_thresholds_would_not_be_faster() -> None:
    measured = Settings(Path("a"))
    assert (measured.dense_below_on("cpu"), measured.dense_below_on("npu")) == (BREAK_EVEN["cpu"], 0)
    chosen = Settings(Path("a"), dense_below=7)
    assert (chosen.dense_below_on("cpu"), chosen.dense_below_on("npu")) == (7, 7)


def test_settings_have_the_types_of_json() -> None:
    text = (
        '{"table": "1.theta", "k": 96, "vmc": false, "dense_layers": [3, 0, 3], "log_interval": 5, '
        '"prefill": "thresholded"}'
    )
    assert read_settings({"top_theta": json.loads(text)}) == Settings(
        table=Path("1.theta"), k=96, vmc=False, dense_layers=(0, 3), log_interval=5.0,
        prefill="thresholded",
    )  # fmt: skip


def test_tau_is_asked_for_without_a_table() -> None:
    settings = read_settings({"top_theta": {"tau": 0.001, "k": None}})
    assert settings == Settings(tau=0.001)
    assert (settings.k, settings.rule) == (None, "tau=0.001")


def test_defaults_are_those_of_sparsify() -> None:
    signature = inspect.signature(sparsify).parameters
    shared = [each for each in fields(Settings) if each.name in signature]
    assert {"k", "vmc", "sdc", "sdc_gamma", "prefill", "dense_below"} <= {each.name for each in shared}
    # a server is to be fast; `sparsify` is also what losses are measured with, on short rows, too
    shared.remove(next(each for each in shared if each.name == "dense_below"))
    assert {each.name: each.default for each in shared} == {each.name: signature[each.name].default for each in shared}


def test_vmc_has_to_be_off_where_there_is_no_mass_to_give_back() -> None:
    with pytest.raises(TopThetaValueError, match=r"^vmc excludes sdc=.none."):
        read_settings({"top_theta": {"table": "a", "sdc": "none"}})
    assert read_settings({"top_theta": {"table": "a", "sdc": "none", "vmc": False}}) is not None


def test_k_is_that_of_sparsify_unless_another_is_asked_for() -> None:
    assert Settings(Path("a")).k == DEFAULT_K
    assert Settings(Path("a"), k=64).rule == "the thresholds of a, k=64"


@pytest.mark.parametrize(
    ("section", "error", "message"),
    [
        ({"k": 64}, TopThetaValueError, "tau: expected a probability, or table in its place, since Top-Theta is "
         'configured, got neither; such as {"top_theta": {"tau": 0.0005}}; without \'top_theta\', vLLM stays as it is'),
        ({"tau": 0.001, "table": "a"}, TopThetaValueError, "tau excludes table; leave one of them out"),
        ({"tau": 0.001, "k": 64}, TopThetaValueError, "tau excludes k; leave one of them out"),
        ({"tau": 0.001, "lookup": "fitted"}, TopThetaValueError, "tau excludes lookup; leave one of them out"),
        ({"tau": 0.001, "max_length": 512}, TopThetaValueError, "tau excludes max_length; leave one of them out"),
        ({"tau": 0.001, "sdc": "offline"}, TopThetaValueError,
         "sdc='offline' needs a table; use sdc='exact', or name a table"),
        ({"tau": 0.001, "sdc": "exp_threshold"}, TopThetaValueError,
         "sdc='exp_threshold' needs placement='pre_softmax'; post-softmax the denominator is exact by construction: "
         "use sdc='exact'"),
        ({"table": "a", "lse": "sampled"}, TopThetaValueError, "lse='sampled' needs tau; leave it out with a table"),
        ({"tau": 1}, TopThetaValueError, "tau: expected a probability from 0 to below 1, got 1.0; such as 0.001"),
        ({"tau": math.nan}, TopThetaTypeError, "tau: expected a number, got nan"),
        ({"tau": "0.001"}, TopThetaTypeError,
         "additional_config['top_theta']['tau']: expected a number, got '0.001'"),
        ({"table": "a", "dense_layers": "0,1"}, TopThetaTypeError,
         "additional_config['top_theta']['dense_layers']: expected a whole number, or a list of whole numbers, got "
         "'0,1'"),
        ({"table": "a", "kk": 64}, TopThetaValueError,
         "additional_config['top_theta']['kk']: expected the name of a setting, got another; did you mean k?"),
        ({"table": "a", "k": "64"}, TopThetaTypeError,
         "additional_config['top_theta']['k']: expected a whole number, got '64'"),
        ({"table": "a", "sdc": "exat"}, TopThetaTypeError,
         "additional_config['top_theta']['sdc']: expected one of none, exact, exp_threshold, offline, got 'exat'"),
        ({"table": "a", "sdc": "none", "vmc": True}, TopThetaValueError,
         "vmc excludes sdc='none', which leaves no mass to give back; use sdc='exact', or leave it out"),
        ({"table": "a", "sdc_gamma": -1}, TopThetaValueError, "sdc_gamma: expected a finite number >= 0, got -1.0"),
        ({"table": "a", "dense_layers": [-1]}, TopThetaValueError,
         "dense_layers: expected indices of layers from 0 on, got -1"),
        ({"table": "a", "log_interval": 0}, TopThetaValueError, "log_interval: expected seconds above 0, got 0.0"),
        ({}, TopThetaValueError,
         "additional_config['top_theta']: expected settings, got an empty mapping; set tau, or leave it out"),
        ("a.theta", TopThetaTypeError,
         "additional_config['top_theta']: expected a mapping of settings, got 'a.theta'; "
         'such as {"top_theta": {"tau": 0.0005}}'),
    ],
)  # fmt: skip
def test_wrong_settings_are_named(section: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        read_settings({"top_theta": section})
