"""The registered operators with several query tokens: schema, fakes, outputs, compilation, and who refuses them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch._dynamo.testing
from torch import Tensor

import toptheta_npu
from tests.cases import TOKEN_CASES, valid_arguments
from tests.helpers import make_inputs
from tests.test_operator import operator_inputs
from tests.tiers import product
from toptheta_npu import TopThetaNotImplementedError, use_backend
from toptheta_npu.ops.checks import check_rows
from toptheta_npu.ops.limits import check_limits

_BY_ID = {case.id: case for case in TOKEN_CASES}
_CHECKED = (
    "tokens-ragged", "tokens-paged-3d-bf16-bsh", "tokens-start-f16-bsnd-post", "tokens-offline-vmc",
    "tokens-int8-paged-token",
)  # fmt: skip
_OPERATORS = ("incremental_attention", "incremental_attention_with_stats", "incremental_attention_partial")


@pytest.fixture
def fallback() -> Iterator[None]:
    with use_backend("fallback", device="cpu"):
        yield


@pytest.mark.usefixtures("fallback")
@pytest.mark.parametrize(("case_id", "name"), product(_CHECKED, _OPERATORS))
def test_opcheck(name: str, case_id: str) -> None:
    positional, keywords = operator_inputs(name, make_inputs(_BY_ID[case_id]))
    torch.library.opcheck(getattr(torch.ops.toptheta_npu, name), positional, keywords)


@pytest.mark.usefixtures("fallback")
def test_compile_needs_one_graph_for_all_lengths() -> None:
    """Lengths, numbers of real tokens and what follows from them are tensors: nothing is looked at while tracing."""
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")

    def step(query: Tensor, cache: Tensor, table: Tensor, n: Tensor, real: Tensor) -> tuple[Tensor, ...]:
        rows = toptheta_npu.row_lengths(n, real, 3)
        theta = table[rows].permute(0, 2, 1)  # [B, Hq, Sq]: each row the threshold of its length
        whole = toptheta_npu.incremental_attention_with_stats(
            query, cache, cache, theta.contiguous(), actual_seq_lengths=n, actual_query_lengths=real
        )
        part = toptheta_npu.incremental_attention_partial(query, cache, cache, theta, actual_seq_lengths=rows)
        return *whole, toptheta_npu.merge_partials([part], theta, [rows])

    compiled = torch.compile(step, fullgraph=True, backend=counter)
    generator = torch.Generator().manual_seed(0)
    table = torch.linspace(-1.0, 2.0, 65 * 4).view(65, 4)
    calls = (([64, 3], [3, 3]), ([5, 64], [1, 3]), ([0, 17], [0, 2]), ([33, 34], [0, 0]), ([2, 1], [2, 1]))
    for n, real in calls:
        query, cache = (torch.randn(shape, generator=generator) for shape in ((2, 4, 3, 32), (2, 2, 64, 32)))
        tensors = (query, cache, table, torch.tensor(n), torch.tensor(real, dtype=torch.int32))
        found, expected = compiled(*tensors), step(*tensors)
        for got, wanted in zip(found, expected, strict=True):
            torch.testing.assert_close(got, wanted)
        torch.testing.assert_close(expected[0], expected[-1])
    assert counter.frame_count == 1


@pytest.mark.usefixtures("fallback")
def test_compile_keeps_up_with_other_numbers_of_tokens() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(toptheta_npu.incremental_attention_with_stats, fullgraph=True, backend="aot_eager")
    for tokens in (1, 4, 2, 7, 16):
        generator = torch.Generator().manual_seed(tokens)
        query, cache = (
            torch.randn(2, 4, tokens, 32, generator=generator),
            torch.randn(2, 2, 40, 32, generator=generator),
        )
        arguments = (query, cache, cache, torch.full((4,), 0.5))
        expected = toptheta_npu.incremental_attention_with_stats(*arguments)
        assert expected[2].shape == ((2, 4) if tokens == 1 else (2, 4, tokens))
        for got, wanted in zip(compiled(*arguments), expected, strict=True):
            torch.testing.assert_close(got, wanted)


# What the NPU kernel has for one token alone.


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        (True, {}, r"query: expected one token per sequence in a part of rows on an NPU, got \[2, 4, 3, 16\]"),
        (False, {"placement": "post_softmax"},
         "placement: expected 'pre_softmax' with several query tokens on an NPU, got 'post_softmax'"),
        (False, {"key": torch.empty_strided((2, 2, 8, 16), (0, 0, 65552, 1), dtype=torch.float16)},
         "key: expected rows at most 65535 elements apart with several query tokens on an NPU, got 65552"),
    ],
    ids=["part", "post-softmax", "rows-far-apart"],
)  # fmt: skip
def test_the_npu_kernel_refuses(part: bool, change: dict[str, Any], message: str) -> None:
    arguments = valid_arguments("tokens")
    rows = {name: arguments[name].half() for name in ("query", "key", "value")}
    given = toptheta_npu.fallback.Arguments(4, 2, 0.25, threshold=arguments["threshold"], **rows)._replace(**change)
    with pytest.raises(TopThetaNotImplementedError, match=f"^{message}; "):
        check_limits(given, part=part)


@pytest.mark.parametrize("base", ["tokens", "decode"])
def test_the_npu_kernel_takes_several_tokens_and_one_that_may_be_none(base: str) -> None:
    arguments = valid_arguments(base)
    given = toptheta_npu.fallback.Arguments(
        None, None, None, *(arguments[each].half() for each in ("query", "key", "value")), arguments["threshold"],
        actual_query_lengths=torch.tensor([1, 1]),
    )  # fmt: skip
    check_limits(check_rows(given, part=False))
