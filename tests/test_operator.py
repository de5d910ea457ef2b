"""The registered operator: its schema and fakes, compilation, outputs, and the table of errors."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch._dynamo.testing
from torch import Tensor

import toptheta_npu
from tests.cases import CASES, ENTRY_POINTS, ERROR_CASES, NEUTRAL, ErrorCase, valid_arguments
from tests.helpers import Inputs, by_sequence, make_inputs, of_tokens
from tests.tiers import product

_BY_ID = {case.id: case for case in CASES}
_COMPILED = ("f16-bsnd", "paged-post-vmc", "start", "sdc-offline-mixed-vmc", "ragged", "d40-any", "sink-post-f32-vmc")
_OPERATORS = ("incremental_attention", "incremental_attention_with_stats", "incremental_attention_partial")


def call(name: str, arguments: dict[str, Any]) -> Any:
    return getattr(toptheta_npu, name)(**arguments)


def operator_inputs(name: str, inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments of ``torch.ops.toptheta_npu.<name>`` for a case."""
    case = inputs.case
    given = inputs.arguments | {
        "num_heads": case.heads, "num_key_value_heads": case.kv_heads, "scale_value": case.scale or case.head_dim**-0.5,
    }  # fmt: skip
    if case.placement == "post_softmax":
        given["lse"] = of_tokens(case, inputs.expected.lse).float().to(given["query"].device)
    if case.query_tokens > 1 and "partial" in name:
        given["actual_seq_lengths"] = by_sequence(case, inputs.rows.lengths).to(given["query"].device)
    taken = getattr(torch.ops.toptheta_npu, name).default._schema.arguments
    positional = tuple(given.get(argument.name) for argument in taken if not argument.kwarg_only)
    keywords = {a.name: given.get(a.name, a.default_value) for a in taken if a.kwarg_only}
    return positional, keywords


def as_tuple(result: Any) -> tuple[Tensor, ...]:
    return (result,) if isinstance(result, Tensor) else tuple(result)


@pytest.mark.parametrize(("case_id", "name"), product(_COMPILED, _OPERATORS))
def test_opcheck(name: str, case_id: str, device: str) -> None:
    inputs = make_inputs(_BY_ID[case_id], device)
    positional, keywords = operator_inputs(name, inputs)
    torch.library.opcheck(getattr(torch.ops.toptheta_npu, name), positional, keywords)


@pytest.mark.parametrize("name", _OPERATORS)
@pytest.mark.parametrize("case_id", [*_COMPILED, "f16-bsh", "bf16-bsh", "paged-3d-bf16-bsh", "g12-two-head-blocks"])
def test_fake_outputs_have_the_real_shape_dtype_and_strides(name: str, case_id: str, device: str) -> None:
    positional, keywords = operator_inputs(name, make_inputs(_BY_ID[case_id], device))
    operator = getattr(torch.ops.toptheta_npu, name)
    real = as_tuple(operator(*positional, **keywords))
    with torch._subclasses.FakeTensorMode() as mode:
        fakes = [mode.from_tensor(t) if isinstance(t, Tensor) else t for t in positional]
        fake = as_tuple(operator(*fakes, **keywords))
    assert [(t.shape, t.dtype, t.stride(), t.device) for t in fake] == [
        (t.shape, t.dtype, t.stride(), t.device) for t in real
    ]


@pytest.mark.parametrize(
    ("layout", "shape"),
    [("BNSD", (2, 4, 1, 64)), ("BSND", (2, 1, 4, 64)), ("BSH", (2, 1, 256))],
    ids=["BNSD", "BSND", "BSH"],
)
def test_output_keeps_layout_for_a_strided_query(layout: str, shape: tuple[int, ...], device: str) -> None:
    arguments = make_inputs(replace(_BY_ID["f32-bsnd"], layout=layout), device).arguments
    plain = toptheta_npu.incremental_attention(**arguments)
    query = arguments["query"]
    wide = torch.full((*query.shape[:-1], 2 * query.shape[-1]), torch.nan, device=device)
    wide[..., ::2] = query
    strided = toptheta_npu.incremental_attention(**arguments | {"query": wide[..., ::2]})
    assert strided.shape == shape
    assert strided.is_contiguous()
    torch.testing.assert_close(strided, plain)


def _compiled(counter: Any) -> Any:
    def step(query: Tensor, key: Tensor, value: Tensor, threshold: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
        doubled = query * 2
        out, lse, kept, rows = toptheta_npu.incremental_attention_with_stats(
            doubled, key, value, threshold, actual_seq_lengths=lengths
        )
        return out + toptheta_npu.incremental_attention(doubled, key, value, threshold), lse, kept, rows

    return step, torch.compile(step, fullgraph=True, backend=counter)


def test_compile_needs_one_graph_for_all_lengths_and_one_more_for_other_capacities(device: str) -> None:
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    step, compiled = _compiled(counter)
    generator = torch.Generator().manual_seed(0)

    def run(capacity: int, lengths: list[int]) -> None:
        shapes = ((2, 4, 1, 32), (2, 2, capacity, 32), (2, 2, capacity, 32), (4,))
        tensors = [torch.randn(shape, generator=generator).to(device) for shape in shapes]
        tensors.append(torch.tensor(lengths, dtype=torch.int32, device=device))
        for got, expected in zip(compiled(*tensors), step(*tensors), strict=True):
            torch.testing.assert_close(got, expected)

    for lengths in ([64, 1], [3, 64], [0, 17], [33, 34]):
        run(64, lengths)
    assert counter.frame_count == 1
    for capacity in (65, 100, 999):
        run(capacity, [capacity, 2])
    assert counter.frame_count <= 2


def test_compile_with_inductor(device: str) -> None:
    if device.startswith("npu"):
        pytest.importorskip("triton")
    torch._dynamo.reset()
    inputs = make_inputs(_BY_ID["paged-4d"], device)
    compiled = torch.compile(toptheta_npu.incremental_attention, fullgraph=True)
    torch.testing.assert_close(compiled(**inputs.arguments), toptheta_npu.incremental_attention(**inputs.arguments))


def test_compile_with_dynamic_numbers(device: str) -> None:
    torch._dynamo.reset()
    inputs = make_inputs(_BY_ID["paged-4d"], device)
    compiled = torch.compile(toptheta_npu.incremental_attention, fullgraph=True, dynamic=True, backend="aot_eager")
    expected = toptheta_npu.incremental_attention(**inputs.arguments)
    torch.testing.assert_close(compiled(**inputs.arguments), expected)


def test_bases_of_the_error_table_are_valid(device: str) -> None:
    for base, names in ENTRY_POINTS.items():
        for name in names:
            assert as_tuple(call(name, valid_arguments(base, device)))[0].isfinite().all()


@pytest.mark.parametrize("case", ERROR_CASES, ids=lambda case: case.id)
def test_error(case: ErrorCase, device: str) -> None:
    if case.values_on_host and device != "cpu":
        pytest.skip("values of device tensors are not checked")
    if case.id == "query-dtype" and device.startswith("npu"):
        pytest.skip("there is no float64 on an NPU")
    for name in ENTRY_POINTS[case.base]:
        arguments = valid_arguments(case.base, device)
        arguments |= case.change(arguments)
        with pytest.raises(case.error) as caught:
            call(name, arguments)
        assert str(caught.value) == case.message.replace("{device}", str(torch.empty(0, device=device).device))


def test_errors_are_the_builtin_ones_too() -> None:
    assert issubclass(toptheta_npu.TopThetaValueError, (ValueError, toptheta_npu.TopThetaError))
    assert issubclass(toptheta_npu.TopThetaTypeError, TypeError)
    assert issubclass(toptheta_npu.TopThetaNotImplementedError, NotImplementedError)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode], ids=["no_grad", "inference_mode"])
@pytest.mark.parametrize("name", ["incremental_attention", "incremental_attention_with_stats", "prefill_attention"])
def test_requires_grad_is_allowed_where_grad_mode_is_off(context: Any, name: str, device: str) -> None:
    arguments = valid_arguments("prefill" if name == "prefill_attention" else "decode", device)
    arguments["key"].requires_grad_()
    with pytest.raises(toptheta_npu.TopThetaValueError, match=r"^key: expected a tensor that does not require grad"):
        call(name, arguments)
    with context():
        outputs = as_tuple(call(name, arguments))
    assert not any(output.requires_grad for output in outputs)


def test_inference_tensors_are_accepted(device: str) -> None:
    with torch.inference_mode():
        arguments = make_inputs(_BY_ID["sdc-exact-vmc"], device).arguments
        inside = toptheta_npu.incremental_attention(**arguments)
    torch.testing.assert_close(toptheta_npu.incremental_attention(**arguments), inside)


@pytest.mark.parametrize("case_id", ["f16-bsh", "sdc-none", "sdc-offline-mixed-vmc", "post-mixed-vmc", "ragged"])
@pytest.mark.parametrize("name", NEUTRAL)
def test_what_is_like_no_argument_changes_no_bit(name: str, case_id: str, device: str) -> None:
    arguments = make_inputs(_BY_ID[case_id], device).arguments
    neutral = {name: NEUTRAL[name](_BY_ID[case_id]).to(device)}
    plain = toptheta_npu.incremental_attention_with_stats(**arguments)
    for one, other in zip(plain, toptheta_npu.incremental_attention_with_stats(**arguments, **neutral), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("options", [{"sdc": "none"}, {"sdc": "exact"}, {"placement": "post_softmax"}], ids=str)
def test_a_row_of_a_prompt_has_the_sink_of_its_decode_step(options: dict[str, Any], device: str) -> None:
    inputs = make_inputs(_BY_ID["sink-post-f32-vmc"], device)
    given = {name: inputs.arguments[name] for name in ("query", "key", "value", "learnable_sink")}
    threshold = torch.full((2, 4), 0.004 if "placement" in options else 0.5, device=device)
    step, _, kept, _ = toptheta_npu.incremental_attention_with_stats(**given, threshold=threshold, **options)
    prompt, stats = toptheta_npu.fallback.prefill_attention_with_stats(
        **given, threshold_per_row=threshold[..., None], **options
    )
    assert kept.unique().numel() > 2
    assert torch.equal(stats.kept[..., 0], kept)
    torch.testing.assert_close(prompt, step)
    public = toptheta_npu.prefill_attention(**given, threshold_per_row=threshold[..., None], **options)
    torch.testing.assert_close(public, step)


@pytest.mark.parametrize("base", ["decode", "bsh", "paged", "partial", "merge", "tokens", "tokens-partial",
                                  "merge-tokens"])  # fmt: skip
def test_meta_outputs_are_shaped_as_those_of_a_cpu(base: str) -> None:
    for name in ENTRY_POINTS[base]:
        meta, real = (as_tuple(call(name, valid_arguments(base, device))) for device in ("meta", "cpu"))
        assert {tensor.device.type for tensor in meta} == {"meta"}
        assert [(t.shape, t.dtype, t.stride()) for t in meta] == [(t.shape, t.dtype, t.stride()) for t in real]


def test_compile_with_a_merge_of_parts(device: str) -> None:
    torch._dynamo.reset()
    arguments = valid_arguments("merge", device)
    compiled = torch.compile(toptheta_npu.merge_partials, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(**arguments), toptheta_npu.merge_partials(**arguments))


def test_import_is_lean() -> None:
    script = (
        "import sys, torch; before = set(sys.modules); import toptheta_npu\n"
        "new = set(sys.modules) - before\n"
        "heavy = {'torch_npu', 'transformers', 'matplotlib', 'lm_eval', 'torch._dynamo'} & new\n"
        "assert not heavy, heavy\n"
        "assert not torch.cuda.is_initialized()\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)


@pytest.fixture
def memory_full_of_nan() -> Iterator[None]:
    """Deterministic mode fills every fresh tensor with NaN."""
    assert torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("memory_full_of_nan")
@pytest.mark.parametrize("lengths", [None, (300, 0), (7, 300)], ids=str)
@pytest.mark.parametrize("theta", [1.0, float("-inf"), float("inf")])
@pytest.mark.parametrize("path", ["gather", "dense"])
def test_fresh_memory_never_reaches_a_result(lengths: tuple[int, int] | None, theta: float, path: str) -> None:
    assert torch.empty(3).isnan().all()
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, n, s, 64, generator=generator) for n, s in ((8, 1), (2, 300), (2, 300)))
    arguments = {"actual_seq_lengths": None if lengths is None else list(lengths), "_path": path}
    threshold = torch.full((8,), theta)
    results = toptheta_npu.incremental_attention_with_stats(query, key, value, threshold, **arguments)
    parts = toptheta_npu.incremental_attention_partial(query, key, value, threshold, **arguments)
    rows = torch.randn(2, 8, 50, 64, generator=generator)
    prompt = toptheta_npu.prefill_attention(rows, key, value, threshold[:, None].expand(8, 50), vmc=True)
    assert not any(tensor.isnan().any() for tensor in (*results, *parts, prompt))


def test_fallback_has_one_name() -> None:
    """The folder at the top of the repository is the package toptheta_npu.fallback, and no module of its own."""
    for module in ("fallback", "fallback.reference"):
        with pytest.raises(ImportError, match=r"^fallback: .*; import toptheta_npu\.fallback$"):
            importlib.import_module(module)
    assert not any(name == "fallback" or name.startswith("fallback.") for name in sys.modules)
    assert importlib.import_module("toptheta_npu.fallback") is toptheta_npu.fallback
