"""The kernels of the API tests are accepted by the headers of an installed toolkit, so the signatures agree."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.emulator.real_headers import TypeCheckError, needs_toolkit, type_check

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
