"""The record of vLLM's sources for CPUs against the shim, and against the sources where a checkout is at hand.

``--vllm-source`` names the folder of a checkout. In vLLM itself, tests/vllm compares what is installed.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.serving.sources import CPU_SOURCE, checkout, class_of, function_of, version_of
from toptheta_npu.vllm.layouts import Layout
from toptheta_npu.vllm.versions import TRIED_ON_CPU, cpu_record

MODULE = "vllm.v1.attention.backends.cpu_attn"


@pytest.fixture
def source(pytestconfig: pytest.Config) -> Path:
    return checkout(pytestconfig, CPU_SOURCE)


def test_the_sources_of_what_was_tried_were_read() -> None:
    assert set(TRIED_ON_CPU) <= set(cpu_record()["versions"])
    assert {Layout[name] for name in cpu_record()["cache"]["layouts"].values()} == {Layout.COLUMN_KEYS}


def test_the_cache_lies_as_recorded(source: Path) -> None:
    """The view that vLLM hands its kernel, where heads come before rows, and how the kernel writes a key into it."""
    owner = class_of(source, MODULE, "CPUAttentionBackendImpl")
    for function in ("forward", "do_kv_cache_update"):
        body = ast.unparse(function_of(owner, function))
        assert all(each in body for each in cpu_record()["cache"]["statements"])
    layouts = function_of(class_of(source, MODULE, "CPUAttentionBackend"), "supported_kv_cache_layouts")
    assert ast.unparse(layouts.body[-1]) == "return (KVCacheLayout.LBHNC,)"
    for isa in cpu_record()["cache"]["layouts"]:
        kernel = (source / "csrc" / "cpu" / f"cpu_attn_{isa}.hpp").read_text().replace("//", " ").split()
        assert "layout of k_cache block is [head_dim, block_size], row-major" in " ".join(kernel)
        assert "layout of v_cache is [block_size, head_dim], row-major" in " ".join(kernel)


def test_a_checkout_of_another_version_is_told(source: Path) -> None:
    assert version_of(source, "vllm") in (None, *cpu_record()["versions"])
