"""The names of arms for people."""

from __future__ import annotations

from benchmarks.real_model_study.settings import Arm


def label(arm: Arm) -> str:
    """Name an arm for people.

    Example:
        >>> label(Arm("top-theta", 64)), label(Arm("top-k:target_value_rows=350"))
        ('Top-θ, k = 64', 'Top-k, k of the budget of 350 V rows')
    """
    name, _, options = arm.method.partition(":")
    title = {"top-theta": "Top-θ", "top-k": "Top-k", "blasst": "BLASST", "pages": "pages (Quest)"}.get(name, name)
    target = options.removeprefix("target_value_rows=")
    if target != options:
        return f"{title}, {'budget' if name == 'top-theta' else 'k of the budget'} of {target} V rows"
    if arm.like:
        return f"{title}, bytes of {label(Arm(arm.like))}"
    extra = f", {options.replace(',', ', ')}" if options else ""
    return title + (f", k = {arm.k}" if arm.k else "") + extra
