"""Which versions of the engines have been tried: others may have other classes under the same names."""

from __future__ import annotations

from ..errors import TopThetaNotImplementedError

#: The versions that the tests have run, by the name of the platform's engine.
TRIED = {"vllm (cpu)": ("0.32.0",)}


def check_version(engine: str, found: str, *, untried: bool = False) -> None:
    """Refuses a version of ``engine`` that has not been tried, unless the user says that it may run.

    Args:
        engine: a name in `TRIED`.
        found: the version as the engine states it; a suffix such as ``+cpu`` does not count.
        untried: the setting ``untried_versions``.

    Raises:
        TopThetaNotImplementedError: it has not been tried.

    Example:
        >>> check_version("vllm (cpu)", "0.32.0+cpu")
    """
    if untried or found.partition("+")[0] in TRIED[engine]:
        return
    raise TopThetaNotImplementedError(
        engine, f"version {' or '.join(TRIED[engine])}, the one that was tried", found,
        "install that version, or set untried_versions=true and compare with dense attention first",
    )  # fmt: skip
