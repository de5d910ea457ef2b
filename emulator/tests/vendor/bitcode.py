"""Reads the text of LLVM bitcode as llvm-dis writes it with opaque pointers: types, and the functions by name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

_SCALARS = {"half": 2, "bfloat": 2, "float": 4, "double": 8}
#: The name of a value, a type or a function.
NAME = r"(?:[\w.$-]+|\"[^\"]*\")"
_DEFINE = re.compile(rf"define .*?@({NAME})\((.*)\)[^()]*\{{$")
_PARAMETER = re.compile(rf"byval\((%{NAME})\)")


class UnreadableError(Exception):
    """The text has something that this reader does not know."""


@dataclass(frozen=True)
class Type:
    """A first-class type.

    Attributes:
        kind: int, float, pointer, array, struct or void.
        bits: of an int.
        space: the address space of a pointer; 6 is the Unified Buffer, 0 the stack of the scalar unit.
        members: of an array one, repeated `count` times; of a struct all of them.
    """

    kind: str
    size: int
    align: int
    bits: int = 0
    space: int = 0
    count: int = 0
    members: tuple[Type, ...] = ()

    def member(self, index: int) -> tuple[int, Type]:
        """Offset in bytes and type of a member."""
        if self.kind == "array":
            return index * self.members[0].size, self.members[0]
        offset = 0
        for before in self.members[:index]:
            offset = _aligned(offset, before.align) + before.size
        return _aligned(offset, self.members[index].align), self.members[index]


VOID = Type("void", 0, 1)


def _aligned(offset: int, align: int) -> int:
    return -(-offset // align) * align


def _struct(members: Sequence[Type]) -> Type:
    align = max((member.align for member in members), default=1)
    whole = Type("struct", 0, align, members=tuple(members))
    if not members:
        return whole
    offset, last = whole.member(len(members) - 1)
    return Type("struct", _aligned(offset + last.size, align), align, members=tuple(members))


@dataclass
class Function:
    """A function's basic blocks, each a list of lines, in order; the names of its parameters and which are copies."""

    name: str
    parameters: list[str]
    copied: dict[str, Type]
    blocks: dict[str, list[str]] = field(default_factory=dict)


class Reader:
    """Takes tokens off the front of a line."""

    def __init__(self, module: Module, text: str) -> None:
        self._module = module
        self.text = text.strip()

    def take(self, pattern: str) -> re.Match[str] | None:
        """What stands in front, if it matches; it is taken off."""
        found = re.match(pattern, self.text)
        if found:
            self.text = self.text[found.end() :].lstrip()
        return found

    def need(self, pattern: str) -> re.Match[str]:
        """As `take`.

        Raises:
            UnreadableError: something else stands there.
        """
        found = self.take(pattern)
        if found is None:
            raise UnreadableError(f"expected {pattern!r} at {self.text[:80]!r}")
        return found

    def type(self) -> Type:
        """The type in front."""
        if found := self.take(r"i(\d+)\b"):
            size = max(1, int(found[1]) // 8)
            return Type("int", size, size, bits=int(found[1]))
        if found := self.take(r"(half|bfloat|float|double)\b"):
            size = _SCALARS[found[1]]
            return Type("float", size, size, bits=size * 8)
        if found := self.take(r"ptr( addrspace\((\d+)\))?"):
            return Type("pointer", 8, 8, bits=64, space=int(found[2] or 0))
        if self.take(r"void\b"):
            return VOID
        if found := self.take(r"\[(\d+) x "):
            element = self.type()
            self.need(r"\]")
            return Type("array", int(found[1]) * element.size, element.align, count=int(found[1]), members=(element,))
        if self.take(r"\{"):
            members = []
            while not self.take(r"\}"):
                members.append(self.type())
                self.take(",")
            return _struct(members)
        return self._module.named_type(self.need(rf"%{NAME}")[0])


class Module:
    """One file of `llvm-dis -opaque-pointers`."""

    def __init__(self, path: Path) -> None:
        self._lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        self._types: dict[str, Type] = {}
        self._functions: dict[str, Function] = {}

    @cached_property
    def _places(self) -> dict[str, int]:
        found = ((_DEFINE.match(line), number) for number, line in enumerate(self._lines) if line.startswith("define"))
        return {match[1]: number for match, number in found if match}

    @cached_property
    def _type_lines(self) -> dict[str, str]:
        pairs = (line.split(" = type ", 1) for line in self._lines if line.startswith("%") and " = type " in line)
        return {pair[0]: pair[1] for pair in pairs}

    @property
    def names(self) -> list[str]:
        """The functions that have a body."""
        return list(self._places)

    def named_type(self, name: str) -> Type:
        """The type of that name, such as %struct.memref_t."""
        if name not in self._types:
            self._types[name] = Reader(self, self._type_lines[name]).type()
        return self._types[name]

    def function(self, name: str) -> Function | None:
        """The function of that name; None if it has no body here."""
        if name not in self._functions:
            if name not in self._places:
                return None
            self._functions[name] = self._read(name, self._places[name])
        return self._functions[name]

    def _read(self, name: str, place: int) -> Function:
        define = _DEFINE.match(self._lines[place])
        assert define is not None
        parameters = [part for part in re.split(r", (?![^()]*\))", define[2]) if part]
        function = Function(name, [part.rsplit(" ", 1)[1] for part in parameters], {})
        for parameter, text in zip(function.parameters, parameters, strict=True):
            if copy := _PARAMETER.search(text):
                function.copied[parameter] = self.named_type(copy[1])
        block: list[str] = []
        for line in self._lines[place + 1 :]:
            if line == "}":
                break
            if label := re.match(rf"({NAME}):", line):
                block = function.blocks.setdefault(label[1], [])
            elif line.startswith("    ") or line == "  ]":
                block[-1] += " " + line.strip()  # a case of the switch above
            elif line.strip():
                block.append(line.split(", !")[0].strip())
        return function
