"""Errors in the words of the shell, whichever part of the package raises them."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

from tests.cli.command import toptheta
from tests.cli.test_inspect import make
from tests.tiers import full
from toptheta_npu import cli
from toptheta_npu._streams import standard_streams
from toptheta_npu.cli.common.shell import Command


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with two tables, one of which has the name of an option."""
    monkeypatch.chdir(tmp_path)
    for name in ("table.theta", "layer"):
        make().save(name)
    return tmp_path


@full
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("calibrate --row-fraction 2", "--row-fraction: expected above 0 and at most 1, got 2.0"),
        ("calibrate --k 0", "--k: expected an int from 1 to 16777216, got 0"),
        ("inspect table.theta --layer 9", "--layer: expected 0 to 2, got 9"),
        ("inspect table.theta --k 7", "--k: expected 8 to 32, the calibrated range, got 7; calibrate again with --k 7"),
    ],
)
def test_the_library_s_arguments_are_options(arguments: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert toptheta(*arguments.split()) == 2
    assert capsys.readouterr().err.startswith(f"error: {message}")


def test_a_file_with_the_name_of_an_option_keeps_it(capsys: pytest.CaptureFixture[str]) -> None:
    Path("layer").write_text("no table")
    assert toptheta("inspect", "layer") == 2
    assert capsys.readouterr().err.startswith("error: layer: expected a safetensors file")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("k: -5", "k: expected an int from 1 to 16777216, got -5"),
        ("row-fraction: 3", "row_fraction: expected above 0 and at most 1, got 3.0"),
        ("layer_k: '512,0'", "layer_k: expected 6 numbers, one per layer, got 2"),
        ("model: ./none", "model: expected the folder of a model, or its name on the Hub, got none"),
    ],
)
def test_a_value_from_a_file_is_named_with_the_file(
    line: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("settings.yaml").write_text(f"# settings\nseed: 3\n{line}\n")
    Path("book.txt").write_text("words\n" * 10)
    assert toptheta("calibrate", "--config", "settings.yaml", "--text", "book.txt") == 2
    assert capsys.readouterr().err.startswith(f"error: settings.yaml: {message}")


def test_the_command_line_in_place_of_the_file_s_value_is_named_itself(capsys: pytest.CaptureFixture[str]) -> None:
    Path("settings.yaml").write_text("k: 8\n")
    assert toptheta("calibrate", "--config", "settings.yaml", "--k", "0") == 2
    assert capsys.readouterr().err.startswith("error: --k: expected an int from 1")


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["convert", "m.gguf", ""], "FOLDER"),
        (["demo", "--output="], "--output"),
        (["calibrate", ""], "MODEL"),
        (["calibrate", "-o", ""], "--output"),
        (["calibrate", "--text", "book.txt", "--text", ""], "--text"),
        (["inspect", "table.theta", "--plot", ""], "--plot"),
        (["verify", "--output", ""], "--output"),
    ],
)
def test_an_empty_value_is_not_the_current_folder(
    arguments: list[str], name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(folder.rglob("*"))
    assert toptheta(*arguments) == 2
    assert capsys.readouterr().err.startswith(f"error: {name}: expected a value, got an empty one; give one")
    assert sorted(folder.rglob("*")) == before


def test_a_value_may_end_with_an_equals_sign(capsys: pytest.CaptureFixture[str]) -> None:
    make().save("of=")
    assert toptheta("inspect", "of=") == 0
    assert capsys.readouterr().out.startswith("of=: ")


def test_errors_are_not_broken_into_lines(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert toptheta("inspect", "x" * 100) == 2
    assert re.fullmatch(r"error: x{100}: expected [^\n]*\n", capsys.readouterr().err)


def test_an_interrupt_of_any_command_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("toptheta_npu.thresholds.table.read_table", interrupted)
    assert toptheta("inspect", "table.theta") == 130
    assert capsys.readouterr().err == "interrupted.\n"


def test_every_command_speaks_so() -> None:
    assert {command.cls.__name__ for command in cli.app.registered_commands if command.cls} == {"Command"}


def test_too_little_memory_is_an_error_with_the_options_that_help(capsys: pytest.CaptureFixture[str]) -> None:
    commands = typer.Typer(pretty_exceptions_enable=False)

    @commands.command(cls=Command)
    def work(dtype: str = "float32", length: int = 2) -> None:
        torch.empty(2**50, dtype=getattr(torch, dtype))

    with pytest.raises(SystemExit) as ended:
        cli.main(lambda: commands([]))
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "memory: expected enough for this command, got " in said
    assert str(2**52) in said  # bytes
    assert said.strip().endswith("; try a smaller --length, or --dtype bfloat16")


def run(*arguments: str, **streams: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, "-m", *arguments], **{"capture_output": not streams} | streams, check=False)


@pytest.mark.parametrize(
    "arguments",
    [
        ["toptheta_npu", "--help"],
        ["toptheta_npu", "--version"],
        ["toptheta_npu", "inspect", "table.theta"],
        pytest.param(["toptheta_npu", "inspect", "--help"], marks=full),
        pytest.param(["toptheta_npu", "doctor", "--no-probe"], marks=full),
        pytest.param(["toptheta_npu", "doctor", "--no-probe", "--json"], marks=full),
        pytest.param(["toptheta_npu.cpu.build"], marks=full),
    ],
    ids=" ".join,
)
def test_output_into_a_full_device_is_an_error_of_one_line(arguments: list[str]) -> None:
    with open("/dev/full", "wb") as device:
        done = run(*arguments, stdout=device, stderr=subprocess.PIPE)
    *_, line = done.stderr.decode().splitlines()
    assert line == (
        "error: output: expected a place that takes all of it, got No space left on device; "
        "free some space, or write elsewhere"
    )
    assert done.returncode == 1
    assert b"Traceback" not in done.stderr
    assert b"Exception ignored" not in done.stderr


def test_an_error_keeps_its_exit_status_where_nobody_can_read_it() -> None:
    with open("/dev/full", "wb") as device:
        done = run("toptheta_npu", "inspect", "nothing", stdout=subprocess.PIPE, stderr=device)
    assert (done.returncode, done.stdout) == (2, b"")


def test_an_error_of_another_file_is_no_error_of_the_output() -> None:
    def fail() -> None:
        raise OSError(errno.ENOSPC, "another file")

    with pytest.raises(OSError, match="another file"), standard_streams():
        fail()


def test_a_reader_that_leaves_early_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as pipe:
        assert run("toptheta_npu", "--help", stdout=pipe, stderr=subprocess.PIPE).stderr == b""
