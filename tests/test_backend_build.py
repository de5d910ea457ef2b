"""Building the adapter on a machine without an NPU, and what it has to agree on with the operator definition."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import toptheta_npu  # noqa: F401 (registers the operators)
from toptheta_host_model import OPERATOR
from toptheta_npu import TopThetaBackendError
from toptheta_npu.fallback.arguments import OPERATORS
from toptheta_npu.npu import build, interface
from toptheta_npu.npu.adapter_arguments import adapter_header


def test_build_without_torch_npu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(TopThetaBackendError, match=r"^torch_npu: expected it to be installed"):
        build.build_adapter(tmp_path / "torch")


def test_build_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "torch_npu_folder", lambda: tmp_path)
    with pytest.raises(TopThetaBackendError, match=r"^compiler: expected g\+\+ or \$CXX, got /no/such/compiler"):
        build.build_adapter(tmp_path / "torch", compiler="/no/such/compiler")


def test_build_shows_what_the_compiler_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "torch_npu_folder", lambda: tmp_path)
    source = tmp_path / "broken.cpp"
    source.write_text("int broken = text;\n")
    with pytest.raises(TopThetaBackendError, match=r"broken\.cpp:1:14: error:"):
        build.build_adapter(tmp_path / "torch", source=source)
    assert not (tmp_path / "torch" / build.LIBRARY).exists()


@pytest.mark.parametrize("operator", OPERATORS)
def test_adapter_takes_what_the_dispatcher_passes(operator: str) -> None:
    taken = re.search(rf"auto {operator}\(([^)]*)\)", adapter_header())
    assert taken is not None
    schema = getattr(torch.ops.toptheta_npu, operator).default._schema
    assert re.findall(r"(\w+)(?:,|$)", taken[1]) == [argument.name for argument in schema.arguments]


def test_the_interface_is_that_of_the_operator_definition() -> None:
    operator = OPERATOR.describe()
    kinds = {"int": "Int", "float": "Float", "string": "Str", "list_int": "ListInt", "bool": "Bool"}
    assert [item["name"] for item in operator["inputs"]] == list(interface.INPUTS)
    assert {item["name"]: kinds[item["type"]] for item in operator["attributes"]} == interface.ATTRIBUTES
    assert [item["name"] for item in operator["attributes"]] == list(interface.ATTRIBUTES)
    assert tuple(item["name"] for item in operator["outputs"]) == interface.OUTPUTS
