"""A checkout of an engine, read without running it, against the record of what the shim relies on."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

#: The option of pytest that names the folder of a checkout.
ASCEND_SOURCE = "--vllm-ascend-source"
#: Of a record: what is known of functions, fields or attributes, by module and class.
Record = dict[str, Any]


def checkout(config: pytest.Config) -> Path:
    """The folder that the option names; without it, the test is skipped."""
    folder = config.getoption(ASCEND_SOURCE)
    if folder is None:
        pytest.skip(f"no checkout at hand: name its folder by {ASCEND_SOURCE}=FOLDER")
    return Path(folder)


def version_of(source: Path, package: str) -> str | None:
    """The version that a source distribution states; None in a checkout of git."""
    file = source / package / "_version.py"
    found = re.search(r"version = '([^']+)'", file.read_text()) if file.exists() else None
    return found[1] if found else None


def functions(record: Record, kind: str) -> Iterator[tuple[str, str, str, Any]]:
    """Module, class, function and what is recorded of it."""
    for module, classes in record[kind].items():
        for name, entries in classes.items():
            for function, entry in entries.items():
                yield module, name, function, entry


def class_of(source: Path, module: str, name: str) -> ast.ClassDef:
    tree = ast.parse((source / f"{module.replace('.', '/')}.py").read_text())
    return next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)


def function_of(owner: ast.ClassDef, name: str) -> ast.FunctionDef:
    return next(node for node in owner.body if isinstance(node, ast.FunctionDef) and node.name == name)


def assert_parameters(source: Path, module: str, name: str, function: str, wanted: list[str]) -> None:
    arguments = function_of(class_of(source, module, name), function).args
    last = [arguments.kwarg] if arguments.kwarg else []
    found = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *last]
    assert [each.arg for each in found] == wanted
    assert arguments.vararg is None


def assert_fields(source: Path, record: Record) -> None:
    """The recorded fields are among those of their dataclasses."""
    for module, classes in record["fields"].items():
        for name, wanted in classes.items():
            owner = class_of(source, module, name)
            assert [ast.unparse(each) for each in owner.decorator_list] == ["dataclass"]
            found = {each.target.id for each in owner.body if isinstance(each, ast.AnnAssign)}  # type: ignore[union-attr]
            assert set(wanted) <= found


def assert_attributes(source: Path, record: Record) -> None:
    """The recorded attributes are set by constructors."""
    for module, classes in record["attributes"].items():
        for name, wanted in classes.items():
            constructor = function_of(class_of(source, module, name), "__init__")
            targets = [
                target
                for node in ast.walk(constructor)
                if isinstance(node, (ast.Assign, ast.AnnAssign))
                for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            ]
            found = {ast.unparse(target).removeprefix("self.") for target in targets}
            assert set(wanted) <= found
