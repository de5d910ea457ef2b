"""Writes a model's fingerprint as text, and names the differences between two fingerprints.

`toptheta_npu.models` computes the digests, from a model in memory or from its folder.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_FORM = re.compile(r"([^:]+):geometry=([0-9a-f]{16}):rotary=([0-9a-f]{16}):weights=([0-9a-f]{32}(?:\+[0-9a-f]{32})?)")


class Fingerprint(NamedTuple):
    """Digests of everything that thresholds depend on, in hexadecimal digits.

    Attributes:
        model_type: model type in the model's configuration.
        geometry: digest of the sizes and the score scaling, 16 digits.
        rotary: digest of the rotary parameters, 16 digits.
        weights: digests of the query and key weights, 32 digits each. Every load of a bfloat16 or float16 checkpoint
            gives the same one. A float32 model has a second one if float16 would round its weights to others.

    Example:
        >>> str(Fingerprint("llama", "0" * 16, "1" * 16, ("2" * 32,)))
        'llama:geometry=0000000000000000:rotary=1111111111111111:weights=22222222222222222222222222222222'
    """

    model_type: str
    geometry: str
    rotary: str
    weights: tuple[str, ...]

    def __str__(self) -> str:
        weights = "+".join(self.weights)
        return f"{self.model_type}:geometry={self.geometry}:rotary={self.rotary}:weights={weights}"

    @classmethod
    def parse(cls, text: str) -> Fingerprint | None:
        """Read the parts of ``text``; None if it is a name of another form."""
        match = _FORM.fullmatch(text)
        return match and cls(match[1], match[2], match[3], tuple(match[4].split("+")))


def differences(one: str, other: str) -> list[str]:
    """Name the differences between the models behind two fingerprints; empty for the same model.

    Example:
        >>> model = Fingerprint("llama", "0" * 16, "1" * 16, ("2" * 32,))
        >>> differences(str(model), str(model._replace(rotary="3" * 16)))
        ['rotary parameters']
    """
    if one == other:
        return []
    first, second = Fingerprint.parse(one), Fingerprint.parse(other)
    if first is None or second is None:
        return ["fingerprint"]
    different = {
        "model type": first.model_type != second.model_type,
        "geometry": first.geometry != second.geometry,
        "rotary parameters": first.rotary != second.rotary,
        "weights": not set(first.weights) & set(second.weights),
    }
    return [name for name, differs in different.items() if differs]
