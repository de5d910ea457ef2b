"""Speed of the decode step against the best dense attention of a device; the same as ``toptheta benchmark``.

    python benchmarks/incremental_attention.py --device cpu|cuda|npu|model [--json FILE] [--plots DIR]

Cold: every call works on another layer's cache, and all layers together are at least twice the last-level cache. Hot:
the same layer again and again. What the columns mean stands below the table.
"""

from __future__ import annotations

import typer

from toptheta_npu.cli import main
from toptheta_npu.cli.benchmark.command import benchmark

if __name__ == "__main__":
    command = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    command.command()(benchmark)
    main(command)
