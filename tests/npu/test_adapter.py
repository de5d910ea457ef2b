"""The operators on NPU tensors: the table of cases against the oracle, the table of errors, memory and layouts."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from torch import Tensor

import toptheta_npu
from emulator.acl.environment import in_emulator
from tests.cases import CASES, ENTRY_POINTS, ERROR_CASES, SAMPLED_CASES, TOKEN_CASES, Case, ErrorCase, valid_arguments
from tests.helpers import (
    assert_equals_oracle,
    assert_within_yardstick,
    make_inputs,
    tolerance,
    yardstick,
)
from tests.modes import AXES, case_of, covering
from tests.npu.acl_calls import live_descriptors, live_executors
from tests.op_kernel.calls import assert_kernel_equals_oracle, for_kernel, has_tokens
from tests.random_cases import inputs_or_reject, largest_score, random_cases
from tests.tiers import full
from toptheta_npu import (
    TopThetaNotImplementedError,
    TopThetaTypeError,
    TopThetaValueError,
    incremental_attention,
    incremental_attention_partial,
    incremental_attention_with_stats,
    merge_partials,
)
from toptheta_npu.npu import loading

_BY_ID = {case.id: case for case in CASES}
_INSIDE = [case for case in map(for_kernel, (*CASES, *SAMPLED_CASES)) if case is not None]
_TOKENS = [case for case in map(for_kernel, TOKEN_CASES) if case is not None and case.placement == "pre_softmax"]
_OUTSIDE = [case for case in CASES if case.dtype == "float32" or for_kernel(case) is None]


def on_cpu(result: Any) -> tuple[Tensor, ...]:
    tensors = (result,) if isinstance(result, Tensor) else tuple(result)
    assert {tensor.device.type for tensor in tensors} == {"npu"}
    return tuple(tensor.cpu() for tensor in tensors)


@pytest.mark.parametrize("case", _INSIDE, ids=lambda case: case.id)
def test_equals_the_oracle(case: Case) -> None:
    inputs = make_inputs(case, "npu")
    result = on_cpu(incremental_attention_with_stats(**inputs.arguments))
    assert_equals_oracle(inputs, result)
    (out,) = on_cpu(incremental_attention(**inputs.arguments))
    torch.testing.assert_close(out, result[0], **tolerance(out.dtype))


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=full)], ids=["pairs", "triples"])
@pytest.mark.parametrize("scales", AXES["scales of K"])
def test_modes_that_meet_equal_the_oracle(scales: str, size: int) -> None:
    for modes in covering(size, for_kernel=True):
        if modes[1] == scales:
            inputs = make_inputs(case_of(modes, heads=3, head_dim=32, lengths=(450, 20)), "npu")
            assert_kernel_equals_oracle(inputs, on_cpu(incremental_attention_with_stats(**inputs.arguments)))


@pytest.mark.drawn
@given(case=random_cases(for_kernel=True))
def test_drawn_cases_equal_the_oracle(case: Case) -> None:
    inputs = inputs_or_reject(case, device="npu")
    result = on_cpu(incremental_attention_with_stats(**inputs.arguments))
    assert_equals_oracle(inputs, result, largest_score(inputs))


@pytest.mark.drawn
@given(case=random_cases(for_kernel=True, query_tokens=True).filter(has_tokens))
def test_drawn_steps_of_several_tokens_equal_the_oracle(case: Case) -> None:
    inputs = inputs_or_reject(case, device="npu")
    result = on_cpu(incremental_attention_with_stats(**inputs.arguments))
    assert_kernel_equals_oracle(inputs, result, largest_score(inputs))


def test_the_kernel_ran_and_not_the_fallback() -> None:
    incremental_attention(**make_inputs(_BY_ID["f16-bnsd"], "npu").arguments)
    assert loading.loaded() is not None
    assert torch._C._dispatch_has_kernel_for_dispatch_key("toptheta_npu::incremental_attention", "PrivateUse1")


@pytest.mark.parametrize("case", _OUTSIDE, ids=lambda case: case.id)
def test_outside_the_limits_of_the_kernel(case: Case) -> None:
    arguments = make_inputs(case, "npu").arguments
    error: type[Exception] = TopThetaTypeError if case.dtype == "float32" else TopThetaNotImplementedError
    wanted = r"^(query|block_size|key_antiquant_scale): expected (dtype float16|head_dim a multiple|a multiple|float32)"
    with pytest.raises(error, match=wanted):
        incremental_attention(**arguments)


@pytest.mark.parametrize("case", ERROR_CASES, ids=lambda case: case.id)
def test_error(case: ErrorCase) -> None:
    if case.values_on_host:
        pytest.skip("values of device tensors are not checked")
    if case.id == "query-dtype":
        pytest.skip("there is no float64 on an NPU")
    for name in ENTRY_POINTS[case.base]:
        arguments = valid_arguments(case.base, "npu:0")
        arguments |= case.change(arguments)
        with pytest.raises(case.error) as caught:
            getattr(toptheta_npu, name)(**arguments)
        assert str(caught.value) == case.message.replace("{device}", "npu:0")


@pytest.mark.parametrize("case", _TOKENS, ids=lambda case: case.id)
def test_several_tokens_equal_the_oracle(case: Case) -> None:
    inputs = make_inputs(case, "npu")
    result = on_cpu(incremental_attention_with_stats(**inputs.arguments))
    assert_kernel_equals_oracle(inputs, result)
    (out,) = on_cpu(incremental_attention(**inputs.arguments))
    assert torch.equal(out, result[0])


def test_several_tokens_in_parts_and_post_softmax_are_refused_by_name() -> None:
    """By the public functions, and by tiling where an operator is called past them; the fallback takes them."""
    arguments = valid_arguments("tokens", "npu")
    rows = [arguments.pop(name).half() for name in ("query", "key", "value")]
    arguments["actual_query_lengths"] = torch.as_tensor(arguments["actual_query_lengths"]).npu()
    arguments["placement"] = "post_softmax"
    message = "placement: expected 'pre_softmax' with several query tokens on an NPU, got 'post_softmax'; "
    with pytest.raises(TopThetaNotImplementedError, match=re.escape(message)):
        incremental_attention(*rows, **arguments)
    operator = torch.ops.toptheta_npu.incremental_attention.default
    with pytest.raises(RuntimeError, match=re.escape(message)):
        operator(*rows, **arguments, num_heads=4, num_key_value_heads=2, scale_value=0.25)
    with toptheta_npu.use_backend("fallback", device="npu"):
        out, _, kept, _ = incremental_attention_with_stats(*rows, **arguments)
    assert out.isfinite().all()
    assert kept.shape == (2, 4, 3)


@pytest.mark.parametrize("path", ["dense", "gather"])
@pytest.mark.parametrize("case_id", ["f16-bsh", "paged-4d-f16", "start-f16-bsnd", "post-f16-vmc-bsh"])
def test_forced_path(path: str, case_id: str) -> None:
    inputs = make_inputs(_BY_ID[case_id], "npu")
    assert_equals_oracle(inputs, on_cpu(incremental_attention_with_stats(**inputs.arguments, _path=path)))


@pytest.mark.parametrize("placement", ["pre_softmax", "post_softmax"])
@pytest.mark.parametrize("theta", ["quantile", "nothing"])
def test_merged_parts_equal_the_whole(placement: str, theta: str) -> None:
    case = replace(_BY_ID["f16-bnsd"], placement=placement, theta=theta, lengths=(200, 200), lengths_as="none")
    inputs = make_inputs(case, "npu")
    query, key, value, threshold = (inputs.arguments[name] for name in ("query", "key", "value", "threshold"))
    lse = inputs.expected.lse.float().npu() if placement == "post_softmax" else None
    parts = [
        incremental_attention_partial(
            query, key[:, :, rows], value[:, :, rows], threshold, placement=placement, lse=lse
        )
        for rows in (slice(0, 77), slice(77, 200))
    ]
    merged = merge_partials(parts, threshold, [77, 123], placement=placement)
    assert_within_yardstick(merged.cpu()[:, :, 0], yardstick(inputs)[0], inputs.expected.out)


# Where the rows lie.


def _in_larger(cache: Tensor, before: int, after: int) -> Tensor:
    """The rows of a cache [B, H, S, D] inside longer rows full of NaN: strided, with a storage offset."""
    wide = torch.full((*cache.shape[:3], before + cache.shape[3] + after), torch.nan, dtype=cache.dtype, device="npu")
    view = wide[..., before : before + cache.shape[3]]
    view.copy_(cache)
    return view


@pytest.mark.parametrize("offset", [0, 3, 16])
def test_strided_cache_is_read_in_place(offset: int) -> None:
    inputs = make_inputs(_BY_ID["n4097"], "npu")
    arguments = dict(inputs.arguments)
    strided = {name: _in_larger(arguments[name], offset, 32 - offset) for name in ("key", "value")}
    peaks = []
    for chosen in (arguments, arguments | strided):
        incremental_attention_with_stats(**chosen)
        torch.npu.synchronize()
        torch.npu.reset_peak_memory_stats()
        before = torch.npu.memory_allocated()
        result = on_cpu(incremental_attention_with_stats(**chosen))
        peaks.append(torch.npu.max_memory_allocated() - before)
        assert_equals_oracle(inputs, result)
    # the allocator gives out blocks up to 1 MiB larger than asked for; a copy would cost 2 MiB at least
    assert arguments["key"].nbytes > 2 << 20
    assert abs(peaks[0] - peaks[1]) <= 1 << 20, "a strided cache is not copied"


def test_key_and_value_with_strides_of_their_own() -> None:
    inputs = make_inputs(_BY_ID["bf16-bsnd"], "npu")
    key = inputs.arguments["key"].transpose(1, 2).contiguous().transpose(1, 2)
    value = _in_larger(inputs.arguments["value"], 16, 48)
    given = inputs.arguments | {"key": key, "value": value}
    assert_equals_oracle(inputs, on_cpu(incremental_attention_with_stats(**given)))


def _every_second(tensor: Tensor) -> Tensor:
    wide = torch.zeros((*tensor.shape[:-1], 2 * tensor.shape[-1]), dtype=tensor.dtype, device="npu")
    wide[..., ::2] = tensor
    return wide[..., ::2]


@pytest.mark.parametrize(
    "name", ["query", "threshold", "actual_seq_lengths", "key_start", "block_table", "value_mean", "discarded_mass"]
)
def test_any_other_input_may_be_strided(name: str) -> None:
    ids = {"key_start": "start-f16-bsnd", "block_table": "paged-4d-f16", "discarded_mass": "sdc-offline-vmc"}
    inputs = make_inputs(_BY_ID[ids.get(name, "sdc-exp-threshold-vmc")], "npu")
    strided = _every_second(inputs.arguments[name])
    assert not strided.is_contiguous()
    assert_equals_oracle(inputs, on_cpu(incremental_attention_with_stats(**inputs.arguments | {name: strided})))


@pytest.mark.parametrize("lengths", [torch.int32, torch.int64])
@pytest.mark.parametrize("starts", [torch.int32, torch.int64])
def test_integer_types_may_differ(lengths: torch.dtype, starts: torch.dtype) -> None:
    inputs = make_inputs(_BY_ID["start-f16-bsnd"], "npu")
    given = {"actual_seq_lengths": inputs.arguments["actual_seq_lengths"].to(lengths),
             "key_start": inputs.arguments["key_start"].to(starts)}  # fmt: skip
    assert_equals_oracle(inputs, on_cpu(incremental_attention_with_stats(**inputs.arguments | given)))


def test_outputs_are_fresh_and_contiguous() -> None:
    arguments = make_inputs(_BY_ID["f16-bsh"], "npu").arguments
    given = [value for value in arguments.values() if isinstance(value, Tensor)]
    outputs = [*incremental_attention_with_stats(**arguments), incremental_attention(**arguments)]
    assert all(output.is_contiguous() for output in outputs)
    assert len({t.untyped_storage().data_ptr() for t in (*given, *outputs)}) == len(given) + len(outputs)


@pytest.mark.parametrize("case_id", ["int8-start", "int8-paged-4d"])
def test_strided_scales_are_read_in_place(case_id: str) -> None:
    inputs = make_inputs(_BY_ID[case_id], "npu")
    strided = dict(inputs.arguments)
    for name in ("key_antiquant_scale", "value_antiquant_scale"):
        scale = inputs.arguments[name]
        strided[name] = torch.full((*scale.shape[:2], scale.shape[2] + 9), torch.nan).npu()[..., : scale.shape[2]]
        strided[name].copy_(scale)
    for got, wanted in zip(
        on_cpu(incremental_attention_with_stats(**strided)),
        on_cpu(incremental_attention_with_stats(**inputs.arguments)),
        strict=True,
    ):
        assert torch.equal(got, wanted)


def test_scales_of_rows_with_gaps_between_them_are_refused() -> None:
    arguments = make_inputs(_BY_ID["int8-start"], "npu").arguments
    scale = arguments["key_antiquant_scale"].repeat_interleave(2, -1)[..., ::2]
    with pytest.raises(TopThetaValueError, match=r"^key_antiquant_scale: expected a last stride of 1, got .*; pass "):
        incremental_attention(**arguments | {"key_antiquant_scale": scale})


def test_scales_past_the_public_functions_are_refused() -> None:
    tensors, options = _direct()
    scale = torch.ones(2, 64).npu()
    with pytest.raises(RuntimeError, match="key_antiquant_scale needs an int8 cache, and key is float16"):
        torch.ops.toptheta_npu.incremental_attention(*tensors, key_antiquant_scale=scale, **options)


# Past the public functions: what would otherwise read foreign memory is checked by the adapter itself.


def _direct(**changes: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    arguments = make_inputs(_BY_ID["f16-bnsd"], "npu").arguments | changes
    names = ("query", "key", "value", "threshold", "actual_seq_lengths")
    return tuple(arguments[name] for name in names), {
        "num_heads": 4, "num_key_value_heads": 2, "scale_value": 0.125, "input_layout": "BNSD",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "change", "error", "message"),
    [
        ("threshold", lambda t: t.cpu(), ValueError,
         "threshold: expected a tensor on npu:0, like query, got cpu; move it with threshold.to(query.device)"),
        ("value", lambda t: t.cpu(), ValueError,
         "value: expected a tensor on npu:0, like query, got cpu; move it with value.to(query.device)"),
        ("key", _every_second, ValueError, "key: expected a last stride of 1, got "),
        ("key", lambda t: _in_larger(t, 0, 7), ValueError, "key: expected strides that are multiples of 16 elements"),
        ("key", lambda t: t.cpu().char().npu(), RuntimeError,
         "key_antiquant_scale: expected the scales of an int8 cache, got None"),
        ("query", lambda t: t.cpu().bool().npu(), TypeError, "query: expected a dtype of the operator, got Bool"),
        ("threshold", lambda t: t[:, :3], RuntimeError, "threshold: expected shape [2, 4] [B, Hq], got [2, 3]"),
    ],
    ids=["cpu-threshold", "cpu-value", "last-stride", "odd-stride", "int8", "dtype", "tiling"],
)  # fmt: skip
def test_operator_checks(name: str, change: Any, error: type[Exception], message: str) -> None:
    arguments = make_inputs(_BY_ID["f16-bnsd"], "npu").arguments
    tensors, options = _direct(**{name: change(arguments[name])})
    with pytest.raises(error) as caught:
        torch.ops.toptheta_npu.incremental_attention(*tensors, **options)
    assert message in str(caught.value)


def test_refused_calls_leave_nothing_behind() -> None:
    if not in_emulator():
        pytest.skip("counts what the emulator has created")
    torch.npu.synchronize()
    before = live_executors(), live_descriptors()
    for change in ({"threshold": torch.zeros(2, 3).npu()}, {"threshold": torch.zeros(4)}, {"key": torch.ones(2).npu()}):
        tensors, options = _direct(**change)
        with pytest.raises((RuntimeError, ValueError)):
            torch.ops.toptheta_npu.incremental_attention(*tensors, **options)
    assert (live_executors(), live_descriptors()) == before


@pytest.mark.parametrize("name", ["batch", "heads", "rows"])
def test_a_stride_that_is_never_taken_may_be_odd(name: str) -> None:
    shape = {"batch": (1, 2, 40, 64), "heads": (2, 1, 40, 64), "rows": (2, 2, 1, 64)}[name]
    query = torch.randn(shape[0], 4, 1, 64).half().npu()
    cache = torch.randn(shape).half().npu()
    strides = [stride if size > 1 else 7 for size, stride in zip(shape, cache.stride(), strict=True)]
    odd = cache.as_strided(shape, strides)
    threshold = torch.zeros(4).npu()
    expected = incremental_attention(query, cache, cache, threshold)
    assert torch.equal(incremental_attention(query, odd, odd, threshold).cpu(), expected.cpu())


def test_inference_mode() -> None:
    inputs = make_inputs(_BY_ID["f16-bnsd"], "npu")
    with torch.inference_mode():
        result = incremental_attention_with_stats(**inputs.arguments)
        assert all(tensor.is_inference() for tensor in result)
        assert_equals_oracle(inputs, on_cpu(result))


def test_private_format_is_refused() -> None:
    torch_npu = pytest.importorskip("torch_npu")
    key = make_inputs(_BY_ID["f16-bnsd"], "npu").arguments["key"]
    private = torch_npu.empty_with_format(key.shape, dtype=key.dtype, device="npu", acl_format=29)
    if torch_npu.get_npu_format(private) != 29:
        pytest.skip("this device has no private formats")
    tensors, options = _direct(key=private)
    with pytest.raises(ValueError, match=r"^key: expected a tensor in a base format, got the private format 29; "
                                         r"convert it with torch_npu.npu_format_cast\(key, 2\)"):  # fmt: skip
        torch.ops.toptheta_npu.incremental_attention(*tensors, **options)


# Fakes and compilation.


@pytest.mark.parametrize("name", ["incremental_attention", "incremental_attention_with_stats"])
def test_opcheck(name: str) -> None:
    tensors, options = _direct()
    torch.library.opcheck(getattr(torch.ops.toptheta_npu, name), tensors, options)


def test_compiled_step_equals_the_plain_one() -> None:
    torch._dynamo.reset()
    arguments = make_inputs(_BY_ID["paged-4d-f16"], "npu").arguments
    compiled = torch.compile(incremental_attention_with_stats, fullgraph=True, backend="aot_eager")
    for got, wanted in zip(compiled(**arguments), incremental_attention_with_stats(**arguments), strict=True):
        assert torch.equal(got.cpu(), wanted.cpu())


def _captured(arguments: dict[str, Any]) -> tuple[torch.npu.NPUGraph, Any]:
    """A graph of one step, which ran once before, and its result."""
    stream = torch.npu.Stream()
    with torch.npu.stream(stream):
        incremental_attention_with_stats(**arguments)
    torch.npu.synchronize()
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph, stream=stream):
        result = incremental_attention_with_stats(**arguments)
    return graph, result


def test_captured_graph_replays_with_other_values() -> None:
    """Lengths and thresholds are static buffers; the workspace and the launch depend on shapes alone."""
    inputs = make_inputs(_BY_ID["f16-bnsd"], "npu")
    arguments = dict(inputs.arguments)
    buffers = {name: torch.zeros_like(arguments[name]) for name in ("actual_seq_lengths", "threshold", "query")}
    graph, result = _captured(arguments | buffers)
    for name, buffer in buffers.items():
        buffer.copy_(arguments[name])
    graph.replay()
    torch.npu.synchronize()
    assert_equals_oracle(inputs, on_cpu(result))


def test_captured_graph_replays_with_other_numbers_of_tokens() -> None:
    inputs = make_inputs(next(case for case in _TOKENS if case.id == "tokens-ragged"), "npu")
    arguments = dict(inputs.arguments)
    names = ("actual_seq_lengths", "actual_query_lengths", "threshold", "query")
    buffers = {name: torch.ones_like(arguments[name]) for name in names}
    graph, result = _captured(arguments | buffers)
    real = arguments["actual_query_lengths"]
    for tokens in (torch.zeros_like(real), real):
        for name, buffer in buffers.items():
            buffer.copy_(tokens if name == "actual_query_lengths" else arguments[name])
        graph.replay()
        torch.npu.synchronize()
        if not tokens.any():
            assert not on_cpu(result)[2].any(), "a sequence without tokens keeps nothing"
    assert_kernel_equals_oracle(inputs, on_cpu(result))


# The fallback on the device, chosen and given back.


@pytest.mark.parametrize("case_id", ["f32-bnsd", "d40-any", "paged-odd-block"])
def test_fallback_on_the_device_and_back(case_id: str) -> None:
    kernel = make_inputs(_BY_ID["f16-bnsd"], "npu")
    inputs = make_inputs(_BY_ID[case_id], "npu")
    assert_equals_oracle(kernel, on_cpu(incremental_attention_with_stats(**kernel.arguments)))
    with toptheta_npu.use_backend("fallback"):
        assert_equals_oracle(inputs, on_cpu(incremental_attention_with_stats(**inputs.arguments)))
    assert_equals_oracle(kernel, on_cpu(incremental_attention_with_stats(**kernel.arguments)))
    with pytest.raises((TopThetaTypeError, TopThetaNotImplementedError)):
        incremental_attention(**inputs.arguments)
