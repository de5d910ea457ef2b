"""The reader of package gguf, made faster for large vocabularies. Importing it needs the extra ``gguf``."""

from __future__ import annotations

import struct

import numpy as np
from gguf import GGUFEndian, GGUFReader, GGUFValueType


class Reader(GGUFReader):
    """Read arrays at once: the package makes NumPy arrays of each token, merge and score, which takes most of the time.

    Args:
        path: the file.

    Raises:
        Exception: of any kind, where the file is damaged.
    """

    def _get_field_parts(
        self, orig_offs: int, raw_type: int
    ) -> tuple[int, list[np.ndarray], list[int], list[GGUFValueType]]:
        if raw_type != GGUFValueType.ARRAY:
            return super()._get_field_parts(orig_offs, raw_type)
        header = [self._get(orig_offs, np.uint32), self._get(orig_offs + 4, np.uint64)]
        kind, count, start = GGUFValueType(header[0][0]), int(header[1][0]), orig_offs + 12
        if kind == GGUFValueType.STRING:
            parts, end = self._texts(start, count)
        elif kind in self.gguf_scalar_to_np:
            numbers = self._get(start, self.gguf_scalar_to_np[kind], count)
            parts, end = [numbers], start + numbers.nbytes
        else:
            return super()._get_field_parts(orig_offs, raw_type)
        places = range(len(header), len(header) + len(parts))
        return end - orig_offs, [*header, *parts], [*places], [GGUFValueType.ARRAY, kind]

    def _texts(self, start: int, count: int) -> tuple[list[np.ndarray], int]:
        """Find ``count`` texts, of UTF-8, and where they end."""
        length = struct.Struct(">Q" if self.endianess == GGUFEndian.BIG else "<Q")
        content, bytes_of_it, texts, at = self.data.view(np.ndarray), self.data.data, [], start
        for _ in range(count):
            first = at + length.size
            at = first + length.unpack_from(bytes_of_it, at)[0]
            texts.append(content[first:at])
        return texts, at
