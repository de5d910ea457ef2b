"""What GatherMask takes: of what the threshold test needs, public sources differ most on this figure."""

from __future__ import annotations

from ..timing.constants import Constant

#: Cycles a repeat, by who says so: instruction parallelism in docs/zh of asc-devkit; the cost model of pto-isa.
READINGS = {"the documents": 2.0, "pto-isa": 14.0}


def verdict(found: Constant) -> str:
    """Say what a device takes and whose figure that is.

    Example:
        >>> verdict(Constant(2.3, 0.1, "cycles"))
        'GatherMask takes 2.3 ± 0.1 cycles a repeat, the figure of the documents (2).'
        >>> verdict(Constant(7.0, 0.1, "cycles"))
        'GatherMask takes 7 ± 0.1 cycles a repeat, the figure of neither the documents (2) nor pto-isa (14).'
    """
    whose = [f"{who} ({cycles:g})" for who, cycles in READINGS.items() if _agrees(found, cycles)]
    others = " nor ".join(f"{who} ({cycles:g})" for who, cycles in READINGS.items())
    said = f"the figure of {' or '.join(whose) if whose else f'neither {others}'}"
    return f"GatherMask takes {found.value:.3g} ± {found.standard_error:.2g} cycles a repeat, {said}."


def _agrees(found: Constant, cycles: float) -> bool:
    """Within two standard errors, and a quarter for what the model itself gets wrong."""
    return abs(found.value - cycles) <= 2 * found.standard_error + cycles / 4
