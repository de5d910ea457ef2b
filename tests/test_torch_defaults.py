"""What a process sets as torch's default dtype and device changes nothing: neither operators nor state look at it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor

import toptheta_npu
from toptheta_npu.context_parallel.sharding import Sharding
from toptheta_npu.thresholds import ThresholdTable
from toptheta_npu.thresholds.summary import heads_of, layers_of, shown_lengths
from toptheta_npu.vllm.page_sums import NewRows, PageSums

DEFAULTS = [torch.bfloat16, torch.float16, torch.float64, torch.device("meta")]
_PACKAGE = Path(toptheta_npu.__file__).parent
_OF_DTYPE = {"empty", "eye", "full", "linspace", "logspace", "ones", "rand", "randn", "tensor", "zeros"}
#: Integers whatever the default, or of the type of what they are given.
_OF_DEVICE = {"arange", "as_tensor", "asarray", "randint", "randperm", "tril_indices", "triu_indices"}


@contextmanager
def torch_default(default: torch.dtype | torch.device) -> Iterator[None]:
    """Set torch's default dtype or device for the process."""
    if isinstance(default, torch.device):
        torch.set_default_device(default)
    else:
        torch.set_default_dtype(default)
    try:
        yield
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)


def _faults(source: str) -> Iterator[str]:
    for call in ast.walk(ast.parse(source)):
        if not isinstance(call, ast.Call) or not ast.unparse(call.func).startswith("torch."):
            continue
        name = ast.unparse(call.func).removeprefix("torch.")
        given = {keyword.arg for keyword in call.keywords}
        needed = {"dtype", "device"} if name in _OF_DTYPE else {"device"} if name in _OF_DEVICE else set()
        if missing := sorted(needed - given):
            yield f"line {call.lineno}: torch.{name} without {' and '.join(missing)}"
        if name.endswith("Tensor") or name.startswith(("set_default", "get_default")):
            yield f"line {call.lineno}: torch.{name}"


def test_the_search_for_factories_finds_what_it_looks_for() -> None:
    source = (
        "torch.ones(3)\ntorch.arange(3)\ntorch.Tensor(3)\ntorch.full((3,), 1.0, device=d)\ntorch.arange(3, device=d)"
    )
    assert list(_faults(source)) == [
        "line 1: torch.ones without device and dtype", "line 2: torch.arange without device", "line 3: torch.Tensor",
        "line 4: torch.full without dtype",
    ]  # fmt: skip


def test_every_tensor_that_the_package_makes_has_a_dtype_and_a_device() -> None:
    sources = [*_PACKAGE.rglob("*.py"), *(_PACKAGE / "fallback").rglob("*.py")]
    assert len(sources) > 200
    assert [f"{path}: {fault}" for path in sources for fault in _faults(path.read_text())] == []


def _operators() -> Iterator[Tensor]:
    draw = torch.Generator().manual_seed(0)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float32, device="cpu")

    query, key, value = randn(2, 4, 3, 32), randn(2, 2, 50, 32), randn(2, 2, 50, 32)
    theta = randn(4)
    for path in ("auto", "gather", "dense"):
        yield torch.ops.toptheta_npu.incremental_attention(
            query, key, value, theta, num_heads=4, num_key_value_heads=2, scale_value=0.2, path=path
        )
    for placement in ("pre_softmax", "post_softmax"):
        yield toptheta_npu.prefill_attention(
            query, key, value, (theta.abs() / 50)[:, None].expand(4, 3), placement=placement, vmc=True
        )
    step = query[:, :, :1].contiguous()
    yield from toptheta_npu.incremental_attention_with_stats(
        step, key, value, theta, sdc="exp_threshold", value_mean=value.mean(2), actual_seq_lengths=[50, 7]
    )
    parts = [
        toptheta_npu.incremental_attention_partial(step, key[:, :, some], value[:, :, some], theta + 100)
        for some in (slice(20), slice(20, 50))
    ]
    yield toptheta_npu.merge_partials(parts, theta + 100, [20, 30], sdc="exact")


def _page_sums() -> Iterator[Tensor]:
    cache = torch.arange(3 * 2 * 4 * 16, dtype=torch.float32, device="cpu").view(3, 2, 4, 16).sin()
    table = torch.tensor([[2, 0]], dtype=torch.int32, device="cpu")
    ends = [torch.tensor([each], dtype=torch.int64, device="cpu") for each in (5, 6)]
    sums = PageSums(3, 4, 2, 16, "cpu")
    yield sums.means(cache, NewRows(table, ends[0], torch.tensor([0, 5], device="cpu")))
    yield sums.means(cache, NewRows(table, ends[1]))


def _table() -> ThresholdTable:
    draw = torch.Generator().manual_seed(1)
    theta = torch.randn(2, 2, 3, 5, generator=draw, dtype=torch.float32, device="cpu").sort(dim=-1).values
    theta[1] -= 2
    counts = torch.full((2, 3, 5), 9, dtype=torch.int64, device="cpu")
    return ThresholdTable(
        theta=theta, k=torch.tensor([4, 16], device="cpu"), lengths=torch.tensor([5, 9, 17, 40, 100], device="cpu"),
        counts=counts, std=torch.zeros_like(theta), placement="pre_softmax", estimator="algorithm1", alpha=0.1,
        layer_k=(0, 12), fingerprint="model",
    )  # fmt: skip


def _thresholds(folder: Path) -> Iterator[Tensor]:
    table = _table()
    table.save(folder / "table.theta")
    table = ThresholdTable.load(folder / "table.theta")
    table.export_text(folder / "th.txt", 4)
    for at in (
        table.at(7), table.at(7, lookup="fitted"), table.at(5, max_length=200, lookup="fitted"),
        ThresholdTable.from_text(folder / "th.txt", fingerprint="model").at(4),
    ):  # fmt: skip
        yield from (*at.theta, *at.aims)
    yield table.calibrated_targets
    yield table.fit().predict([7, 90])
    numbers = [repr(layers_of(table, 5, shown_lengths(table, 5))), repr(heads_of(table, 5, 1, [17]))]
    yield torch.tensor([*"".join(numbers).encode()], dtype=torch.int64, device="cpu")


def _shares() -> Iterator[Tensor]:
    sharding = Sharding(1, 3, 4)
    yield sharding.positions(5, 40)
    yield torch.tensor([sharding.held(length) for length in range(30)], device="cpu")


def _everything(folder: Path) -> list[Tensor]:
    return [*_operators(), *_page_sums(), *_thresholds(folder), *_shares()]


@pytest.mark.filterwarnings("ignore::toptheta_npu.thresholds.ThresholdExtrapolationWarning")
@pytest.mark.parametrize("backend", ["native", "fallback"])
@pytest.mark.parametrize("default", DEFAULTS, ids=str)
def test_torch_defaults_change_no_number(default: torch.dtype | torch.device, backend: str, tmp_path: Path) -> None:
    with toptheta_npu.use_backend(backend, "cpu"):
        expected = _everything(tmp_path)
        with torch_default(default):
            got = _everything(tmp_path)
    _assert_same(got, expected)


@pytest.mark.filterwarnings("ignore::toptheta_npu.thresholds.ThresholdExtrapolationWarning")
@pytest.mark.parametrize("backend", ["native", "fallback"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_changes_no_number(dtype: torch.dtype, backend: str, tmp_path: Path) -> None:
    with toptheta_npu.use_backend(backend, "cpu"):
        expected = _everything(tmp_path)
        with torch.autocast("cpu", dtype=dtype):
            got = _everything(tmp_path)
    _assert_same(got, expected)


def _assert_same(got: list[Tensor], expected: list[Tensor]) -> None:
    assert len(expected) > 30
    for one, other in zip(got, expected, strict=True):
        assert (one.dtype, one.device) == (other.dtype, other.device)
        assert torch.equal(one.nan_to_num(), other.nan_to_num())
