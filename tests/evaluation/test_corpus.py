"""The corpus: splits that share no module, windows that share no token."""

import sys
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


def test_prose_is_prose_and_its_splits_share_nothing() -> None:
    calibration, evaluation = (set(corpus._paragraphs(split)) for split in ("calibration", "evaluation"))
    assert len(calibration) > 200
    assert len(evaluation) > 100
    assert not calibration & evaluation
    for text in calibration | evaluation:
        assert not any(sign in text for sign in ("  ", ">>>", "::="))


def test_windows_of_prose() -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(TINY_LLAMA)
    assert corpus.prose_windows(tokenizer, "evaluation", 2560, 8).shape == (8, 2560)
    assert "function" in tokenizer.decode(corpus.prose_windows(tokenizer, "calibration", 2560, 16).flatten())


def test_prose_windows_refuse_what_there_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(TINY_LLAMA)
    with pytest.raises(TopThetaValueError, match="split: expected one of calibration, evaluation, got 'train'"):
        corpus.prose_windows(tokenizer, "train", 2560, 1)
    with pytest.raises(TopThetaValueError, match="count: expected at most"):
        corpus.prose_windows(tokenizer, "evaluation", 2560, 100)
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(TopThetaValueError, match="install all of Python's library"):
        corpus.prose_windows(tokenizer, "evaluation", 2560, 1)
