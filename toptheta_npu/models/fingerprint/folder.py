"""The weights in the folder of a model, read row by row."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..._files import file_error, read_bytes
from .weights import Weight, Weights

_INDEX = ".safetensors.index.json"
#: Larger indices are not read: 256 MiB, for some million tensors.
_MAX_INDEX_BYTES = 2**28


@contextmanager
def weights_of_folder(folder: Path, named: str | None = None) -> Iterator[Weights]:
    """Open the weights in the safetensors files of ``folder`` that transformers loads.

    Args:
        folder: folder of the model.
        named: the file or index that the configuration names (``transformers_weights``).

    Raises:
        TopThetaValueError: the folder has none, or a file cannot be read.
    """
    with ExitStack() as stack:
        weights: dict[str, Weight] = {}
        for path in files_of(folder, named):
            try:
                file = stack.enter_context(safe_open(str(path), framework="pt"))
            except (SafetensorError, OSError) as error:
                raise file_error(path, "a safetensors file", str(error), "get a complete copy") from error
            for name in file.keys():  # noqa: SIM118
                rows = file.get_slice(name)
                shape = tuple(rows.get_shape())
                weights[name] = Weight(shape, partial(_rows_of, file, name, rows if shape else None))
        yield weights


def _rows_of(file: Any, name: str, rows: Any, indices: list[int]) -> Tensor:
    if rows is None:  # a number, which has no rows
        return file.get_tensor(name)  # type: ignore[no-any-return]
    return torch.cat([rows[index : index + 1] for index in indices])


def files_of(folder: Path, named: str | None) -> list[Path]:
    """List the files with the weights: the named one, the only one, the shards of an index, or all."""
    if named is not None:
        return _shards(folder / named) if named.endswith(_INDEX) else [folder / named]
    single, index = folder / "model.safetensors", folder / f"model{_INDEX}"
    if single.is_file():
        return [single]
    if index.is_file():
        return _shards(index)
    if files := sorted(folder.glob("model-*.safetensors")) or sorted(folder.glob("*.safetensors")):
        return files
    remedy = "save the model with save_pretrained, which writes safetensors"
    raise file_error(folder, "weights in *.safetensors", "none", remedy)


def _shards(index: Path) -> list[Path]:
    """List the files that an index names."""
    what, remedy = "an index of safetensors files", "get a complete copy"
    content = read_bytes(index, what, _MAX_INDEX_BYTES)
    try:
        names = set(json.loads(content)["weight_map"].values())
        return [index.parent / name for name in sorted(names)]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise file_error(index, what, "something else", remedy) from error
