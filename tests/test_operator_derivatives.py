"""Derivatives and functional transforms: the right value or a typed refusal, and never a derivative of zero."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, func
from torch.autograd import forward_ad

import toptheta_npu
from tests.cases import valid_arguments
from toptheta_npu.context_parallel import context_parallel_attention
from toptheta_npu.errors import TopThetaError, TopThetaNotImplementedError, TopThetaValueError

pytestmark = pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace:UserWarning")
_Call = Callable[[Tensor], Any]
#: Each public operator, and the arguments that begin its call.
_BASES = {
    "incremental_attention": "decode", "incremental_attention_with_stats": "decode",
    "incremental_attention_partial": "partial", "prefill_attention": "prefill", "merge_partials": "merge",
    "context_parallel_attention": "decode",
}  # fmt: skip
#: Those that vmap runs sequence by sequence.
_MAPPED = tuple(_BASES)[:3]


@pytest.fixture(autouse=True, scope="module")
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def _call_of(name: str) -> tuple[_Call, Tensor]:
    """An operator as a function of its first tensor, and this tensor."""
    arguments = valid_arguments(_BASES[name])
    if name == "merge_partials":
        (first, *rest), *others = arguments.pop("parts")
        return lambda out: toptheta_npu.merge_partials([(out, *rest), *others], **arguments), first
    if name == "context_parallel_attention":
        return lambda query: context_parallel_attention(**arguments | {"query": query}), arguments["query"]
    return lambda query: getattr(toptheta_npu, name)(**arguments | {"query": query}), arguments["query"]


def _first(result: Any) -> Tensor:
    return result if isinstance(result, Tensor) else result[0]


def _dual(call: _Call, tensor: Tensor) -> None:
    with forward_ad.dual_level():
        call(forward_ad.make_dual(tensor, torch.ones_like(tensor)))


def _jvp(call: _Call, tensor: Tensor) -> None:
    func.jvp(call, (tensor,), (torch.ones_like(tensor),))


_FORWARD: dict[str, Callable[[_Call, Tensor], object]] = {
    "make_dual": _dual,
    "jvp": _jvp,
    "jacfwd": lambda call, tensor: func.jacfwd(call)(tensor),
    "hessian": lambda call, tensor: func.hessian(lambda given: _first(call(given)).sum())(tensor),
    "linearize": lambda call, tensor: func.linearize(call, tensor),
    "jvp of vmap": lambda call, tensor: _jvp(func.vmap(call), tensor[None]),
    "vmap of make_dual": lambda call, tensor: _dual(func.vmap(call), tensor[None]),
    "jvp of grad": lambda call, tensor: _jvp(
        lambda given: func.grad(lambda factor: (_first(call(given)) * factor).sum())(torch.ones(())), tensor
    ),
}
_REVERSE: dict[str, Callable[[_Call, Tensor], object]] = {
    "grad": lambda call, tensor: func.grad(lambda given: _first(call(given)).sum())(tensor),
    "vjp": lambda call, tensor: func.vjp(call, tensor),
    "grad of vmap": lambda call, tensor: func.grad(lambda given: _first(func.vmap(call)(given)).sum())(tensor[None]),
    "vmap of grad": lambda call, tensor: func.vmap(func.grad(lambda given: _first(call(given)).sum()))(tensor[None]),
    "vmap of requires_grad": lambda call, tensor: func.vmap(call)(tensor.clone()[None].requires_grad_()),
}


@pytest.mark.parametrize("transform", _FORWARD)
@pytest.mark.parametrize("name", _BASES)
def test_tensors_that_carry_a_tangent_are_refused(name: str, transform: str) -> None:
    call, tensor = _call_of(name)
    call(tensor)  # so that the next one might go past all checks
    with pytest.raises(TopThetaValueError, match=r": expected a tensor without a tangent \(the operator is for infer"):
        _FORWARD[transform](call, tensor)
    call(tensor)


@pytest.mark.parametrize("transform", _REVERSE)
@pytest.mark.parametrize("name", _BASES)
def test_tensors_that_a_transform_differentiates_are_refused(name: str, transform: str) -> None:
    call, tensor = _call_of(name)
    with pytest.raises(TopThetaValueError, match=r": expected a tensor that does not require grad \(the operator is"):
        _REVERSE[transform](call, tensor)
    with torch.no_grad():
        assert torch.equal(_first(call(tensor)), _first(call(tensor.clone().requires_grad_())))


@pytest.mark.parametrize("argument", ["key", "value", "threshold", "value_mean", "discarded_mass", "learnable_sink"])
def test_every_tensor_of_numbers_is_looked_at(argument: str) -> None:
    arguments = valid_arguments("decode") | {"sdc": "offline", "value_mean": torch.zeros(2, 2, 16)}
    arguments |= {"discarded_mass": torch.ones(2, 4), "learnable_sink": torch.zeros(4)}
    toptheta_npu.incremental_attention(**arguments)
    with forward_ad.dual_level():
        given = arguments[argument]
        changed = arguments | {argument: forward_ad.make_dual(given, torch.ones_like(given))}
        with pytest.raises(TopThetaValueError, match=rf"^{argument}: expected a tensor without a tangent"):
            toptheta_npu.incremental_attention(**changed)


@pytest.mark.parametrize("name", _BASES)
def test_what_has_no_tangent_is_computed_beside_what_has(name: str) -> None:
    call, tensor = _call_of(name)
    expected = _first(call(tensor))
    with forward_ad.dual_level():
        assert torch.equal(_first(call(tensor)), expected)
    found, tangent = func.jvp(lambda other: _first(call(tensor)) * other, (torch.ones(()),), (torch.ones(()),))
    assert torch.equal(found, expected)
    assert torch.equal(tangent, expected)
    assert torch.equal(_first(func.functionalize(call)(tensor)), expected)


@pytest.mark.parametrize("name", _MAPPED)
def test_vmap_runs_one_call_after_the_other(name: str) -> None:
    call, tensor = _call_of(name)
    several = torch.stack([tensor, -2 * tensor, tensor.flip(0)])
    found = func.vmap(call)(several)
    for mapped, each in zip(zip(*_as_tuple(found), strict=True), several, strict=True):
        for one, other in zip(mapped, _as_tuple(call(each)), strict=True):
            assert torch.equal(one, other)


def _as_tuple(result: Any) -> tuple[Tensor, ...]:
    return (result,) if isinstance(result, Tensor) else tuple(result)


@pytest.mark.parametrize("name", [name for name in _BASES if name not in _MAPPED])
def test_vmap_is_refused_where_it_cannot_run(name: str) -> None:
    call, tensor = _call_of(name)
    with pytest.raises(TopThetaNotImplementedError, match=r"outside torch\.func\.vmap, got one inside; .* in one call"):
        func.vmap(call)(tensor[None])


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("transform", ["make_dual", "jvp", "grad of vmap"])
def test_a_compiled_call_does_not_lose_a_derivative(transform: str, fullgraph: bool) -> None:
    torch._dynamo.reset()
    call, tensor = _call_of("incremental_attention")

    def compiled(of: _Call) -> _Call:
        return torch.compile(of, fullgraph=fullgraph, backend="aot_eager")

    def run() -> object:
        if transform == "make_dual":
            return _dual(compiled(call), tensor)
        return compiled(lambda given: (_FORWARD | _REVERSE)[transform](call, given))(tensor)

    with pytest.raises((TopThetaError, torch._dynamo.exc.Unsupported) if fullgraph else TopThetaError):
        run()
    torch._dynamo.reset()
    mapped = compiled(func.vmap(call))(tensor[None])
    torch.testing.assert_close(mapped[0], call(tensor))
