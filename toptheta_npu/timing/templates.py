"""Which template of npu_incre_flash_attention a shape takes, by the rules in its public tiling sources.

The rules are those of `SetupPerfMode`, `EnableAllVec`, `EnableCubeViewMM`, `EnableC1V1`, `IsFlashDecode` and `SplitBNS`
in attention/incre_flash_attention/op_host of hicann/ops-transformer, for 910B-class parts, without masks, prefixes or
quantisation and with inner_precise=1. They are read, not observed: an installed CANN may differ.
"""

from __future__ import annotations

from dataclasses import dataclass

from .shapes import Shape

NOTE = "vendor template by the documented rules of npu_incre_flash_attention (public tiling sources), not observed"
#: Cube and vector cores by SoC; the others of the class have 24 and 48.
_SMALLER = ("910B3", "910B4", "910_9362", "910_9372")


@dataclass(frozen=True)
class Template:
    """A template and how its work is split.

    Attributes:
        name: "all-vector", "preload cube" or "C+V".
        parts: parts of the keys of one (sequence, KV head); 1 without flash decode.
        units: work items, sequences times KV heads times parts.
        cores: over which they are spread.
    """

    name: str
    parts: int
    units: int
    cores: int

    def __str__(self) -> str:
        split = f", keys in {self.parts} parts" if self.parts > 1 else ""
        return f"{self.name}{split}, {min(self.units, self.cores)} of {self.cores} cores"


def core_counts(soc: str) -> tuple[int, int]:
    """Look up the cube and vector cores of a 910B-class part.

    Example:
        >>> core_counts("Ascend910B4")
        (20, 40)
    """
    return (20, 40) if any(name in soc for name in _SMALLER) else (24, 48)


def vendor_template(shape: Shape, cores: tuple[int, int] = (24, 48)) -> Template:
    """Choose the template for a BNSD call, cores being (cube, vector).

    Example:
        >>> str(vendor_template(Shape(1, 48, 48, n=2048, k=128)))
        'all-vector, 48 of 48 cores'
    """
    cube, vector = cores
    pairs = shape.batch * shape.num_key_value_heads
    name = _name(shape, pairs)
    available = cube if name == "preload cube" else vector
    parts = _parts(shape, name, pairs, available)
    if name == "C+V" and parts == 1 and 2 * pairs <= vector:
        name = "C+V 1:1"
    return Template(name, parts, pairs * parts, available)


def _name(shape: Shape, pairs: int) -> str:
    paged = shape.block_size > 0
    if not paged and shape.group == 1 and shape.dtype == "float16" and shape.head_dim <= 512:
        return "all-vector"
    enough = pairs * -(-shape.n // 2048) > 128
    return "preload cube" if paged and shape.head_dim == 128 and shape.group <= 16 and enough else "C+V"


def _parts(shape: Shape, name: str, pairs: int, cores: int) -> int:
    if shape.block_size and shape.n <= 1024:
        return 1
    few = pairs <= 0.5 * cores if name == "preload cube" else pairs < (0.5 if name == "all-vector" else 0.4) * cores
    if not few or (shape.group > 1 and shape.n < 2048):
        return 1
    parts = cores // pairs
    while parts > 1 and shape.n // parts < 512:
        parts -= 1
    return parts
