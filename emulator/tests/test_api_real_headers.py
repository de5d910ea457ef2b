"""The kernels of the API tests are accepted by the headers of an installed toolkit, so the signatures agree."""

from __future__ import annotations

from pathlib import Path

import pytest

from emulator.tests import real_headers_device
from emulator.tests.real_headers import TypeCheckError, needs_toolkit, type_check

KERNELS = Path(__file__).parent / "kernels"
SOURCES = sorted(KERNELS.glob("api_*.cpp"))
CUBE_SOURCES = sorted(KERNELS.glob("api_cube*.cpp"))


@needs_toolkit
@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_the_kernel_has_the_types_of_the_toolkit(source: Path) -> None:
    type_check(source)


@needs_toolkit
@pytest.mark.parametrize("source", CUBE_SOURCES, ids=lambda source: source.stem)
def test_the_kernel_has_the_types_of_the_toolkit_on_a_cube_core(source: Path) -> None:
    type_check(source, core="cube")


@needs_toolkit
def test_a_wrong_call_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "wrong.cpp"
    source.write_text(
        '#include "kernel_operator.h"\nvoid wrong(AscendC::LocalTensor<int32_t>& x) { AscendC::Exp(x, x, 8); }\n'
    )
    with pytest.raises(TypeCheckError, match=r"wrong\.cpp"):
        type_check(source)


@pytest.mark.parametrize("links", ["kept", "lost"])
def test_a_copy_of_a_toolkit_may_have_lost_its_symbolic_links(
    links: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """lib/matmul_intf.h is one, into a folder below, and what it includes lies relative to the link."""
    api = tmp_path / "x86_64-linux" / "ascendc" / "include"
    high = api / "highlevel_api"
    headers = {
        api / "basic_api" / "kernel_operator.h": "#pragma once\n",
        high / "lib" / "matmul" / "matmul_intf.h": '#include "../impl/kfc/kernel_kfc.h"\n',
        high / "impl" / "kfc" / "kernel_kfc.h": "inline int linked() { return 1; }\n",
        tmp_path / "tools" / "tikicpulib" / "lib" / "include" / "stub_def.h": "",
    }
    for header, text in headers.items():
        header.parent.mkdir(parents=True, exist_ok=True)
        header.write_text(text)
    if links == "kept":
        (high / "lib" / "matmul_intf.h").symlink_to("matmul/matmul_intf.h")
    source = tmp_path / "kernel.cpp"
    source.write_text('#include "kernel_operator.h"\n#include "lib/matmul_intf.h"\nint called() { return linked(); }\n')
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path))
    type_check(source)


def test_what_the_device_path_lacks_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASCEND_HOME_PATH", raising=False)
    monkeypatch.setattr(real_headers_device, "find_clang", lambda: None)
    assert real_headers_device.missing() == (
        "no CANN toolkit headers: set ASCEND_HOME_PATH to an installed toolkit (8.1 layout); "
        "no clang++ 17 or newer: on Debian or Ubuntu, apt-get install clang-19"
    )
    monkeypatch.setattr(real_headers_device, "find_clang", lambda: real_headers_device.Clang("clang++", "19.1.7"))
    assert real_headers_device.missing().startswith("no CANN toolkit headers")
    assert "clang" not in real_headers_device.missing()
