"""What the adapter and the op package have to agree on with this version of toptheta_npu.

A C function that is called with other arguments than it was built for does not fail, it crashes. So the header
that the op package was built with, and a fingerprint that the adapter was built with, are compared before loading.
"""

from __future__ import annotations

import hashlib
import re
from itertools import zip_longest

RUN = "aclnnTopThetaIncrementalAttention"
PLAN = "aclnnTopThetaIncrementalAttentionGetWorkspaceSize"
_TENSOR = "const aclTensor *"
_ARRAY = "const aclIntArray *"
_TEXT = "char *"
#: C types and names of the parameters of `PLAN`, in order; a name may end in "Optional" or "Out" in the header.
PARAMETERS = (
    *((_TENSOR, name) for name in (
        "query", "key", "value", "threshold", "actualSeqLengths", "keyStart", "blockTable", "discardedMass",
        "valueMean", "rowLse",
    )),
    ("int64_t", "numHeads"), ("int64_t", "numKeyValueHeads"), ("double", "scaleValue"), (_TEXT, "inputLayout"),
    (_TEXT, "placement"), (_TEXT, "sdc"), ("double", "sdcGamma"), (_TEXT, "path"), ("int64_t", "blockSize"),
    (_ARRAY, "keyStrides"), (_ARRAY, "valueStrides"), ("bool", "withStats"), ("bool", "partial"),
    *((_TENSOR, name) for name in (
        "attentionOut", "lse", "kept", "valueRows", "partOut", "partMaximum", "partKeptMass", "partDiscardedMass",
    )),
    ("uint64_t *", "workspaceSize"), ("aclOpExecutor **", "executor"),
)  # fmt: skip


def fingerprint(schemas: dict[str, str]) -> str:
    """Of the torch schemas and the parameters of the aclnn function: 16 hexadecimal digits."""
    return hashlib.sha256(repr((sorted(schemas.items()), PARAMETERS)).encode()).hexdigest()[:16]


def header_parameters(header: str) -> list[tuple[str, str]] | None:
    """C types and names of the parameters of `PLAN` in the text of a header; None if it is not declared there."""
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
    """The first difference between a header and what the adapter calls, in words; None if there is none."""
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
