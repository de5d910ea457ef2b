"""Runs of the native library by driver.cpp: written to files, run by a build of the driver, read back."""

from __future__ import annotations

import os
import re
import struct
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from tests.cpu.native import ELEMENTS, SOURCE, compiled, launcher, operators
from toptheta_npu.cpu.library import ARGUMENTS
from toptheta_npu.fallback.arguments import TENSORS, Arguments

DONE, BAD_VALUES, OUT_OF_MEMORY = range(3)
_DRIVER = Path(__file__).with_name("driver.cpp")
#: The tensors among the operators' arguments, in the order in which struct Arguments has their addresses.
_INPUTS = Arguments._fields[TENSORS]
_SANITIZERS = {
    "": ("-O3",),
    "address,undefined": ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    "thread": ("-O1", "-g", "-fsanitize=thread"),
}
# memory that is read before it is written holds a pattern, however much of it there is
_OPTIONS = {"ASAN_OPTIONS": "max_malloc_fill_size=1073741824", "TSAN_OPTIONS": "halt_on_error=1"}


def _places_of_addresses() -> list[int]:
    """Which fields of struct Arguments are addresses."""
    codes = "".join(code * int(count or 1) for count, code in re.findall(r"(\d*)([a-zA-Z])", ARGUMENTS.format))
    return [place for place, code in enumerate(codes) if code == "P"]


*_OUTER, _RUN_IN_PARALLEL = _places_of_addresses()
_INPUT_PLACES, _OUTPUT_PLACES = _OUTER[: len(_INPUTS)], _OUTER[len(_INPUTS) :]


@dataclass(frozen=True)
class Run:
    """A call of the library: the fields of its struct, with numbers of tensors and sizes in place of addresses."""

    fields: tuple[Any, ...]
    returned: tuple[Tensor, ...]  # what the operator returns, not filled in
    order: tuple[int, ...]  # the number in `returned` of each output of the struct
    failing_allocation: int


@dataclass(frozen=True)
class Result:
    """What the library said and wrote: the status, and what the operator would return."""

    status: int
    outputs: tuple[Tensor, ...]


@dataclass
class CaseFile:
    """Runs over the same tensors, which are arguments of operators by their names."""

    tensors: dict[str, Tensor]
    runs: list[Run] = field(default_factory=list)

    def add(self, operator: str, arguments: dict[str, Any], *, threads: int = 1, failing_allocation: int = -1) -> None:
        """A call of a native operator, as that operator packs it.

        Args:
            threads: how many the library may use.
            failing_allocation: the number of the library's allocation that finds no memory; -1: all find some.
        """
        packed: list[bytes] = []

        def keep(fields: bytes) -> int:
            packed.append(fields)
            return DONE

        with (
            mock.patch.object(operators, "function", return_value=keep),
            mock.patch.object(operators, "thread_count", return_value=threads),
        ):
            outputs = getattr(operators, operator)(Arguments(**arguments))
        returned = (outputs,) if isinstance(outputs, Tensor) else outputs
        fields = list(ARGUMENTS.unpack(packed[0]))
        known = {id(tensor): number for number, tensor in enumerate(self.tensors.values(), 1)}
        for place, name in zip(_INPUT_PLACES, _INPUTS, strict=True):
            given = arguments.get(name)
            assert (fields[place] == 0) == (given is None)
            fields[place] = 0 if given is None else known[id(given)]
        numbers = {output.data_ptr(): number for number, output in enumerate(returned)}
        order = tuple(numbers[fields[place]] for place in _OUTPUT_PLACES if fields[place])
        for place in _OUTPUT_PLACES:
            fields[place] = returned[numbers[fields[place]]].nbytes if fields[place] else 0
        self.runs.append(Run(tuple(fields), returned, order, failing_allocation))

    def write(self, path: Path) -> None:
        """The file, as driver.cpp describes it."""
        contents = [_bytes_between_first_and_last_element(tensor) for tensor in self.tensors.values()]
        with path.open("wb") as file:
            file.write(struct.pack("3q", ARGUMENTS.size, len(contents), len(self.runs)))
            kinds = [(place in _INPUT_PLACES) + 2 * (place in _OUTPUT_PLACES) for place in range(ARGUMENTS.size // 8)]
            file.write(struct.pack(f"{len(kinds)}q", *kinds))
            file.write(struct.pack(f"{len(contents)}q", *map(len, contents)))
            for run in self.runs:
                file.write(ARGUMENTS.pack(*run.fields) + struct.pack("q", run.failing_allocation))
            file.writelines(contents)

    def read_results(self, path: Path) -> Iterator[Result]:
        """What the driver wrote, run by run."""
        with path.open("rb") as file:
            for run in self.runs:
                (status,) = struct.unpack("q", file.read(8))
                outputs = list(run.returned)
                for number in run.order:
                    like = outputs[number]
                    content = torch.frombuffer(bytearray(file.read(like.nbytes)), dtype=like.dtype)
                    outputs[number] = content.view(like.shape)
                yield Result(status, tuple(outputs))
            assert not file.read(1), f"more results than runs in {path}"


def _bytes_between_first_and_last_element(tensor: Tensor) -> bytes:
    count = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((count,), (1,)).view(torch.uint8).numpy().tobytes()


def build_driver(dtype: str, level: str, sanitizers: str = "") -> Path:
    """The driver over the library of one dtype and level.

    Args:
        sanitizers: "", "address,undefined" or "thread".
    """
    flags = (*_SANITIZERS[sanitizers], f"-DTOPTHETA_ELEMENT={ELEMENTS[dtype]}")
    return compiled("driver", level, flags, (_DRIVER, SOURCE / "incremental_attention.cpp"))


def run_driver(driver: Path, level: str, folder: Path, files: Sequence[CaseFile]) -> list[list[Result]]:
    """The results of files of runs, which the driver does in their order in one process.

    Raises:
        AssertionError: the process fails, for example since a sanitizer found something.
    """
    for number, file in enumerate(files):
        file.write(folder / f"{number:04}.case")
    command = [*launcher(level), str(driver), str(folder)]
    done = subprocess.run(command, env=os.environ | _OPTIONS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"status {done.returncode}:\n{done.stderr[-6000:]}"
    return [list(file.read_results(folder / f"{number:04}.result")) for number, file in enumerate(files)]
