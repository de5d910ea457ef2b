"""The command line in this process, as a user types it."""

from __future__ import annotations

import sys

from toptheta_npu import cli


def toptheta(*arguments: str) -> int | str | None:
    """Exit status of ``toptheta`` with these arguments."""
    given, sys.argv = sys.argv, ["toptheta", *arguments]
    try:
        cli.main()
    except SystemExit as done:
        return done.code
    finally:
        sys.argv = given
    return 0
