"""The record of vllm-ascend's sources against the shim, and against the sources where a checkout is at hand.

``--vllm-ascend-source`` names the folder of a checkout.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving import ascend_parts
from toptheta_npu import TopThetaNotImplementedError
from toptheta_npu.vllm import ascend
from toptheta_npu.vllm.ascend_signatures import DISTRIBUTION, parameters_of, record
from toptheta_npu.vllm.versions import check_version

ATTENTION = ascend_parts.MODULE
OURS = {"AscendAttentionBackendImpl": ascend.Impl, "AscendAttentionMetadataBuilder": ascend.Builder}


def functions(kind: str) -> Iterator[tuple[str, str, str, list[str]]]:
    """Module, class, function and its parameters in the record."""
    for module, classes in record()[kind].items():
        for name, entries in classes.items():
            for function, wanted in entries.items():
                yield module, name, function, wanted


def test_the_shim_has_the_parameters_of_what_it_stands_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """And so do the parts in these tests."""
    parts = ascend_parts.put_in_place(monkeypatch)
    theirs = {"NPUPlatform": parts.platform, "AscendAttentionBackend": parts.backend}
    for _, name, function, wanted in [*functions("parameters"), *functions("inherited")]:
        assert parameters_of(theirs.get(name) or getattr(ascend_parts, name), function) == wanted
        if name in OURS:
            assert parameters_of(OURS[name], function) == wanted
    fields = {each.name for each in dataclasses.fields(ascend_parts.AscendMetadata)}
    assert fields == set(record()["fields"][ATTENTION]["AscendMetadata"])


def test_all_that_the_shim_overrides_is_recorded() -> None:
    for name, ours in OURS.items():
        public = {each for each in vars(ours) if inspect.isfunction(vars(ours)[each]) and not each.startswith("_")}
        known = [record()[kind][ATTENTION].get(name, {}) for kind in ("parameters", "inherited")]
        assert public | {"__init__"} == {function for each in known for function in each}


def test_versions_whose_sources_were_read_are_accepted_and_others_refused() -> None:
    for known in (*record()["versions"], "0.23.0+cann9"):
        check_version(DISTRIBUTION, record()["versions"], known)
    for other in ("0.22.1rc1", "0.23.0rc1", "0.26.0", "0.30.0", "0.25.2.dev3+g182b75e", ""):
        with pytest.raises(TopThetaNotImplementedError, match=r"vllm-ascend: expected version 0\.23\.0 or"):
            check_version(DISTRIBUTION, record()["versions"], other)
        check_version(DISTRIBUTION, record()["versions"], other, untried=True)


@pytest.fixture
def source(pytestconfig: pytest.Config) -> Path:
    folder = pytestconfig.getoption("--vllm-ascend-source")
    if folder is None:
        pytest.skip("no checkout at hand: name its folder by --vllm-ascend-source=FOLDER")
    return Path(folder)


def class_of(source: Path, module: str, name: str) -> ast.ClassDef:
    tree = ast.parse((source / f"{module.replace('.', '/')}.py").read_text())
    return next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)


def test_recorded_parameters_are_those_of_the_sources(source: Path) -> None:
    for module, name, function, wanted in functions("parameters"):
        body = class_of(source, module, name).body
        found = next(each for each in body if isinstance(each, ast.FunctionDef) and each.name == function).args
        last = [found.kwarg] if found.kwarg else []
        assert [each.arg for each in (*found.posonlyargs, *found.args, *found.kwonlyargs, *last)] == wanted
        assert found.vararg is None


def test_recorded_fields_are_in_the_sources(source: Path) -> None:
    for module, classes in record()["fields"].items():
        for name, wanted in classes.items():
            body = class_of(source, module, name).body
            assert set(wanted) <= {ast.unparse(each.target) for each in body if isinstance(each, ast.AnnAssign)}


def test_recorded_statements_are_in_the_sources(source: Path) -> None:
    """Attributes, what is read of a step and where from, the call for captures, and the shape of the cache."""
    for file, statements in record()["statements"].items():
        text = ast.unparse(ast.parse((source / file).read_text()))
        assert not [each for each in statements if each not in text]
