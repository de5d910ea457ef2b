"""A GGUF file's model into a folder."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

import torch

from ..._checks import check_choice
from ...errors import TopThetaValueError
from ..common import printing
from ..common.model import be_quiet
from ..common.progress import Bars

if TYPE_CHECKING:
    from .options import Options

_DTYPES = ("float32", "bfloat16", "float16")


def convert_model(options: Options) -> None:
    """Convert the model, and say how large it became.

    Raises:
        TopThetaArgumentError: of `toptheta_npu.models.convert_gguf`, or there is no folder to write to.
    """
    if options.folder is None:
        remedy = f"for example: {shlex.join(['toptheta', 'convert', str(options.source), options.source.stem])}"
        raise TopThetaValueError("FOLDER", "the folder to write", "none", remedy)
    check_choice("--dtype", options.dtype, _DTYPES)
    # before transformers, which takes seconds: the extra may be missing
    import gguf  # noqa: F401

    from ...models.gguf.convert import convert_gguf

    be_quiet()
    console, begin = printing.console(), time.monotonic()
    with Bars() as bars:
        dtype = getattr(torch, options.dtype)
        convert_gguf(options.source, options.folder, dtype=dtype, progress=_told(bars))
    size = sum(file.stat().st_size for file in options.folder.iterdir())
    took = time.monotonic() - begin
    console.print(f"{options.folder} written: {options.dtype}, {size / 1e6:.0f} MB, in {took:.0f} s.", markup=False)
    console.print(advice(options.dtype), markup=False)
    console.print(f"Next: toptheta evaluate {shlex.quote(str(options.folder))} --text FILE", markup=False)


def advice(dtype: str) -> str:
    """Say which dtype to write the model in, as every command loads what the folder holds."""
    if dtype == "float32":
        return (
            "Every command loads float32 from it. bfloat16 takes half the memory and is faster on most devices, but "
            "rounds the weights: --dtype bfloat16."
        )
    return f"Every command loads {dtype} from it. --dtype float32 keeps the weights exactly, in twice the memory."


def _told(bars: Bars) -> Callable[[int, int], None]:
    @cache
    def bar(total: int) -> Callable[[int], None]:
        return bars.add("reading weights", total)

    return lambda done, total: bar(total)(done)
