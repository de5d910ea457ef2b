"""The errors of the package as other code meets them."""

from __future__ import annotations

import pickle

import pytest

from toptheta_npu.errors import TopThetaNotImplementedError, TopThetaTypeError, TopThetaValueError


@pytest.mark.parametrize("kind", [TopThetaValueError, TopThetaTypeError, TopThetaNotImplementedError])
def test_an_error_comes_back_from_another_process(kind: type[TopThetaValueError]) -> None:
    error = kind("k", "a positive number", "-1", "pass k=128")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.remedy) == (kind, str(error), "pass k=128")
