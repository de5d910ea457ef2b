"""From the files and folders that a user names to sources of documents, before any of them is read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .._files import file_error, status
from .decoding import is_binary
from .sources import DatasetRows, JsonLines, PlainText, Source

_JSON_LINES = (".jsonl", ".ndjson")
#: May hold JSON lines or JSON of another form, which is no text to calibrate on.
_JSON = ".json"
_SPLITS = "dataset_dict.json"
_SAVED = ("dataset_info.json", "state.json")


@dataclass
class Sources:
    """What was found.

    Attributes:
        sources: in the order in which they were named; the files of a folder by their paths.
        left_out: files of folders that hold null bytes, nothing at all, or JSON.
    """

    sources: list[Source] = field(default_factory=list)
    left_out: list[Path] = field(default_factory=list)


def find_sources(paths: Sequence[Path], field: str = "text") -> Sources:
    """Find the sources behind ``paths``: text files, files of JSON lines, folders of both, data sets on disk.

    Files with names ending in .jsonl or .ndjson are JSON lines. A folder that ``datasets`` saved is a data set. Every
    other file is plain text. Of a folder hidden, empty and binary files and those ending in .json are left out, and
    linked folders are not entered.

    Args:
        paths: files and folders.
        field: of JSON lines and data sets.

    Raises:
        ModuleNotFoundError: a data set, and ``datasets`` is not installed.
        TopThetaValueError: a path leads nowhere, a file is empty or ends in .json, or a folder holds no text.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "a.txt").write_text("one"), (folder / "b.txt").write_text("two")
        >>> [source.name for source in find_sources([folder / "b.txt", folder / "a.txt"]).sources]
        ['b.txt', 'a.txt']
    """
    found = Sources()
    for path in paths:
        what = "a file or folder with text"
        where = status(path, what)
        if where is None:
            raise file_error(path, what, "no such file", "correct the path")
        name = path.name or path.resolve().name
        if os.path.isfile(path / _SPLITS) or all(os.path.isfile(path / each) for each in _SAVED):
            found.sources.append(DatasetRows(path, name, field))
        elif path.is_dir():
            _add_folder(found, path, name, field)
        elif path.suffix.lower() == _JSON:
            remedy = "name it .jsonl if it has an object a line, or .txt to read it as it is"
            raise file_error(path, "text or JSON lines", "a .json file", remedy)
        elif not where.st_size:
            raise file_error(path, "a file with text", "an empty one", "leave it out")
        else:
            found.sources.append(_source(path, name, field))
    return found


def _add_folder(found: Sources, folder: Path, name: str, field: str) -> None:
    before = len(found.sources)
    for file in _walk(folder):
        if file.suffix.lower() == _JSON or not file.stat().st_size or is_binary(file):
            found.left_out.append(file)
        else:
            found.sources.append(_source(file, f"{name}/{file.relative_to(folder).as_posix()}", field))
    if len(found.sources) == before:
        got = "one without any" + (", only binary, empty or JSON ones" if found.left_out else "")
        raise file_error(folder, "a folder with text files", got, "name another folder, or its files one by one")


def _source(file: Path, name: str, field: str) -> Source:
    return JsonLines(file, name, field) if file.suffix.lower() in _JSON_LINES else PlainText(file, name)


def _walk(folder: Path) -> list[Path]:
    """List the files below ``folder`` by their paths, without hidden ones."""

    def refuse(error: OSError) -> None:
        got = f"one that cannot be read ({error.strerror or error})"
        raise file_error(folder, "a folder with text files", got, "correct its permissions, or leave it out") from error

    found: list[Path] = []
    for above, folders, files in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(above, name) for name in files if not name.startswith(".")]
    return sorted(filter(os.path.isfile, found))
