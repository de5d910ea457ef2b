"""What needs no second process: which keys lie where, what is refused, and a group of one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import SAMPLED_CASES, Case
from tests.helpers import assert_within_yardstick, by_sequence, make_inputs, of_rows, yardstick
from toptheta_npu import (
    TopThetaNotImplementedError,
    TopThetaTypeError,
    TopThetaValueError,
    incremental_attention_partial,
    use_backend,
)
from toptheta_npu.context_parallel import (
    Sharding,
    context_parallel_attention,
    context_parallel_attention_with_stats,
    exchanged_bytes,
)
from toptheta_npu.context_parallel.parts import Share
from toptheta_npu.fallback import Arguments
from toptheta_npu.fallback.reference import attention_scores
from toptheta_npu.fallback.sampled import sampled_lse
from toptheta_npu.ops.checks import check_rows


@pytest.fixture
def group() -> Iterator[None]:
    """A process group with this process alone, and no gradients."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    with torch.no_grad():
        yield
    dist.destroy_process_group()


def test_scores_of_minus_infinity_alone_keep_nothing(group: None) -> None:
    query, key = torch.full((1, 2, 1, 16), 1e30), torch.full((1, 2, 8, 16), -1e30)
    out, lse, kept = context_parallel_attention_with_stats(query, key, torch.ones_like(key), torch.zeros(2))
    assert (out.count_nonzero().item(), kept.tolist(), lse.tolist()) == (0, [[0, 0]], [[-torch.inf] * 2])


def step(**changes: object) -> torch.Tensor:
    cache = torch.ones(1, 2, 8, 16)
    arguments = {"query": torch.ones(1, 4, 1, 16), "key": cache, "value": cache, "threshold": torch.zeros(4)}
    return context_parallel_attention(**{**arguments, **changes})  # type: ignore[arg-type]


@given(world_size=st.integers(1, 6), interleave=st.integers(1, 9), length=st.integers(0, 80), first=st.integers(0, 80))
def test_every_key_lies_on_one_rank_in_its_order(world_size: int, interleave: int, length: int, first: int) -> None:
    ranks = [Sharding(rank, world_size, interleave) for rank in range(world_size)]
    assert sorted(key for rank in ranks for key in rank.positions(0, length).tolist()) == list(range(length))
    for rank in ranks:
        held = rank.positions(0, length)
        assert held.tolist() == sorted(held.tolist())
        assert rank.held(length) == len(held)
        assert rank.held(torch.tensor([length, first])).tolist() == [len(held), rank.held(first)]
        later = rank.positions(first, length) if first < length else held[:0]
        assert torch.equal(later, held[held >= first])
    counts = [rank.held(length) for rank in ranks]
    assert max(counts) - min(counts) <= interleave


@pytest.mark.parametrize("head_dim", [16, 128])
def test_exchanged_bytes_are_those_of_the_formula_in_the_documentation(head_dim: int) -> None:
    rows, kv_rows = 3 * 8, 3 * 2
    assert exchanged_bytes(3, 8, 2, head_dim) == 4 * (rows * (head_dim + 4) + 3)
    assert exchanged_bytes(3, 8, 2, head_dim, vmc=True) == 4 * (rows * (head_dim + 4) + 3 + kv_rows * head_dim)
    assert exchanged_bytes(3, 8, 2, head_dim, placement="post_softmax") == 4 * (rows * (head_dim + 5) + 3)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"threshold": None}, TopThetaTypeError, "threshold: expected a torch.Tensor, got NoneType"),
        ({"value_mean": None}, TopThetaTypeError, "value_mean: expected one of the options .*learnable_sink"),
        (
            {"query": torch.ones(1, 4, 2, 16)},
            TopThetaValueError,
            r"actual_seq_lengths: expected shape \[1, 2\] \[B, Sq\], the keys of this part that each token sees",
        ),
        (
            {"query": torch.ones(1, 4, 2, 16), "actual_seq_lengths": torch.ones(1, 2, dtype=torch.int32),
             "value_sum": torch.ones(1, 2, 16)},
            TopThetaValueError,
            r"value_sum: expected shape \[1, 2, 2, 16\] \[B, Hkv, Sq, D\], got \[1, 2, 16\]",
        ),
        ({"value_sum": torch.ones(1, 4, 16)}, TopThetaValueError, r"value_sum: expected shape \[1, 2, 16\] \[B, Hkv"),
        ({"value_sum": torch.ones(1, 2, 16), "sdc": "none"}, TopThetaValueError, "value_sum excludes sdc='none'"),
        ({"sdc": "offline"}, TopThetaValueError, "discarded_mass: expected the calibrated estimate"),
        ({"placement": "post_softmax", "sdc": "none"}, TopThetaValueError, "sdc='none' needs placement='pre_softmax'"),
        ({"actual_seq_lengths": torch.tensor([9])}, TopThetaValueError, r"actual_seq_lengths\[0\]: expected 0 to 8"),
        ({"group": "gloo"}, TopThetaTypeError, "group: expected a torch.distributed.ProcessGroup or None, got str"),
        (
            {"group": dist.GroupMember.NON_GROUP_MEMBER},
            TopThetaValueError,
            "group: expected a group with this process in it, got another; call in its members only",
        ),
        (
            {
                "query": torch.ones(1, 4, 1, 16, device="meta"), "threshold": torch.zeros(4, device="meta"),
                **{name: torch.ones(1, 2, 8, 16, device="meta") for name in ("key", "value")},
            },
            TopThetaNotImplementedError,
            "query: expected a tensor on cpu or cuda or npu, got meta",
        ),
        (
            {name: torch.ones(1, 2, 0, 16) for name in ("key", "value")} | {"actual_seq_lengths": [1]},
            TopThetaValueError,
            r"actual_seq_lengths: expected 0, since the cache has no room, got \[1\]",
        ),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("group")
def test_unusable_arguments_raise(changes: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        step(**changes)


def test_without_a_process_group() -> None:
    for call in (step, lambda: Sharding.of_group(8)):
        with pytest.raises(TopThetaValueError, match=r"torch.distributed: .*, got none; start with torchrun and call"):
            call()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((0, 2, 0), TopThetaValueError, "interleave: expected an int from 1 to"),
        ((2, 2, 8), TopThetaValueError, "rank: expected an int from 0 to 1, got 2"),
        ((0, 0, 8), TopThetaValueError, "world_size: expected an int from 1 to 2147483647, got 0"),
        (("0", 2, 8), TopThetaTypeError, "rank: expected an int, got '0'"),
    ],
)
def test_unusable_shardings_raise(arguments: tuple[int, int, int], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Sharding(*arguments)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("head_dim", [40, 128])
def test_the_native_kernel_gives_a_key_the_same_score_in_any_share(dtype: torch.dtype, head_dim: int) -> None:
    """Thresholds that equal a score, bit for bit: ranks keep what one process keeps, however narrowly."""
    generator = torch.Generator().manual_seed(head_dim)
    query, key = (torch.randn(1, *shape, head_dim, generator=generator).to(dtype) for shape in ((4, 1), (2, 90)))
    never, shares = torch.full((4,), torch.inf), (slice(0, 7), slice(7, 61), slice(61, 90))
    with use_backend("native", device="cpu"):
        for one in range(0, 90, 5):
            alone = key[:, :, one : one + 1]
            score = incremental_attention_partial(query, alone, alone, never).maximum[0]
            parts = [incremental_attention_partial(query, key[:, :, s], key[:, :, s], score).kept for s in shares]
            whole = incremental_attention_partial(query, key, key, score).kept
            assert torch.equal(torch.stack(parts).sum(0).int(), whole)


@pytest.mark.usefixtures("group")
def test_a_group_without_any_key_gives_zeros() -> None:
    nothing = torch.ones(1, 2, 0, 16)
    out, lse, kept = context_parallel_attention_with_stats(
        torch.ones(1, 4, 1, 16), nothing, nothing, torch.zeros(4), value_sum=torch.zeros(1, 2, 16)
    )
    assert out.unique().tolist() == [0.0]
    assert lse.unique().tolist() == [-torch.inf]
    assert kept.unique().tolist() == [0]


def test_the_module_needs_no_transformers() -> None:
    script = "import sys, toptheta_npu.context_parallel; assert 'transformers' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("case", SAMPLED_CASES, ids=lambda case: case.id)
def test_one_rank_by_a_sample_keeps_what_the_operator_keeps(group: None, case: Case) -> None:
    inputs = make_inputs(case, poison=("outside",))
    whole = {"value_mean": None, "actual_query_lengths": None}
    arguments = {name: value for name, value in inputs.arguments.items() if name not in whole}
    if case.query_tokens > 1:
        arguments["actual_seq_lengths"] = by_sequence(case, inputs.rows.lengths)
    _, lse, kept = context_parallel_attention_with_stats(**arguments)
    assert torch.equal(of_rows(case, kept).long(), inputs.expected.kept)
    assert_within_yardstick(of_rows(case, lse), yardstick(inputs, torch.float32)[1], inputs.expected.lse)


def test_every_rank_samples_its_own_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """The LSE of the whole row is that of its parts, each as its sample tells it."""
    generator = torch.Generator().manual_seed(0)
    query, cache = (torch.randn(1, 4, 1, 16, generator=generator), torch.randn(1, 2, 1500, 16, generator=generator))
    halves = [
        Share(check_rows(Arguments(4, 2, 0.25, query, half, half, torch.zeros(4)), part=True))
        for half in (cache[:, :, :900], cache[:, :, 900:])
    ]
    found = torch.stack([half.sampled_lse() for half in halves])
    for half, rows in zip(found, (cache[:, :, :900], cache[:, :, 900:]), strict=True):
        scores, count = attention_scores(query[:, :, 0], rows, 0.25), torch.tensor([rows.shape[2]])
        torch.testing.assert_close(half, sampled_lse(scores, count, torch.tensor([0])))
    exact = attention_scores(query[:, :, 0], cache, 0.25).logsumexp(-1)
    torch.testing.assert_close(found.logsumexp(0), exact, atol=0.1, rtol=0)
