"""Direct calls of ACL and of the generated aclnn functions, without torch_npu's task queue between."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from toptheta_host_model import OPERATOR

ACL_TYPES = {torch.float32: 0, torch.float16: 1, torch.int32: 3, torch.int64: 9, torch.bfloat16: 27}
_POINTER = ctypes.c_void_p
_C_TYPES = {"int64_t": ctypes.c_int64, "double": ctypes.c_double, "bool": ctypes.c_bool, "char *": ctypes.c_char_p}
FUNCTION = "aclnnTopThetaIncrementalAttention"


def runtime() -> ctypes.CDLL:
    library = ctypes.CDLL("libascendcl.so")
    library.aclGetRecentErrMsg.restype = ctypes.c_char_p
    return library


def recent_error() -> str:
    text: bytes = runtime().aclGetRecentErrMsg()
    return text.decode()


def live_executors() -> int:
    """Executors that have been planned and neither run nor destroyed."""
    return _count("executors")


def live_descriptors() -> int:
    """Tensors, arrays and scalars of aclnn that have not been destroyed."""
    torch.npu.synchronize()
    return _count("descriptors")


def _count(what: str) -> int:
    function = getattr(ctypes.CDLL("libopapi.so"), f"acl_emulator_live_{what}")
    function.restype = ctypes.c_int64
    return int(function())


def current_stream() -> _POINTER:
    return _POINTER(torch.npu.current_stream().npu_stream)


class Gate:
    """Holds a stream until `open` is called; for the asynchronous mode, since it would block the caller otherwise.

    A semaphore of the C library: a function of Python would need the interpreter, which may be waiting itself.
    """

    _kept: ClassVar[list[Any]] = []  # a stream may still be in its semaphore when nobody else knows the gate

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None)
        self._semaphore = ctypes.create_string_buffer(64)
        self._kept.append(self._semaphore)
        assert self._libc.sem_init(self._semaphore, 0, 0) == 0

    def wait_on_current_stream(self) -> None:
        wait = ctypes.cast(self._libc.sem_wait, _POINTER)
        assert runtime().aclrtLaunchHostFunc(current_stream(), wait, self._semaphore) == 0

    def open(self) -> None:
        assert self._libc.sem_post(self._semaphore) == 0


class OperatorCall:
    """One call of the operator in its two phases.

    Args:
        inputs: by name of the definition.
        attributes: by name of the definition; what is left out is null, 0 or False.
        outputs: by name; what is left out is an empty tensor.
        storage: elements of the storage of an input, if they are not those of the tensor.
    """

    def __init__(
        self, inputs: Mapping[str, Tensor], attributes: Mapping[str, Any], outputs: Mapping[str, Tensor],
        storage: Mapping[str, int] | None = None,
    ) -> None:  # fmt: skip
        self._opapi = ctypes.CDLL("libopapi.so")
        package = Path(os.environ["ASCEND_CUSTOM_OPP_PATH"].split(":")[0])
        self._library = ctypes.CDLL(str(package / "op_api" / "lib" / "libcust_opapi.so"))
        self._storage = storage or {}
        self._keep: list[Any] = []
        self.descriptors: dict[str, _POINTER] = {}
        self.executor, self.workspace_size = _POINTER(), ctypes.c_uint64()
        self._arguments = [
            self._argument(parameter, {**inputs, **attributes, **outputs})
            for parameter in OPERATOR.aclnn_signature()["get_workspace_size"]["parameters"]
            if parameter["role"] != "result"
        ]

    def plan(self) -> int:
        """Phase one; its status."""
        results = (ctypes.byref(self.workspace_size), ctypes.byref(self.executor))
        return int(getattr(self._library, f"{FUNCTION}GetWorkspaceSize")(*self._arguments, *results))

    def run(self, workspace: Tensor | None = None, stream: _POINTER | None = None) -> int:
        """Phase two, on the current stream unless another is given; its status."""
        if workspace is None:
            workspace = torch.empty(self.workspace_size.value, dtype=torch.uint8, device="npu")
            self._keep.append(workspace)
        stream = stream or current_stream()
        size = ctypes.c_uint64(workspace.numel())
        function = getattr(self._library, FUNCTION)
        return int(function(_POINTER(workspace.data_ptr() or None), size, self.executor, stream))

    def destroy(self, name: str) -> None:
        """Destroy the descriptor of an argument."""
        kind = "IntArray" if name.endswith("_strides") else "Tensor"
        assert getattr(self._opapi, f"aclDestroy{kind}")(self.descriptors[name]) == 0

    def _argument(self, parameter: Mapping[str, Any], values: Mapping[str, Any]) -> Any:
        name, value = parameter["definition"], values.get(parameter["definition"])
        if parameter["role"] == "output" and value is None:
            integer = name in ("kept", "value_rows")
            value = torch.empty(0, dtype=torch.int32 if integer else torch.float32, device="npu")
        if parameter["type"] in _C_TYPES:
            kind = _C_TYPES[parameter["type"]]
            return kind(value) if value is not None else kind()
        if value is None:
            return _POINTER()
        self._keep.append(value)
        made = self._tensor(name, value) if isinstance(value, Tensor) else self._array(value)
        self.descriptors[name] = made
        return made

    def _tensor(self, name: str, tensor: Tensor) -> _POINTER:
        create = self._opapi.aclCreateTensor
        create.restype = _POINTER
        rank = tensor.dim()
        sizes, strides = (ctypes.c_int64 * rank)(*tensor.shape), (ctypes.c_int64 * rank)(*tensor.stride())
        storage = ctypes.c_int64(self._storage.get(name, tensor.numel()))
        return _POINTER(create(
            sizes, ctypes.c_uint64(rank), ACL_TYPES[tensor.dtype], strides, ctypes.c_int64(0), 2,
            ctypes.byref(storage), ctypes.c_uint64(1), _POINTER(tensor.data_ptr() or None),
        ))  # fmt: skip

    def _array(self, values: list[int]) -> _POINTER:
        create = self._opapi.aclCreateIntArray
        create.restype = _POINTER
        return _POINTER(create((ctypes.c_int64 * len(values))(*values), ctypes.c_uint64(len(values))))
