"""Keeps the thresholds of a run on every device, in tensors whose values can change during the run."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterable
from typing import Any

import torch

from ...thresholds import ThresholdsAtK


class DeviceThresholds:
    """The thresholds on every device that a layer runs on, in tensors that stay the same when their values change.

    Args:
        at_k: thresholds on the CPU; their tensors are used, not copied.
        devices: devices that get a copy at the start; others get one when a layer asks for it.
    """

    def __init__(self, at_k: ThresholdsAtK, devices: Iterable[torch.device] = ()) -> None:
        self._copies = {torch.device("cpu"): at_k}
        self._writing = threading.Lock()
        for device in devices:
            self.on(device)

    @property
    def current(self) -> ThresholdsAtK:
        """The thresholds on the CPU."""
        return self._copies[torch.device("cpu")]

    def on(self, device: torch.device) -> ThresholdsAtK:
        """Return the thresholds on ``device``."""
        if device not in self._copies:
            if torch.compiler.is_compiling():  # a lock cannot be traced
                self._copy_to(device)
            else:
                # so that the copy can be written to after an active inference mode ends
                with self._writing, torch.inference_mode(False):
                    self._copy_to(device)
        return self._copies[device]

    def _copy_to(self, device: torch.device) -> None:
        if device in self._copies:
            return
        parts: dict[str, Any] = {
            name: tuple(part.to(device) for part in kept) for name, kept in _tensors(self.current).items()
        }
        self._copies[device] = dataclasses.replace(self.current, **parts)

    def replace(self, at_k: ThresholdsAtK) -> None:
        """Copy the values of ``at_k``, of the same table and lengths on the CPU, into the tensors of every device."""
        with self._writing, torch.no_grad():
            for device, copy in list(self._copies.items()):
                kept = _tensors(copy)
                for name, values in _tensors(at_k).items():
                    for tensor, value in zip(kept[name], values, strict=True):
                        tensor.copy_(value)
                self._copies[device] = dataclasses.replace(at_k, **kept)


def _tensors(at_k: ThresholdsAtK) -> dict[str, Any]:
    """Return the fields that hold tensors, one per layer each."""
    names = ("theta", "discarded_mass", "aims")
    return {name: part for name in names if (part := getattr(at_k, name)) is not None}
