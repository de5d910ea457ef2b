"""Runs any other selection rule in the same harness, such as top-k or the most recent keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from torch import Tensor
from transformers import PreTrainedModel

from ..._checks import check_choice, check_modes
from ..._warnings import warn_of_sdc_without_vmc
from ...errors import TopThetaTypeError, TopThetaValueError, shown
from ...fallback.prefill import Prompt, Selector, select_and_attend
from ..hook.architecture import num_layers
from ..hook.attach import attached, check_model, check_switches
from ..hook.attention import AttentionCall
from .entering import told_unless_entered
from .statistics import Recorder, Recording, Statistics, checked_statistics, make_recorders


@told_unless_entered
def apply_selection(
    model: PreTrainedModel,
    select_for_layer: Callable[[int], Selector],
    *,
    sdc: Literal["none", "exact"] = "exact",
    vmc: bool = True,
    statistics: bool | Statistics = False,
    targets: Sequence[int] | None = None,
) -> Iterator[Recording]:
    """Run all rows of ``model``, in prompts and decode steps, under one selection rule per layer.

    Use it for comparisons; it saves no time. The attention, the compensations and the counts are the same as in a
    thresholded prefill. Only the rule differs; `toptheta_npu.evaluation.methods` has some.

    Args:
        model: as in `sparsify`.
        select_for_layer: returns the rule of a layer. The rule takes a chunk of rows and returns the elements to keep.
            A row without any keeps its largest element.
        sdc, vmc: the compensations, as in `sparsify`. Estimates that need thresholds are not available.
        statistics: which statistics to collect, as in `sparsify`.
        targets: number of elements that the rows of each layer aim at, for the k~/k of the summaries; None: no target.

    Yields:
        A `Recording`, as `sparsify`.

    Raises:
        TopThetaTypeError, TopThetaValueError, TopThetaNotImplementedError: as `sparsify`.

    Warns:
        NotEnteredWarning, SdcWithoutVmcWarning: as `sparsify`.

    Example:
        >>> import torch, toptheta_npu.models as models
        >>> from toptheta_npu.evaluation.methods.top_k import select_top_k
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> model = LlamaForCausalLM(LlamaConfig(
        ...     hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, vocab_size=50)).eval()
        >>> with torch.no_grad(), models.apply_selection(model, lambda layer: select_top_k(4), statistics=True) as run:
        ...     logits = model(torch.randint(50, (1, 10))).logits
        >>> run.statistics()[1].kept[:, 0].tolist()
        [1, 2, 3, 4, 4, 4, 4, 4, 4, 4]
    """
    if not callable(select_for_layer):
        raise TopThetaTypeError(
            "select_for_layer", "a function of the layer", repr(select_for_layer), "pass lambda layer: select_top_k(64)"
        )
    check_switches(vmc=vmc)
    kind = checked_statistics(statistics)
    check_choice("sdc", sdc, ("none", "exact"))
    check_modes("pre_softmax", sdc, 0.0, None, "vmc" if vmc else None)
    warn_of_sdc_without_vmc(sdc, vmc, stacklevel=4)
    check_model(model)
    _check_targets(targets, num_layers(model))
    recorders = make_recorders(model, kind, targets) if kind else None

    def rule_of(layer: int) -> SelectionRule:
        select = select_for_layer(layer)
        if not callable(select):
            raise TopThetaTypeError(
                "select_for_layer", f"a function that returns a rule for layer {layer}", repr(select),
                "toptheta_npu.evaluation.methods has some",
            )  # fmt: skip
        return SelectionRule(select, sdc, vmc, None if recorders is None else recorders[layer])

    with attached(model, rule_of):
        yield Recording(recorders)


def _check_targets(targets: Sequence[int] | None, layers: int) -> None:
    if targets is None:
        return
    wanted, remedy = f"one int from 1 on for each of the {layers} layers", "ThresholdTable.layer_targets(k) gives them"
    if not isinstance(targets, Sequence) or not all(type(target) is int for target in targets):
        raise TopThetaTypeError("targets", wanted, shown(targets), remedy)
    if len(targets) != layers or min(targets) < 1:
        raise TopThetaValueError("targets", wanted, shown(targets), remedy)


class SelectionRule:
    """Keeps the elements that a selector chooses.

    Attributes:
        select: the selector.
    """

    def __init__(self, select: Selector, sdc: str, vmc: bool, recorder: Recorder | None) -> None:
        self.select = select
        self._sdc = sdc
        self._vmc = vmc
        self._recorder = recorder

    def attend(self, call: AttentionCall) -> Tensor:
        """Compute the output [B, Hq, Q, D] over the elements that the selector chooses."""
        prompt = Prompt(call.query, **call.prompt)
        out, kept = select_and_attend(prompt, self.select, sdc=self._sdc, vmc=self._vmc)
        if self._recorder is not None:
            decode = call.query.shape[2] == 1
            self._recorder.record(call, kept.kept, kept.group_rows, kept.empty, decode=decode)
        return out
