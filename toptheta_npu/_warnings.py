"""Warnings that several parts of the package give in the same words."""

from __future__ import annotations

import warnings


class SdcWithoutVmcWarning(UserWarning):
    """The denominator of every row includes the discarded mass, but nothing is added for it to the output."""


SDC_WITHOUT_VMC = (
    "sdc='exact' without vmc shrinks the output of every row by the mass that it discards: on SmolLM2-135M it costs "
    "12 to 34 % of perplexity, where both together cost 0.1 to 3 % and neither of them 3 to 11 %. Switch vmc on, or "
    "choose sdc='none'; post-softmax thresholds, whose sdc is always exact, need vmc"
)


def warn_of_sdc_without_vmc(sdc: str, vmc: bool, *, stacklevel: int = 2) -> None:
    """Warn where ``sdc="exact"`` is chosen without VMC, also with post-softmax thresholds.

    Args:
        sdc, vmc: the compensations, as in `toptheta_npu.models.sparsify`.
        stacklevel: as in `warnings.warn`; 2 is the caller of the function that calls this one.

    Warns:
        SdcWithoutVmcWarning: they are "exact" and False.

    Example:
        >>> warn_of_sdc_without_vmc("exact", vmc=True)
        >>> warn_of_sdc_without_vmc("none", vmc=False)
    """
    if sdc == "exact" and not vmc:
        warnings.warn(SDC_WITHOUT_VMC, SdcWithoutVmcWarning, stacklevel=stacklevel + 1)
