"""Runs the scalar part of a function of LLVM bitcode, and hands its calls of intrinsics to a device.

Values are bit patterns: an int of the type's width without sign, also for floats and pointers.
"""

from __future__ import annotations

import operator
import re
import struct
from collections.abc import Callable
from typing import Protocol

from emulator.tests.vendor.bitcode import NAME, Function, Module, Reader, Type, UnreadableError

_STACK = 1 << 20
#: The stack's first address, which no address in the Unified Buffer equals.
_STACK_BASE = 1 << 40
_NULL_PAGE = 4096
UNIFIED_BUFFER = 6

Frame = dict[str, int]


class Device(Protocol):
    """What an intrinsic and a scalar access to the Unified Buffer reach."""

    def call(self, name: str, arguments: list[int]) -> int:
        """An intrinsic, without the prefix llvm.hivm."""

    def load(self, address: int, size: int) -> bytes:
        """Bytes of the Unified Buffer."""

    def store(self, address: int, data: bytes) -> None:
        """Writes to the Unified Buffer."""


def signed(value: int, bits: int) -> int:
    """A pattern of `bits` bits as a number with a sign."""
    return value - (1 << bits) if value >> (bits - 1) & 1 else value


def _divide(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


_UNSIGNED: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "shl": operator.lshift,
    "lshr": operator.rshift,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "udiv": operator.floordiv,
    "urem": operator.mod,
}
_SIGNED: dict[str, Callable[[int, int], int]] = {
    "sdiv": _divide,
    "srem": lambda a, b: a - _divide(a, b) * b,
    "ashr": operator.rshift,
}
_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}


class Interpreter:
    """Runs functions of a module over one stack and one device."""

    def __init__(self, module: Module, device: Device) -> None:
        self._module = module
        self._device = device
        self._stack = bytearray(_STACK)
        self._top = 0

    # ---- memory -------------------------------------------------------------------------------------------------

    def place(self, size: int) -> int:
        """The address of so many bytes on the stack."""
        address, self._top = self._top, (self._top + size + 7) // 8 * 8
        return _STACK_BASE + address

    def put(self, address: int, data: bytes, space: int = 0) -> None:
        """Writes bytes."""
        if space == UNIFIED_BUFFER:
            self._device.store(address, data)
            return
        start = self._on_stack(address, space)
        self._stack[start : start + len(data)] = data

    def get(self, address: int, size: int, space: int = 0) -> bytes:
        """Reads bytes."""
        if space == UNIFIED_BUFFER:
            return self._device.load(address, size)
        if space == 0 and address < _NULL_PAGE:
            return bytes(size)  # members of an absent tensor, which are loaded before they are needed
        start = self._on_stack(address, space)
        return bytes(self._stack[start : start + size])

    def _on_stack(self, address: int, space: int) -> int:
        if space != 0 or not 0 <= address - _STACK_BASE < _STACK:
            raise UnreadableError(f"an access to address {address:#x} of address space {space}")
        return address - _STACK_BASE

    # ---- control ------------------------------------------------------------------------------------------------

    def run(self, name: str, *arguments: int) -> int:
        """Calls a function; its result, 0 if it has none."""
        function = self._module.function(name)
        if function is None:
            raise UnreadableError(f"no function {name}")
        return self._run(function, list(arguments))

    def _run(self, function: Function, arguments: list[int]) -> int:
        top = self._top
        frame = dict(zip(function.parameters, arguments, strict=True))
        for parameter, kind in function.copied.items():
            data = self.get(frame[parameter], kind.size)
            frame[parameter] = self.place(kind.size)
            self.put(frame[parameter], data)
        before, label = "", next(iter(function.blocks))
        while True:
            block = function.blocks[label]
            self._take_phis(block, before, frame)
            for line in block[:-1]:
                self._execute(line, frame)
            before, target = label, self._leave(Reader(self._module, block[-1]), frame)
            if isinstance(target, int):
                self._top = top
                return target
            label = target

    def _take_phis(self, block: list[str], before: str, frame: Frame) -> None:
        values: Frame = {}
        for line in block:
            match = re.match(rf"(%{NAME}) = phi ", line)
            if match is None:
                break
            reader = Reader(self._module, line[match.end() :])
            kind = reader.type()
            for text, origin in re.findall(rf"\[ ([^,]+), %({NAME}) \]", reader.text):
                if origin == before:
                    values[match[1]] = self._value(Reader(self._module, text), kind, frame)
        frame.update(values)

    def _leave(self, reader: Reader, frame: Frame) -> str | int:
        """The label that a block goes on to, or what its function returns."""
        if reader.take("ret void"):
            return 0
        if reader.take("ret "):
            return self._operand(reader, frame)[0]
        if jump := reader.take(rf"br label %({NAME})"):
            return jump[1]
        if reader.take("br "):
            condition = self._operand(reader, frame)[0]
            then, other = re.findall(rf"label %({NAME})", reader.text)
            return str(then if condition else other)
        if reader.take("switch "):
            value, kind = self._operand(reader, frame)
            default = reader.need(rf", label %({NAME}) \[")[1]
            cases = re.findall(rf"i\d+ (-?\d+), label %({NAME})", reader.text)
            return next((label for case, label in cases if int(case) % (1 << kind.bits) == value), default)
        raise UnreadableError(f"the end of a block: {reader.text}")

    # ---- instructions -------------------------------------------------------------------------------------------

    def _execute(self, line: str, frame: Frame) -> None:
        reader = Reader(self._module, line)
        name = reader.take(rf"(%{NAME}) = ")
        operation = reader.need(r"(?:tail )?([a-z]+)")[1]
        if operation == "phi":
            return
        if operation in _UNSIGNED or operation in _SIGNED:
            value = self._arithmetic(operation, reader, frame)
        else:
            value = getattr(self, f"_do_{operation}", self._unknown(line))(reader, frame)
        if name:
            frame[name[1]] = value

    @staticmethod
    def _unknown(line: str) -> Callable[[Reader, Frame], int]:
        def refuse(_reader: Reader, _frame: Frame) -> int:
            raise UnreadableError(line)

        return refuse

    def _arithmetic(self, operation: str, reader: Reader, frame: Frame) -> int:
        while reader.take(r"(nsw|nuw|exact) "):
            pass
        left, kind = self._operand(reader, frame)
        reader.need(",")
        right = self._value(reader, kind, frame)
        if operation in _SIGNED:
            shift = operation == "ashr"
            result = _SIGNED[operation](signed(left, kind.bits), right if shift else signed(right, kind.bits))
        else:
            result = _UNSIGNED[operation](left, right)
        return result % (1 << kind.bits)

    def _do_icmp(self, reader: Reader, frame: Frame) -> int:
        condition = reader.need(r"\w+")[0]
        left, kind = self._operand(reader, frame)
        reader.need(",")
        right = self._value(reader, kind, frame)
        if condition[0] == "s":
            left, right = signed(left, kind.bits), signed(right, kind.bits)
        return int(_COMPARISONS[condition if condition in ("eq", "ne") else condition[1:]](left, right))

    def _do_select(self, reader: Reader, frame: Frame) -> int:
        condition = self._operand(reader, frame)[0]
        reader.need(",")
        first = self._operand(reader, frame)[0]
        reader.need(",")
        second = self._operand(reader, frame)[0]
        return first if condition else second

    def _do_alloca(self, reader: Reader, _frame: Frame) -> int:
        return self.place(reader.type().size)

    def _do_load(self, reader: Reader, frame: Frame) -> int:
        reader.take("volatile ")
        kind = reader.type()
        reader.need(",")
        address, pointer = self._operand(reader, frame)
        return int.from_bytes(self.get(address, kind.size, pointer.space), "little") % (1 << kind.bits)

    def _do_store(self, reader: Reader, frame: Frame) -> int:
        reader.take("volatile ")
        value, kind = self._operand(reader, frame)
        reader.need(",")
        address, pointer = self._operand(reader, frame)
        self.put(address, value.to_bytes(kind.size, "little"), pointer.space)
        return 0

    def _do_getelementptr(self, reader: Reader, frame: Frame) -> int:
        reader.take("inbounds ")
        kind = reader.type()
        reader.need(",")
        address = self._operand(reader, frame)[0]
        first = True
        while reader.take(","):
            value, index = self._operand(reader, frame)
            step = signed(value, index.bits)
            offset, kind = (step * kind.size, kind) if first else kind.member(step)
            address, first = address + offset, False
        return address % (1 << 64)

    def _convert(self, reader: Reader, frame: Frame, *, with_sign: bool = False) -> int:
        value, kind = self._operand(reader, frame)
        reader.need("to ")
        return (signed(value, kind.bits) if with_sign else value) % (1 << reader.type().bits)

    def _do_sext(self, reader: Reader, frame: Frame) -> int:
        return self._convert(reader, frame, with_sign=True)

    _do_zext = _do_trunc = _do_bitcast = _do_ptrtoint = _do_inttoptr = _do_addrspacecast = _convert

    def _do_sitofp(self, reader: Reader, frame: Frame) -> int:
        value, kind = self._operand(reader, frame)
        reader.need("to ")
        return _float_bits(float(signed(value, kind.bits)), reader.type())

    def _do_call(self, reader: Reader, frame: Frame) -> int:
        name = reader.need(rf"[^@]*@({NAME})\(")[1]
        arguments = []
        while not reader.take(r"\)"):
            arguments.append(self._operand(reader, frame)[0])
            reader.take(",")
        if name.startswith("llvm.hivm."):
            return self._device.call(name.removeprefix("llvm.hivm."), arguments)
        if name.startswith("llvm."):
            return self._general_intrinsic(name, arguments)
        return self.run(name, *arguments)

    def _general_intrinsic(self, name: str, arguments: list[int]) -> int:
        match name.split(".")[1]:
            case "lifetime":
                return 0
            case "expect":
                return arguments[0]
            case "ctlz":
                return int(name.rpartition(".i")[2]) - arguments[0].bit_length()
            case "memcpy":
                self.put(arguments[0], self.get(arguments[1], arguments[2]))
                return 0
            case "memset":
                self.put(arguments[0], bytes([arguments[1]]) * arguments[2])
                return 0
        raise UnreadableError(f"no function {name}")

    # ---- operands -----------------------------------------------------------------------------------------------

    def _operand(self, reader: Reader, frame: Frame) -> tuple[int, Type]:
        kind = reader.type()
        while reader.take(r"(noundef|nonnull|signext|zeroext|nocapture|readonly|align \d+|dereferenceable\(\d+\)) "):
            pass
        reader.take(rf"(byval|sret)\(%{NAME}\) (align \d+ )?")
        return self._value(reader, kind, frame), kind

    def _value(self, reader: Reader, kind: Type, frame: Frame) -> int:
        if name := reader.take(rf"%{NAME}"):
            return frame[name[0]]
        if number := reader.take(r"-?\d+(?![\d.x])"):
            return int(number[0]) % (1 << kind.bits)
        if reader.take(r"(true)\b"):
            return 1
        if reader.take(r"(false|null|undef|poison|zeroinitializer)\b"):
            return 0
        if bits := reader.take(r"0x[HR]([0-9A-F]+)"):
            return int(bits[1], 16)
        if wide := reader.take(r"0x([0-9A-F]{16})"):
            return _float_bits(struct.unpack(">d", bytes.fromhex(wide[1]))[0], kind)
        if number := reader.take(r"-?\d+\.\d+e[+-]\d+"):
            return _float_bits(float(number[0]), kind)
        if operation := reader.take(r"(addrspacecast|inttoptr|ptrtoint) \("):
            value = getattr(self, f"_do_{operation[1]}")(reader, frame)
            reader.need(r"\)")
            return int(value)
        raise UnreadableError(f"a value of {kind.kind}: {reader.text[:80]}")


def _float_bits(value: float, kind: Type) -> int:
    if kind.size == 2:
        return int.from_bytes(struct.pack("<e", value), "little")
    return int.from_bytes(struct.pack("<f" if kind.size == 4 else "<d", value), "little")
