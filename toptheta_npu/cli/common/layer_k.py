"""The option --layer-k: the least k of some layers, of each, or of all."""

from __future__ import annotations

import re

from ...errors import TopThetaValueError, shown

_REMEDY = "such as 0 for all layers, 0:512,1:512 for two of them, or a number per layer with commas between"


def read_layer_k(text: str) -> list[int] | dict[int, int]:
    """Read the least k of layers: "0:512,1:512", one number for each layer, or one for all.

    Raises:
        TopThetaValueError: neither, or a layer twice.

    Example:
        >>> read_layer_k("0:512,1:256"), read_layer_k("512,512,0,0")
        ({0: 512, 1: 256}, [512, 512, 0, 0])
    """
    parts = [part.strip() for part in text.split(",")]
    if all(re.fullmatch(r"[0-9]{1,9}", part) for part in parts):
        return [int(part) for part in parts]
    values: dict[int, int] = {}
    for part in parts:
        pair = re.fullmatch(r"([0-9]{1,9})\s*:\s*([0-9]{1,9})", part)
        if pair is None:
            raise TopThetaValueError("--layer-k", "LAYER:K, separated by commas", shown(part), _REMEDY)
        if int(pair[1]) in values:
            got = f"layer {int(pair[1])} twice"
            raise TopThetaValueError("--layer-k", "each layer at most once", got, "leave one of the two out")
        values[int(pair[1])] = int(pair[2])
    return values


def layer_k_of(text: str, layers: int) -> list[int]:
    """Read the least k of every one of ``layers`` layers; 0 where the text names none.

    Raises:
        TopThetaValueError: as `read_layer_k`, or it names other layers.

    Example:
        >>> layer_k_of("0:512,1:256", 4), layer_k_of("512,512,0,0", 4), layer_k_of("0", 4)
        ([512, 256, 0, 0], [512, 512, 0, 0], [0, 0, 0, 0])
    """
    values = read_layer_k(text)
    if isinstance(values, list):
        if len(values) == 1:
            return values * layers
        if len(values) != layers:
            raise TopThetaValueError("--layer-k", f"{layers} numbers, one per layer", str(len(values)), _REMEDY)
        return values
    if max(values) >= layers:
        expected, got = f"layers 0 to {layers - 1}", f"layer {max(values)}"
        raise TopThetaValueError("--layer-k", expected, got, "name layers that the model has")
    return [values.get(layer, 0) for layer in range(layers)]
