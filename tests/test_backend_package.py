"""Finding the op package and checking that it fits, on a machine without an NPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import toptheta_npu
from tests.op_packages import forget_choices, header, make_package
from toptheta_host_model import OPERATOR
from toptheta_npu import TopThetaBackendError
from toptheta_npu.cli import app
from toptheta_npu.npu import build, environment, interface, loading
from toptheta_npu.npu.adapter_arguments import adapter_header
from toptheta_npu.npu.environment import CUSTOM_PATH, OPP_PATH
from toptheta_npu.ops import SCHEMAS


@pytest.fixture(autouse=True)
def no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_choices(monkeypatch)


# Finding the op package.


def test_no_package_leaves_the_environment_alone() -> None:
    variables: dict[str, str] = {}
    assert environment.prepare(variables) == environment.Prepared(None, too_late=False)
    assert variables == {}


@pytest.mark.parametrize("others", ["", "/opt/vendors/other:/opt/vendors/third"])
def test_package_of_the_prefix_is_put_in_front(others: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vendor = make_package(tmp_path)
    monkeypatch.setattr(environment, "prefix_folder", lambda: vendor)
    variables = {CUSTOM_PATH: others} if others else {}
    assert environment.prepare(variables).added == vendor
    assert variables[CUSTOM_PATH] == (f"{vendor}:{others}" if others else str(vendor))


def test_package_below_ascend_opp_path_is_put_in_front(tmp_path: Path) -> None:
    variables = {OPP_PATH: str(tmp_path)}
    vendor = make_package(tmp_path)
    assert environment.prepare(variables).added == vendor
    assert variables[CUSTOM_PATH] == str(vendor)


def test_a_place_that_cannot_be_looked_into_is_no_error(tmp_path: Path) -> None:
    """Such as $ASCEND_OPP_PATH below the home of root. A name that is too long stands for it: root may look."""
    assert environment.prepare({OPP_PATH: f"{tmp_path}/{'x' * 300}"}).added is None


def test_named_package_comes_first_and_changes_nothing(tmp_path: Path) -> None:
    named, other = make_package(tmp_path / "a"), make_package(tmp_path / "b")
    variables = {CUSTOM_PATH: f"/opt/vendors/other:{named}", OPP_PATH: str(other.parents[1])}
    before = dict(variables)
    assert environment.prepare(variables).added is None
    assert variables == before
    package = environment.find_package(variables)
    assert package is not None
    assert (package.folder, package.found_by) == (named, CUSTOM_PATH)


def test_torch_npu_imported_before_is_too_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch_npu", types.ModuleType("torch_npu"))
    vendor = make_package(tmp_path)
    assert environment.prepare({OPP_PATH: str(tmp_path)}) == environment.Prepared(vendor, too_late=True)


def test_environment_is_set_before_torch_is_imported(tmp_path: Path) -> None:
    """torch may import torch_npu by itself, which reads the variable at once."""
    vendor = make_package(tmp_path)
    script = (
        "import os, sys\n"
        "class Watch:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == 'torch': print(os.environ.get('{CUSTOM_PATH}'))\n"
        "sys.meta_path.insert(0, Watch())\n"
        "import toptheta_npu\n"
        "assert 'torch_npu' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True,
                          env=os.environ | {OPP_PATH: str(tmp_path)})  # fmt: skip
    assert done.stdout.split() == [str(vendor)]


# What an op package and an adapter have to be.


def check_all(folder: Path | None) -> None:
    package = None if folder is None else environment.Package(folder, CUSTOM_PATH)
    loading.check_adapter(loading.check_package(package), SCHEMAS)


def test_complete_package_passes(tmp_path: Path) -> None:
    check_all(make_package(tmp_path))


def test_no_package() -> None:
    with pytest.raises(TopThetaBackendError) as caught:
        check_all(None)
    assert str(caught.value) == (
        f"op package: expected {environment.searched_places()}, got no such folder; "
        "build and install it with: op_host/build.sh --install-path=DIR"
    )


@pytest.mark.parametrize(
    ("missing", "what", "remedy"),
    [
        ("op_api/lib/libcust_opapi.so", "op package", "op_host/build.sh"),
        ("op_api/include/aclnn_top_theta_incremental_attention.h", "op package", "op_host/build.sh"),
        ("torch/libtoptheta_npu_adapter.so", "adapter", "python -m toptheta_npu.npu.build {vendor}"),
        ("torch/adapter.json", "adapter", "python -m toptheta_npu.npu.build {vendor}"),
    ],
)
def test_missing_file(missing: str, what: str, remedy: str, tmp_path: Path) -> None:
    vendor = make_package(tmp_path)
    (vendor / missing).unlink()
    with pytest.raises(TopThetaBackendError) as caught:
        check_all(vendor)
    message = str(caught.value)
    assert message.startswith(f"{what}: expected ")
    assert str(vendor / missing) in message
    assert remedy.format(vendor=vendor) in message


@pytest.mark.parametrize("damage", [lambda whole: whole[:-9], lambda whole: bytes(9) + whole[9:], lambda whole: b""])
def test_a_damaged_adapter_is_not_loaded(damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    vendor = make_package(tmp_path)
    adapter = vendor / "torch" / build.LIBRARY
    adapter.write_bytes(damage(adapter.read_bytes()))
    with pytest.raises(TopThetaBackendError) as caught:
        check_all(vendor)
    assert str(caught.value) == (
        f"adapter: expected a library as it was built, got {adapter}, which is damaged or has no checksum; "
        f"build it again with: python -m toptheta_npu.npu.build {vendor}"
    )


def _given_to(
    owner: int, user: int, monkeypatch: pytest.MonkeyPatch, only: str = "", otherwise: int | None = None
) -> None:
    """The libraries whose path ends in ``only`` belong to ``owner``, the other ones to ``otherwise``."""
    monkeypatch.setattr(loading, "_owner", lambda path: owner if str(path).endswith(only) else otherwise)
    monkeypatch.setattr(os, "getuid", lambda: user)


@pytest.mark.parametrize(("owner", "user"), [(0, 0), (0, 1000), (1000, 1000)])
def test_package_of_the_user_or_of_root(owner: int, user: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _given_to(owner, user, monkeypatch)
    check_all(make_package(tmp_path))


@pytest.mark.parametrize(
    ("file", "what", "reason"),
    [
        ("op_api/lib/libcust_opapi.so", "op package", "since torch_npu skips those of others"),
        (f"torch/{build.LIBRARY}", "adapter", "since it is loaded into the process"),
    ],
)
@pytest.mark.parametrize(
    ("owner", "user", "allowed"), [(1000, 0, "the user 0"), (1234, 1000, "the user 1000 or of root")]
)
def test_library_of_another_user(
    owner: int, user: int, allowed: str, file: str, what: str, reason: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    _given_to(owner, user, monkeypatch, only=file, otherwise=user)
    vendor = make_package(tmp_path)
    remedy = f"give it to the user that runs it: chown {user} {vendor / file}"
    with pytest.raises(TopThetaBackendError) as caught:
        check_all(vendor)
    assert str(caught.value) == (
        f"{what}: expected a library of {allowed}, {reason}, got {vendor / file}, which belongs to the user {owner}; "
        f"{remedy}"
    )
    monkeypatch.setenv(CUSTOM_PATH, str(vendor))
    assert [found.remedy for found in toptheta_npu.backend_info().findings if found.name == what] == [remedy]


def test_relative_entry_of_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would name another folder after a change of directory."""
    vendor = make_package(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(CUSTOM_PATH, "vendors/toptheta:/opt/vendors/other")
    remedy = f"export {CUSTOM_PATH}={vendor}${{{CUSTOM_PATH}:+:${CUSTOM_PATH}}}"
    with pytest.raises(TopThetaBackendError) as caught:
        loading.load(SCHEMAS)
    assert str(caught.value) == f"{CUSTOM_PATH}: expected absolute paths, got vendors/toptheta; {remedy}"
    (package,) = [found for found in toptheta_npu.backend_info().findings if found.name == "op package"]
    assert package.remedy == remedy
    assert any(
        f"to do: {remedy}" in line for line in CliRunner().invoke(app, ["doctor", "--no-probe"]).stdout.splitlines()
    )
    monkeypatch.setenv(CUSTOM_PATH, f"{vendor}:vendors/toptheta")
    loading.check_package(environment.find_package())


_REMOVED = "bool withStats,\n    "
_PLACE = 1 + interface.PARAMETERS.index(("bool", "withStats"))
_KEY_START = ("const aclTensor *key,", "const aclTensor *keyStart,")
_SWAPPED = ("const aclTensor *keyStartOptional", "const aclTensor *blockTableOptional")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no declaration of aclnnTopThetaIncrementalAttentionGetWorkspaceSize"),
        (header((_REMOVED, "")), f"parameter {_PLACE} of aclnnTopThetaIncrementalAttentionGetWorkspaceSize: "
         "expected bool withStats, got bool partial"),
        (header(("bool withStats", "int64_t withStats")), "expected bool withStats, got int64_t withStats"),
        (header(_KEY_START), "expected const aclTensor * key, got const aclTensor * keyStart"),
        (header(_SWAPPED), "expected const aclTensor * keyStart, got const aclTensor * blockTableOptional"),
        (header(("aclOpExecutor **executor", "aclOpExecutor **executor, int64_t extra")),
         f"parameter {len(interface.PARAMETERS) + 1} of aclnnTopThetaIncrementalAttentionGetWorkspaceSize: "
         "expected no more parameters, got int64_t extra"),
    ],
    ids=["undeclared", "removed", "other-type", "other-name", "swapped", "added"],
)  # fmt: skip
def test_package_with_another_interface(text: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(TopThetaBackendError) as caught:
        check_all(make_package(tmp_path, header_text=text))
    assert reason in str(caught.value)
    assert str(caught.value).endswith("build and install it again with op_host/build.sh of this version")


def test_header_in_another_encoding_is_read(tmp_path: Path) -> None:
    vendor = make_package(tmp_path)
    path = environment.Package(vendor, CUSTOM_PATH).header
    path.write_bytes("// \u7b97\u5b50\n".encode("gbk") + path.read_bytes())
    check_all(vendor)


def test_header_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> str:
        raise PermissionError("not yours")

    vendor = make_package(tmp_path)
    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(TopThetaBackendError, match=r"^op package: expected a readable .*, got not yours; build and"):
        check_all(vendor)


@pytest.mark.parametrize("wide", [False, True])
def test_header_is_read_whatever_its_spaces(wide: bool) -> None:
    text = header().replace(" *", "* ") if wide else header()
    assert interface.difference(text) is None


def test_parameters_are_those_of_the_operator_definition() -> None:
    generated = [
        (item["type"], item["name"]) for item in OPERATOR.aclnn_signature()["get_workspace_size"]["parameters"]
    ]
    assert interface.header_parameters(header()) == generated
    assert interface.difference(header()) is None
    names = [OPERATOR.aclnn_signature()[kind]["name"] for kind in ("get_workspace_size", "run")]
    assert names == [interface.PLAN, interface.RUN]


def test_adapter_passes_the_parameters_in_their_order() -> None:
    """No compiler tells two tensors, or two texts, that have changed places."""
    passed = adapter_header().split("return plan(")[1].split("others")[0]
    names = ["rowLse" if name == "lse" else _camel_case(name) for name in re.findall(r"a\.(\w+)", passed)]
    declared = [
        item["name"].removesuffix("Optional") for item in OPERATOR.aclnn_signature()["get_workspace_size"]["parameters"]
    ]
    assert names == declared[: len(names)]
    # what follows is no argument of an operator
    assert declared[len(names)] == "blockSize"


def _camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


@pytest.mark.parametrize(
    ("note", "reason"),
    [
        ({"torch": "1.2.3", "interface": "x"}, f"expected one for torch {torch.__version__}, got one for torch 1.2.3"),
        ({"torch": torch.__version__, "interface": "x"}, "expected one for this version of toptheta_npu, got one for"),
        ({"torch": torch.__version__}, "expected a note of what it was built for in "),
    ],
    ids=["torch", "interface", "incomplete"],
)
def test_adapter_built_for_something_else(note: dict[str, str], reason: str, tmp_path: Path) -> None:
    vendor = make_package(tmp_path, note=note)
    with pytest.raises(TopThetaBackendError) as caught:
        check_all(vendor)
    assert reason in str(caught.value)
    assert str(caught.value).endswith(f"python -m toptheta_npu.npu.build {vendor}")


def test_fingerprint_changes_with_a_schema() -> None:
    changed = {**SCHEMAS, "incremental_attention": SCHEMAS["incremental_attention"] + " "}
    assert interface.fingerprint(changed) != interface.fingerprint(SCHEMAS)


def test_loading_outside_of_torch_npu_is_an_error_with_its_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CUSTOM_PATH, str(make_package(tmp_path)))
    with pytest.raises(TopThetaBackendError, match=r"^torch_npu: expected it to be imported") as caught:
        loading.load(SCHEMAS)
    assert isinstance(caught.value.__cause__, OSError)
    assert loading.loaded() is None


def test_a_torch_npu_without_the_look_up_function_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CUSTOM_PATH, str(make_package(tmp_path)))
    monkeypatch.setattr(loading.ctypes, "CDLL", lambda name: object())
    with pytest.raises(TopThetaBackendError, match=r"^torch_npu: expected a version with .*; install torch_npu 2\.8 "):
        loading.load(SCHEMAS)
