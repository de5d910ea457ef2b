"""What was looked at on this machine, and what to type where something is missing."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import TopThetaBackendError


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        name: what was looked for.
        found: what is there; None if it is missing.
        problem: why it cannot be used; None if it can.
        remedy: what to type; None if nothing needs to be done.
    """

    name: str
    found: str | None
    problem: str | None = None
    remedy: str | None = None

    @property
    def good(self) -> bool:
        return self.problem is None


def as_finding(name: str, found: str | None, error: TopThetaBackendError) -> Finding:
    """Make a finding of what an error says."""
    return Finding(name, found, error.problem, error.remedy)
