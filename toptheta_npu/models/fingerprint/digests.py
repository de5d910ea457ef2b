"""Digests of everything that a model computes with, to check work that is resumed or compared.

A fingerprint serves thresholds: it ignores the dtype and the V weights. A digest ignores nothing.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from transformers import PreTrainedModel

from .adapters import applied_adapters
from .settings import digest_of
from .tensors import entries_of, fetched, unreadable

#: Bytes to copy from a device and digest at a time.
_CHUNK = 2**25
_MOST_THREADS = 8
#: Settings of a configuration that do not change any result, or are recorded elsewhere.
_NOT_COMPUTED = frozenset(
    {"_name_or_path", "transformers_version", "dtype", "torch_dtype", "architectures", "use_cache"}
)
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def model_digests(model: PreTrainedModel) -> dict[str, str]:
    """Compute digests of all weights, of the configuration and of the adapters that apply.

    Every weight is read once, at about 1 GB a second for each thread of torch, 8 at most.

    Returns:
        One digest per part of the model; the keys are words for a message.

    Raises:
        TopThetaNotImplementedError: weights in a form whose numbers cannot be read.
        TopThetaValueError: weights on the meta device that cannot be fetched.

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> config = LlamaConfig(hidden_size=32, intermediate_size=32, num_hidden_layers=2,
        ...                      num_attention_heads=2, vocab_size=8)
        >>> model = LlamaForCausalLM(config)
        >>> before = model_digests(model)
        >>> _ = model.model.layers[1].mlp.up_proj.weight.data.mul_(2)
        >>> [name for name, digest in model_digests(model).items() if digest != before[name]]
        ['weights']
    """
    return {
        "weights": _weights(model),
        "configuration": digest_of(_computed(model.config.to_dict())),
        "adapters": applied_adapters(model),
    }


def tokenizer_digest(tokenizer: Any) -> str:
    """Compute a digest of how a tokenizer turns text and conversations into tokens."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    rules = _words(tokenizer) if backend is None else json.loads(backend.to_str())
    if isinstance(rules, dict):  # what the last call asked for
        rules = {name: each for name, each in rules.items() if name not in ("padding", "truncation")}
    special = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
    return digest_of([type(tokenizer).__name__, rules, special, getattr(tokenizer, "chat_template", None)])


def _weights(model: PreTrainedModel) -> str:
    fetching = threading.Lock()

    def digest(name: str, entry: Any) -> bytes:
        found = hashlib.blake2b(name.encode(), digest_size=32)
        try:
            if isinstance(entry, Tensor) and entry.is_meta:
                with fetching, fetched(model, name, entry) as tensor:
                    _add(found, tensor)
            else:
                _add(found, entry)
        except (NotImplementedError, AttributeError) as error:
            raise unreadable(f"{name}, a {type(entry).__name__}", error) from error
        return found.digest()

    entries = sorted(entries_of(model).items())
    total = hashlib.blake2b(digest_size=16)
    number = min(torch.get_num_threads(), _MOST_THREADS)
    with ThreadPoolExecutor(number) if number > 1 else nullcontext() as threads:
        for each in (threads.map if threads else map)(lambda entry: digest(*entry), entries):
            total.update(each)
    return total.hexdigest()


def _add(digest: Any, entry: Any) -> None:
    """Add a tensor, or whatever else a module saves, to ``digest``."""
    if isinstance(entry, (tuple, list)):
        for each in entry:
            _add(digest, each)
    elif not isinstance(entry, Tensor):
        digest.update(entry.getvalue() if isinstance(entry, io.BytesIO) else _text(entry))
    elif entry.is_quantized:
        digest.update(str(entry.dtype).encode())
        _add(digest, entry.dequantize())
    elif is_traceable_wrapper_subclass(entry):
        parts, context = entry.__tensor_flatten__()
        digest.update(_text([type(entry).__name__, parts, context]))
        _add(digest, [getattr(entry, part) for part in parts])
    else:
        digest.update(f"{entry.dtype} {list(entry.shape)}".encode())
        for chunk in _chunks(entry.detach()):
            digest.update(chunk)


def _chunks(tensor: Tensor) -> Iterator[Any]:
    """Yield the bytes of a tensor, part by part, without a copy where it is on the CPU."""
    flat = tensor.contiguous().reshape(-1).view(torch.uint8)
    for start in range(0, len(flat), _CHUNK):
        yield flat[start : start + _CHUNK].cpu().numpy().data


def _text(value: object) -> bytes:
    return _ADDRESS.sub("", repr(value)).encode()


def _computed(settings: Any) -> Any:
    """Remove settings that do not change any result from a configuration and from its nested ones."""
    if isinstance(settings, dict):
        return {name: _computed(each) for name, each in settings.items() if name not in _NOT_COMPUTED}
    return settings


def _words(tokenizer: Any) -> list[object]:
    """Collect the words, the settings and the file contents of a tokenizer written in Python."""
    switches = {name: each for name, each in tokenizer.init_kwargs.items() if isinstance(each, (int, float))}
    with tempfile.TemporaryDirectory() as folder:
        try:
            files = [Path(path) for path in tokenizer.save_vocabulary(folder)]
        except NotImplementedError:  # one without files
            files = []
        contents = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    return [tokenizer.get_vocab(), switches, contents]
