"""From the files and folders that a user names to sources of documents, before any of them is read."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .._files import file_error, status
from .decoding import check_encoding, is_binary
from .sources import DatasetRows, JsonLines, PlainText, Source

_JSON_LINES = (".jsonl", ".ndjson")
#: May hold JSON lines, too.
_JSON = ".json"
_SPLITS = "dataset_dict.json"
_SAVED = ("dataset_info.json", "state.json")


@dataclass
class Sources:
    """What was found.

    Attributes:
        sources: in the order in which they were named; the files of a folder by their paths.
        left_out: files of folders that hold null bytes, nothing at all, or JSON without texts.
    """

    sources: list[Source] = field(default_factory=list)
    left_out: list[Path] = field(default_factory=list)


def find_sources(paths: Sequence[Path], field: str = "text", encoding: str = "utf-8") -> Sources:
    """Find the sources behind ``paths``: text files, files of JSON lines, folders of both, data sets on disk.

    Files with names ending in .jsonl, .ndjson or .json are JSON lines. A folder that ``datasets`` saved is a data set.
    Every other file is plain text. Of a folder hidden, empty and binary files are left out, and those ending in .json
    that are not JSON lines with ``field``.

    Args:
        paths: files and folders.
        field: of JSON lines and data sets.
        encoding: of files, as Python names it.

    Raises:
        ModuleNotFoundError: a data set, and ``datasets`` is not installed.
        TopThetaValueError: a path leads nowhere or to something else, a file is empty or named twice, a file ending in
            .json is not JSON lines, or a folder holds no text or itself.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "a.txt").write_text("one"), (folder / "b.txt").write_text("two")
        >>> [source.name for source in find_sources([folder / "b.txt", folder / "a.txt"]).sources]
        ['b.txt', 'a.txt']
    """
    check_encoding(encoding)
    found = Sources()
    seen: set[tuple[int, int]] = set()
    for path in paths:
        before = len(found.sources)
        for source in _sources_of(path, found, field, encoding):
            file, where = source.path, _status(source.path)
            if (where.st_dev, where.st_ino) in seen:
                raise file_error(file, "each text once", "one that was named before", "name it once")
            seen.add((where.st_dev, where.st_ino))
            found.sources.append(source)
        if len(found.sources) == before:
            got = "one without any" + (", only binary or empty ones, or JSON without texts" if found.left_out else "")
            raise file_error(path, "a folder with text files", got, "name another folder, or its files one by one")
    return found


def _sources_of(path: Path, found: Sources, field: str, encoding: str) -> Iterator[PlainText | JsonLines]:
    """Yield the files of ``path``. A data set goes to ``found`` at once."""
    found_there = _status(path)
    if stat.S_ISDIR(found_there.st_mode):
        if os.path.isfile(path / _SPLITS) or all(os.path.isfile(path / name) for name in _SAVED):
            found.sources.append(DatasetRows(path, _name(path), field))
            return
        for file in _walk(path, ()):
            name = f"{_name(path)}/{file.relative_to(path).as_posix()}"
            is_text = _status(file).st_size > 0 and not is_binary(file)
            if is_text and (not _is_json(file) or field in (JsonLines(file, name, field, encoding).first() or ())):
                yield _source(file, name, field, encoding)
            else:
                found.left_out.append(file)
    elif not stat.S_ISREG(found_there.st_mode):
        remedy = "write its content into a file first, so that it can be read again"
        raise file_error(path, "a file or folder", "a device or pipe", remedy)
    elif not found_there.st_size:
        raise file_error(path, "a file with text", "an empty one", "leave it out")
    else:
        source = _source(path, _name(path), field, encoding)
        if isinstance(source, JsonLines) and _is_json(path) and source.first() is None:
            remedy = "write one object a line, or name it .txt to read it as it is"
            raise file_error(path, "JSON lines, as of a .json file", "JSON of another form, or none", remedy)
        yield source


def _source(file: Path, name: str, field: str, encoding: str) -> PlainText | JsonLines:
    if _is_json(file) or file.suffix.lower() in _JSON_LINES:
        return JsonLines(file, name, field, encoding)
    return PlainText(file, name, encoding)


def _is_json(file: Path) -> bool:
    return file.suffix.lower() == _JSON


def _status(path: Path) -> os.stat_result:
    what = "a file or folder with text"
    found = status(path, what)
    if found is None:
        raise file_error(path, what, "no such file", "correct the path")
    return found


def _name(path: Path) -> str:
    return path.name or path.resolve().name


def _walk(folder: Path, above: tuple[tuple[int, int], ...]) -> Iterator[Path]:
    """Yield regular files below ``folder``, by name. Follow links unless they lead back."""
    where = _status(folder)
    here = (where.st_dev, where.st_ino)
    if here in above:
        remedy = "remove the link, or name the files one by one"
        raise file_error(folder, "a folder that does not hold itself", f"a link to {folder.resolve()}", remedy)
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        got = f"one that cannot be read ({error.strerror or error})"
        raise file_error(folder, "a folder with text files", got, "correct its permissions, or leave it out") from error
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if entry.is_symlink() and not os.path.exists(entry):
            remedy = "remove the link, or name the files one by one"
            raise file_error(entry, "a file", f"a link to {os.readlink(entry)}, which leads nowhere", remedy)
        mode = _status(entry).st_mode
        if stat.S_ISDIR(mode):
            yield from _walk(entry, (*above, here))
        elif stat.S_ISREG(mode):
            yield entry
