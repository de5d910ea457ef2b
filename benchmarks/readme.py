"""Renews what README.md says of gains and losses, from docs/results, and draws its pictures; measures nothing.

python -m benchmarks.readme
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from benchmarks import cpu_tables, gpu, pictures, placements, whole_models
from benchmarks.modelled import figures
from benchmarks.modelled.calls import PAPER_CALL, grouped_call
from benchmarks.real_model_study import comparisons
from benchmarks.real_model_study.analysis import Runs, mean_of, percent
from benchmarks.real_model_study.goals import Paragraphs
from benchmarks.real_model_study.settings import GEMMA_PRE, GEMMA_TAU, HEADLINE, TAU, Arm, Part
from benchmarks.tables import renew

README = Path(__file__).resolve().parents[1] / "README.md"
_DOCS = README.parent / "docs"
METHOD, LOSS = (_DOCS / "pictures" / name for name in ("method.png", "loss.png"))
#: The whole models that gain the least and the most, in the table of `whole_models`.
LEAST = "`generate()`, embedded model, 2048 tokens, k = 64"
_PLACEMENTS = "docs/performance.md#after-the-softmax"
MOST = "decode step, 1.2 billion weights, 4 sequences of 32768 keys, k = 128"
#: The shares of the attention that README names, of SmolLM2 and Gemma, and in words; and the k of thresholds.
SHARES, K = (0.0005, 0.001), 128
_COUNTED = {0.0005: "two-thousandth", 0.001: "thousandth"}


def measured() -> list[dict[str, Runs]]:
    """Read the losses that README names, of SmolLM2 and Gemma, by the names of their methods."""
    parts = ((TAU, HEADLINE, "real_model"), (GEMMA_TAU, GEMMA_PRE, "gemma3"))
    calibrated = Arm("top-theta", K).name
    return [
        {Arm(f"tau:tau={share}").name: runs(by_share, folder), calibrated: runs(by_k, folder)}
        for share, (by_share, by_k, folder) in zip(SHARES, parts, strict=True)
    ]


def runs(part: Part, folder: str = "real_model") -> Runs:
    """Read the losses of a model.

    Raises:
        LookupError: there are none.
    """
    found = comparisons.runs_of(_DOCS / "results" / folder, part)
    if found is None:
        raise LookupError(f"docs/results/{folder}: no results of {part.name}")
    return found


def gains() -> Paragraphs:
    """Say in a line for each kind of hardware what it gains."""
    return Paragraphs([_on_cpus(), _on_gpus(), _on_npus(), _by_share()])


def _on_cpus() -> str:
    compared = cpu_tables.results(cpu_tables.RESULTS, "small_pages")
    own, sdpa = ([gain for result in compared if (gain := result.gain("sparse", "cold", role)) is not None]
                 for role in ("own dense", "dense"))  # fmt: skip
    whole = {row[0]: row[-1] for row in whole_models.whole_model_table().rows}
    return (
        f"* **CPU**, measured: attention is {_range(own)} times as fast as the same code reading all of V, and "
        f"[{_range(sdpa)} times as fast as PyTorch's own](docs/performance.md#on-a-cpu). A whole model is "
        f"[{whole[LEAST]} to {whole[MOST]} times as fast](docs/performance.md#whole-models) as with PyTorch's "
        "attention: slower with a few million weights and 2048 tokens, fastest with 1.2 billion weights and a batch of "
        "four texts of 32768 tokens."
    )


def _on_gpus() -> str:
    return (
        f"* **GPU**, measured on an NVIDIA H100, in CUDA graphs: attention is [{_range(gpu.gains())} times as fast as "
        "PyTorch's](docs/performance.md#on-a-gpu). A whole model has not been measured there."
    )


def _on_npus() -> str:
    modelled = figures.load()
    calls = [modelled.calls[call] for call in (PAPER_CALL, grouped_call(32768, 4), grouped_call(32768, 8))]
    with_launch = [call.gain_with_launch("cold") for call in calls]
    over_any = [call.gain_over_any_dense for call in calls]
    return (
        "* **Ascend NPU**, estimated by our emulator of the chip and never measured on one: attention is "
        f"{_range(with_launch)} times as fast as the same kernel reading all of V, and {_range(over_any)} times as "
        "fast as [any full attention can be](docs/performance.md#the-kernel-on-the-host-model), which has to read all "
        "of K and V."
    )


def _by_share() -> str:
    by_score, by_share, _ = placements.gains()
    longer = [one / other for one, other in zip(by_score, by_share, strict=True)]
    modelled, by_share_call = figures.load(), replace(PAPER_CALL, variant="post-softmax")
    on_npus = [modelled.calls[call].gain_with_launch("cold") for call in (by_share_call, PAPER_CALL)]
    return (
        "* All this is by calibrated thresholds of scores, with 2 to 23 % of V read on the CPU and k = 128 elsewhere. "
        "By `tau`, which goes through the scores twice, attention takes "
        f"[{_range(longer)} times as long]({_PLACEMENTS}) on a CPU; on an NPU the estimate is {on_npus[0]:.2f} times "
        f"full attention where it is {on_npus[1]:.2f} by scores; on a GPU it is hardly faster than full attention."
    )


def _range(values: list[float]) -> str:
    return f"{min(values):.1f} to {max(values):.1f}"


def losses(smollm2: Mapping[str, Runs], gemma: Mapping[str, Runs]) -> Paragraphs:
    """Say what two models lose, with one share of the attention for all heads and with thresholds for one k.

    Args:
        smollm2, gemma: what was measured, by the names of their methods, a share first.
    """
    (of_share, of_k), (of_gemma_share, of_gemma_k) = (
        [_loss(runs, name) for name, runs in model.items()] for model in (smollm2, gemma)
    )
    share, gemma_share = SHARES
    return Paragraphs([
        f"So SmolLM2-135M loses [{of_share} of V](docs/real-model.md#one-probability-for-all-heads) where a token "
        f"counts if it gets more than a {_COUNTED[share]} of the attention, and Gemma 3 270M "
        f"[{of_gemma_share}](docs/gemma.md) at a {_COUNTED[gemma_share]}, the same in every head and without "
        f"calibration. Thresholds of scores, calibrated for k = {K}, lose more, "
        f"[{of_k}](docs/real-model.md#loss-against-v-rows) and [{of_gemma_k}](docs/gemma.md#calibrated-thresholds): "
        "the same score is much of the attention in one row and little in another.",
    ])  # fmt: skip


def _loss(runs: Runs, arm: str) -> str:
    loss = percent(mean_of(runs.losses[arm])).value
    return f"{loss:.1f} % with {100 * runs.value_rows[arm].mean() / runs.keys:.0f} %"


def main() -> None:
    """Renew the text and draw the pictures."""
    renew(README, {"gains": gains(), "losses": losses(*measured())})
    METHOD.parent.mkdir(exist_ok=True)
    pictures.draw_method(pictures.row_of_the_embedded_model(), METHOD)
    pictures.draw_loss(runs(HEADLINE), runs(TAU), LOSS)


if __name__ == "__main__":
    main()
