"""Settings from a YAML file: checked against the fields of a command or dataclass; the command line wins over them."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import typer
import yaml

from ._files import read_bytes
from .errors import TopThetaTypeError, TopThetaValueError, nearest, shown

#: Larger files are not configurations.
MAX_BYTES = 2**20
#: Takes a value as the file has it to what the option takes; raises ValueError with what was expected.
Convert = Callable[[Any], Any]

#: In the memory of a command's context: where its settings are written.
_WRITTEN = "toptheta_npu.settings"
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


def read_configuration(
    path: str | Path, fields: Mapping[str, Any], converters: Mapping[str, Convert] | None = None
) -> dict[str, Any]:
    """Read the settings in a YAML file. A name may have hyphens, and one value stands for a list of one.

    Args:
        path: the file, a mapping of names to values. A value left empty counts as not given.
        fields: the types by name; see :func:`fields_of`. Known are int, float, bool, str, Path, Literal, lists of
            these, and each of them or None.
        converters: for fields that take more in a file than their type.

    Raises:
        TopThetaTypeError: a value has another type; the message has file, line and name, what was expected and what
            came.
        TopThetaValueError: the file cannot be read, is not YAML, or has a name twice or one that is not a field.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "calibration.yaml"
        >>> _ = file.write_text("k: 64\\nrow-fraction: 0.5\\n")
        >>> read_configuration(file, {"k": list[int], "row_fraction": float})
        {'k': [64], 'row_fraction': 0.5}
    """
    return {name: value for name, (_, value) in _settings(path, fields, converters or {}, {}).items()}


def use_as_defaults(
    context: typer.Context,
    path: Path,
    fields: Mapping[str, Any],
    converters: Mapping[str, Convert],
    exclude: Collection[str],
    instead: Mapping[str, str],
) -> None:
    """Make the settings in ``path`` the defaults of the running command: for the callback of an eager option.

    Args:
        context: of the command.
        path: the file.
        fields: the types by name; see :func:`fields_of`.
        converters: as of :func:`read_configuration`.
        exclude: fields that only the command line has.
        instead: what to write in place of a name that is not a setting.

    Raises:
        TopThetaTypeError, TopThetaValueError: as :func:`read_configuration`.
    """
    allowed = {name: hint for name, hint in fields.items() if name not in exclude}
    on_command_line = {name: f"give it on the command line: --{name.replace('_', '-')}" for name in exclude}
    settings = _settings(path, allowed, converters, {**on_command_line, **instead})
    context.default_map = {**(context.default_map or {}), **{name: value for name, (_, value) in settings.items()}}
    context.meta[_WRITTEN] = {name: where for name, (where, _) in settings.items()}


def written_in(context: typer.Context, name: str) -> str | None:
    """Return FILE:LINE: NAME of a parameter with a value from the file of :func:`use_as_defaults`, else None."""
    source = context.get_parameter_source(name)
    written: dict[str, str] = context.meta.get(_WRITTEN, {})
    return written.get(name) if source is not None and source.name == "DEFAULT_MAP" else None


def _settings(
    path: str | Path, fields: Mapping[str, Any], converters: Mapping[str, Convert], instead: Mapping[str, str]
) -> dict[str, tuple[str, Any]]:
    """Read, by name, where each setting is written and what its value is."""
    settings: dict[str, tuple[str, Any]] = {}
    for line, written, value in _entries(path):
        where = f"{path}:{line}: {written}"
        name = written.replace("-", "_")
        if name not in fields:
            remedy = instead.get(name) or nearest(name, fields)
            raise TopThetaValueError(where, "the name of a setting", "another", remedy)
        if name in settings:
            raise TopThetaValueError(where, "each name once", "it twice", "remove one of the lines")
        try:
            convert = converters.get(name)
            taken = fitted(value, fields[name]) if convert is None or value is None else convert(value)
        except ValueError as mismatch:
            raise TopThetaTypeError(where, str(mismatch), shown(value), _quoting(value, fields[name])) from mismatch
        settings[name] = (where, taken)
    return {name: (where, value) for name, (where, value) in settings.items() if value is not None}


def as_yaml(settings: Mapping[str, Any]) -> str:
    """Write the text of a file with these settings. Leave out those that are None; keep of a path its name alone.

    Example:
        >>> as_yaml({"text": [Path("/data/book.txt")], "k": [64], "length": None})
        'text: [book.txt]\\nk: [64]\\n'
    """
    plain = {name: _plain(value) for name, value in settings.items() if value is not None}
    return yaml.dump(plain, Dumper=_Dumper, default_flow_style=False, sort_keys=False, allow_unicode=True, width=10**6)


class _Dumper(yaml.SafeDumper):
    """Lists within a line."""


_Dumper.add_representer(
    list, lambda dumper, values: dumper.represent_sequence("tag:yaml.org,2002:seq", values, flow_style=True)
)


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return value.name
    return [_plain(each) for each in value] if isinstance(value, (list, tuple)) else value


def _entries(path: str | Path) -> list[tuple[int, str, Any]]:
    """Read line, name and value of every entry."""
    content = read_bytes(path, "a YAML file", MAX_BYTES)
    what = "a YAML mapping of names to values"
    try:
        text = content.decode("utf-8-sig")
        aliases = [token for token in yaml.scan(text) if isinstance(token, yaml.AliasToken)]
        if aliases:
            where = f"{path}:{aliases[0].start_mark.line + 1}"
            raise TopThetaValueError(where, "values", "an alias", "write the value itself")
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None or node.tag == "tag:yaml.org,2002:null":
            return []
        if not isinstance(node, yaml.MappingNode):
            got = f"a YAML {node.tag.rpartition(':')[2]}"
            raise TopThetaValueError(str(path), what, got, "write lines such as: length: 2048")
        return [_entry(path, loader, key, value) for key, value in node.value]
    except UnicodeDecodeError as error:
        got = f"byte 0x{content[error.start]:02x} at offset {error.start}"
        raise TopThetaValueError(str(path), "text in UTF-8", got, "save it as UTF-8") from error
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f":{error.problem_mark.line + 1}"
        raise TopThetaValueError(f"{path}{line}", what, error.problem or str(error), "correct the line") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise TopThetaValueError(str(path), what, str(error).split("\n")[0], "correct the file") from error


def _entry(path: str | Path, loader: yaml.SafeLoader, key: yaml.Node, value: yaml.Node) -> tuple[int, str, Any]:
    line = key.start_mark.line + 1
    name = loader.construct_object(key, deep=True)
    if not isinstance(name, str):
        raise TopThetaTypeError(f"{path}:{line}", "the name of a setting", shown(name), "correct the line")
    try:
        return line, name, loader.construct_object(value, deep=True)
    except ValueError as error:  # such as a date that there is not
        raise TopThetaTypeError(f"{path}:{line}: {name}", "a value", str(error), "put it into quotes") from error


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
        values = value if isinstance(value, list) else [value]
        try:
            return [fitted(each, kind) for each in values]
        except ValueError:
            raise ValueError(f"{expected(kind)}, or a list of {_LISTS.get(kind, 'such')}") from None
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise ValueError(expected(hint))
        return value
    # an empty path would be the current folder
    is_path = hint is Path and type(value) is str and value
    fits = type(value) is hint or (hint is float and type(value) is int) or is_path
    if not fits:
        raise ValueError(expected(hint))
    return hint(value)


def expected(hint: Any) -> str:
    """Name a type in words.

    Example:
        >>> expected(int), expected(Literal["cpu", "npu"])
        ('a whole number', 'one of cpu, npu')
    """
    if get_origin(hint) is Literal:
        return f"one of {', '.join(map(str, get_args(hint)))}"
    return _WORDS.get(hint, "another type")


def _quoting(value: Any, hint: Any) -> str | None:
    """Tell how to write a value that YAML misreads: it takes 1:30 for a number, no for false, 1e-3 for text."""
    wants = str(hint)
    if isinstance(value, str) and "float" in wants and "e" in value.lower():
        return "write it with a point and a sign, such as 1.0e-3"
    if not isinstance(value, (str, list, dict)) and ("str" in wants or "Path" in wants or "Literal" in wants):
        return "put it into quotes"
    return None
