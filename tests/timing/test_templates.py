"""The vendor's templates by their documented rules."""

from __future__ import annotations

import pytest

from toptheta_npu.timing.shapes import parse_shape
from toptheta_npu.timing.templates import core_counts, vendor_template

RULES = [
    # no groups, float16, not paged: vector cores alone
    ("heads=48,n=2048", "all-vector, 48 of 48 cores"),
    ("heads=32,n=2048", "all-vector, 32 of 48 cores"),
    ("heads=64,n=2048", "all-vector, 48 of 48 cores"),
    # half of the cores is not below half of the cores; 23 is, in parts of at least 512 keys
    ("heads=24,n=8192", "all-vector, 24 of 48 cores"),
    ("heads=16,n=8192", "all-vector, keys in 3 parts, 48 of 48 cores"),
    ("heads=8,n=2048", "all-vector, keys in 4 parts, 32 of 48 cores"),
    # other dtypes and groups
    ("heads=48,n=2048,dtype=bfloat16", "C+V, 48 of 48 cores"),
    ("heads=32/8,n=8192", "C+V, keys in 6 parts, 48 of 48 cores"),
    ("heads=32/8,n=2048", "C+V, keys in 4 parts, 32 of 48 cores"),
    ("heads=32/8,n=1024", "C+V 1:1, 8 of 48 cores"),
    ("heads=32/8,n=8192,batch=3", "C+V 1:1, 24 of 48 cores"),
    ("heads=32/8,n=8192,batch=4", "C+V, 32 of 48 cores"),
    # paged: the preload cube template from 129 tiles of 2048 keys on
    ("heads=32/8,n=8192,block_size=128", "C+V, keys in 6 parts, 48 of 48 cores"),
    ("heads=32/8,n=32768,block_size=128", "C+V, keys in 6 parts, 48 of 48 cores"),
    ("heads=32/8,n=34816,block_size=128", "preload cube, keys in 3 parts, 24 of 24 cores"),
    ("heads=32/8,n=8192,batch=16,block_size=128", "preload cube, 24 of 24 cores"),
    ("heads=32/8,n=8192,batch=16,block_size=128,head_dim=64", "C+V, 48 of 48 cores"),
    ("heads=32/1,n=8192,batch=64,block_size=128", "C+V, 48 of 48 cores"),
    ("heads=8/8,n=1024,block_size=128", "C+V 1:1, 8 of 48 cores"),
    ("heads=48,n=2048,block_size=128", "C+V, 48 of 48 cores"),
]


@pytest.mark.parametrize(("text", "expected"), RULES)
def test_rule(text: str, expected: str) -> None:
    assert str(vendor_template(parse_shape(text))) == expected


def test_smaller_parts_have_fewer_cores() -> None:
    assert core_counts("Ascend910B2") == (24, 48)
    assert core_counts("Ascend910_9362") == (20, 40)
    assert str(vendor_template(parse_shape("heads=48,n=2048"), (20, 40))) == "all-vector, 40 of 40 cores"
