"""What only the native backend promises: its threads, the order of its sums, its levels, and its place in PyTorch."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.cases import CASES, SAMPLED_CASES, TOKEN_CASES, Case
from tests.helpers import assert_equals_oracle, make_inputs
from tests.tiers import full, product
from toptheta_npu import TopThetaBackendError, incremental_attention_with_stats, use_backend
from toptheta_npu.cpu import build, instruction_sets, library, threads

_DTYPES = ("float32", "float16", "bfloat16")
#: Long rows: several granules of keys for each KV head.
_LONG = Case("long", heads=8, kv_heads=2, head_dim=128, lengths=(3000, 700, 0, 2500), keep=0.05, vmc=True)


@pytest.fixture(autouse=True)
def native() -> Iterator[None]:
    with use_backend("native", device="cpu"):
        yield


@pytest.fixture
def thread_count() -> Iterator[Any]:
    """Sets PyTorch's number of threads for a test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def assert_identical(result: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    for got, wanted in zip(result, expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(("dtype", "level"), product(_DTYPES, ["avx512", "avx2", "avx512_bf16", "neon_bf16", "neon"]))
def test_every_level_of_this_machine_equals_the_oracle(level: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if level not in instruction_sets.available():
        pytest.skip(f"this CPU does not run {level}")
    monkeypatch.setenv(instruction_sets.VARIABLE, level)
    monkeypatch.setattr(library, "_LIBRARIES", {})
    for case in (*CASES, *SAMPLED_CASES, *TOKEN_CASES):
        if case.dtype == dtype:
            for path in ("auto", "gather", "dense"):
                poison = ("outside", "values") if path == "gather" else ("outside",)
                inputs = make_inputs(case, poison=poison)
                assert_equals_oracle(inputs, incremental_attention_with_stats(**inputs.arguments, _path=path))


@full
def test_eight_threads_call_at_once(thread_count: Any) -> None:
    thread_count(2)
    inputs = [make_inputs(replace(_LONG, dtype=_DTYPES[seed % 3]), seed=seed) for seed in range(8)]
    expected = [incremental_attention_with_stats(**each.arguments) for each in inputs]

    def call_often(each: Any) -> list[tuple[Tensor, ...]]:
        torch.set_num_threads(2)  # a matter of the thread
        return [incremental_attention_with_stats(**each.arguments) for _ in range(10)]

    with ThreadPoolExecutor(8) as pool:
        for results, wanted in zip(pool.map(call_often, inputs), expected, strict=True):
            for result in results:
                assert_identical(result, wanted)


def run_python(program: str, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=120, check=False,
        env=os.environ | {"OMP_NUM_THREADS": "2"} | variables,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


_STEP = """
    import os, torch, toptheta_npu
    from toptheta_npu.cpu import threads
    toptheta_npu.use_backend("native", device="cpu")
    query, cache, theta = torch.randn(1, 8, 1, 64), torch.randn(1, 8, 4000, 64), torch.full((8,), 1.0)
    step = lambda: toptheta_npu.incremental_attention(query, cache, cache, theta)
"""


def test_one_openmp_runtime_is_in_the_process() -> None:
    program = (
        _STEP
        + """
    step(), torch.randn(500, 500) @ torch.randn(500, 500)
    print(len(threads.loaded_runtimes()), torch.get_num_threads(), threads.run_in_parallel() != 0)
    """
    )
    assert run_python(program).split() == ["1", "2", "True"]


def test_work_is_done_by_the_threads_of_pytorch() -> None:
    """The call starts no thread of its own: PyTorch's pool has them already."""
    program = (
        _STEP
        + """
    torch.ones(1 << 22).exp()
    before = len(os.listdir("/proc/self/task"))
    for _ in range(3):
        step()
    print(len(os.listdir("/proc/self/task")) - before)
    """
    )
    assert run_python(program).split() == ["0"]


def test_forked_child_computes_on_one_thread() -> None:
    program = (
        _STEP
        + """
    expected = step()
    child = os.fork()
    if child == 0:
        os._exit(0 if threads.thread_count() == 1 and torch.equal(step(), expected) else 1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    )
    assert run_python(program).split() == ["0"]


def test_loading_leaves_subnormal_numbers_alone() -> None:
    """A library linked with -ffast-math would flush them to zero in the thread that loads it."""
    program = (
        _STEP
        + """
    step()
    print((torch.tensor([1e-40]) * 0.5).item() > 0)
    """
    )
    assert run_python(program).split() == ["True"]


def test_thread_count_is_that_of_pytorch(thread_count: Any) -> None:
    thread_count(3)
    assert threads.thread_count() == 3


def test_library_that_cannot_be_loaded_is_told_with_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "library.so"
    path.write_text("")  # as from a folder that is mounted noexec, the loader refuses it
    monkeypatch.setattr(library, "_LIBRARIES", {})
    monkeypatch.setattr(build, "library", lambda name: path)
    with pytest.raises(TopThetaBackendError, match=r"set TOPTHETA_CACHE to a folder from which programs may be run$"):
        library.function(torch.float32)


def test_library_for_other_structs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_LIBRARIES", {})
    monkeypatch.setattr(library, "_SIZE", 8)
    with pytest.raises(TopThetaBackendError, match=r"^CPU kernel: expected arguments of 8 bytes, got \d+; install"):
        library.function(torch.float32)
