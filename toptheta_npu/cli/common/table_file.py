"""The file that a command writes a table to."""

from __future__ import annotations

import os
from pathlib import Path

from ..._files import check_writable
from ...errors import TopThetaValueError


def check_output(output: Path, force: bool) -> None:
    """Check that a table may be written to ``output``, and can.

    Raises:
        TopThetaValueError: it is there already, or engines would take it for weights, or it cannot be written.
    """
    if output.suffix == ".safetensors" and os.path.exists(output.parent / "config.json"):
        raise TopThetaValueError(
            "--output", "a name that does not end in .safetensors in the folder of a model",
            f"{output}, which engines such as vLLM would load as weights", f"use {output.with_suffix('.theta').name}",
        )  # fmt: skip
    if os.path.isfile(output) and not force:
        remedy = "add --force to replace it, or name another with -o"
        raise TopThetaValueError("--output", "a new file", f"{output}, which is there already", remedy)
    check_writable(output, "--output")
