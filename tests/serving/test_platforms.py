"""Platforms of vLLM that have no shim."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from toptheta_npu.errors import TopThetaNotImplementedError
from toptheta_npu.vllm import register


def test_settings_stop_the_start_on_a_platform_without_a_shim(monkeypatch: pytest.MonkeyPatch) -> None:
    updated: list[Any] = []

    class CudaPlatform:
        device_type = "cuda"

        @classmethod
        def check_and_update_config(cls, vllm_config: Any) -> None:
            updated.append((cls, vllm_config))

    monkeypatch.setitem(sys.modules, "vllm.platforms", SimpleNamespace(current_platform=CudaPlatform()))
    for _ in range(2):
        register()
    plain, asked = (SimpleNamespace(additional_config=each) for each in ({}, {"top_theta": {"tau": 0.001}}))
    CudaPlatform.check_and_update_config(plain)
    expected = "^vllm: expected one of its platforms cpu, npu, got cuda; leave 'top_theta' out of additional_config$"
    with pytest.raises(TopThetaNotImplementedError, match=expected):
        CudaPlatform.check_and_update_config(asked)
    assert updated == [(CudaPlatform, plain)]
