"""Settings from a YAML file: checked against the fields of a command or dataclass; the command line wins over them."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import typer
import yaml

from ._files import read_bytes
from .errors import TopThetaTypeError, TopThetaValueError, nearest, shown

#: Larger files are not configurations.
MAX_BYTES = 2**20

#: In the memory of a command's context: the file of its settings.
_FILE = "toptheta_npu.settings"
_WORDS: dict[Any, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "text", Path: "a path"}
_LISTS: dict[Any, str] = {int: "whole numbers", float: "numbers", str: "texts", Path: "paths"}


def fields_of(source: Callable[..., Any]) -> dict[str, Any]:
    """Return name and type of every field of a dataclass, or of every parameter of a command.

    Example:
        >>> def command(length: int, text: list[Path] | None = None) -> None: ...
        >>> sorted(fields_of(command))
        ['length', 'text']
    """
    hints = get_type_hints(inspect.unwrap(source))
    return {name: hint for name, hint in hints.items() if name != "return" and hint is not typer.Context}


def read_configuration(path: str | Path, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Read the settings in a YAML file. A name may have hyphens, and one value stands for a list of one.

    Args:
        path: the file, a mapping of names to values. A value left empty counts as not given.
        fields: the types by name; see :func:`fields_of`. Known are int, float, bool, str, Path, Literal, lists of
            these, and each of them or None.

    Raises:
        TopThetaTypeError: a value has another type; the message has file and name, what was expected and what came.
        TopThetaValueError: the file cannot be read, is not YAML, or has a name that is not a field.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "calibration.yaml"
        >>> _ = file.write_text("k: 64\\nrow-fraction: 0.5\\n")
        >>> read_configuration(file, {"k": list[int], "row_fraction": float})
        {'k': [64], 'row_fraction': 0.5}
    """
    settings = {}
    for written, value in _content(path).items():
        name, where = str(written).replace("-", "_"), f"{path}: {written}"
        if name not in fields:
            raise TopThetaValueError(where, "the name of a setting", "another", nearest(name, fields))
        if value is None:
            continue
        try:
            settings[name] = fitted(value, fields[name])
        except ValueError as mismatch:
            raise TopThetaTypeError(where, str(mismatch), shown(value)) from mismatch
    return settings


def _content(path: str | Path) -> dict[Any, Any]:
    content = read_bytes(path, "a YAML file", MAX_BYTES)
    expected = "a YAML mapping of names to values"
    try:
        found = yaml.safe_load(content)
    # dates that there are not, depths and tags: yaml has no one error for them
    except Exception as error:
        raise TopThetaValueError(str(path), expected, " ".join(str(error).split()), "correct the file") from error
    if not isinstance(found, (dict, types.NoneType)):
        raise TopThetaValueError(str(path), expected, shown(found), "write lines such as: length: 2048")
    return found or {}


def use_as_defaults(context: typer.Context, path: Path, fields: Mapping[str, Any]) -> None:
    """Make the settings in ``path`` the defaults of the running command: for the callback of an eager option.

    Args:
        context: of the command.
        path: the file.
        fields: the types by name; see :func:`fields_of`.

    Raises:
        TopThetaTypeError, TopThetaValueError: as :func:`read_configuration`.
    """
    context.default_map = {**(context.default_map or {}), **read_configuration(path, fields)}
    context.meta[_FILE] = path


def written_in(context: typer.Context, name: str) -> str | None:
    """Return FILE: NAME of a parameter with a value from the file of :func:`use_as_defaults`, else None."""
    source = context.get_parameter_source(name)
    return f"{context.meta[_FILE]}: {name}" if source is not None and source.name == "DEFAULT_MAP" else None


def as_yaml(settings: Mapping[str, Any]) -> str:
    """Write the text of a file with these settings. Leave out those that are None; keep of a path its name alone.

    Example:
        >>> as_yaml({"text": [Path("/data/book.txt")], "k": [64], "length": None})
        'text: [book.txt]\\nk: [64]\\n'
    """
    plain = {name: _plain(value) for name, value in settings.items() if value is not None}
    return yaml.safe_dump(plain, default_flow_style=None, sort_keys=False, allow_unicode=True, width=10**6)


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return value.name
    return [_plain(each) for each in value] if isinstance(value, (list, tuple)) else value


def fitted(value: Any, hint: Any) -> Any:
    """Convert ``value`` to the type ``hint`` of a setting, or raise ValueError with what was expected.

    Example:
        >>> fitted("64", int)
        Traceback (most recent call last):
        ...
        ValueError: a whole number
    """
    if get_origin(hint) in (Union, types.UnionType):
        (kind,) = (each for each in get_args(hint) if each is not type(None))
        return None if value is None else fitted(value, kind)
    if get_origin(hint) is list:
        (kind,) = get_args(hint)
        try:
            return [fitted(each, kind) for each in (value if isinstance(value, list) else [value])]
        except ValueError as error:
            raise ValueError(f"{error}, or a list of {_LISTS.get(kind, 'such')}") from None
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise ValueError(f"one of {', '.join(map(str, get_args(hint)))}")
        return value
    # an empty path would be the current folder
    is_path = hint is Path and type(value) is str and value
    fits = type(value) is hint or (hint is float and type(value) is int) or is_path
    if not fits:
        raise ValueError(_WORDS.get(hint, "another type"))
    return hint(value)
