"""How many query heads of a KV group want which V row, token by token (the paper's GQA figure)."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from toptheta_npu._outputs import Drawing, save_figures
from toptheta_npu.assets import load_tiny_llama, load_tiny_llama_thresholds
from toptheta_npu.evaluation.corpus import token_windows
from toptheta_npu.evaluation.figures.style import COLOUR_MAP, file_name, finish, style
from toptheta_npu.evaluation.methods.top_k import select_top_k
from toptheta_npu.evaluation.methods.top_theta import select_above
from toptheta_npu.fallback.prefill import RowChunk, Selector
from toptheta_npu.fallback.reference import never_empty
from toptheta_npu.models import apply_selection
from toptheta_npu.models.hook.architecture import num_heads, num_key_value_heads

#: As in the paper's figure: layer 2, the first group, k = 128.
LAYER, GROUP, K = 2, 0, 128
LENGTH, ROWS = 2560, 128

RuleOf = Callable[[int], Selector]


class Place(NamedTuple):
    """A layer, and a KV head of it."""

    layer: int
    group: int


def wanted_rows(model: PreTrainedModel, tokens: Tensor, rule_of: RuleOf, place: Place, rows: int) -> Tensor:
    """Count the heads of a group that want each V row, for the last tokens of a text.

    The tokens before them run densely and fill the cache, as a prompt does. Each of the last then runs as its decode
    step would, with exact SDC and VMC.

    Args:
        model: in evaluation mode.
        tokens: int64 [T].
        rule_of: gives the rule of a layer.
        place: what is looked at.
        rows: how many of the last tokens.

    Returns:
        int8 [rows, T], 0 also for the keys that come after a token.
    """
    size = num_heads(model) // num_key_value_heads(model)
    heads = slice(place.group * size, (place.group + 1) * size)
    wanted = torch.zeros(rows, len(tokens), dtype=torch.int8)

    def watched_rule_of(layer: int) -> Selector:
        rule = rule_of(layer)

        def watched(chunk: RowChunk) -> Tensor:
            selected = rule(chunk)
            keep = never_empty(selected & chunk.visible, chunk.scores)
            wanted[chunk.rows, : keep.shape[-1]] = keep[0, heads].sum(0).to("cpu", torch.int8)
            return selected

        return watched if layer == place.layer else rule

    ids = tokens[None].to(model.device)
    with torch.inference_mode():
        cache = DynamicCache(config=model.config)
        model(ids[:, :-rows], past_key_values=cache, logits_to_keep=1)
        with apply_selection(model, watched_rule_of):
            model(ids[:, -rows:], past_key_values=cache, logits_to_keep=1)
    return wanted


def measure(file: Path) -> None:
    """Write the maps of Top-θ post-softmax and of Top-k on the embedded model, unless they are there."""
    if file.exists():
        return
    model, tokenizer = load_tiny_llama()
    table = load_tiny_llama_thresholds("post_softmax")
    at_k, targets = table.at(K), table.layer_targets(K)
    rules: Mapping[str, RuleOf] = {
        "Top-θ post + VMC": lambda layer: select_above(partial(at_k.rows, layer), table.placement),
        "Top-k + SDC + VMC": lambda layer: select_top_k(targets[layer]),
    }
    (window,) = token_windows(tokenizer, "evaluation", LENGTH, 1)
    maps = {name: packed(wanted_rows(model, window, rule, Place(LAYER, GROUP), ROWS)) for name, rule in rules.items()}
    settings = {"layer": LAYER, "group": GROUP, "k": K, "length": LENGTH}
    file.write_text(json.dumps({"settings": settings, "maps": maps}, indent=1, ensure_ascii=False) + "\n")


def packed(wanted: Tensor) -> dict[str, Any]:
    """Pack a map, nearly all of it 0, by zlib and base64."""
    content = base64.b64encode(zlib.compress(wanted.numpy().tobytes(), 9)).decode()
    return {"shape": list(wanted.shape), "wanted": content}


def unpacked(found: Mapping[str, Any]) -> np.ndarray:
    """Unpack what `packed` gave."""
    numbers = np.frombuffer(zlib.decompress(base64.b64decode(found["wanted"])), dtype=np.int8)
    return numbers.reshape(found["shape"])


def draw(file: Path, folder: Path) -> None:
    """Draw the maps of `measure`, with V rows per token beneath."""
    import matplotlib

    matplotlib.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    stored = json.loads(file.read_text())
    save_figures(
        folder,
        [
            Drawing(figure_name(name), _draw_map(name, stored["settings"], unpacked(each)), "")
            for name, each in stored["maps"].items()
        ],
    )


def figure_name(name: str) -> str:
    """Name the file of a method's map."""
    return file_name("popularity", "perplexity", name, f"k{K}", f"layer{LAYER}")


def _draw_map(name: str, settings: Mapping[str, int], wanted: np.ndarray) -> Any:
    from matplotlib import colormaps, pyplot
    from matplotlib.colors import BoundaryNorm, ListedColormap

    rows, heads = (wanted > 0).sum(1), int(wanted.max())
    tokens = np.arange(len(wanted)) + settings["length"] - len(wanted)
    shades = colormaps[COLOUR_MAP].reversed()(np.linspace(0.15, 1, max(heads, 1)))
    colours = ListedColormap(np.vstack([[1, 1, 1, 1], shades]))
    norm = BoundaryNorm(np.arange(heads + 2) - 0.5, heads + 1)
    figure, (above, beneath) = pyplot.subplots(
        2, 1, figsize=(8, 7), layout="constrained", sharex=True, height_ratios=(3, 1)
    )
    edges = (tokens[0] - 0.5, tokens[-1] + 0.5, -0.5, wanted.shape[1] - 0.5)
    image = above.imshow(
        wanted.T, cmap=colours, norm=norm, aspect="auto", origin="lower", extent=edges, interpolation="nearest"
    )
    figure.colorbar(image, ax=above, label="query heads that want the V row", ticks=range(heads + 1))
    finish(above, "", "position of the V row")
    beneath.plot(tokens, rows, color=style(0).color, marker=style(0).marker, markersize=3)
    beneath.set_ylim(0)
    finish(beneath, "position of the token", "V rows wanted")
    alone = 100 * float((wanted == 1).sum()) / max(1, int(rows.sum()))
    figure.suptitle(
        f"perplexity, {name} at k = {settings['k']}, layer {settings['layer']}, KV head {settings['group']}: a token "
        f"wants {rows.mean():.0f} V rows ({rows.min()} to {rows.max()}),\n"
        f"{alone:.0f} % of them for a single query head",
        fontsize=10,
    )
    return figure
