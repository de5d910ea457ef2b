"""Settings from YAML: what is taken, what is refused with file, line and name, and what the command line overrules."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import typer
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from toptheta_npu._configuration import as_yaml, fields_of, read_configuration, use_as_defaults
from toptheta_npu.errors import TopThetaError, TopThetaValueError


@dataclass
class Settings:
    length: int | None = None
    k: list[int] | None = None
    row_fraction: float = 1.0
    vmc: bool = True
    name: str = ""
    text: list[Path] | None = None
    placement: Literal["pre_softmax", "post_softmax"] = "pre_softmax"
    layer_k: str | None = None


FIELDS = fields_of(Settings)


def write(folder: Path, text: str | bytes) -> Path:
    file = folder / "settings.yaml"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return file


def test_values_of_every_type(tmp_path: Path) -> None:
    text = "length: 8\nk: [1, 2]\nrow-fraction: 1\nvmc: no\nname: a b\ntext: a.txt\nplacement: post_softmax\nlayer_k:\n"
    assert read_configuration(write(tmp_path, text), FIELDS) == {
        "length": 8, "k": [1, 2], "row_fraction": 1.0, "vmc": False, "name": "a b", "text": [Path("a.txt")],
        "placement": "post_softmax",
    }  # fmt: skip


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "\ufeff"])
def test_a_file_without_settings(text: str, tmp_path: Path) -> None:
    assert read_configuration(write(tmp_path, text), FIELDS) == {}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("row_fractoin: 1", "row_fractoin: expected the name of a setting, got another; did you mean row_fraction?"),
        ("1: 2", "1: expected the name of a setting, got another; known are k, layer_k, length, name, placement"),
        ("length: true", "length: expected a whole number, got True"),
        ("k: [1, x]", "k: expected a whole number, or a list of whole numbers, got [1, 'x']"),
        ("row_fraction: 1e-3", "row_fraction: expected a number, got '1e-3'"),
        ("vmc: 1", "vmc: expected true or false, got 1"),
        ("name: no", "name: expected text, got False"),
        ("placement: middle", "placement: expected one of pre_softmax, post_softmax, got 'middle'"),
        ("text: ''", "text: expected a path, or a list of paths, got ''"),
        ("name: 2001-99-99", "expected a YAML mapping of names to values, got month must be in 1..12; correct the fi"),
        ("vmc: [", "expected a YAML mapping of names to values, got "),
        ("vmc: !!python/object:os.system {}", "got could not determine a constructor"),
        ("- a", "expected a YAML mapping of names to values, got ['a']; write lines such as: length: 2048"),
        (b"name: \xff", "expected a YAML mapping of names to values, got "),
        ("[" * 10_000, "expected a YAML mapping of names to values, got "),
        ("x" * 2**21, "expected a YAML file of at most 1048576 bytes"),
    ],
)
def test_what_does_not_fit_is_named_by_file_and_setting(line: str | bytes, message: str, tmp_path: Path) -> None:
    file = write(tmp_path, line)
    with pytest.raises(TopThetaError) as caught:
        read_configuration(file, FIELDS)
    assert str(caught.value).startswith(f"{file}: ")
    assert message in str(caught.value)


@given(text=st.text(max_size=60) | st.binary(max_size=60))
def test_any_file_is_taken_or_refused_in_words(text: str | bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    content = text.encode(errors="replace") if isinstance(text, str) else text
    with suppress(TopThetaError):
        assert set(read_configuration(write(tmp_path_factory.getbasetemp(), content), FIELDS)) <= set(FIELDS)


_VALUES = st.fixed_dictionaries(
    {},
    optional={
        "length": st.integers(), "k": st.lists(st.integers()), "row_fraction": st.floats(allow_nan=False),
        "vmc": st.booleans(), "name": st.text(), "text": st.lists(st.just(Path("a.txt"))),
    },
)  # fmt: skip


@given(settings=_VALUES)
def test_what_is_written_is_read_again(settings: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    file = write(tmp_path_factory.getbasetemp(), as_yaml(settings))
    assert read_configuration(file, FIELDS) == settings


def _use(context: typer.Context, value: Path | None) -> Path | None:
    if value is not None:
        use_as_defaults(context, value, {name: FIELDS[name] for name in ("name", "k", "vmc", "row_fraction")})
    return value


def command(
    name: Annotated[str | None, typer.Argument()] = None,
    k: Annotated[list[int] | None, typer.Option()] = None,
    vmc: Annotated[bool | None, typer.Option("--vmc/--no-vmc")] = None,
    row_fraction: float = 0.25,
    config: Annotated[Path | None, typer.Option(is_eager=True, callback=_use)] = None,
) -> None:
    print(yaml.safe_dump({"name": name, "k": k, "vmc": vmc, "row_fraction": row_fraction}))


def outcome(*arguments: str) -> Any:
    app = typer.Typer()
    app.command()(command)
    done = CliRunner().invoke(app, list(arguments))
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return yaml.safe_load(done.stdout)


def test_the_command_line_wins_over_the_file_and_the_file_over_the_defaults(tmp_path: Path) -> None:
    file = str(write(tmp_path, "name: file\nk: [1, 2]\nvmc: true\n"))
    assert outcome() == {"name": None, "k": None, "vmc": None, "row_fraction": 0.25}
    assert outcome("--config", file) == {"name": "file", "k": [1, 2], "vmc": True, "row_fraction": 0.25}
    given = outcome("line", "--k", "3", "--config", file, "--no-vmc", "--row-fraction", "0.5")
    assert given == {"name": "line", "k": [3], "vmc": False, "row_fraction": 0.5}


def test_a_file_cannot_name_another(tmp_path: Path) -> None:
    with pytest.raises(TopThetaValueError, match=r"settings\.yaml: config: expected the name of a setting"):
        outcome("--config", str(write(tmp_path, "config: other.yaml\n")))
    with pytest.raises(TopThetaValueError, match=r"expected a YAML file, got no such file; correct the path"):
        outcome("--config", str(tmp_path / "nowhere.yaml"))
