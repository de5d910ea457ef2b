"""Choosing what the operators run, and what a call with NPU tensors then does, on a machine without an NPU."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import Tensor

import toptheta_npu
from tests.cases import valid_arguments
from tests.op_packages import forget_choices
from toptheta_npu import TopThetaBackendError, TopThetaNotImplementedError, TopThetaTypeError, TopThetaValueError
from toptheta_npu._backends import BACKENDS, SELECTORS, VARIABLE
from toptheta_npu.fallback import Arguments
from toptheta_npu.npu import loading
from toptheta_npu.npu.backend import NPU_SELECTOR, NpuSelector
from toptheta_npu.ops import SCHEMAS, registration
from toptheta_npu.ops.limits import check_limits


@pytest.fixture(autouse=True)
def no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_choices(monkeypatch)


def chosen() -> dict[str, str]:
    """What holds now, by device."""
    return {device: selector.backend for device, selector in SELECTORS.items()}


_WITHOUT = {"cpu": "auto", "cuda": "auto", "npu": "npu"}


def test_without_a_choice() -> None:
    assert chosen() == _WITHOUT


@pytest.mark.parametrize(
    ("backend", "device", "expected"),
    [
        ("npu", None, {"npu": "npu"}),
        ("native", None, {"cpu": "native"}),
        ("triton", None, {"cuda": "triton"}),
        ("auto", None, dict.fromkeys(BACKENDS, "auto")),
        ("fallback", None, dict.fromkeys(BACKENDS, "fallback")),
        *((backend, device, {device: backend}) for device, names in BACKENDS.items() for backend in names),
    ],
)
def test_a_choice_holds_for_one_device_or_all_that_know_it(
    backend: str, device: str | None, expected: dict[str, str]
) -> None:
    toptheta_npu.use_backend(backend, device)
    assert chosen() == _WITHOUT | expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("npu", {"npu": "npu"}),
        ("native", {"cpu": "native"}),
        ("triton", {"cuda": "triton"}),
        ("auto", dict.fromkeys(BACKENDS, "auto")),
        (" fallback ", dict.fromkeys(BACKENDS, "fallback")),
        ("cpu=native", {"cpu": "native"}),
        ("npu=fallback", {"npu": "fallback"}),
        ("cuda=triton", {"cuda": "triton"}),
        ("cpu=fallback,npu=auto", {"cpu": "fallback", "npu": "auto"}),
        (" npu = auto , cpu = native ", {"cpu": "native", "npu": "auto"}),
    ],
)
def test_environment_variable_chooses(text: str, expected: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, text)
    assert chosen() == _WITHOUT | expected
    with toptheta_npu.use_backend("fallback"):
        assert chosen() == dict.fromkeys(BACKENDS, "fallback")
    assert chosen() == _WITHOUT | expected


_ALL = "one of npu, native, triton, auto, fallback"
_ONCE = "each of cpu, cuda, npu at most once"
_SUCH = "such as cpu=native,npu=auto"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cuda", f"TOPTHETA_BACKEND: expected {_ALL}, got 'cuda'; or type cpu=native,npu=auto"),
        ("cpu", f"TOPTHETA_BACKEND: expected {_ALL}, got 'cpu'; or type cpu=native,npu=auto"),
        ("auto,native", f"TOPTHETA_BACKEND: expected {_ALL}, got 'auto,native'; or type cpu=native,npu=auto"),
        ("cpu=npu", "TOPTHETA_BACKEND for cpu: expected one of auto, native, fallback, got 'npu'"),
        ("npu=native", "TOPTHETA_BACKEND for npu: expected one of npu, auto, fallback, got 'native'"),
        ("cpu=", "TOPTHETA_BACKEND for cpu: expected one of auto, native, fallback, got ''"),
        ("cuda=native", "TOPTHETA_BACKEND for cuda: expected one of auto, triton, fallback, got 'native'"),
        ("gpu=auto", f"TOPTHETA_BACKEND: expected {_ONCE}, got 'gpu=auto'; {_SUCH}"),
        ("cpu=auto,cpu=native", f"TOPTHETA_BACKEND: expected {_ONCE}, got 'cpu=auto,cpu=native'; {_SUCH}"),
        ("cpu=auto,", f"TOPTHETA_BACKEND: expected {_ONCE}, got 'cpu=auto,'; {_SUCH}"),
        ("fallback,npu=auto", f"TOPTHETA_BACKEND: expected {_ONCE}, got 'fallback,npu=auto'; {_SUCH}"),
    ],
)
def test_wrong_environment_variable(text: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, text)
    for selector in SELECTORS.values():
        with pytest.raises(TopThetaValueError) as caught:
            _ = selector.backend
        assert str(caught.value) == message
    with pytest.raises(TopThetaValueError) as caught:
        toptheta_npu.incremental_attention(**valid_arguments("decode"))
    assert str(caught.value) == message
    found = toptheta_npu.backend_info()
    for last in (found.findings[-1], found.cpu_findings[-1], found.cuda_findings[-1]):
        assert (last.problem, last.remedy) == (message, "unset TOPTHETA_BACKEND")
    with toptheta_npu.use_backend("fallback"):
        toptheta_npu.incremental_attention(**valid_arguments("decode"))


@pytest.mark.parametrize(
    ("backend", "device", "message"),
    [
        ("cpu", None, f"backend: expected {_ALL}, got 'cpu'"),
        (None, None, f"backend: expected {_ALL}, got None"),
        (["npu"], None, f"backend: expected {_ALL}, got ['npu']"),
        ("native", "npu", "backend with device='npu': expected one of npu, auto, fallback, got 'native'"),
        ("npu", "cpu", "backend with device='cpu': expected one of auto, native, fallback, got 'npu'"),
        ("triton", "cpu", "backend with device='cpu': expected one of auto, native, fallback, got 'triton'"),
        ("auto", "gpu", "device: expected one of cpu, cuda, npu, got 'gpu'"),
        ("auto", torch.device("cpu"), "device: expected one of cpu, cuda, npu, got device(type='cpu')"),
    ],
)
def test_wrong_choice_changes_nothing(backend: Any, device: Any, message: str) -> None:
    with pytest.raises(TopThetaValueError) as caught:
        toptheta_npu.use_backend(backend, device)
    assert str(caught.value) == message
    assert all(selector.chosen is None for selector in SELECTORS.values())


def test_choice_is_undone_at_the_end_of_with_and_stays_without() -> None:
    with toptheta_npu.use_backend("auto"):
        with toptheta_npu.use_backend("fallback"):
            assert chosen() == dict.fromkeys(BACKENDS, "fallback")
        with pytest.raises(RuntimeError, match="inside"), toptheta_npu.use_backend("fallback"):
            raise RuntimeError("inside")
        assert chosen() == dict.fromkeys(BACKENDS, "auto")
    assert chosen() == _WITHOUT
    toptheta_npu.use_backend("fallback")
    assert chosen() == dict.fromkeys(BACKENDS, "fallback")


def test_what_is_undone_is_what_was_chosen_and_no_more() -> None:
    with toptheta_npu.use_backend("native"):
        toptheta_npu.use_backend("fallback", device="npu")
    assert chosen() == _WITHOUT | {"npu": "fallback"}
    assert SELECTORS["cpu"].chosen is None
    with toptheta_npu.use_backend("auto", device="npu"):
        toptheta_npu.use_backend("native", device="cpu")
    assert chosen() == _WITHOUT | {"cpu": "native", "npu": "fallback"}


def test_the_variable_holds_for_the_device_that_is_not_chosen_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "fallback")
    with toptheta_npu.use_backend("npu"):
        assert chosen() == dict.fromkeys(BACKENDS, "fallback") | {"npu": "npu"}


# What a call does; the fallback on the CPU stands for the fallback on an NPU.


def _run(**changes: Any) -> Any:
    arguments = valid_arguments("decode") | {"num_heads": 4, "num_key_value_heads": 2, "scale_value": 0.25}
    return NPU_SELECTOR.run("incremental_attention", **arguments | changes)


def _expected() -> torch.Tensor:
    with toptheta_npu.use_backend("fallback", device="cpu"):
        return toptheta_npu.incremental_attention(**valid_arguments("decode"), scale_value=0.25)


def test_nothing_to_run_raises_under_npu() -> None:
    for _ in range(2):
        with pytest.raises(TopThetaBackendError, match=r"^op package: expected an entry of ASCEND_CUSTOM_OPP_PATH"):
            _run()


def test_fallback_runs_and_looks_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "load", None)
    expected = _expected()
    with toptheta_npu.use_backend("fallback"):
        assert torch.equal(_run(), expected)


def test_a_choice_holds_that_is_made_while_the_adapter_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    selector = NpuSelector({}, {})
    monkeypatch.setattr(loading, "load", lambda schemas: selector.choose("fallback"))
    monkeypatch.setattr(loading, "loaded", lambda: "not before it is loaded" if selector.chosen else None)
    assert not selector.uses_kernel()
    selector.choose("npu")
    monkeypatch.setattr(loading, "load", lambda schemas: None)
    assert selector.uses_kernel()


def test_auto_runs_the_fallback_and_says_once_why(caplog: pytest.LogCaptureFixture) -> None:
    expected = _expected()
    with caplog.at_level(logging.WARNING, "toptheta_npu"), toptheta_npu.use_backend("auto"):
        assert all(torch.equal(_run(), expected) for _ in range(3))
        with toptheta_npu.use_backend("fallback"):
            _run()
        _run()  # looks again, and has nothing new to say
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith(
        "toptheta_npu runs its PyTorch fallback on the NPU: op package: expected an entry of ASCEND_CUSTOM_OPP_PATH"
    )


@pytest.mark.parametrize("name", list(SCHEMAS))
def test_other_devices_are_refused_by_the_operator_itself(name: str) -> None:
    """Called past the public function: a backend's own fallback must not copy the cache to the CPU."""
    key = f"toptheta_npu::{name}"
    assert torch._C._dispatch_has_kernel_for_dispatch_key(key, "CompositeExplicitAutograd")
    with pytest.raises(TopThetaNotImplementedError, match="tensor on cpu or cuda or npu, got meta"):
        registration._on_other_devices(name)(torch.ones(1, device="meta"))


_LIMITS = {
    "dtype": ({}, TopThetaTypeError, "query: expected dtype float16 or bfloat16, got float32; "
              "convert it with query.to(torch.float16)"),
    "head-dim": ({"query": torch.ones(2, 4, 1, 40).half()}, TopThetaNotImplementedError,
                 "query: expected head_dim a multiple of 16 on an NPU, "
                 "got 40; pad query, key and value with zeros and keep scale_value"),
    "block-size": ({"block_size": 8}, TopThetaNotImplementedError, "block_size: expected a multiple of 16 up to 512 on "
                   "an NPU, got 8; use a cache with block_size=128, for example"),
    "large-block": ({"block_size": 528}, TopThetaNotImplementedError, "block_size: expected a multiple of 16 up to 512 "
                    "on an NPU, got 528; use a cache with block_size=128, for example"),
    "int8": ({"key": torch.ones(2, 2, 8, 16, dtype=torch.int8)}, TopThetaNotImplementedError,
             "query: expected head_dim a multiple of 32 with int8 on an NPU, got 16; "
             "pad query, key and value with zeros and keep scale_value"),
    "int8-scales": (
        {**{name: torch.ones(2, 2, 8, 32, dtype=torch.int8) for name in ("key", "value")},
         "query": torch.ones(2, 4, 1, 32).half(), "key_antiquant_scale": torch.ones(2, 2, 8).half(),
         "key_antiquant_mode": 3}, TopThetaNotImplementedError,
        "key_antiquant_scale: expected float32 on an NPU, since key_antiquant_mode=3 has a scale for each token, "
        "got float16; keep them in float32"),
    "int8-sample": (
        {**{name: torch.ones(2, 2, 8, 32, dtype=torch.int8) for name in ("key", "value")},
         "query": torch.ones(2, 4, 1, 32).half(), "key_antiquant_scale": torch.ones(2, 2, 8),
         "key_antiquant_mode": 3, "placement": "sampled_softmax"}, TopThetaNotImplementedError,
        "key_antiquant_mode: expected 0 with placement='sampled_softmax' on an NPU, got 3; "
        "use placement='post_softmax'"),
    "last-stride": ({"key": torch.ones(2, 2, 16, 8).half().mT}, TopThetaValueError,
                    "key: expected a last stride of 1, got [256, 128, 1, 8]; pass key.contiguous()"),
    "stride": ({"value": torch.ones(2, 2, 8, 40).half()[..., :16]}, TopThetaValueError,
               "value: expected strides that are multiples of 16 elements, got [640, 320, 40, 1]; "
               "pass value.contiguous()"),
}  # fmt: skip


@pytest.mark.parametrize("case", _LIMITS)
def test_kernel_limits(case: str) -> None:
    change, error, message = _LIMITS[case]
    query, cache = torch.ones(2, 4, 1, 16).half(), torch.ones(2, 2, 8, 16).half()
    if case == "dtype":
        query = query.float()
    with pytest.raises(error) as caught:
        check_limits(_arguments(query, cache)._replace(**change))
    assert str(caught.value) == message


def test_a_stride_that_is_never_taken_may_be_anything() -> None:
    cache = torch.ones(1, 8, 1, 24).half()[..., :16]
    check_limits(_arguments(torch.ones(1, 1, 1, 16).half(), cache[:, :1]))


def _arguments(query: Tensor, cache: Tensor) -> Arguments:
    return Arguments(query.shape[1], cache.shape[1], 0.25, query, cache, cache, torch.zeros(query.shape[1]))
