"""What ``--help`` says: every command under a heading, every option in words, nothing of Python's types."""

from __future__ import annotations

import re

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from toptheta_npu.cli import app

COMMANDS = get_command(app).commands  # type: ignore[attr-defined]


def help_of(*command: str) -> str:
    done = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "80"}, terminal_width=80)
    assert done.exit_code == 0, done.output
    return done.output


def test_every_command_stands_under_a_heading_in_one_whole_sentence() -> None:
    headings = ["Start here", "Choose thresholds", "Measure what a model loses", "Measure what it gains"]
    said = help_of()
    found = re.findall(r"^([A-Z][^:\n]*):\n((?:  .*\n)+)", said, re.MULTILINE)
    assert [heading for heading, _ in found] == ["Options", *headings]
    listed = [line.split()[0] for _, lines in found[1:] for line in lines.splitlines()]
    assert sorted(listed) == sorted(COMMANDS)
    assert {"find-tau", "doctor", "benchmark-generate"} <= set(listed)
    assert "..." not in said.partition("Start here")[2]


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_options_say_what_they_set(name: str) -> None:
    said = help_of(name)
    assert not re.search(r"<[^=]", said), "a type of Python"
    assert "may be given" not in said
    for parameter in COMMANDS[name].params:
        assert parameter.help, parameter.name
        # what is set, not what it is of
        assert not re.match(r"(Of|The table|The results)\b", parameter.help), parameter.name
        assert parameter.help.endswith("."), parameter.name
    assert max(map(len, said.splitlines())) <= 80
