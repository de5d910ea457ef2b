"""What the device compiler and the operator build ask of the kernel's sources, as far as a host can tell."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from emulator.tests.real_headers import Core, TypeCheckError, needs_toolkit, type_check
from tests.op_kernel.operator_build import COMBINATIONS, dtype_defines, error_in_every_key, keys_in_text, write_source
from toptheta_host_model import KERNEL_SOURCE

_SOURCES = sorted(KERNEL_SOURCE.parent.iterdir())
_HEADERS = [path for path in _SOURCES if path.suffix == ".h"]
#: What no vector core has: a C++ library and runtime, 64-bit floating point, a heap.
_FORBIDDEN = (r"\bstd\s*::", r"\bdouble\b", r"\bnew\b", r"\bdelete\b", r"\bvirtual\b", r"\btry\b", r"\bcatch\b",
              r"\bthrow\b", r"\bdynamic_cast\b", r"\btypeid\b", r"\bgoto\b")  # fmt: skip
_DOUBLE_LITERAL = r"(?<![\w.])(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][+-]?\d+)?(?![\w.])"
_INCLUDES = {"<cstdint>", '"kernel_operator.h"', '"lib/matmul_intf.h"', *(f'"{path.name}"' for path in _HEADERS)}
_MAX_EVENT = 5  # 6 and 7 belong to the system
#: Evaluated by the compiler alone, in a static_assert.
_COMPILE_TIME = {"EveryLayoutFits", "EveryRoundFits"}
_NOT_FUNCTIONS = re.compile(r"(if|else|for|while|do|switch|return|struct|class|enum|union|namespace)\b")


def code_of(text: str) -> str:
    """The text without comments, line by line as before."""
    return re.sub(r"//[^\n]*", "", text)


def forbidden_words(text: str) -> list[str]:
    return [found for word in (*_FORBIDDEN, _DOUBLE_LITERAL) for found in re.findall(word, code_of(text))]


def foreign_includes(text: str) -> list[str]:
    return [name for name in re.findall(r"#\s*include\s*(\S+)", code_of(text)) if name not in _INCLUDES]


def event_ids_above_the_free_ones(text: str) -> list[str]:
    """Numbers in flags and in the constants that name event ids."""
    code = code_of(text)
    numbers = re.findall(r"\bk\w*Event\s*=\s*(\d+)", code)
    for event in re.findall(r"\b(?:SetFlag|WaitFlag)<[^>]*>\(([^;]*)\);", code):
        numbers += re.findall(r"(?<![\w%])(?<!% )\d+\b", event)
    return [number for number in numbers if int(number) > _MAX_EVENT]


def function_heads(text: str) -> Iterator[str]:
    """Everything before the brace that opens a function's body."""
    code = re.sub(r"^\s*#.*(?:\\\n.*)*$|\b(?:public|private|protected)\s*:(?!:)", "", code_of(text), flags=re.MULTILINE)
    start = depth = 0
    for at, letter in enumerate(code):
        depth += (letter in "([") - (letter in ")]")
        if depth > 0 or letter not in ";{}":
            continue
        head = " ".join(code[start:at].split())
        assigned = "=" in re.sub(r"\([^()]*\)", "", head)  # outside of parentheses, where it is a default
        if letter == "{" and "(" in head and not assigned and not _NOT_FUNCTIONS.match(head):
            yield head
        start = at + 1


def functions_of_the_host(text: str) -> list[str]:
    """Names of the functions that the device compiler would not compile for the core."""
    names = []
    for head in function_heads(text):
        name = re.findall(r"([\w~]+|operator\(\))\s*\(", head.split(") :")[0])[0]
        if not re.search(r"\b(TOPTHETA_DEVICE|__aicore__)\b", head) and name not in _COMPILE_TIME:
            names.append(name)
    return names


_LINTS: tuple[Callable[[str], list[str]], ...] = (
    forbidden_words, foreign_includes, event_ids_above_the_free_ones, functions_of_the_host,
)  # fmt: skip


@pytest.mark.parametrize("lint", _LINTS, ids=lambda lint: lint.__name__)
@pytest.mark.parametrize("source", _SOURCES, ids=lambda source: source.name)
def test_sources_hold_nothing_that_a_core_can_not_do(source: Path, lint: Callable[[str], list[str]]) -> None:
    assert lint(source.read_text()) == []


@pytest.mark.parametrize(
    ("lint", "planted"),
    [
        (forbidden_words, "std::max(a, b)"),
        (forbidden_words, "float x = 1.0;"),
        (foreign_includes, "#include <cmath>"),
        (foreign_includes, '#include "elsewhere.h"'),
        (event_ids_above_the_free_ones, "SetFlag<HardEvent::V_S>(6);"),
        (event_ids_above_the_free_ones, "constexpr int32_t kLateEvent = 7;"),
        (functions_of_the_host, "inline uint32_t Twice(uint32_t a) { return 2 * a; }"),
        (functions_of_the_host, "uint32_t Once(uint32_t a = 1)\n{\n    return a;\n}"),
    ],
)
def test_planted_violation_is_found(lint: Callable[[str], list[str]], planted: str) -> None:
    assert lint(planted)


def test_build_finds_every_tiling_key_in_the_text_of_the_entry() -> None:
    """As a number: it would not find the name of a constant, and would build no kernel for that key."""
    declared, branches = keys_in_text()
    assert declared == {
        1: "AIV_ONLY",
        2: "MIX_AIV_1_0",
        3: "MIX_AIC_1_2",
        4: "MIX_AIC_1_2",
        11: "AIV_ONLY",
        12: "MIX_AIV_1_0",
        13: "MIX_AIC_1_2",
    }
    assert branches == set(declared)


def test_entry_includes_what_the_wrapper_of_a_mixed_kernel_calls() -> None:
    """`matmul::clearWorkspace`, which kernel_operator.h does not bring; asc-devkit, compile_op.py."""
    code = code_of(KERNEL_SOURCE.read_text())
    assert "KERNEL_TYPE_MIX_AIC_1_2" in code
    assert '#include "lib/matmul_intf.h"' in code


@needs_toolkit
@pytest.mark.parametrize("core", ["vector", "cube"])
@pytest.mark.parametrize("dtypes", COMBINATIONS.values(), ids=COMBINATIONS)
def test_kernel_type_checks_against_a_toolkit(dtypes: tuple[str, str, str], core: Core, tmp_path: Path) -> None:
    type_check(write_source(tmp_path), core=core, defines=dtype_defines(*dtypes))


@needs_toolkit
def test_type_check_finds_a_planted_error(tmp_path: Path) -> None:
    source = write_source(tmp_path, behind="void wrong() { AscendC::Exp(1, 2, 3); }\n")
    with pytest.raises(TypeCheckError):
        type_check(source, defines=dtype_defines("half"))


@needs_toolkit
def test_type_check_compiles_every_key(tmp_path: Path) -> None:
    kernel, keys = error_in_every_key(tmp_path)
    with pytest.raises(TypeCheckError) as refused:
        type_check(write_source(tmp_path, kernel=kernel), defines=dtype_defines("half"))
    assert str(refused.value).count("error: static assertion failed") == keys == 7
