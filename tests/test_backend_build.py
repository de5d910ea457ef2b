"""Building the adapter, and the operators as nodes of a GE graph, on a machine without an NPU."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

import toptheta_npu  # noqa: F401 (registers the operators)
from toptheta_host_model import OPERATOR
from toptheta_npu import TopThetaBackendError
from toptheta_npu.fallback.arguments import OPERATORS
from toptheta_npu.npu import build, converter
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


def test_converter_names_are_those_of_the_operator_definition() -> None:
    operator = OPERATOR.describe()
    kinds = {"int": "Int", "float": "Float", "string": "Str", "list_int": "ListInt", "bool": "Bool"}
    assert operator["type"] == converter.OPERATOR
    assert [item["name"] for item in operator["inputs"]] == list(converter.INPUTS)
    assert {item["name"]: kinds[item["type"]] for item in operator["attributes"]} == converter.ATTRIBUTES
    assert [item["name"] for item in operator["attributes"]] == list(converter.ATTRIBUTES)
    assert tuple(item["name"] for item in operator["outputs"]) == converter.OUTPUTS


class _BrokenTorchair(types.ModuleType):
    """As torch_npu puts it in place where torchair cannot be imported."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("the reason")


@pytest.mark.parametrize("torchair", [None, _BrokenTorchair("torchair")], ids=["missing", "broken"])
def test_converter_without_torchair(torchair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchair", torchair)
    with pytest.raises(TopThetaBackendError, match=r"^torchair: expected it to be importable"):
        converter.register()


def _recording_torchair() -> tuple[Any, dict[Any, Any], list[dict[str, Any]]]:
    """A torchair that keeps the converters it is given and the nodes that they make."""
    converters: dict[Any, Any] = {}
    nodes: list[dict[str, Any]] = []

    def custom_op(kind: str, **parts: Any) -> list[str]:
        nodes.append({"type": kind, **parts})
        return list(parts["outputs"])

    kinds = {kind: (lambda value, kind=kind: (kind, value)) for kind in set(converter.ATTRIBUTES.values())}
    ge = types.SimpleNamespace(custom_op=custom_op, attr=types.SimpleNamespace(**kinds))
    register = lambda overload: lambda function: converters.setdefault(overload, function)  # noqa: E731
    return types.SimpleNamespace(register_fx_node_ge_converter=register, ge=ge), converters, nodes


@pytest.mark.parametrize(
    ("name", "returned"),
    [
        ("incremental_attention", "attention_out"),
        ("incremental_attention_with_stats", ("attention_out", "lse", "kept", "value_rows")),
        ("incremental_attention_partial",
         ("part_out", "part_maximum", "part_kept_mass", "part_discarded_mass", "kept")),
    ],
)  # fmt: skip
def test_converter_maps_a_paged_call(name: str, returned: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torchair, converters, nodes = _recording_torchair()
    monkeypatch.setitem(sys.modules, "torchair", torchair)
    converter.register()
    query, key = types.SimpleNamespace(symsize=[1, 4, 1, 64]), types.SimpleNamespace(symsize=[9, 2, 32, 64])
    result = converters[getattr(torch.ops.toptheta_npu, name).default](
        query, key, "v", "theta", "lengths", None, "table", num_heads=4, num_key_value_heads=2, scale_value=0.125,
        meta_outputs=None,
    )  # fmt: skip
    assert result == returned
    (node,) = nodes
    assert node["type"] == OPERATOR.describe()["type"]
    given = (node["inputs"]["query"], node["inputs"]["block_table"], node["inputs"]["row_lse"])
    assert given == (query, "table", None)
    attributes = {attribute: value for attribute, (_, value) in node["attrs"].items()}
    defaults = {item["name"]: item["default"] for item in OPERATOR.describe()["attributes"]}
    expected = defaults | {"num_heads": 4, "num_key_value_heads": 2, "scale_value": 0.125, "block_size": 32,
                           "with_stats": "stats" in name, "partial": "partial" in name}  # fmt: skip
    if "partial" in name:
        expected["sdc_gamma"] = 0.0
    assert attributes == expected


def test_converter_passes_the_numbers_of_query_tokens_on(monkeypatch: pytest.MonkeyPatch) -> None:
    torchair, converters, nodes = _recording_torchair()
    monkeypatch.setitem(sys.modules, "torchair", torchair)
    converter.register()
    query, key = types.SimpleNamespace(symsize=[1, 4, 3, 64]), types.SimpleNamespace(symsize=[1, 2, 32, 64])
    converters[torch.ops.toptheta_npu.incremental_attention.default](
        query, key, "v", "theta", actual_query_lengths="tokens", num_heads=4, num_key_value_heads=2, scale_value=0.125
    )
    assert nodes[0]["inputs"]["actual_query_lengths"] == "tokens"
