"""Folders like an installed op package, for tests on a machine without an NPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from toptheta_host_model import OPERATOR
from toptheta_npu import _backends
from toptheta_npu._libraries import seal
from toptheta_npu.npu import environment, interface
from toptheta_npu.npu.backend import NPU_SELECTOR
from toptheta_npu.npu.environment import CUSTOM_PATH, OPP_PATH
from toptheta_npu.ops import SCHEMAS


def forget_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a choice nor an op package of this machine."""
    for name in (_backends.VARIABLE, CUSTOM_PATH, OPP_PATH):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(environment, "prefix_folder", lambda: Path("/nowhere/opp/vendors/toptheta"))
    monkeypatch.setattr(NPU_SELECTOR, "_logged", set())
    for selector in _backends.SELECTORS.values():
        selector.choose(None)


def header(change: tuple[str, str] = ("", "")) -> str:
    """The header that CANN generates for the operator definition, with one text in it replaced."""
    function = OPERATOR.aclnn_signature()["get_workspace_size"]
    parameters = ",\n    ".join(f"{item['type']}{item['name']}" if item["type"].endswith("*")
                                else f"{item['type']} {item['name']}" for item in function["parameters"])  # fmt: skip
    text = f"/* generated */\naclnnStatus {function['name']}(\n    {parameters});\n"
    assert change[0] in text
    return text.replace(*change) if change[0] else text


def make_package(folder: Path, *, header_text: str | None = None, note: dict[str, str] | None = None) -> Path:
    """A folder like an installed op package, with empty libraries."""
    vendor = folder / "vendors" / "toptheta"
    note = note or {"torch": torch.__version__, "interface": interface.fingerprint(SCHEMAS)}
    for path, text in (
        ("op_api/lib/libcust_opapi.so", ""),
        ("op_api/include/aclnn_top_theta_incremental_attention.h", header() if header_text is None else header_text),
        ("torch/libtoptheta_npu_adapter.so", ""),
        (
            "torch/adapter.json",
            json.dumps(note),
        ),
    ):
        (vendor / path).parent.mkdir(parents=True, exist_ok=True)
        (vendor / path).write_text(text)
    seal(vendor / "torch" / "libtoptheta_npu_adapter.so")
    return vendor
