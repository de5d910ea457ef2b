"""The name that transformers gives the cache in calls and outputs of a model: ``cache`` since 5.24."""

from __future__ import annotations

import inspect

from transformers import GenerationMixin

_PARAMETERS = inspect.signature(GenerationMixin.prepare_inputs_for_generation).parameters
CACHE_ARGUMENT = "cache" if "cache" in _PARAMETERS else "past_key_values"
