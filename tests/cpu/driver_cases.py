"""Every case of the table as runs of the driver, and the judge of what comes back."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from tests.cases import CASES, SAMPLED_CASES, TOKEN_CASES, Case
from tests.cpu.columns import with_columns
from tests.cpu.driver import DONE, CaseFile, Result, build_driver, run_driver
from tests.cpu.native import keys_of_part, operator_arguments, partial_arguments, same_bits
from tests.cpu.sampled import LONG_SAMPLED
from tests.helpers import Inputs, assert_equals_oracle, assert_parts_merge, make_inputs
from toptheta_npu.fallback.antiquant import PER_CHANNEL, per_channel
from toptheta_npu.fallback.arguments import ANTIQUANT_MODES, ANTIQUANT_SCALES, Arguments

_OPERATORS = ("incremental_attention", "incremental_attention_with_stats", "incremental_attention_partial")
#: What the inputs of a path are poisoned with: only gathering never reads V rows that nobody keeps.
_PATHS = {("outside",): ("auto", "dense"), ("outside", "values"): ("gather",)}


@dataclass(frozen=True)
class DriverCase:
    """A case as a file of runs: by path, by number of threads, by operator."""

    inputs: Inputs
    paths: tuple[str, ...]
    threads: tuple[int, ...]
    file: CaseFile

    @staticmethod
    def of(
        case: Case, paths: tuple[str, ...], poison: tuple[str, ...], threads: tuple[int, ...], *, columns: bool = False
    ) -> DriverCase:
        inputs = make_inputs(case, poison=poison)
        whole = with_packed_scales(operator_arguments(inputs))
        whole = with_columns(whole) if columns else whole
        part = partial_arguments(inputs, whole)
        of_part = {f"{name} of the part": given for name, given in part.items() if given is not whole.get(name)}
        file = CaseFile({name: given for name, given in (whole | of_part).items() if isinstance(given, Tensor)})
        for path in paths:
            for count in threads:
                for operator in _OPERATORS:
                    arguments = part if operator.endswith("partial") else whole
                    file.add(operator, arguments | {"path": path}, threads=count)
        return DriverCase(inputs, paths, threads, file)

    def judge(self, results: Sequence[Result]) -> None:
        """All runs are done, bits do not depend on threads, and numbers are the oracle's."""
        assert [result.status for result in results] == [DONE] * len(results)
        left = iter(results)
        for _ in self.paths:
            by_threads = [[next(left).outputs for _ in _OPERATORS] for _ in self.threads]
            plain, statistics, part = by_threads[0]
            assert same_bits(plain, statistics[:1])
            for others in by_threads[1:]:
                assert all(same_bits(one, other) for one, other in zip(by_threads[0], others, strict=True))
            assert_equals_oracle(self.inputs, statistics)
            assert_parts_merge(self.inputs, [part], [keys_of_part(self.inputs)])


def with_packed_scales(arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments of an operator, their scales per channel as it hands them over."""
    given = Arguments(**arguments)
    packed = {
        name: per_channel(getattr(given, name), given.num_key_value_heads, given.head_dim).float().contiguous()
        for name, mode in zip(Arguments._fields[ANTIQUANT_SCALES], given[ANTIQUANT_MODES], strict=True)
        if getattr(given, name) is not None and mode == PER_CHANNEL
    }
    return arguments | packed


@functools.lru_cache(maxsize=1)
def driver_cases(dtype: str) -> tuple[DriverCase, ...]:
    """The whole table in one dtype, and once more with keys by columns."""
    cases = [replace(case, dtype=dtype) for case in (*CASES, *SAMPLED_CASES, *LONG_SAMPLED, *TOKEN_CASES)]
    by_rows = [DriverCase.of(case, paths, poison, (1, 3)) for case in cases for poison, paths in _PATHS.items()]
    by_columns = [DriverCase.of(case, ("auto",), ("outside",), (1, 3), columns=True) for case in cases]
    return (*by_rows, *by_columns)


def assert_driver_equals_the_oracle(cases: Sequence[DriverCase], level: str, sanitizers: str, folder: Path) -> None:
    """One build of the driver runs the cases, all of one dtype, in one process; all that differ are named."""
    driver = build_driver(cases[0].inputs.case.dtype, level, sanitizers)
    results = run_driver(driver, level, folder, [case.file for case in cases])
    failures = []
    for case, found in zip(cases, results, strict=True):
        try:
            case.judge(found)
        except AssertionError as error:
            failures.append(f"{case.inputs.case.id}, paths {'/'.join(case.paths)}: {error}")
    assert not failures, "\n".join(failures)
