"""One declaration of a command's options: for the shell, for a file, and for Python."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from toptheta_npu._configuration import fields_of, read_configuration
from toptheta_npu.cli.common.options import command


@dataclass(frozen=True, kw_only=True)
class Options:
    name: Annotated[str | None, typer.Argument(metavar="NAME")] = None
    k: Annotated[list[int], typer.Option(help="Elements to keep.")] = dataclasses.field(default_factory=list)
    row_fraction: Annotated[float, typer.Option(help="Share of the rows.")] = 0.25
    restart: Annotated[bool, typer.Option("--restart")] = False
    typed: frozenset[str] = frozenset()


def run(*arguments: str) -> tuple[int, str, list[Options]]:
    seen: list[Options] = []

    def work(options: Options) -> None:
        """Do the work."""
        seen.append(options)

    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(command(Options, work, config=True, exclude=("restart",)))
    done = CliRunner().invoke(app, arguments)
    return done.exit_code, done.output + str(done.exception or ""), seen


def test_what_is_left_out_is_as_in_python() -> None:
    assert run()[2] == [Options()]


def test_the_shell_and_a_file_fill_the_same_fields(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("name: mine\nk: [8, 16]\nrow-fraction: 0.5\n")
    typed = ("mine", "--k", "8", "--k", "16", "--row-fraction", "0.5")
    assert run(*typed)[2] == [
        Options(name="mine", k=[8, 16], row_fraction=0.5, typed=frozenset({"name", "k", "row_fraction"}))
    ]
    assert run("--config", str(file))[2] == [
        Options(name="mine", k=[8, 16], row_fraction=0.5, typed=frozenset({"config"}))
    ]
    assert run("--config", str(file), "--k", "3")[2][0].k == [3]
    fields = fields_of(Options)
    assert Options(**read_configuration(file, fields)) == Options(name="mine", k=[8, 16], row_fraction=0.5)


@pytest.mark.parametrize(("line", "said"), [("restart: true", "restart: expected the name of"), ("kk: 3", "kk")])
def test_a_file_names_options_that_it_may(line: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "settings.yaml").write_text(line)
    status, output, seen = run("--config", str(tmp_path / "settings.yaml"))
    assert status != 0
    assert said in output
    assert not seen


def test_the_help_is_that_of_the_work_and_the_fields() -> None:
    said = run("--help")[1]
    for part in ("Do the work.", "Elements to keep.", "--row-fraction", "default: 0.25", "--config", "NAME"):
        assert part in said
    assert "typed" not in said
