"""Top-Theta attention in a transformers model, switched on by a context manager."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import get_args

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..._checks import MAX_TOKENS, PrefillMode, Sdc, check_choice, check_int, check_modes
from ..._warnings import warn_of_sdc_without_vmc
from ...errors import TopThetaCombinationError, TopThetaTypeError, TopThetaValueError
from ...thresholds import (
    LookupForm,
    MeanDiscardedMassWarning,
    ThresholdExtrapolationWarning,
    ThresholdsAtK,
    ThresholdTable,
)
from ...thresholds.kinds import Lse
from ...thresholds.lookup import Lookup
from ...thresholds.targets import DEFAULT_K, Target
from ...thresholds.uniform import SHORTEST, UniformLookup, uniform_table
from ..fingerprint.model import check_table
from ..hook.architecture import check_operator_takes, num_heads, num_layers, sliding_layers
from ..hook.attach import attached, check_model, check_switches
from ..hook.generating import generating
from .device_thresholds import DeviceThresholds
from .entering import told_unless_entered
from .run import SparseRun
from .statistics import Statistics, checked_statistics, make_recorders
from .threshold_rule import ThresholdOptions, ThresholdRule


class NothingSparsifiedWarning(UserWarning):
    """Every row was dense in a `sparsify` context that has ended."""


class DenseDraftsWarning(UserWarning):
    """Dense calls verified drafts of assisted generation or prompt lookup in a `sparsify` context that has ended."""


@told_unless_entered
def sparsify(
    model: PreTrainedModel,
    thresholds: ThresholdTable | None = None,
    *,
    tau: float | None = None,
    lse: Lse = "exact",
    k: int | None = None,
    dense_below: int = 0,
    sdc: Sdc = "exact",
    sdc_gamma: float = 0.05,
    vmc: bool = True,
    prefill: PrefillMode = "dense",
    verify_tokens: int = 8,
    max_length: int | None = None,
    lookup: LookupForm = "tabulated",
    statistics: bool | Statistics = False,
) -> Iterator[SparseRun]:
    """Run ``model`` with Top-Theta attention within the context, then restore it.

    Each row of a decode step (one new token per sequence) keeps the elements above the threshold of its layer,
    head and row length (paper, section "Top-Theta Attention Inference"). Rows of at most k keys are dense. Assisted
    decoding and prompt lookup verify a few draft tokens on a filled cache; those rows use thresholds, too.

    Prompts and other calls with many new tokens are dense. With ``prefill="thresholded"`` they follow the same rule
    row by row, for scoring given text. Layers with a sliding window stay dense. ``generate`` uses a `GrowingCache`
    instead of the ``DynamicCache`` that it makes by default. Several threads may use the model within one context. A
    copy of the model made within the context is dense.

    Args:
        model: a decoder-only model in evaluation mode. Other models are not affected, even of the same class.
        thresholds: a table calibrated for exactly this model. It determines the placement, pre- or post-softmax.
        tau: one probability for all layers, heads and lengths, instead of thresholds and k. A row keeps the keys whose
            probability exceeds tau. Needs no calibration. 0 keeps every key: it runs the same kernel without a
            threshold and loses no accuracy.
        lse: how to compute the denominator of the probability that tau is compared with. "exact" uses the whole row,
            which takes two passes over its scores. "sampled" estimates it from a sample of 400 keys, so a step compares
            each score as it is computed, as pre-softmax does.
        k: elements to keep per row, within the calibrated range; None means 128.
        dense_below: rows of fewer keys are dense, even if this exceeds the table's lengths. A decode step with only
            such rows runs PyTorch's attention, which is faster there, unless statistics are collected.
            docs/transformers.md says from which row length thresholds save time.
        sdc: estimate of the discarded mass: "none", "exact", "exp_threshold" or "offline". "offline" needs a table
            with ``discarded_mass``. A post-softmax table takes only "exact".
        sdc_gamma: factor of "exp_threshold".
        vmc: whether to give the discarded mass back as the mean V row. A running sum next to the cache tracks it.
        prefill: how to run prompts, "dense" or "thresholded".
        verify_tokens: the most new tokens, from 1 to 16, with which a call on a filled cache still uses thresholds.
            Drafts therefore never come in the same call as a prompt.
        max_length: the last row length with a threshold of its own; None: the longest calibrated.
        lookup: the "tabulated" thresholds or the "fitted" function, as in ``ThresholdTable.at``.
        statistics: which statistics to collect; they make the run slower. ``"rows"`` or True records the kept elements
            and the needed V rows of every row. ``"summary"`` records only sums, so memory does not grow.

    Yields:
        A `SparseRun`. Its ``set_k(k)`` and ``set_tau(tau)`` change the target between two steps. Its ``statistics()``
        give the keys, kept elements and V rows of every row, layer by layer. V rows are the union over all query heads
        of a KV head. Its ``summaries()`` give the sums.

    Raises:
        TopThetaTypeError, TopThetaValueError, TopThetaNotImplementedError: the model is not supported, is
            in training mode or in another context, or is not the one that was calibrated; or an option is
            unusable. Within the context: masks with holes, packed sequences, soft-capping,
            ``output_attentions`` and gradients raise; nothing else silently becomes dense.

    Warns:
        DenseDraftsWarning: at the end, if assisted generation or prompt lookup had more than ``verify_tokens`` drafts
            verified in a call, which was dense.
        MeanDiscardedMassWarning: ``sdc="offline"`` with a table that holds the mean discarded mass.
        NotEnteredWarning: the returned context was dropped without a ``with``.
        NothingSparsifiedWarning: at the end, if no row was longer than k; or if statistics were collected and every
            row kept all keys at ``tau``.
        SdcWithoutVmcWarning: ``sdc="exact"`` with ``vmc=False``.
        ThresholdExtrapolationWarning: rows were longer than the calibrated ones.

    Example:
        >>> import torch, toptheta_npu.models as models
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> model = LlamaForCausalLM(LlamaConfig(
        ...     hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        ...     vocab_size=50, max_position_embeddings=64)).eval()
        >>> texts = torch.randint(50, (4, 40))
        >>> table = models.calibrate(model, texts, k=8, layer_k=[0, 0])
        >>> with models.sparsify(model, table, k=8):
        ...     model.generate(texts[:1, :20], max_new_tokens=4, min_new_tokens=4, do_sample=False).shape
        torch.Size([1, 24])
        >>> with models.sparsify(model, tau=0.01):  # without a table
        ...     model.generate(texts[:1, :20], max_new_tokens=4, min_new_tokens=4, do_sample=False).shape
        torch.Size([1, 24])
    """
    check_model(model)
    check_operator_takes(model)
    if tau is None:
        if thresholds is None:
            remedy = "load a file with ThresholdTable.load(path), or pass tau=0.001, for example"
            raise TopThetaTypeError("thresholds", "a ThresholdTable, or tau in its place", "neither", remedy)
        check_table(model, thresholds)
    else:
        _check_alone(
            thresholds=thresholds, k=k, max_length=max_length, lookup=None if lookup == "tabulated" else lookup,
        )  # fmt: skip
        thresholds, k = uniform_table(tau, num_layers(model), num_heads(model)), SHORTEST
    check_choice("lse", lse, get_args(Lse))
    if tau is None and lse != "exact":
        raise TopThetaCombinationError(f"lse={lse!r}", "needs", "tau", "leave it out with calibrated thresholds")
    check_choice("prefill", prefill, get_args(PrefillMode))
    check_switches(vmc=vmc)
    check_int("verify_tokens", verify_tokens, 1, MAX_TOKENS)
    kind = checked_statistics(statistics)
    target = Target(DEFAULT_K if k is None else k, dense_below)
    prepared = (
        Lookup(thresholds, max_length, lookup, discarded_mass=sdc == "offline")
        if tau is None else UniformLookup(tau, thresholds.num_layers, thresholds.num_heads, lse)
    )  # fmt: skip
    at_k = prepared.at(target)
    prepared.warn_beyond(stacklevel=4)
    mass = _offline_mass(thresholds, at_k) if sdc == "offline" else None
    check_modes(thresholds.placement, sdc, sdc_gamma, mass, "vmc" if vmc else None)
    if tau != 0:
        warn_of_sdc_without_vmc(sdc, vmc, stacklevel=4)
    # tau=0 discards nothing, so VMC has nothing to give back
    options = ThresholdOptions(sdc, sdc_gamma, vmc and tau != 0, prefill, verify_tokens)
    recorders = make_recorders(model, kind) if kind else None
    on_device = DeviceThresholds(at_k, _devices(model))

    def rule_of(layer: int) -> ThresholdRule:
        recorder = None if recorders is None else recorders[layer]
        return ThresholdRule(layer, on_device, options, recorder)

    with attached(model, rule_of) as rows, generating(model, rows):
        layers = [layer for layer in range(thresholds.num_layers) if layer not in sliding_layers(model)]
        run = SparseRun(recorders, on_device, prepared, target, layers, rows, tau)
        try:
            yield run
        finally:
            run.end()
    calibrated = None if tau is not None or max_length is not None else int(thresholds.lengths[-1])
    _warn_of_drafts(rows.most_drafts, options)
    _warn(run, int(rows.longest), calibrated)


def _check_alone(**others: object) -> None:
    """Raise a typed error if an argument is given that tau excludes."""
    for name, given in others.items():
        if given is not None:
            raise TopThetaCombinationError("tau", "excludes", name, "leave one of them out")


def _devices(model: PreTrainedModel) -> set[torch.device]:
    """Find the devices that layers run on. Offloaded weights do not count: they stay on the meta device until used."""
    return {parameter.device for parameter in model.parameters() if parameter.device.type != "meta"}


def _offline_mass(thresholds: ThresholdTable, at_k: ThresholdsAtK) -> Tensor:
    if at_k.discarded_mass is None:
        raise TopThetaValueError(
            "sdc", "'none', 'exact' or 'exp_threshold' with a table without discarded_mass", "'offline'",
            "add it with calibrate_discarded_mass",
        )  # fmt: skip
    if thresholds.discarded_statistic == "mean":
        warnings.warn(
            "sdc='offline' uses the mean discarded mass, which a few rows make far too large for most: it can be worse "
            "than sdc='none'; run calibrate_discarded_mass again, whose default is the geometric mean",
            MeanDiscardedMassWarning,
            stacklevel=5,
        )
    return at_k.discarded_mass[0]


def _warn_of_drafts(most: int, options: ThresholdOptions) -> None:
    if most > options.verify_tokens and options.prefill == "dense":
        warnings.warn(
            f"up to {most} tokens at a time were verified dense, since verify_tokens={options.verify_tokens}; draft "
            f"fewer at a time, or raise verify_tokens (to {MAX_TOKENS} at most); prefill='thresholded' runs any number "
            "by thresholds, slowly",
            DenseDraftsWarning,
            stacklevel=5,
        )


def _warn(run: SparseRun, longest: int, calibrated: int | None) -> None:
    if run.tau == 0:  # which is to leave nothing out
        return
    dense = run.dense_up_to()
    if not run.sparsified():
        seen = f"the longest had {longest} keys" if longest else "there was no decode step"
        rule, remedy = f"rows of up to {dense} keys are dense", " or lower k"
        if run.k is None:
            remedy = ""
        elif run.k < run.least_aim():
            rule, remedy = f"{rule}, by the table's layer_k", " or calibrate with a lower layer_k"
        if 0 < dense < run.dense_below:
            rule, remedy = f"rows of fewer than dense_below={run.dense_below} keys are dense", " or lower dense_below"
        warnings.warn(
            f"no row was sparsified: {seen}, and {rule}. Feed longer "
            f"sequences{remedy}; prefill='thresholded' covers prompts and scoring",
            NothingSparsifiedWarning,
            stacklevel=5,
        )
    elif run.tau is not None and run.left_nothing_out():
        warnings.warn(
            f"no row was sparsified: with tau={run.tau:g} every row, of up to {longest} keys, kept all of them. Raise "
            "tau, or feed longer sequences: of n keys, each has the share 1/n where attention is even",
            NothingSparsifiedWarning,
            stacklevel=5,
        )
    elif calibrated is not None and longest > calibrated:
        warnings.warn(
            f"rows of up to {longest} keys used the thresholds of length {calibrated}, the longest calibrated; "
            "calibrate on longer sequences, or pass max_length and lookup='fitted'",
            ThresholdExtrapolationWarning,
            stacklevel=5,
        )
