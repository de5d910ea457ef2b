"""Budgets for a `sparsify` context: k for every head, chosen by error curves that were measured as the context runs."""

from __future__ import annotations

from ...errors import TopThetaValueError
from ...thresholds import ThresholdTable
from ...thresholds.budget import Budget


class BudgetSource:
    """Chooses budgets by the error curves of a table, for one way to make up for what is discarded.

    Args:
        thresholds: the table.
        sdc, vmc: as in `sparsify`.
    """

    def __init__(self, thresholds: ThresholdTable, sdc: str, vmc: bool) -> None:
        self._thresholds, self._sdc, self._vmc = thresholds, sdc, vmc

    def choose(self, *, target_error: float | None = None, target_value_rows: float | None = None) -> Budget:
        """Choose the budget for one of the targets, as ``ThresholdTable.budget`` does.

        Raises:
            TopThetaTypeError, TopThetaValueError: as ``ThresholdTable.budget``; or the curves were measured with other
                compensations.
        """
        budget = self._thresholds.budget(target_error=target_error, target_value_rows=target_value_rows)
        curves = self._thresholds.curves
        for name, mine in (("sdc", self._sdc), ("vmc", self._vmc)):
            measured = getattr(curves, name)
            if mine != measured:
                raise TopThetaValueError(
                    name, f"{measured!r}, with which the error curves of the table were measured", repr(mine),
                    f"measure them with {name}={mine!r}" if mine in ("exact", "none", True, False) else "use that",
                )  # fmt: skip
        return budget
