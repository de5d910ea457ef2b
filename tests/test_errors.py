"""The errors of the package as other code meets them."""

from __future__ import annotations

import pickle

import pytest

from toptheta_npu.errors import (
    Setting,
    TopThetaArgumentError,
    TopThetaCombinationError,
    TopThetaNotImplementedError,
    TopThetaTypeError,
    TopThetaValueError,
)


@pytest.mark.parametrize("kind", [TopThetaValueError, TopThetaTypeError, TopThetaNotImplementedError])
def test_an_error_comes_back_from_another_process(kind: type[TopThetaValueError]) -> None:
    error = kind("k", "a positive number", "-1", "pass k=128")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.remedy) == (kind, str(error), "pass k=128")


@pytest.mark.parametrize(
    ("error", "message", "retold"),
    [
        (
            TopThetaValueError("k", ("at most ", Setting("n", 8)), "9", ("pass ", Setting("k", 8), ", or k=8 anew")),
            "k: expected at most n=8, got 9; pass k=8, or k=8 anew",
            "--k: expected at most <n 8>, got 9; pass <k 8>, or k=8 anew",
        ),
        (
            TopThetaCombinationError("quantile", "needs", (Setting("estimator", "quantile"),), "leave it out"),
            "quantile needs estimator='quantile'; leave it out",
            "--k needs <estimator quantile>; leave it out",
        ),
        (TopThetaCombinationError("a", "excludes", "b"), "a excludes b", "--k excludes b"),
    ],
)
def test_settings_alone_are_said_in_other_words(error: TopThetaArgumentError, message: str, retold: str) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert str(error) == str(again) == message
    said = again.retold("--k", lambda setting: f"<{setting.name} {setting.value}>")
    assert (type(said), str(said)) == (type(error), retold)
