"""The error of an NPU backend that cannot run."""

from __future__ import annotations

from ..errors import TopThetaError


class TopThetaBackendError(TopThetaError, RuntimeError):
    """The operator cannot run on NPU tensors; the message says what is missing and what to type.

    Example:
        >>> str(TopThetaBackendError("op package", "a folder vendors/toptheta", "none", "see: toptheta doctor"))
        'op package: expected a folder vendors/toptheta, got none; see: toptheta doctor'
    """

    def __init__(self, what: str, expected: str, got: str, remedy: str) -> None:
        super().__init__(f"{what}: expected {expected}, got {got}; {remedy}")
