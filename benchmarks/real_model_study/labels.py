"""The names of arms for people."""

from __future__ import annotations

from benchmarks.real_model_study.settings import Arm


def label(arm: Arm) -> str:
    """Name an arm for people.

    Example:
        >>> label(Arm("top-theta", 64)), label(Arm("pages", like="tau:tau=0.0003"))
        ('Top-θ, k = 64', 'pages (Quest), bytes of tau=0.0003')
    """
    name, _, options = arm.method.partition(":")
    title = {"top-theta": "Top-θ", "top-k": "Top-k", "blasst": "BLASST", "pages": "pages (Quest)"}.get(name, name)
    if arm.like:
        return f"{title}, bytes of {arm.like.removeprefix('tau:')}"
    if name == "tau":
        return options.replace(",", ", ")
    extra = f", {options.replace(',', ', ')}" if options else ""
    return title + (f", k = {arm.k}" if arm.k else "") + extra
