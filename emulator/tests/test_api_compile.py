"""What must not compile: types that the 910B does not have, and scalar mathematics, each with a readable message."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

INCLUDE = Path(__file__).parents[1] / "ascendc"
POISON = INCLUDE / "include" / "ascendc" / "poison.h"
COMPILERS = [name for name in ("g++", "clang++") if shutil.which(name)]
PROLOGUE = """#include "kernel_operator.h"
using namespace AscendC;
template <typename T> LocalTensor<T> Of() { return LocalTensor<T>(); }
[[maybe_unused]] constexpr SELMODE kScalarMode = SELMODE::VSEL_TENSOR_SCALAR_MODE;
"""

REFUSED = {
    "Add(Of<bfloat16_t>(), Of<bfloat16_t>(), Of<bfloat16_t>(), 8);": "Add: the 910B supports half, float, int16_t",
    "Mul(Of<int8_t>(), Of<int8_t>(), Of<int8_t>(), 8);": "Mul: the 910B supports half, float, int16_t",
    "Maxs(Of<int8_t>(), Of<int8_t>(), int8_t{1}, 8);": "Maxs: the 910B supports half, float, int16_t and int32_t",
    "Cast(Of<float>(), Of<int8_t>(), RoundMode::CAST_NONE, 8);": "the 910B has no conversion between these types",
    "Select(Of<int8_t>(), Of<uint8_t>(), Of<int8_t>(), int8_t{1}, kScalarMode, 8);": "Select: the 910B supports half",
    "Div(Of<int32_t>(), Of<int32_t>(), Of<int32_t>(), 8);": "Div: the 910B supports half and float",
    "And(Of<int32_t>(), Of<int32_t>(), Of<int32_t>(), 8);": "And: the 910B supports int16_t and uint16_t",
    "Exp(Of<bfloat16_t>(), Of<bfloat16_t>(), 64, 1, UnaryRepeatParams());": "Exp: the 910B supports half and float",
    "Muls(Of<uint32_t>(), Of<uint32_t>(), 1u, 8);": "Muls: the 910B supports half, float, int16_t and int32_t",
    "MulAddDst(Of<float>(), Of<bfloat16_t>(), Of<bfloat16_t>(), 8);": "MulAddDst: the 910B supports half, float",
    "Axpy(Of<float>(), Of<int32_t>(), 1, 8);": "Axpy: the 910B supports half, float",
    "Duplicate(Of<int8_t>(), int8_t{1}, 8);": "Duplicate: the 910B supports types of 16 and 32 bits",
    "Brcb(Of<int64_t>(), Of<int64_t>(), 1, BrcbRepeatParams());": "Brcb: the 910B supports types of 16 and 32 bits",
    "CompareScalar(Of<uint8_t>(), Of<int16_t>(), int16_t{1}, CMPMODE::EQ, 128);": "CompareScalar: the 910B",
    "CompareScalar(Of<uint16_t>(), Of<float>(), 1.0f, CMPMODE::EQ, 64);": "the result is a tensor of int8_t or uint8_t",
    "Select(Of<float>(), Of<int8_t>(), Of<float>(), 1.0f, kScalarMode, 8);": "Select: selMask is of an unsigned type",
    "GatherMask(Of<float>(), Of<float>(), Of<uint16_t>(), true, 8, {}, n);": "GatherMask: the pattern is uint16_t",
    "GatherMask(Of<int64_t>(), Of<int64_t>(), Of<uint32_t>(), true, 8, {}, n);": "GatherMask: the 910B supports types",
    "Gather(Of<int64_t>(), Of<int64_t>(), Of<uint32_t>(), 0, 8);": "Gather: the 910B supports types of 16 and 32 bits",
    "Cast(Of<half>(), Of<int32_t>(), RoundMode::CAST_NONE, 8);": "int32_t to half goes through SetDeqScale",
    "Cast(Of<bfloat16_t>(), Of<half>(), RoundMode::CAST_RINT, 8);": "the 910B has no conversion between these types",
    "BlockReduceSum(Of<int32_t>(), Of<int32_t>(), 1, 64, 1, 1, 8);": "BlockReduceSum: the 910B supports half and float",
    "WholeReduceMax(Of<int16_t>(), Of<int16_t>(), 64, 1, 1, 1, 8);": "WholeReduceMax: the 910B supports half and float",
    "CreateVecIndex(Of<uint32_t>(), 0u, 8);": "CreateVecIndex: the 910B supports int16_t, half, int32_t and float",
    "PipeBarrier<PIPE_S>();": "PipeBarrier<PIPE_S> is not allowed",
    "PipeBarrier<PIPE_V2>();": "a vector core has the pipes V, MTE2 and MTE3, a cube core M, MTE1, MTE2 and FIX",
    "SetFlag<HardEvent::M_V>(0);": "SetFlag: no core has such an event",
    "WaitFlag<HardEvent::MTE1_V>(0);": "WaitFlag: no core has such an event",
    "CrossCoreSetFlag<2, PIPE_S>(0);": "CrossCoreSetFlag: pipe is V, MTE2 or MTE3 on a vector core",
    "TQue<TPosition::C1, 1> q; q.DeQue<float>();": "a queue lies between GM, VECIN, VECOUT and VECCALC",
    "TQueBind<TPosition::A1, TPosition::B2, 1> q; q.DeQue<float>();": "in A1, B1, A2, B2 or CO1 on a cube core",
    "TBuf<TPosition::C2> b; b.Get<float>();": "a TBuf lies in VECIN, VECOUT or VECCALC on a vector core",
    "GetTPipePtr()->AllocEventID<HardEvent::M_V>();": "AllocEventID: no core has such an event",
    "DataCopy(Of<int64_t>(), GlobalTensor<int64_t>(), Nd2NzParams());": "the 910B supports types of 8, 16 and 32 bits",
    "LoadData(Of<float>(), Of<float>(), LoadData2DParams());": "LoadData: this model moves fractals of half, bf",
    "Mmad(Of<float>(), Of<half>(), Of<bfloat16_t>(), MmadParams());": "Mmad: this model multiplies half by half or",
    "Mmad(Of<float>(), Of<float>(), Of<float>(), MmadParams());": "Mmad: this model multiplies half by half or",
    "Mmad(Of<int32_t>(), Of<int8_t>(), Of<half>(), MmadParams());": "Mmad: this model multiplies half by half or",
    "Mmad(Of<float>(), Of<int8_t>(), Of<int8_t>(), MmadParams());": "int8_t by int8_t into int32_t",
    "Fixpipe(GlobalTensor<float>(), Of<int32_t>(), FixpipeParamsV220());": "and int32_t to int32_t",
    "Fixpipe(GlobalTensor<half>(), Of<float>(), FixpipeParamsV220());": "Fixpipe: this model moves float to float",
    "Fixpipe<float, float, CFG_NZ>(GlobalTensor<float>(), Of<float>(), FixpipeParamsV220());": "with CFG_ROW_MAJOR",
    "KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AICORE);": "this kernel type does not exist on the 910B",
}


def compile_lines(tmp_path: Path, compiler: str, lines: Sequence[str]) -> str:
    """Compiles one function for each line, the function of line i named after it; returns what the compiler prints."""
    source = tmp_path / "kernel.cpp"
    functions = [f"void line_{i}() {{ uint64_t n = 0; (void)n; {line} }}" for i, line in enumerate(lines)]
    source.write_text(PROLOGUE + "\n".join(functions) + "\n")
    limit = "-ferror-limit=0" if compiler == "clang++" else "-fmax-errors=0"
    command = [compiler, "-std=c++17", "-fsyntax-only", "-Wall", "-Wextra", limit]
    command += [f"-I{INCLUDE}", f"-I{INCLUDE / 'include'}", str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr or done.returncode == 0
    return done.stderr


def refused_at(output: str, index: int) -> bool:
    """Whether a message names the function of line `index`."""
    return f"kernel.cpp:{PROLOGUE.count(chr(10)) + 1 + index}:" in output


def test_a_type_that_the_device_lacks_is_refused(tmp_path: Path) -> None:
    output = compile_lines(tmp_path, "g++", list(REFUSED))
    for index, (call, message) in enumerate(REFUSED.items()):
        assert refused_at(output, index), call
        assert message in output, call


@pytest.mark.parametrize("compiler", COMPILERS)
def test_nothing_else_is_refused_and_there_are_no_warnings(tmp_path: Path, compiler: str) -> None:
    assert compile_lines(tmp_path, compiler, ["Exp(Of<float>(), Of<float>(), 8);"]) == ""


NAMES = re.findall(r"^#define (\w+)\(", POISON.read_text(), re.M)


@pytest.mark.parametrize("compiler", COMPILERS)
def test_no_scalar_mathematics(tmp_path: Path, compiler: str) -> None:
    assert {"exp", "expf", "log", "logf", "sqrt", "sqrtf", "pow", "powf", "sin", "fabsf", "roundf"} <= set(NAMES)
    # an own type for each call, so that each has its own message
    calls = [f"struct T {{ operator float() const {{ return 1; }} }}; (void){name}(T());" for name in NAMES]
    output = compile_lines(tmp_path, compiler, calls)
    for index, name in enumerate(NAMES):
        assert refused_at(output, index), name
    assert output.count("the AI core has no scalar math library") == len(NAMES)


def test_scalar_mathematics_however_it_is_called(tmp_path: Path) -> None:
    for call in ("float x = std::exp(n * 1.0f);", "float x = expf(1.0f);", "double x = ::sqrt(2.0);"):
        output = compile_lines(tmp_path, "g++", [f"{call} (void)x;"])
        assert "the AI core has no scalar math library" in output
        assert "use vector instructions (Exp, Ln, Abs" in output
