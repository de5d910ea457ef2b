"""What the shim for Ascend relies on in vllm-ascend: read in its sources, recorded, compared with what is there."""

from __future__ import annotations

import inspect
import json
from functools import cache
from importlib import import_module
from importlib.resources import files
from typing import Any

from ..errors import TopThetaBackendError, TopThetaNotImplementedError
from .layouts import Layout

#: The package on PyPI.
DISTRIBUTION = "vllm-ascend"


@cache
def record() -> dict[str, Any]:
    """Load the record: versions, layouts of the cache, parameters and fields by module and class, and statements."""
    content: dict[str, Any] = json.loads(
        files(__package__).joinpath("signatures", "vllm_ascend.json").read_text("utf-8")
    )
    return content


def known_versions() -> str:
    """List the versions whose sources were read, in words."""
    return " or ".join(record()["versions"])


def layout_of(impl: Any) -> Layout:
    """Find the layout that vllm-ascend has chosen for the cache of a layer.

    Args:
        impl: of the layer; versions before 0.28 have one layout alone and do not say it.

    Raises:
        TopThetaNotImplementedError: it has a name that is not known.
    """
    cache = record()["cache"]
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
