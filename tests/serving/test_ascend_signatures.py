"""The record of vllm-ascend's sources against the shim, and against the sources where a checkout is at hand.

``--vllm-ascend-source`` names the folder of a checkout.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
from pathlib import Path
from typing import Any

import pytest

from tests.serving import ascend_parts
from tests.serving.ascend_engine import OurBuilder, OurImpl
from tests.serving.sources import (
    assert_attributes,
    assert_fields,
    assert_parameters,
    checkout,
    class_of,
    function_of,
    functions,
    version_of,
)
from toptheta_npu import TopThetaNotImplementedError
from toptheta_npu.vllm import ascend
from toptheta_npu.vllm.ascend_signatures import DISTRIBUTION, differences, parameters_of, record, versions
from toptheta_npu.vllm.versions import check_version

ATTENTION = ascend_parts.MODULE
OURS = {"AscendAttentionBackendImpl": ascend.Impl, "AscendAttentionMetadataBuilder": ascend.Builder}


PARAMETERS = [
    pytest.param(*entry, id=f"{entry[1]}.{entry[2]}")
    for kind in ("parameters", "inherited")
    for entry in functions(record(), kind)
]


@pytest.mark.parametrize(("module", "name", "function", "wanted"), PARAMETERS)
def test_the_shim_has_the_parameters_of_what_it_stands_before(
    module: str, name: str, function: str, wanted: list[str]
) -> None:
    if name in OURS:
        assert parameters_of(OURS[name], function) == wanted


def test_all_that_the_shim_overrides_is_recorded() -> None:
    for name, ours in OURS.items():
        public = {each for each in vars(ours) if inspect.isfunction(vars(ours)[each]) and not each.startswith("_")}
        known = [record()[kind][ATTENTION].get(name, {}) for kind in ("parameters", "inherited")]
        assert public | {"__init__"} == {function for each in known for function in each}


@pytest.mark.parametrize(("module", "name", "function", "wanted"), PARAMETERS)
def test_the_parts_in_these_tests_are_those_of_the_record(
    module: str, name: str, function: str, wanted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = ascend_parts.put_in_place(monkeypatch)
    owner = {"NPUPlatform": parts.platform, "AscendAttentionBackend": parts.backend}.get(name)
    assert parameters_of(owner or getattr(ascend_parts, name), function) == wanted
    assert {each.name for each in dataclasses.fields(ascend_parts.AscendMetadata)} == set(
        record()["fields"][ATTENTION]["AscendMetadata"]
    )


def test_ours_come_first() -> None:
    assert OurImpl.forward_impl is ascend.Impl.forward_impl
    assert OurBuilder.build is ascend.Builder.build


@pytest.mark.parametrize("found", [*versions(), "0.23.0+cann9"])
def test_versions_whose_sources_were_read_are_accepted(found: str) -> None:
    check_version(DISTRIBUTION, versions(), found)


@pytest.mark.parametrize("found", ["0.22.1rc1", "0.23.0rc1", "0.26.0", "0.30.0", "0.25.2.dev3+g182b75e", ""])
def test_other_versions_are_refused(found: str) -> None:
    with pytest.raises(TopThetaNotImplementedError, match=r"vllm-ascend: expected version 0\.23\.0 or"):
        check_version(DISTRIBUTION, versions(), found)
    check_version(DISTRIBUTION, versions(), found, untried=True)


@pytest.fixture
def source(pytestconfig: pytest.Config) -> Path:
    return checkout(pytestconfig)


@pytest.mark.parametrize(("module", "name", "function", "wanted"), list(functions(record(), "parameters")))
def test_recorded_parameters_are_those_of_the_sources(
    source: Path, module: str, name: str, function: str, wanted: list[str]
) -> None:
    assert_parameters(source, module, name, function, wanted)


def test_recorded_fields_and_attributes_are_in_the_sources(source: Path) -> None:
    assert_fields(source, record())
    assert_attributes(source, record())


def test_what_is_read_of_a_step_is_read_in_the_sources_too(source: Path) -> None:
    for module, name, function, arguments in functions(record(), "reads"):
        body = function_of(class_of(source, module, name), function)
        for argument, wanted in arguments.items():
            found = {
                node.attr
                for node in ast.walk(body)
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == argument
            }
            assert set(wanted) <= found


def test_what_drafts_need_of_a_step_is_there_in_the_sources_too(source: Path) -> None:
    """Lengths on the host, where they come from, and a call of its own for steps that graphs replay."""
    known = record()["made_for_graphs"]
    build = function_of(class_of(source, ATTENTION, "AscendAttentionMetadataBuilder"), "build")
    assert all(each in ast.unparse(build) for each in record()["made_in_build"])
    runner = (source / f"{known['module'].replace('.', '/')}.py").read_text()
    assert all(each in runner for each in known["statements"])


def test_the_cache_is_written_before_attention_runs(source: Path) -> None:
    for module, name, function, wanted in functions(record(), "calls_in_order"):
        body = function_of(class_of(source, module, name), function)
        calls = [
            (node.lineno, node.func.attr)
            for node in ast.walk(body)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in wanted
        ]
        in_order = list(dict.fromkeys(called for _, called in sorted(calls)))
        assert in_order == wanted


def test_the_platform_chooses_the_recorded_backend(source: Path) -> None:
    chosen = function_of(class_of(source, "vllm_ascend.platform", "NPUPlatform"), "get_attn_backend_cls")
    constants = {node.value for node in ast.walk(chosen) if isinstance(node, ast.Constant)}
    assert record()["backend"] in constants


def test_the_versions_are_in_one_record_each_and_the_last_knows_all_layouts() -> None:
    assert len(versions()) == sum(len(each["versions"]) for each in differences())
    known = [each["cache"]["layouts"] for each in differences()]
    assert all(older.items() <= known[-1].items() for older in known)


def test_recorded_layouts_are_those_of_the_sources(source: Path) -> None:
    """The names for which the cache has heads first, where they come from, and where values lie."""
    cache = _difference(source)["cache"]
    shapes = function_of(class_of(source, ATTENTION, "AscendAttentionBackend"), "get_kv_cache_shape")
    constants = {node.value for node in ast.walk(shapes) if isinstance(node, ast.Constant)}
    names = {each for each in constants if isinstance(each, str)}
    heads_first = {name for name, layout in cache["layouts"].items() if layout == "SPLIT_HND"}
    assert names - {""} == heads_first
    returns = [node for node in ast.walk(shapes) if isinstance(node, ast.Return) and node.value]
    returned = [ast.unparse(node.value) for node in sorted(returns, key=lambda node: node.lineno)]  # type: ignore[arg-type]
    rows_first = "(2, num_blocks, block_size, num_kv_heads, head_size)"
    assert returned == [*["(2, num_blocks, num_kv_heads, block_size, head_size)"] * bool(heads_first), rows_first]
    constructor = ast.unparse(function_of(class_of(source, ATTENTION, "AscendAttentionBackendImpl"), "__init__"))
    if cache["attribute"]:
        assert f"self.{cache['attribute']} = envs_vllm.{cache['variable']}" in constructor
    assert ("kv_cache_layout" in constructor) == bool(cache["attribute"])
    runner = (source / "vllm_ascend/worker/model_runner_v1.py").read_text()
    assert ("[non-contiguous-kv-cache]" in runner) == cache["side_by_side"]


def _difference(source: Path) -> dict[str, Any]:
    """The record of the checkout's version; the last one where it does not say or is not known."""
    found = version_of(source, "vllm_ascend")
    of = [each for each in differences() if found in each["versions"]]
    return (of or differences())[-1]
