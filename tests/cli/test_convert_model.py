"""``toptheta convert model.gguf FOLDER`` as a user types it, and GGUF files where a folder is expected."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.cli.command import toptheta
from tests.markdown import ROOT
from tests.models.tiny_gguf import Q8_0, byte_level, make_model, write_gguf

pytestmark = pytest.mark.usefixtures("quiet_and_one_thread")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    vocabulary = byte_level()
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    return write_gguf(path, make_model(len(vocabulary.tokens)), vocabulary, stored=Q8_0)


@pytest.fixture(autouse=True)
def folder(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with the file."""
    (tmp_path / "model.gguf").symlink_to(file)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_model_becomes_a_folder_that_commands_take(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert toptheta("convert", "model.gguf", "out") == 0
    out, err = capfd.readouterr()
    written, advice, following = out.splitlines()
    assert written.startswith("out written: float32, 0 MB, in ")
    assert advice.startswith("Every command loads float32 from it. bfloat16 takes half the memory and is faster on")
    assert following == "Next: toptheta evaluate out --text FILE"
    assert err == ""
    (folder / "text.txt").write_text("the 12 the 1 " * 400)
    options = ("--sequences", "2", "--length", "64", "--k", "8")
    assert toptheta("calibrate", "out", "--text", "text.txt", "-o", "out.theta", *options) == 0
    capfd.readouterr()


def test_commands_that_are_proposed_can_be_pasted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "the θ.gguf").symlink_to("model.gguf")
    assert toptheta("convert", "the θ.gguf") == 2
    proposed = capsys.readouterr().err.strip().partition("for example: ")[2]
    assert shlex.split(proposed) == ["toptheta", "convert", "the θ.gguf", "the θ"]
    assert toptheta("convert", "the θ.gguf", "the θ é") == 0
    following = capsys.readouterr().out.splitlines()[-1].removeprefix("Next: ")
    assert shlex.split(following) == ["toptheta", "evaluate", "the θ é", "--text", "FILE"]
    (folder / "text.txt").write_text("the 12 the 1 ")
    assert toptheta("calibrate", "the θ.gguf", "--text", "text.txt") == 2
    proposed = capsys.readouterr().err.strip().partition("make a folder of it: ")[2]
    assert shlex.split(proposed) == ["toptheta", "convert", "the θ.gguf", "FOLDER"]


def test_the_dtype_is_that_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert toptheta("convert", "model.gguf", "out", "--dtype", "bfloat16") == 0
    assert "Every command loads bfloat16 from it. --dtype float32 keeps" in capsys.readouterr().out
    assert AutoModelForCausalLM.from_pretrained("out").dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["model.gguf"],
            "FOLDER: expected the folder to write, got none; for example: toptheta convert model.gg",
        ),
        (["model.gguf", "out", "--dtype", "int8"], "--dtype: expected one of"),
        (
            ["model.gguf", "-o", "out"],
            "--output needs thresholds to read, and model.gguf is a model; a model takes FOLDER",
        ),
        (["model.gguf", "out", "--k", "8"], "--k needs thresholds to read, and model.gguf is a model"),
        (["th.txt", "out"], "FOLDER needs a GGUF file to read, and th.txt is none; thresholds take -o FILE"),
        ([".", "out"], "FOLDER needs a GGUF file to read, and . is a folder; name the file; what save_pretrained"),
        (["th.txt"], "--output: expected the file to write, got none; add -o FILE"),
        (["none.gguf", "out"], "none.gguf: expected a GGUF file, got no such file; correct the path"),
        (["model.gguf", "."], "expected a new folder or an empty one, got one with files in it"),
    ],
)
def test_what_does_not_go_together(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert toptheta("convert", *arguments) == 2
    assert message in capsys.readouterr().err


TO_DO = "make a folder of it: toptheta convert model.gguf FOLDER"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["calibrate", "model.gguf", "--text", "t.txt", "-o", "new.theta"], f"got model.gguf, a GGUF file; {TO_DO}"),
        (["evaluate", "model.gguf", "t.theta"], f"got model.gguf, a GGUF file; {TO_DO}"),
        (["evaluate", "."], "MODEL: expected a folder with config.json, got . without it; " + TO_DO),
        (
            ["benchmark-generate", "--device", "cpu", "--model", "model.gguf", "--thresholds", "t.theta"],
            f"--model: .* got model.gguf; {TO_DO}",
        ),
        (["convert", "t.txt", "-o", "new.theta", "--fingerprint-of", "model.gguf"], f"got a GGUF file; {TO_DO}"),
    ],
)  # fmt: skip
def test_elsewhere_a_gguf_file_is_refused_with_what_to_do(
    folder: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from toptheta_npu.assets import load_tiny_llama_thresholds

    table = load_tiny_llama_thresholds("pre_softmax")
    table.save(folder / "t.theta")
    if arguments[0] == "convert":
        table.export_text(folder / "t.txt", 64)
    else:
        (folder / "t.txt").write_text("some text " * 100)
    assert toptheta(*arguments) == 2
    assert_matches(message, capsys.readouterr().err)


def assert_matches(message: str, printed: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        raise RuntimeError(printed)


def test_a_missing_extra_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    assert toptheta("convert", "model.gguf", "out") == 2
    assert "error: gguf is missing; in a clone: pip install '.[gguf]'" in capsys.readouterr().err
    assert not (folder / "out").exists()


def test_thresholds_are_converted_without_transformers() -> None:
    script = (
        "import sys; sys.modules['transformers'] = None; sys.argv = ['toptheta', 'convert', 'none.txt', '-o', 'x.txt']"
    )
    script += "; from toptheta_npu.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script, "convert", "none.txt", "-o", "x.txt"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.stderr == "error: none.txt: expected a th.txt file, got no such file; correct the path\n"
