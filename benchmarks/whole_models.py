"""What a whole model gains beside what its attention kernel gains: a table of docs/performance.md.

    python -m benchmarks.whole_models

It measures nothing and renews the table from docs/results: a decode step of a model of 1.2 billion weights,
`generate()` of SmolLM2 and of the embedded model, and both in vLLM, all on a CPU.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import geometric_mean

from benchmarks import cpu_tables, decode_step_1b, generation_of_a_model
from benchmarks.tables import Table, renew
from toptheta_npu.timing.measure import ShapeResult

PAGE = Path(__file__).resolve().parents[1] / "docs" / "performance.md"
_RESULTS = PAGE.parent / "results"


def whole_model_table() -> Table:
    """Tabulate gains over dense attention, of the kernel alone and of all that a model does."""
    step = cpu_tables.stored(cpu_tables.RESULTS, cpu_tables.STEPS[0])
    kernel = _kernel_of(step)
    settings, seconds = step["settings"], {name: timing["median"] for name, timing in step["seconds"].items()}
    sparse = seconds[decode_step_1b.SPARSE]
    what = f"1.2 billion weights, {settings['batch']} sequences of {settings['keys']} keys, k = {settings['k']}"
    rows = [
        [f"decode step, {what}", "the model as it is", _times(kernel.gain("sparse", "cold", "dense")),
         _times(seconds[decode_step_1b.SDPA] / sparse)],
        ["the same", "Top-θ at θ = -inf", _times(kernel.gain("sparse", "cold", "own dense")),
         _times(seconds[decode_step_1b.DENSE] / sparse)],
        *_of_smollm2(),
        *_of_the_embedded_model(),
        *_of_smollm2_behind_vllm(),
    ]  # fmt: skip
    return Table("Whole models", ("model", "over", "its attention kernel", "all of it"), rows)


def tables() -> dict[str, Table]:
    """Make the table by the name of its place."""
    return {"whole models": whole_model_table()}


def _kernel_of(step: dict[str, dict[str, int]]) -> ShapeResult:
    """Find the comparison of one layer of the model whose step was timed."""
    settings = step["settings"]
    for result in cpu_tables.results(cpu_tables.RESULTS, "small_pages"):
        shape = result.shape
        if (shape.batch, shape.n, shape.k) == (settings["batch"], settings["keys"], settings["k"]):
            return result
    raise LookupError(f"docs/results/cpu/small_pages.json: no layer of the model that has {settings}")


def _of_smollm2() -> list[list[str]]:
    """List what generate() gains in float32, in which PyTorch's attention is at its best on a CPU."""
    rows = []
    for batch, keys in ((1, 1500), (1, 6000), (4, 6000)):
        [found] = [each for each in generation_of_a_model.stored()["results"]
                   if (each["dtype"], each["batch"], each["keys"]) == ("float32", batch, keys)]  # fmt: skip
        prompts = "a prompt" if batch == 1 else f"{batch} prompts"
        what = f"`generate()`, SmolLM2-135M, {prompts} of {keys} tokens, k = {generation_of_a_model.K}"
        rows.append([what, "the model as it is", "", _times(generation_of_a_model.over_dense(found))])
    return rows


def _of_the_embedded_model() -> list[list[str]]:
    rows = []
    for goal in json.loads((_RESULTS / "performance.json").read_text())["goals"]:
        part, _, name = goal["name"].partition(": ")
        if part == "generate()":
            text = name.removesuffix(", tokens per second against dense").replace("k=", "k = ")
            rows.append([f"`generate()`, {text}", "the model as it is", "", _times(goal["value"])])
    load = json.loads((_RESULTS / "serving.json").read_text())["load"]
    longest = max(load["decoding"], key=lambda each: each["keys"])
    for what, found in (
        (f"{longest['batch']} sequences of {longest['keys']} keys", longest),
        (f"{load['load']['at_once']} requests at a time", load["load"]),
    ):
        gain = geometric_mean(found["over_dense"]["sparse"])
        rows.append([f"vLLM, embedded model, {what}, k = 64", "vLLM as it is", "", _times(gain)])
    return rows


def _of_smollm2_behind_vllm() -> list[list[str]]:
    real = json.loads((_RESULTS / "serving.json").read_text())["real"]
    rows = []
    for found in real["decoding"]:
        by_round = found["by_round"]
        gain = geometric_mean(dense["p50"] / sparse["p50"]
                              for dense, sparse in zip(by_round["dense"], by_round["sparse"], strict=True))  # fmt: skip
        what = f"vLLM, SmolLM2-135M, {real['clients']} clients after {found['prompt']} tokens, {found['dtype']}"
        rows.append([f"{what}, tau = {real['tau']:g}", "vLLM as it is", "", _times(gain)])
    return rows


def _times(gain: float | None) -> str:
    return "" if gain is None else f"{gain:.2f}"


def main() -> None:
    """Renew the table."""
    renew(PAGE, tables())


if __name__ == "__main__":
    main()
