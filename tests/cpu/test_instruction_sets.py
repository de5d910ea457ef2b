"""The levels of the CPU kernel, by what a machine says of its CPU."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from toptheta_npu import TopThetaBackendError, TopThetaValueError
from toptheta_npu.cpu import instruction_sets
from toptheta_npu.cpu.instruction_sets import LEVELS, VARIABLE

_AVX2 = "fpu sse4_2 avx avx2 fma f16c bmi1 bmi2 popcnt"
_AVX512 = f"{_AVX2} avx512f avx512bw avx512dq avx512vl"
_NEON = "fp asimd evtstrm aes crc32 atomics fphp asimdhp cpuid asimdrdm"


def claim(monkeypatch: pytest.MonkeyPatch, folder: Path, machine: str, *cores: str) -> None:
    """A machine whose cores have these flags."""
    key = "Features" if machine == "aarch64" else "flags"
    blocks = [f"processor\t: {index}\n{key}\t\t: {flags}\nbugs\t\t: spectre\n" for index, flags in enumerate(cores)]
    (folder / "cpuinfo").write_text("\n".join(blocks))
    monkeypatch.setattr(instruction_sets, "_CPUINFO", folder / "cpuinfo")
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.mark.parametrize(
    ("machine", "flags", "expected"),
    [
        ("x86_64", f"{_AVX512} avx512_bf16 avx512_vnni", ("avx512_bf16", "avx512", "avx2")),
        ("x86_64", _AVX512, ("avx512", "avx2")),
        ("x86_64", f"{_AVX2} avx512f", ("avx2",)),  # such as Knights Landing
        ("x86_64", "fpu sse4_2 avx f16c", ()),
        ("aarch64", f"{_NEON} bf16", ("neon_bf16", "neon")),
        ("aarch64", _NEON, ("neon",)),
        ("aarch64", "fp asimd crc32", ()),  # such as Cortex-A72
        ("aarch64", _AVX512, ()),
        ("riscv64", _AVX512, ()),
    ],
)
def test_levels_by_flags(
    machine: str, flags: str, expected: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim(monkeypatch, tmp_path, machine, flags, flags)
    assert instruction_sets.available() == expected


def test_a_flag_that_one_core_lacks_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claim(monkeypatch, tmp_path, "aarch64", f"{_NEON} bf16", _NEON)
    assert instruction_sets.available() == ("neon",)


def test_a_machine_without_any_level(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(instruction_sets, "_CPUINFO", tmp_path / "no such file")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    with pytest.raises(TopThetaBackendError) as caught:
        instruction_sets.chosen()
    assert str(caught.value) == (
        "CPU: expected AVX2, FMA and F16C on x86-64 or FP16 arithmetic on aarch64, in /proc/cpuinfo, "
        f"got {platform.system()} on arm64, which lists nothing; "
        "run the PyTorch fallback: set TOPTHETA_BACKEND to cpu=fallback"
    )


def test_the_best_level_is_chosen_unless_one_is_forced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claim(monkeypatch, tmp_path, "x86_64", _AVX512)
    assert instruction_sets.chosen().name == "avx512"
    monkeypatch.setenv(VARIABLE, "avx2")
    assert instruction_sets.chosen().name == "avx2"


def test_a_forced_level_that_the_machine_does_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claim(monkeypatch, tmp_path, "x86_64", _AVX512)
    monkeypatch.setenv(VARIABLE, "avx512_bf16")
    with pytest.raises(TopThetaBackendError) as caught:
        instruction_sets.chosen()
    assert str(caught.value) == (
        "TOPTHETA_CPU_LEVEL: expected one of the levels that this CPU runs (avx512, avx2), got 'avx512_bf16'; unset it"
    )


def test_a_misspelt_level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "avx-512")
    with pytest.raises(TopThetaValueError) as caught:
        instruction_sets.chosen()
    assert str(caught.value) == (
        "TOPTHETA_CPU_LEVEL: expected one of avx512_bf16, avx512, avx2, neon_bf16, neon, got 'avx-512'"
    )


@pytest.mark.parametrize("compiler", ["g++", "clang++"])
@pytest.mark.parametrize("name", [name for name, level in LEVELS.items() if level.machine == platform.machine()])
def test_compilers_know_the_flags(name: str, compiler: str) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
    command = [compiler, *LEVELS[name].compiler_flags, "-x", "c++", "-fsyntax-only", "-"]
    subprocess.run(command, input=b"int answer;\n", check=True)


def test_the_flags_switch_on_what_the_level_needs() -> None:
    """For what runs without a check, no more is switched on than /proc/cpuinfo is asked for."""
    macros = {
        "avx512_bf16": "AVX512BF16",
        "avx512_vnni": "AVX512VNNI",
        "fma": "FMA",
        "f16c": "F16C",
        "bmi1": "BMI",
        "bmi2": "BMI2",
    }
    names = [name for name, level in LEVELS.items() if level.machine == platform.machine() == "x86_64"]
    if not names or shutil.which("g++") is None:
        pytest.skip("needs g++ on x86-64")
    for name in names:
        command = ["g++", *LEVELS[name].compiler_flags, "-x", "c++", "-dM", "-E", "-"]
        defined = subprocess.run(command, input="", capture_output=True, text=True, check=True).stdout
        expected = {macros.get(flag, flag.upper()) for flag in LEVELS[name].needs}
        found = {line.split()[1].strip("_") for line in defined.splitlines()}
        assert expected <= found
        assert {macro for macro in found if macro.startswith("AVX512")} == {
            macro for macro in expected if macro.startswith("AVX512")
        }
