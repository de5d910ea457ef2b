"""The library behind the comparison with torch_npu's macro takes what the operators take; torch loads no other."""

from __future__ import annotations

import re

from benchmarks import adapter_overhead
from toptheta_npu.fallback.schemas import taken_by
from toptheta_npu.npu import adapter_arguments

_SOURCE = adapter_overhead._MACRO_SOURCE


def test_the_parameters_are_those_of_the_schema() -> None:
    (parameters,) = re.findall(r"^at::Tensor Attention\((.*?)\)$", _SOURCE.read_text(), re.DOTALL | re.MULTILINE)
    types = [re.sub(r"\s+", " ", each).strip().rpartition(" ")[0] for each in parameters.split(",")]
    written = adapter_arguments._PARAMETERS
    assert types == [written[argument.type] for argument in taken_by("incremental_attention")]
