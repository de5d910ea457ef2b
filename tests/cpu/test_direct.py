"""Calls like an earlier one run without checks and dispatcher, and nobody can tell by what they do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.cases import CASES, Case
from tests.helpers import make_inputs
from toptheta_npu import (
    TopThetaError,
    TopThetaTypeError,
    TopThetaValueError,
    incremental_attention,
    incremental_attention_with_stats,
    use_backend,
)
from toptheta_npu.cpu import direct
from toptheta_npu.ops import calls

_OPTIONS: dict[str, Any] = {"num_heads": 4, "num_key_value_heads": 2, "scale_value": 0.25}


@pytest.fixture(autouse=True)
def native() -> Iterator[None]:
    with use_backend("native", device="cpu"):
        for known in calls.DIRECT.values():
            known._calls.clear()
        yield


@pytest.fixture
def tensors() -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    return torch.randn(2, 4, 1, 16), torch.randn(2, 2, 40, 16), torch.randn(2, 2, 40, 16), torch.zeros(4)


def dispatched(call: Callable[[], Any]) -> tuple[Any, bool]:
    """Run a call; tell whether it went by the dispatcher, too."""
    with mock.patch.object(calls, "check", wraps=calls.check) as checks:
        return call(), checks.called


def test_a_second_call_goes_past_checks_and_dispatcher(tensors: tuple[Tensor, ...]) -> None:
    first, was_dispatched = dispatched(lambda: incremental_attention(*tensors, **_OPTIONS))
    other = tuple(torch.randn_like(tensor) for tensor in tensors)
    second, is_dispatched = dispatched(lambda: incremental_attention(*other, **_OPTIONS))
    assert was_dispatched
    assert not is_dispatched
    with use_backend("fallback", device="cpu"):
        torch.testing.assert_close(second, incremental_attention(*other, **_OPTIONS), rtol=1e-5, atol=1e-5)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_every_case_gives_the_same_bits_twice(case: Case) -> None:
    arguments = make_inputs(case).arguments
    first = incremental_attention_with_stats(**arguments)
    for _ in range(2):
        for got, wanted in zip(incremental_attention_with_stats(**arguments), first, strict=True):
            torch.testing.assert_close(got, wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    "changed",
    [
        {"query": lambda q: q[:1]},
        {"query": lambda q: q.bfloat16()},
        {"key": lambda k: k[:, :, :30]},
        {"key": lambda k: k.double()},
        {"value": lambda v: v.half()},
        {"threshold": lambda t: t.double()},
        {"threshold": lambda t: t[:3]},
        {"num_heads": lambda _: 4.0},
        {"num_key_value_heads": lambda _: True},
        {"input_layout": lambda _: "BSH"},
        {"sdc": lambda _: ["exact"]},
        {"sdc": lambda _: "other"},
        {"block_size": lambda _: 16},
        {"actual_seq_lengths": lambda _: [40]},
        {"actual_seq_lengths": lambda _: "40"},
        {"key_antiquant_mode": lambda _: 3},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_what_is_wrong_stays_wrong(tensors: tuple[Tensor, ...], changed: dict[str, Callable[[Any], Any]]) -> None:
    given: dict[str, Any] = dict(zip(("query", "key", "value", "threshold"), tensors, strict=True)) | _OPTIONS
    incremental_attention(**given)
    ((name, change),) = changed.items()
    wrong = given | {name: change(given.get(name))}
    for _ in range(2):
        with pytest.raises(TopThetaError):
            incremental_attention(**wrong)


def test_values_are_checked_in_every_call(tensors: tuple[Tensor, ...]) -> None:
    lengths = torch.tensor([40, 3])
    for _ in range(2):
        incremental_attention(*tensors, actual_seq_lengths=lengths, **_OPTIONS)
    with pytest.raises(TopThetaValueError, match=r"actual_seq_lengths\[1\]"):
        incremental_attention(*tensors, actual_seq_lengths=torch.tensor([40, 41]), **_OPTIONS)
    nan = torch.full((4,), torch.nan)
    with pytest.raises(TopThetaValueError, match="threshold"):
        incremental_attention(*tensors[:3], nan, actual_seq_lengths=lengths, **_OPTIONS)


def test_one_is_not_true(tensors: tuple[Tensor, ...]) -> None:
    query, key, value, threshold = tensors
    one = {"num_heads": 4, "num_key_value_heads": 1, "scale_value": 1.0}
    for _ in range(2):
        incremental_attention(query, key[:, :1], value[:, :1], threshold, **one)
    with pytest.raises(TopThetaTypeError, match="num_key_value_heads"):
        incremental_attention(query, key[:, :1], value[:, :1], threshold, **(one | {"num_key_value_heads": True}))


def test_a_choice_of_the_backend_holds_at_once(tensors: tuple[Tensor, ...]) -> None:
    for _ in range(2):
        incremental_attention(*tensors, **_OPTIONS)
    with use_backend("fallback", device="cpu"):
        _, is_dispatched = dispatched(lambda: incremental_attention(*tensors, **_OPTIONS))
        assert is_dispatched
    _, is_dispatched = dispatched(lambda: incremental_attention(*tensors, **_OPTIONS))
    assert not is_dispatched


def test_no_more_calls_are_kept_than_allowed(tensors: tuple[Tensor, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "_MAX_CALLS", 3)
    query, key, value, threshold = tensors
    for rows in range(1, 11):
        incremental_attention(query, key[:, :, :rows], value[:, :, :rows], threshold, **_OPTIONS)
    assert len(calls.DIRECT["incremental_attention"]._calls) <= 3


class _Calls(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


@pytest.mark.filterwarnings("ignore")  # by torch.jit.trace, about itself and each check
def test_who_watches_calls_sees_them(tensors: tuple[Tensor, ...]) -> None:
    def call() -> Tensor:
        return incremental_attention(*tensors, **_OPTIONS)

    for _ in range(2):
        expected = call()
    with _Calls() as mode:
        call()
    assert "toptheta_npu.incremental_attention.default" in mode.names
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        call()
    assert "toptheta_npu::incremental_attention" in {event.key for event in profile.key_averages()}
    traced = torch.jit.trace(lambda query: incremental_attention(query, *tensors[1:], **_OPTIONS), (tensors[0],))
    assert "toptheta_npu::incremental_attention" in str(traced.graph)
    exported = torch.export.export(_Module(tensors), (tensors[0],))
    assert "toptheta_npu.incremental_attention" in str(exported.graph)
    torch.testing.assert_close(exported.module()(tensors[0]), expected, rtol=0, atol=0)


class _Module(torch.nn.Module):
    def __init__(self, tensors: tuple[Tensor, ...]) -> None:
        super().__init__()
        self.rest = tensors[1:]

    def forward(self, query: Tensor) -> Tensor:
        return incremental_attention(query, *self.rest, **_OPTIONS)


def test_tensors_that_hold_no_numbers_go_by_the_dispatcher(tensors: tuple[Tensor, ...]) -> None:
    query, key, value, threshold = tensors
    for _ in range(2):
        expected = incremental_attention(query, key, value, threshold, **_OPTIONS)
    negated = torch._neg_view(-query)  # whose numbers in memory have the other sign
    torch.testing.assert_close(incremental_attention(negated, key, value, threshold, **_OPTIONS), expected)
    meta = [tensor.to("meta") for tensor in tensors]
    assert incremental_attention(*meta, **_OPTIONS).device.type == "meta"
    with torch._subclasses.FakeTensorMode() as mode:
        fakes = [mode.from_tensor(tensor) for tensor in tensors]
        assert incremental_attention(*fakes, **_OPTIONS).shape == query.shape


def test_inference_mode_and_autocast_change_nothing(tensors: tuple[Tensor, ...]) -> None:
    expected = incremental_attention(*tensors, **_OPTIONS)
    for context in (torch.inference_mode(), torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16)):
        with context:
            for _ in range(2):
                torch.testing.assert_close(incremental_attention(*tensors, **_OPTIONS), expected, rtol=0, atol=0)


def test_a_tensor_that_requires_grad_stays_an_error(tensors: tuple[Tensor, ...]) -> None:
    for _ in range(2):
        expected = incremental_attention(*tensors, **_OPTIONS)
    asking = tensors[0].clone().requires_grad_()
    with pytest.raises(TopThetaValueError, match="query"):
        incremental_attention(asking, *tensors[1:], **_OPTIONS)
    with torch.no_grad():
        torch.testing.assert_close(incremental_attention(asking, *tensors[1:], **_OPTIONS), expected, rtol=0, atol=0)


class _Tagged(Tensor):
    pass


@pytest.mark.parametrize("name", ["query", "key", "threshold"])
def test_a_subclass_keeps_its_say(tensors: tuple[Tensor, ...], name: str) -> None:
    given: dict[str, Any] = dict(zip(("query", "key", "value", "threshold"), tensors, strict=True)) | _OPTIONS
    incremental_attention_with_stats(**given)
    tagged = given | {name: given[name].as_subclass(_Tagged)}
    for _ in range(2):
        assert {type(result) for result in incremental_attention_with_stats(**tagged)} == {_Tagged}


def test_a_profiler_of_all_threads_sees_calls(tensors: tuple[Tensor, ...]) -> None:
    config = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    for _ in range(2):
        with (
            torch.profiler.profile(
                activities=[torch.profiler.ProfilerActivity.CPU], experimental_config=config
            ) as profile,
            ThreadPoolExecutor(1) as pool,
        ):
            pool.submit(lambda: incremental_attention(*tensors, **_OPTIONS)).result()
        assert "toptheta_npu::incremental_attention" in {event.key for event in profile.key_averages()}
