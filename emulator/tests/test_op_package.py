"""The operator of examples/axpy as an op package, as CANN's build would install it."""

from __future__ import annotations

from pathlib import Path

import pytest

from emulator.acl import install_torch_npu, make_op_package, read_project

_PROJECT = Path(__file__).parents[1] / "examples" / "axpy" / "emulator.json"


@pytest.mark.full
def test_the_example_becomes_a_package(tmp_path: Path) -> None:
    install_torch_npu()  # whose wheel has the headers of ACL
    package = make_op_package(read_project(_PROJECT), tmp_path)
    assert package == tmp_path / "vendors" / "example"
    header = " ".join((package / "op_api" / "include" / "aclnn_axpy.h").read_text().split())
    assert "aclnnAxpyGetWorkspaceSize( const aclTensor * x, const aclTensor * y, double alpha, " in header
    library = (package / "op_api" / "lib" / "libcust_opapi.so").read_bytes()
    assert b"\0aclnnAxpyGetWorkspaceSize\0" in library
