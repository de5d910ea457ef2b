"""What the shim for Ascend relies on in vllm-ascend: read in its sources, recorded, compared with what is there."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any

from ..errors import TopThetaBackendError, TopThetaNotImplementedError
from .layouts import Layout
from .versions import load_record

#: The package on PyPI.
DISTRIBUTION = "vllm-ascend"


#: What all versions have in common, and from some version on what differs; the last one holds for versions after it.
_COMMON, *_DIFFERENCES = "vllm_ascend.json", "vllm_ascend_0.23.json", "vllm_ascend_0.28.json", "vllm_ascend_0.30.json"


def record() -> dict[str, Any]:
    """Load what holds in all versions: by module and class, parameters, fields, attributes, reads and calls in use."""
    return load_record(_COMMON)


def differences() -> list[dict[str, Any]]:
    """Load what differs: versions with their commits, and how they lay out a cache; the oldest come first."""
    return [load_record(name) for name in _DIFFERENCES]


def versions() -> dict[str, str]:
    """List the versions whose sources were read, with their commits."""
    return {version: commit for each in differences() for version, commit in each["versions"].items()}


def known_versions() -> str:
    """List the versions whose sources were read, in words."""
    return " or ".join(versions())


def layout_of(impl: Any) -> Layout:
    """Find the layout that vllm-ascend has chosen for the cache of a layer.

    Args:
        impl: of the layer; versions that have one layout alone do not say it.

    Raises:
        TopThetaNotImplementedError: it has a name that is not known.
    """
    cache = differences()[-1]["cache"]
    name = getattr(impl, cache["attribute"], None) or ""
    if name not in cache["layouts"]:
        known = ", ".join(filter(None, cache["layouts"]))
        raise TopThetaNotImplementedError(
            cache["variable"], f"one of {known}", str(name), f"set {cache['variable']}=NHD, or leave Top-Theta out"
        )
    return Layout[cache["layouts"][name]]


def check_parameters() -> None:
    """Compare the functions that are called or replaced with the record.

    Raises:
        TopThetaBackendError: one of them is missing or has other parameters.
    """
    for module, classes in record()["parameters"].items():
        for name, functions in classes.items():
            owner = getattr(import_module(module), name, None)
            for function, wanted in functions.items():
                found = parameters_of(owner, function)
                if found != wanted:
                    raise TopThetaBackendError(
                        DISTRIBUTION, f"{name}.{function}({', '.join(wanted)})",
                        "no such function" if found is None else f"({', '.join(found)})",
                        f"install version {known_versions()}",
                    )  # fmt: skip


def parameters_of(owner: object, function: str) -> list[str] | None:
    """List the names of a function's parameters as in its source, "self" and "cls" included; None: there is none."""
    found = inspect.getattr_static(owner, function, None)
    if isinstance(found, (classmethod, staticmethod)):
        found = found.__func__
    return list(inspect.signature(found).parameters) if inspect.isfunction(found) else None
