"""The corpus: splits that share no module, windows that share no token."""

from pathlib import Path

import pytest
import torch

from toptheta_npu.assets import TINY_LLAMA
from toptheta_npu.errors import TopThetaValueError
from toptheta_npu.evaluation import corpus


def test_splits_share_no_module() -> None:
    modules = {
        split: {name.split("/")[0].removesuffix(".py") for name, _ in corpus.read_split(split)}
        for split in ("calibration", "evaluation")
    }
    train = {
        name.split("/")[0].removesuffix(".py")
        for name, _ in corpus.read_split("train")
        if not {"test", "tests", "idle_test"} & set(Path(name).parts)
    }
    assert not modules["calibration"] & modules["evaluation"]
    assert not (modules["calibration"] | modules["evaluation"]) & train
    assert "configparser" in modules["evaluation"]


def test_split_of_does_not_depend_on_the_machine() -> None:
    assert corpus.split_of(Path("tarfile.py")) == "calibration"
    assert corpus.split_of(Path("test/test_tarfile.py")) == "train"
    assert corpus.split_of(Path("site-packages/x.py")) is None


def test_read_split_refuses_an_unknown_split() -> None:
    with pytest.raises(TopThetaValueError, match="split: expected one of train, calibration, evaluation"):
        corpus.read_split("validation")  # type: ignore[arg-type]


def test_token_windows_are_distinct_and_full() -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(TINY_LLAMA)
    windows = corpus.token_windows(tokenizer, "evaluation", 256, 12)
    assert windows.shape == (12, 256)
    assert len(torch.unique(windows, dim=0)) == 12
    with pytest.raises(TopThetaValueError, match="count: expected at most"):
        corpus.token_windows(tokenizer, "evaluation", 4096, 10_000)
