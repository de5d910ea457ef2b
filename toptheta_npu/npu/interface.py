"""What the adapter and the op package have to agree on with this version of toptheta_npu.

A C function that is called with other arguments than it was built for does not fail, it crashes. So the header
that the op package was built with, and a fingerprint that the adapter was built with, are compared before loading.
"""

from __future__ import annotations

import hashlib
import re
from itertools import zip_longest

from torch import Tensor

from ..fallback.arguments import TABLE

RUN = "aclnnTopThetaIncrementalAttention"
PLAN = "aclnnTopThetaIncrementalAttentionGetWorkspaceSize"
#: Inputs of the operator definition by the argument that each takes, in the order of the definition.
INPUTS = {
    {"lse": "row_lse"}.get(argument.name, argument.name): argument.name
    for argument in TABLE.values()
    if argument.type in (Tensor, Tensor | None)
}
_KINDS = {int: "Int", float: "Float", str: "Str"}
#: Attributes of the definition and the kind of each, in the order of the definition. The last ones are of the kernel
#: alone: where rows of a cache and their scales lie, and which of the outputs are wanted.
ATTRIBUTES = {
    **{argument.name: _KINDS[argument.type] for argument in TABLE.values() if argument.type in _KINDS},
    "key_strides": "ListInt", "value_strides": "ListInt", "key_scale_strides": "ListInt",
    "value_scale_strides": "ListInt", "with_stats": "Bool", "partial": "Bool",
}  # fmt: skip
OUTPUTS = (
    "attention_out", "lse", "kept", "value_rows", "part_out", "part_maximum", "part_kept_mass", "part_discarded_mass",
)  # fmt: skip
_TENSOR = "const aclTensor *"
_C_TYPES = {"Int": "int64_t", "Float": "double", "Str": "char *", "ListInt": "const aclIntArray *", "Bool": "bool"}


def _in_camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


#: C types and names of the parameters of `PLAN`, in order; a name may end in "Optional" or "Out" in the header.
PARAMETERS = (
    *((_TENSOR, _in_camel_case(name)) for name in INPUTS),
    *((_C_TYPES[kind], _in_camel_case(name)) for name, kind in ATTRIBUTES.items()),
    *((_TENSOR, _in_camel_case(name)) for name in OUTPUTS),
    ("uint64_t *", "workspaceSize"), ("aclOpExecutor **", "executor"),
)  # fmt: skip


def fingerprint(schemas: dict[str, str]) -> str:
    """Compute 16 hexadecimal digits from the torch schemas and the parameters of the aclnn function."""
    return hashlib.sha256(repr((sorted(schemas.items()), PARAMETERS)).encode()).hexdigest()[:16]


def header_parameters(header: str) -> list[tuple[str, str]] | None:
    """Read C types and names of the parameters of `PLAN` from a header's text; None if it is not declared there."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", header, flags=re.DOTALL)
    declared = re.search(rf"\b{PLAN}\s*\(([^)]*)\)", text)
    if declared is None:
        return None
    parameters = []
    for parameter in declared[1].split(","):
        parts = re.fullmatch(r"\s*(.*?)\s*(\w+)\s*", parameter, re.DOTALL)
        kind, name = (parts[1], parts[2]) if parts else (parameter, "")
        parameters.append((re.sub(r"\s*\*", " *", " ".join(kind.split())).replace("* *", "**"), name))
    return parameters


def difference(header: str) -> str | None:
    """Find the first difference between a header and what the adapter calls, in words; None if there is none."""
    found = header_parameters(header)
    if found is None:
        return f"no declaration of {PLAN}"
    for index, (wanted, have) in enumerate(zip_longest(PARAMETERS, found)):
        if wanted is None or have is None or not _same(wanted, have):
            expected = "no more parameters" if wanted is None else f"{wanted[0]} {wanted[1]}"
            got = "none" if have is None else f"{have[0]} {have[1]}"
            return f"parameter {index + 1} of {PLAN}: expected {expected}, got {got}"
    return None


def _same(wanted: tuple[str, str], have: tuple[str, str]) -> bool:
    name = re.sub("(Optional|Out|Ref)$", "", have[1])
    return wanted[0] == have[0] and wanted[1].lower() in (name.lower(), have[1].lower())
