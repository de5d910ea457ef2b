"""Our reader of GGUF files: what the package's own finds, of few objects."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

gguf = pytest.importorskip("gguf")

from toptheta_npu.models.gguf.reader import Reader  # noqa: E402

VALUES = {
    "texts": ["", "a", "θ é", "x" * 300], "flags": [True, False], "whole": [3, -4], "numbers": [0.5, -1.0],
    "nested": [["a", "b"], ["c"]], "text": "θ", "number": 7, "no": False,
}  # fmt: skip


@pytest.mark.parametrize("endian", list(gguf.GGUFEndian))
def test_it_finds_what_the_reader_of_the_package_finds(tmp_path: Path, endian: gguf.GGUFEndian) -> None:
    writer = gguf.GGUFWriter(tmp_path / "file.gguf", "llama", endianess=endian)
    for name, value in VALUES.items():
        writer.add_key_value(name, value, gguf.GGUFValueType.get_type(value))
    writer.add_tensor("weight", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    ours, theirs = Reader(tmp_path / "file.gguf"), gguf.GGUFReader(tmp_path / "file.gguf")
    found = {name: field.contents() for name, field in ours.fields.items()}
    assert found == {name: field.contents() for name, field in theirs.fields.items()}
    assert [found[name] for name in VALUES if name != "nested"] == [VALUES[n] for n in VALUES if n != "nested"]
    assert np.array_equal(ours.tensors[0].data, theirs.tensors[0].data)
    # one part for all numbers, and one for each text
    assert len(ours.fields["whole"].parts) == 6 < len(theirs.fields["whole"].parts)
    assert len(ours.fields["texts"].parts) == 9 < len(theirs.fields["texts"].parts)
