"""Threshold placement and the two compensations of the paper: SDC (denominator) and VMC (mean V row).

Written for any leading shape [...]: decode passes [B, Hq], prefill [B, Hq, rows].
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


def score_threshold(threshold: Tensor, lse: Tensor | None, placement: str) -> Tensor:
    """Put the threshold in score units, [...]: softmax(a)_i > theta means a_i > ln(theta) + LSE; theta <= 0 is dense.

    ``lse`` [...] is the LSE of the row, or its estimate from a sample of keys. It is not needed pre-softmax.
    """
    if placement == "pre_softmax" or lse is None:
        return threshold
    dense = threshold <= 0
    # an empty row has lse = -inf: it keeps nothing whatever the threshold
    return torch.where(dense, -torch.inf, torch.where(dense, 1.0, threshold).log() + lse)


def estimate_discarded_mass(
    sdc: str,
    exact: Tensor,
    n: Tensor,
    kept: Tensor,
    maximum: Tensor,
    threshold: Tensor,
    gamma: float,
    offline: Tensor | None,
) -> Tensor:
    """Compute the estimate E~ of the discarded mass E, [...], relative to exp(row maximum) (paper, SDC section).

    Args:
        sdc: none, exact, exp_threshold or offline.
        exact: E itself, sum of exp(a_i - m) over the discarded elements.
        n, kept: valid keys and kept elements of the row. The estimate is 0 if all are kept. It is also 0 if the maximum
            is -inf, since no element has any mass then.
        maximum, threshold: the row's m and its threshold in score units.
        gamma: the factor of exp_threshold (0.05 in the paper).
        offline: the calibrated estimate, for sdc="offline".
    """
    if sdc == "none":
        return torch.zeros_like(exact)
    if sdc == "exact":
        estimate = exact
    elif sdc == "exp_threshold":
        # a discarded score is below theta and never above the maximum
        estimate = gamma * (n - kept).to(exact.dtype) * torch.exp(torch.minimum(threshold, maximum) - maximum)
    elif offline is not None:
        estimate = offline.to(exact.dtype)
    else:
        raise ValueError("sdc='offline' needs the calibrated discarded mass")
    return torch.where((kept < n) & (maximum != -torch.inf), estimate, 0.0)


def add_sink(lse: Tensor, learnable_sink: Tensor | None) -> Tensor:
    """Add one logit per query head, [Hq], to the LSE of rows [B, Hq, ...]; -inf where a row has no other mass."""
    if learnable_sink is None:
        return lse
    with_it = torch.logaddexp(lse, _like_rows(learnable_sink, lse))
    return torch.where(lse == -torch.inf, -torch.inf, with_it)


def sink_mass(learnable_sink: Tensor | None, maximum: Tensor) -> Tensor | float:
    """Compute the sink's mass exp(sink - m), [B, Hq, ...], which has no V row. It is 0 in a row without other mass."""
    if learnable_sink is None:
        return 0.0
    return torch.where(maximum == -torch.inf, 0.0, (_like_rows(learnable_sink, maximum) - maximum).exp())


def _like_rows(per_head: Tensor, rows: Tensor) -> Tensor:
    """View [Hq] so that it broadcasts to [B, Hq, ...], in its dtype."""
    return per_head.view(-1, *[1] * (rows.dim() - 2)).to(rows)


def add_token_axis(of_rows: Tensor, dims: int) -> Tensor:
    """View a per-row tensor of a step, [B, H, ...], with the token axis, which one-token steps omit."""
    return of_rows.unsqueeze(2) if of_rows.dim() < dims else of_rows


def expand_threshold(threshold: Tensor, rows: torch.Size) -> Tensor:
    """View thresholds [Hq], [B, Hq] or [B, Hq, Sq] as [B, Hq, Sq]."""
    return (threshold if threshold.dim() == 3 else threshold[..., None]).expand(rows)


def compensate(
    numerator: Tensor,
    kept_mass: Tensor,
    estimate: Tensor,
    value_mean: Tensor | None,
    sink: Tensor | float = 0.0,
) -> Tensor:
    """Compute N / (R + E~) [B, Hq, ..., D] plus the missing weight beta times mu (paper eqs. sdc, vmc:beta, vmc:final).

    Args:
        value_mean: mu, [B, Hkv, ..., D]; may be NaN where beta is 0.
        sink: additional mass in the denominator, from `sink_mass`; it is not compensated.
    """
    denominator = kept_mass + estimate + sink
    # a row without keys has no mass at all: its output is 0, not 0/0
    denominator = denominator.masked_fill(denominator == 0, 1.0).unsqueeze(-1)
    out = numerator / denominator
    if value_mean is None:
        return out
    beta = estimate.unsqueeze(-1) / denominator
    mean = value_mean.repeat_interleave(out.shape[1] // value_mean.shape[1], dim=1)
    return out + torch.where(beta == 0, 0.0, beta * mean)


class Compensation(NamedTuple):
    """The additions to a row's denominator, and the replacement of its discarded V rows.

    Attributes:
        sdc, sdc_gamma: how the discarded mass is estimated, as in `estimate_discarded_mass`.
        discarded_mass: [B, Hq, ...], for sdc="offline".
        value_mean: [B, Hkv, ..., D]; switches VMC on.
        learnable_sink: [Hq], one more logit in the denominator.
    """

    sdc: str = "exact"
    sdc_gamma: float = 0.05
    discarded_mass: Tensor | None = None
    value_mean: Tensor | None = None
    learnable_sink: Tensor | None = None

    def of_tokens(self) -> Compensation:
        """Add the token axis to the tensors of a one-token step: [B, Hq, Sq] and [B, Hkv, Sq, D]."""
        mass, mean = self.discarded_mass, self.value_mean
        return self._replace(
            discarded_mass=None if mass is None else add_token_axis(mass, 3),
            value_mean=None if mean is None else add_token_axis(mean, 4),
        )

    @property
    def tensors(self) -> dict[str, Tensor | None]:
        """The tensors by name, in the order of `Arguments`."""
        return {name: getattr(self, name) for name in self._fields[2:]}

    def lse(self, scores: Tensor) -> Tensor:
        """Compute the logarithm of the whole denominator of rows, [B, Hq, ...], from their scores [B, Hq, ..., S]."""
        return add_sink(torch.logsumexp(scores, dim=-1), self.learnable_sink)

    def apply(
        self,
        numerator: Tensor,
        kept_mass: Tensor,
        exact: Tensor,
        n: Tensor,
        kept: Tensor,
        maximum: Tensor,
        threshold: Tensor,
    ) -> Tensor:
        """Compute the output of rows, [B, Hq, ..., D], from their sums; ``threshold`` in score units."""
        estimate = estimate_discarded_mass(
            self.sdc, exact, n, kept, maximum, threshold, self.sdc_gamma, self.discarded_mass
        )
        return compensate(numerator, kept_mass, estimate, self.value_mean, sink_mass(self.learnable_sink, maximum))
