"""Python over the C functions of host.h, compiled together with the unmodified host sources of an operator."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from .build import build_library
from .signature import signature_of

_HERE = Path(__file__).resolve().parent
_MAX_RANK = 8
_TILING_CAPACITY = 2048
#: ge::DataType by the name of the torch dtype.
DTYPES = {"float32": 0, "float16": 1, "int8": 2, "int32": 3, "int64": 9, "float64": 11, "bfloat16": 27}
_NAMES = {value: name for name, value in DTYPES.items()}


class OperatorError(RuntimeError):
    """A call that the operator refuses; the text is the operator's own message."""


@dataclass(frozen=True)
class TensorSpec:
    """A tensor without data: sizes, and a dtype by the name of torch's ("float16", "bfloat16", "int32", ...)."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Platform:
    """What tiling asks of the SoC; the default is an Ascend 910B1 (CANN 8.1, platform_config/Ascend910B1.ini)."""

    vector_cores: int = 48
    cube_cores: int = 24
    ub_bytes: int = 192 * 1024
    l2_bytes: int = 192 * 1024 * 1024
    system_workspace: int = 16 * 1024 * 1024


@dataclass(frozen=True)
class TilingResult:
    """What the tiling function hands to the launch.

    Attributes:
        tiling: the bytes of the kernel's tiling struct; see `tiling_fields`.
        key: tiling key, which picks the variant of the kernel.
        block_dim: blocks to launch.
        workspace: bytes, of which the first ``Platform.system_workspace`` belong to CANN.
        schedule_mode: 1 when all blocks have to run at once.
    """

    tiling: bytes
    key: int
    block_dim: int
    workspace: int
    schedule_mode: int


class _Tensor(ctypes.Structure):
    _fields_ = (("present", ctypes.c_int32), ("type", ctypes.c_int32), ("rank", ctypes.c_uint32),
                ("dims", ctypes.c_int64 * _MAX_RANK))  # fmt: skip


class _Attribute(ctypes.Structure):
    _fields_ = (("given", ctypes.c_int32), ("integer", ctypes.c_int64), ("number", ctypes.c_double),
                ("text", ctypes.c_char_p), ("list", ctypes.POINTER(ctypes.c_int64)),
                ("count", ctypes.c_uint64))  # fmt: skip


class _Platform(ctypes.Structure):
    _fields_ = (("cube_cores", ctypes.c_uint32), ("vector_cores", ctypes.c_uint32), ("ub_bytes", ctypes.c_uint64),
                ("l2_bytes", ctypes.c_uint64), ("lib_api_workspace_bytes", ctypes.c_uint32))  # fmt: skip


class _Tiling(ctypes.Structure):
    _fields_ = (("data", ctypes.c_uint8 * _TILING_CAPACITY), ("data_bytes", ctypes.c_uint64),
                ("key", ctypes.c_uint64), ("workspace_bytes", ctypes.c_uint64), ("block_dim", ctypes.c_uint32),
                ("schedule_mode", ctypes.c_uint32))  # fmt: skip


@dataclass(frozen=True)
class Operator:
    """The host side of one custom operator: the sources of its definition, shape inference and tiling.

    Attributes:
        sources: the folder whose C++ files are compiled; one of them registers the operator with OP_ADD.
        include_dirs: further folders that the sources take headers from, such as that of the kernel.
    """

    sources: Path
    include_dirs: tuple[Path, ...] = ()

    def library(self) -> Path:
        """Build the shared library with the C functions of host.h, for callers in C and C++.

        Raises:
            CompileError: the compiler refuses a source.
            FileNotFoundError: there are no C++ files in `sources`.
        """
        own = sorted(self.sources.glob("*.cpp"))
        if not own:
            raise FileNotFoundError(f"sources: expected a folder with C++ files of an operator, got {self.sources}")
        folders = [_HERE / "include", _HERE, *self.include_dirs]
        return build_library("operator", [*sorted(_HERE.glob("*.cpp")), *own], folders)

    def describe(self) -> dict[str, Any]:
        """Describe the operator definition as the sources register it.

        Returns:
            "type", "inputs", "attributes", "outputs" and "socs". Inputs and outputs have "name", "option"
            ("required" or "optional"), "types" and "formats" (a column per combination), "contiguous" ("auto",
            "ignore" or "unset") and "value_depend"; attributes have "name", "option", "type" and "default".
        """
        return json.loads(_description_text(self))  # type: ignore[no-any-return]

    def aclnn_signature(self) -> dict[str, Any]:
        """Describe the two C functions that CANN generates for the operator.

        Returns:
            "header", "get_workspace_size" and "run"; a function has "name", "returns" and "parameters", each with
            "name", C "type", "role" ("input", "attribute", "output", "result" or "launch") and the "definition" name.
        """
        return signature_of(self.describe())

    def infer_shape(self, inputs: Mapping[str, TensorSpec | None], attrs: Mapping[str, Any]) -> dict[str, TensorSpec]:
        """Infer shapes and dtypes of all outputs by name; what a call does not ask for has shape (0,).

        Args:
            inputs: by name; None or left out is an absent optional input.
            attrs: by name; left out means the definition's default.

        Raises:
            OperatorError: the operator refuses the call, or a required argument is missing.
            ValueError: a name that the definition does not have, or a value of the wrong type.
        """
        known = self.describe()
        outputs = (_Tensor * len(known["outputs"]))()
        given = _tensors(known["inputs"], inputs), _attributes(known, attrs)
        self._check(_loaded(self).CannInferOutputs(*given, outputs))
        return {
            item["name"]: TensorSpec(tuple(output.dims[: output.rank]), _NAMES[output.type])
            for item, output in zip(known["outputs"], outputs, strict=True)
        }

    def run_tiling(
        self,
        inputs: Mapping[str, TensorSpec | None],
        attrs: Mapping[str, Any],
        platform: Platform = Platform(),
        outputs: Mapping[str, TensorSpec] | None = None,
    ) -> TilingResult:
        """Run the operator's tiling function.

        Args:
            inputs, attrs: as for `infer_shape`.
            platform: the SoC.
            outputs: by name; those left out are as `infer_shape` gives them.

        Raises:
            OperatorError: the operator refuses the call; the text is its own message.
            ValueError: a name that the definition does not have, or a value of the wrong type.
        """
        known = self.describe()
        given = self.infer_shape(inputs, attrs) | dict(outputs or {})
        soc = _Platform(
            platform.cube_cores, platform.vector_cores, platform.ub_bytes, platform.l2_bytes, platform.system_workspace
        )
        result = _Tiling()
        self._check(_loaded(self).CannRunTiling(
            _tensors(known["inputs"], inputs), _attributes(known, attrs), _tensors(known["outputs"], given),
            ctypes.byref(soc), ctypes.byref(result),
        ))  # fmt: skip
        return TilingResult(
            bytes(result.data[: result.data_bytes]), result.key, result.block_dim, result.workspace_bytes,
            result.schedule_mode,
        )  # fmt: skip

    def _check(self, status: int) -> None:
        if status != 0:
            message: bytes = _loaded(self).CannErrorMessage()
            raise OperatorError(message.decode())


@cache
def _loaded(operator: Operator) -> ctypes.CDLL:
    library = ctypes.CDLL(str(operator.library()))
    library.CannDescribeOperator.restype = ctypes.c_char_p
    library.CannErrorMessage.restype = ctypes.c_char_p
    return library


@cache
def _description_text(operator: Operator) -> str:
    text: bytes = _loaded(operator).CannDescribeOperator()
    return text.decode()


def _refuse_unknown(kind: str, given: Mapping[str, Any], known: Sequence[Mapping[str, Any]]) -> None:
    names = [item["name"] for item in known]
    for name in given:
        if name not in names:
            raise ValueError(f"{name}: expected an {kind} of the operator ({', '.join(names)}), got an unknown name")


def _tensors(known: Sequence[Mapping[str, Any]], given: Mapping[str, TensorSpec | None]) -> ctypes.Array[_Tensor]:
    _refuse_unknown("input or output", given, known)
    tensors = (_Tensor * len(known))()
    for item, tensor in zip(known, tensors, strict=True):
        spec = given.get(item["name"])
        if spec is None:
            continue
        if len(spec.shape) > _MAX_RANK or spec.dtype not in DTYPES:
            dtypes = ", ".join(DTYPES)
            raise ValueError(f"{item['name']}: expected at most {_MAX_RANK} dimensions and one of {dtypes}, got {spec}")
        tensor.present, tensor.type, tensor.rank = 1, DTYPES[spec.dtype], len(spec.shape)
        tensor.dims[: tensor.rank] = list(spec.shape)
    return tensors


def _attributes(operator: Mapping[str, Any], given: Mapping[str, Any]) -> ctypes.Array[_Attribute]:
    known = operator["attributes"]
    _refuse_unknown("attribute", given, known)
    attributes = (_Attribute * len(known))()
    for item, attribute in zip(known, attributes, strict=True):
        if item["name"] in given:
            attribute.given = 1
            _set_value(item, attribute, given[item["name"]])
    return attributes


def _set_value(item: Mapping[str, Any], attribute: _Attribute, value: Any) -> None:
    kind = item["type"]
    if kind == "string" and isinstance(value, str):
        attribute.text = value.encode()
    elif kind == "float" and isinstance(value, (int, float)):
        attribute.number = value
    elif kind in ("int", "bool") and isinstance(value, int):
        attribute.integer = value
    elif kind == "list_int" and isinstance(value, (list, tuple)):
        attribute.list = (ctypes.c_int64 * len(value))(*value)
        attribute.count = len(value)
    else:
        raise ValueError(f"{item['name']}: expected a value of type {kind}, got {value!r}")
