"""Renews what README.md says of gains and losses, from docs/results, and draws its pictures; measures nothing.

python -m benchmarks.readme
"""

from __future__ import annotations

from pathlib import Path

from benchmarks import cpu_tables, gpu, pictures, placements, whole_models
from benchmarks.modelled import figures
from benchmarks.modelled.calls import PAPER_CALL, grouped_call
from benchmarks.real_model_study import comparisons
from benchmarks.real_model_study.analysis import Runs, mean_of, percent
from benchmarks.real_model_study.goals import Paragraphs
from benchmarks.real_model_study.settings import HEADLINE, TAU, Arm, Part, budget
from benchmarks.tables import renew

README = Path(__file__).resolve().parents[1] / "README.md"
_DOCS = README.parent / "docs"
METHOD, LOSS = (_DOCS / "pictures" / name for name in ("method.png", "loss.png"))
#: The whole models that gain the least and the most, in the table of `whole_models`.
LEAST = "`generate()`, embedded model, 2048 tokens, k = 64"
_PLACEMENTS = "docs/performance.md#after-the-softmax"
MOST = "decode step, 1.2 billion weights, 4 sequences of 32768 keys, k = 128"
#: The share of the attention that README names, and in words.
SHARE = 0.0005
_COUNTED = {0.0005: "two-thousandth"}


def runs(part: Part = HEADLINE) -> Runs:
    """Read the losses of the real model.

    Raises:
        LookupError: there are none.
    """
    found = comparisons.runs_of(_DOCS / "results" / "real_model", part)
    if found is None:
        raise LookupError(f"docs/results/real_model: no results of {part.name}")
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
        f"[{_range(sdpa)} times as fast as PyTorch's](docs/performance.md#on-a-cpu). A whole model is "
        f"[{whole[LEAST]} times as fast as with PyTorch's attention with a few million weights and 2048 tokens, which "
        f"is slower, and {whole[MOST]} times with 1.2 billion weights and a batch of four texts of 32768 "
        "tokens](docs/performance.md#whole-models)."
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
        "* **Ascend NPU**, estimated by a simulation of the chip and never measured on one: attention is "
        f"{_range(with_launch)} times as fast as the same kernel reading all of V, and {_range(over_any)} times as "
        "[fast as the memory lets any full attention be](docs/performance.md#the-kernel-on-the-host-model)."
    )


def _by_share() -> str:
    by_score, by_share = placements.gains()
    longer = [one / other for one, other in zip(by_score, by_share, strict=True)]
    return (
        "* All this is by calibrated thresholds. A step by `tau` goes through the scores twice. On a CPU it takes "
        f"[{_range(longer)} times as long]({_PLACEMENTS}); on a GPU nothing is gained by it yet."
    )


def _range(values: list[float]) -> str:
    return f"{min(values):.1f} to {max(values):.1f}"


def losses(found: Runs, uncalibrated: Runs) -> Paragraphs:
    """Say what a model loses, with thresholds and with one share of the attention for all heads."""
    plain, own, tau = Arm("top-theta", 128).name, budget(350).name, Arm(f"tau:tau={SHARE}").name
    of = {plain: found, own: found, tau: uncalibrated}
    share = {name: f"{100 * runs.value_rows[name].mean() / runs.keys:.0f} %" for name, runs in of.items()}
    loss = {name: f"{percent(mean_of(runs.losses[name])).value:.1f} %" for name, runs in of.items()}
    figures_at = "(docs/real-model.md#loss-against-v-rows)"
    return Paragraphs([
        f"So SmolLM2-135M loses [{loss[tau]} with {share[tau]} of V](docs/real-model.md#one-probability-for-all-heads) "
        f"where a token counts if it gets more than a {_COUNTED[SHARE]} of the attention, in every head and without "
        "calibration. With calibrated thresholds it loses "
        f"[{loss[own]} with {share[own]} of V]{figures_at} where every head has a k of its own "
        f"([budgets](docs/transformers.md#budgets)), and [{loss[plain]}]{figures_at} where all aim at k = 128. "
        f"Then {share[plain]} of V is read, since a head keeps more than k in some rows, and heads that share a cache "
        "do not keep the same tokens.",
    ])  # fmt: skip


def main() -> None:
    """Renew the text and draw the pictures."""
    found = runs()
    uncalibrated = runs(TAU)
    renew(README, {"gains": gains(), "losses": losses(found, uncalibrated)})
    METHOD.parent.mkdir(exist_ok=True)
    pictures.draw_method(pictures.row_of_the_embedded_model(), METHOD)
    pictures.draw_loss(found, uncalibrated, LOSS)


if __name__ == "__main__":
    main()
