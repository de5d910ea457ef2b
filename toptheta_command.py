"""The command ``toptheta`` from its first moment: importing PyTorch takes seconds, which a terminal is told."""

from __future__ import annotations

import sys

_LOADING = "loading PyTorch ..."


def main() -> None:
    """Run the command line; an interrupt is one line and status 130, also while PyTorch is loaded."""
    told = sys.stderr is not None and sys.stderr.isatty()
    try:
        if told:
            print(_LOADING, end="\r", file=sys.stderr, flush=True)
        try:
            from toptheta_npu import cli
        finally:
            if told:
                print(" " * len(_LOADING), end="\r", file=sys.stderr, flush=True)
        cli.main()
    except KeyboardInterrupt:
        print("interrupted.", file=sys.stderr)
        sys.exit(130)
