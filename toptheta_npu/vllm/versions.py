"""Which versions of the engines are known: others may have other classes under the same names."""

from __future__ import annotations

from collections.abc import Collection

from ..errors import TopThetaNotImplementedError

#: The versions of vLLM for CPUs that the tests have run.
TRIED_ON_CPU = ("0.32.0",)


def check_version(engine: str, known: Collection[str], found: str, *, untried: bool = False) -> None:
    """Refuse a version of ``engine`` that is not known, unless the user says that it may run.

    Args:
        engine: its name.
        known: the versions that the tests have run, or whose sources were read.
        found: the version as the engine states it; a suffix such as ``+cpu`` does not count.
        untried: the setting ``untried_versions``.

    Raises:
        TopThetaNotImplementedError: it is not among them.

    Example:
        >>> check_version("vllm (cpu)", TRIED_ON_CPU, "0.32.0+cpu")
    """
    if untried or found.partition("+")[0] in known:
        return
    raise TopThetaNotImplementedError(
        engine, f"version {' or '.join(known)}", found,
        "install such a version, or set untried_versions=true and compare with dense attention first",
    )  # fmt: skip
