"""Project files: what is read of them, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from emulator.acl import ProjectError, find_project, read_project
from emulator.acl.settings import with_settings

_EXAMPLE = Path(__file__).parents[1] / "examples" / "axpy"


def test_the_example_is_a_project() -> None:
    project = read_project(_EXAMPLE / "emulator.json")
    assert (project.vendor, project.folder, project.build) == ("example", _EXAMPLE.resolve(), ())
    assert project.kernel.name == "axpy.cpp"
    assert project.operator.describe()["type"] == "Axpy"


def test_a_folder_without_a_file_has_no_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_project(None) is None
    with pytest.raises(ProjectError, match="expected a project file of the emulator, but there is none"):
        find_project(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kernel": None}, "kernel: expected a text, got None"),
        ({"kernels": "a.cpp"}, "expected the keys build, build_inputs, .* got 'kernels'; take it out"),
        ({"build": "make"}, "build: expected a list of texts, got 'make'"),
        ({"vendor": "../up"}, "vendor: expected letters, digits, _ and -, got '../up'"),
        ({"host": "nowhere"}, "host: expected a path from .*, but there is nothing at 'nowhere'"),
    ],
    ids=["missing", "unknown", "list", "vendor", "path"],
)
def test_a_wrong_file_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "host").mkdir()
    (tmp_path / "a.cpp").write_text("")
    file = tmp_path / "emulator.json"
    file.write_text(json.dumps({"vendor": "v", "host": "host", "kernel": "a.cpp"} | changes))
    with pytest.raises(ProjectError, match=message):
        read_project(file)


def test_other_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "emulator.json"
    for text, message in (("[]", "expected an object of JSON, got list"), ("{", "expected JSON, got something else")):
        file.write_text(text)
        with pytest.raises(ProjectError, match=re.escape(message)):
            read_project(file)


def test_settings_of_a_child_are_checked() -> None:
    assert with_settings({"ACL_EMULATOR": "libraries=/x;fill=1"}, fill=None, asynchronous=True) == {
        "ACL_EMULATOR": "libraries=/x;asynchronous=1"
    }
    with pytest.raises(ValueError, match=r"settings: expected some of soc, .*got 'device'"):
        with_settings({}, device=2)
    with pytest.raises(ValueError, match="soc: expected a value without a semicolon"):
        with_settings({}, soc="a;b")
