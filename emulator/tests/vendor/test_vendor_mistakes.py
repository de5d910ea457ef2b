"""A defect of the machine, and an operand that is read from another place, make the comparisons fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from emulator.ascendc import KernelError
from emulator.tests.vendor import replay
from emulator.tests.vendor import test_vendor_elementwise as elementwise
from emulator.tests.vendor import test_vendor_moves as moves
from emulator.tests.vendor.bench import needs_library

pytestmark = needs_library

DEFECTS: dict[str, Callable[[], None]] = {
    "reversed-mask-bits": lambda: elementwise.test_compare("gt", "float", 200),
    "select-strides-ignored": lambda: elementwise.test_select("sv", "float", 200),
    "gather-mask-counts-dropped": lambda: moves.test_elements_whose_bit_is_set("float", 200),
    "exp-in-half": lambda: elementwise.test_unary("vexp", "float", 200),
    "ln-in-half": lambda: elementwise.test_unary("vln", "float", 200),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_planted_defect_of_the_machine_is_found(defect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "run_kernel", partial(replay.run_kernel, defect=defect))
    with pytest.raises(AssertionError):
        DEFECTS[defect]()


#: Which operand is moved by one bit, and a function that depends on it.
OPERANDS: dict[tuple[str, str], Callable[[], None]] = {
    ("VADD.", "src1_block"): lambda: elementwise.test_binary("vadd", "float", 200),
    ("VADD.", "dst_repeat"): lambda: elementwise.test_binary("vadd", "float", 200),
    ("VMULS.", "src0_repeat"): lambda: elementwise.test_with_scalar("vmuls", "float", 200),
    ("VCONV.", "src0_repeat"): lambda: elementwise.test_cast("float", "int32_t", 0, 200),
    ("VSEL.", "src1_repeat"): lambda: elementwise.test_select("vv", "float", 200),
    ("VBRCB.", "dst_repeat"): lambda: moves.test_one_element_to_a_row("float", 16, 16),
    ("VCADD.", "dst_repeat"): lambda: moves.test_reduction_of_rows("sum", "float", (4, 64)),
    ("VCGADD.", "src0_block"): lambda: moves.test_reduction_of_rows("sum", "float", (4, 8)),
    ("VCGMAX.", "dst_repeat"): lambda: moves.test_maximum_by_blocks("float", 512),
    ("VREDUCEv2.", "src1"): lambda: moves.test_elements_whose_bit_is_set("float", 200),
    ("VCPADD.", "dst_repeat"): lambda: moves.test_sum_of_pairs("float", (100, 2)),
    ("MOV.OUT.TO.UB.", "dst_repeat"): lambda: moves.test_copy_in_and_out("float", (5, 60)),
    ("MOV.UB.TO.OUT.", "src0_repeat"): lambda: moves.test_copy_in_and_out("float", (5, 60)),
    ("MOV.UB.TO.UB.", "src0_repeat"): lambda: moves.test_copy_inside("float", (5, 64)),
    ("MOVEV.", "dst_block"): lambda: moves.test_fill("float", 200),
    ("VGATHER.", "mode"): lambda: moves.test_gather("float", 200),
}


@pytest.mark.parametrize("operand", OPERANDS, ids="".join)
def test_an_operand_that_is_read_elsewhere_is_found(operand: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    prefix, field = operand
    real = replay.decode

    def moved(name: str, arguments: list[int]) -> replay.Step:
        step = real(name, arguments)
        return replace(step, **{field: getattr(step, field) * 2 or 4}) if name.startswith(prefix) else step

    monkeypatch.setattr(replay, "decode", moved)
    with pytest.raises((AssertionError, KernelError)):
        OPERANDS[operand]()
