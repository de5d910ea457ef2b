"""Finding the op package, choosing a backend, and telling what is missing, on a machine without an NPU."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import toptheta_npu
from emulator.cann import aclnn_signature
from tests.cases import valid_arguments
from toptheta_npu import TopThetaBackendError, TopThetaNotImplementedError, TopThetaTypeError, TopThetaValueError
from toptheta_npu._checks import check_kernel_limits
from toptheta_npu.cli import app
from toptheta_npu.npu import backend, build, environment, info, interface, loading
from toptheta_npu.npu.environment import CUSTOM_PATH, OPP_PATH
from toptheta_npu.operator import SCHEMAS

_SELECTOR = toptheta_npu.operator.SELECTOR


@pytest.fixture(autouse=True)
def no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a choice nor an op package of this machine."""
    for name in (backend.VARIABLE, CUSTOM_PATH, OPP_PATH):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(environment, "prefix_folder", lambda: Path("/nowhere/opp/vendors/toptheta"))
    monkeypatch.setattr(_SELECTOR, "_logged", set())
    _SELECTOR.choose(None)


def header(change: tuple[str, str] = ("", "")) -> str:
    """The header that CANN generates for the operator definition, with one text in it replaced."""
    function = aclnn_signature()["get_workspace_size"]
    parameters = ",\n    ".join(f"{item['type']}{item['name']}" if item["type"].endswith("*")
                                else f"{item['type']} {item['name']}" for item in function["parameters"])  # fmt: skip
    text = f"/* generated */\naclnnStatus {function['name']}(\n    {parameters});\n"
    assert change[0] in text
    return text.replace(*change) if change[0] else text


def make_package(folder: Path, *, header_text: str | None = None, note: dict[str, str] | None = None) -> Path:
    """A folder like an installed op package, with empty libraries."""
    vendor = folder / "vendors" / "toptheta"
    for path, text in (
        ("op_api/lib/libcust_opapi.so", ""),
        ("op_api/include/aclnn_top_theta_incremental_attention.h", header() if header_text is None else header_text),
        ("torch/libtoptheta_npu_adapter.so", ""),
        ("torch/adapter.json", json.dumps(note or {"torch": torch.__version__, "interface": _fingerprint()})),
    ):
        (vendor / path).parent.mkdir(parents=True, exist_ok=True)
        (vendor / path).write_text(text)
    return vendor


def _fingerprint() -> str:
    return interface.fingerprint(SCHEMAS)


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
    ("owner", "user", "allowed"), [(1000, 0, "the user 0"), (1234, 1000, "the user 1000 or of root")]
)
def test_package_of_another_user(
    owner: int, user: int, allowed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _given_to(owner, user, monkeypatch)
    vendor = make_package(tmp_path)
    with pytest.raises(TopThetaBackendError) as caught:
        check_all(vendor)
    library = vendor / "op_api" / "lib" / "libcust_opapi.so"
    assert str(caught.value) == (
        f"op package: expected a library of {allowed}, since torch_npu skips those of others, "
        f"got {library}, which belongs to the user {owner}; give it to the user that runs it: chown {user} {library}"
    )


@pytest.mark.parametrize(
    ("owner", "user", "allowed"), [(1000, 0, "the user 0"), (1234, 1000, "the user 1000 or of root")]
)
def test_adapter_of_another_user(
    owner: int, user: int, allowed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _given_to(owner, user, monkeypatch, only=build.LIBRARY, otherwise=user)
    vendor = make_package(tmp_path)
    with pytest.raises(TopThetaBackendError) as caught:
        check_all(vendor)
    library = vendor / "torch" / build.LIBRARY
    assert str(caught.value) == (
        f"adapter: expected a library of {allowed}, since it is loaded into the process, "
        f"got {library}, which belongs to the user {owner}; give it to the user that runs it: chown {user} {library}"
    )
    monkeypatch.setenv(CUSTOM_PATH, str(vendor))
    (adapter,) = [found for found in toptheta_npu.backend_info().findings if found.name == "adapter"]
    assert adapter.remedy == f"give it to the user that runs it: chown {user} {library}"


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
_KEY_START = ("const aclTensor *key,", "const aclTensor *keyStart,")
_SWAPPED = ("const aclTensor *keyStartOptional", "const aclTensor *blockTableOptional")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no declaration of aclnnTopThetaIncrementalAttentionGetWorkspaceSize"),
        (header((_REMOVED, "")), "parameter 22 of aclnnTopThetaIncrementalAttentionGetWorkspaceSize: "
         "expected bool withStats, got bool partial"),
        (header(("bool withStats", "int64_t withStats")), "expected bool withStats, got int64_t withStats"),
        (header(_KEY_START), "expected const aclTensor * key, got const aclTensor * keyStart"),
        (header(_SWAPPED), "expected const aclTensor * keyStart, got const aclTensor * blockTableOptional"),
        (header(("aclOpExecutor **executor", "aclOpExecutor **executor, int64_t extra")),
         "parameter 34 of aclnnTopThetaIncrementalAttentionGetWorkspaceSize: expected no more parameters, "
         "got int64_t extra"),
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
    generated = [(item["type"], item["name"]) for item in aclnn_signature()["get_workspace_size"]["parameters"]]
    assert interface.header_parameters(header()) == generated
    assert interface.difference(header()) is None
    names = [aclnn_signature()[kind]["name"] for kind in ("get_workspace_size", "run")]
    assert names == [interface.PLAN, interface.RUN]


def test_adapter_passes_the_parameters_in_their_order() -> None:
    """The types of the function pointer in the C++ source, which no compiler compares with the header."""
    declared = build.SOURCE.read_text().split("using Plan = int(")[1].split(");")[0]
    passed = [" ".join(item.split()[:-1]) for item in declared.split(",")]
    spelt = {"Tensor": "const aclTensor *", "const aclIntArray*": "const aclIntArray *", "char*": "char *",
             "uint64_t*": "uint64_t *", "aclOpExecutor**": "aclOpExecutor **"}  # fmt: skip
    assert [spelt.get(kind, kind) for kind in passed] == [kind for kind, _ in interface.PARAMETERS]


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
    assert interface.fingerprint(changed) != _fingerprint()


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


# Choosing.


def test_npu_is_what_holds_without_a_choice() -> None:
    assert _SELECTOR.backend == "npu"


@pytest.mark.parametrize("name", backend.BACKENDS)
def test_environment_variable_chooses(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(backend.VARIABLE, name)
    assert _SELECTOR.backend == name
    with toptheta_npu.use_backend("npu"):
        assert _SELECTOR.backend == "npu"
    assert _SELECTOR.backend == name


def test_wrong_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(backend.VARIABLE, "cuda")
    with pytest.raises(TopThetaValueError) as caught:
        _ = _SELECTOR.backend
    assert str(caught.value) == "TOPTHETA_BACKEND: expected one of npu, auto, fallback, got 'cuda'"
    last = toptheta_npu.backend_info().findings[-1]
    assert (last.name, last.problem, last.remedy) == ("backend", str(caught.value), "unset TOPTHETA_BACKEND")


def test_wrong_choice_changes_nothing() -> None:
    with pytest.raises(TopThetaValueError, match=r"^backend: expected one of npu, auto, fallback, got 'cpu'$"):
        toptheta_npu.use_backend("cpu")
    assert _SELECTOR.backend == "npu"


def test_choice_is_undone_at_the_end_of_with_and_stays_without() -> None:
    with toptheta_npu.use_backend("auto"):
        with toptheta_npu.use_backend("fallback"):
            assert _SELECTOR.backend == "fallback"
        with pytest.raises(RuntimeError, match="inside"), toptheta_npu.use_backend("fallback"):
            raise RuntimeError("inside")
        assert _SELECTOR.backend == "auto"
    assert _SELECTOR.backend == "npu"
    toptheta_npu.use_backend("fallback")
    assert _SELECTOR.backend == "fallback"


def test_cpu_tensors_do_not_care() -> None:
    arguments = valid_arguments("decode")
    expected = toptheta_npu.incremental_attention(**arguments)
    for name in backend.BACKENDS:
        with toptheta_npu.use_backend(name):
            assert torch.equal(toptheta_npu.incremental_attention(**arguments), expected)


# What a call does; the fallback on the CPU stands for the fallback on an NPU.


def _run(**changes: Any) -> Any:
    arguments = valid_arguments("decode") | {"num_heads": 4, "num_key_value_heads": 2, "scale_value": 0.25}
    return _SELECTOR.run("incremental_attention", **arguments | changes)


def test_nothing_to_run_raises_under_npu() -> None:
    for _ in range(2):
        with pytest.raises(TopThetaBackendError, match=r"^op package: expected an entry of ASCEND_CUSTOM_OPP_PATH"):
            _run()


def test_fallback_runs_and_looks_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "load", None)
    expected = toptheta_npu.incremental_attention(**valid_arguments("decode"), scale_value=0.25)
    with toptheta_npu.use_backend("fallback"):
        assert torch.equal(_run(), expected)


def test_auto_runs_the_fallback_and_says_once_why(caplog: pytest.LogCaptureFixture) -> None:
    expected = toptheta_npu.incremental_attention(**valid_arguments("decode"), scale_value=0.25)
    with caplog.at_level(logging.WARNING, "toptheta_npu"), toptheta_npu.use_backend("auto"):
        assert all(torch.equal(_run(), expected) for _ in range(3))
        with toptheta_npu.use_backend("fallback"):
            _run()
        _run()  # looks again, and has nothing new to say
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith(
        "toptheta_npu runs its PyTorch fallback on the NPU: op package: expected an entry of ASCEND_CUSTOM_OPP_PATH"
    )


@pytest.mark.parametrize("name", list(SCHEMAS))
def test_other_devices_are_refused_by_the_operator_itself(name: str) -> None:
    """Called past the public function: a backend's own fallback must not copy the cache to the CPU."""
    key = f"toptheta_npu::{name}"
    assert torch._C._dispatch_has_kernel_for_dispatch_key(key, "CompositeExplicitAutograd")
    with pytest.raises(TopThetaNotImplementedError, match="tensor on cpu or cuda or npu, got meta"):
        toptheta_npu.operator._on_other_devices(name)(torch.ones(1, device="meta"))


_LIMITS = {
    "dtype": ({}, TopThetaTypeError, "query: expected dtype float16 or bfloat16, got float32; "
              "convert it with query.to(torch.float16)"),
    "head-dim": ({"head_dim": 40}, TopThetaNotImplementedError, "query: expected head_dim a multiple of 16 on an NPU, "
                 "got 40; pad query, key and value with zeros and keep scale_value"),
    "block-size": ({"block_size": 8}, TopThetaNotImplementedError, "block_size: expected a multiple of 16 up to 512 on "
                   "an NPU, got 8; use a cache with block_size=128, for example"),
    "large-block": ({"block_size": 528}, TopThetaNotImplementedError, "block_size: expected a multiple of 16 up to 512 "
                    "on an NPU, got 528; use a cache with block_size=128, for example"),
    "last-stride": ({"key": torch.ones(2, 2, 16, 8).half().mT}, TopThetaValueError,
                    "key: expected a last stride of 1, got [256, 128, 1, 8]; pass key.contiguous()"),
    "stride": ({"value": torch.ones(2, 2, 8, 40).half()[..., :16]}, TopThetaValueError,
               "value: expected strides that are multiples of 16 elements, got [640, 320, 40, 1]; "
               "pass value.contiguous()"),
}  # fmt: skip


@pytest.mark.parametrize("case", _LIMITS)
def test_kernel_limits(case: str) -> None:
    change, error, message = _LIMITS[case]
    query, cache = torch.ones(2, 4, 1, 16).half(), torch.ones(2, 2, 8, 16).half()
    if case == "dtype":
        query = query.float()
    arguments: dict[str, Any] = {"query": query, "key": cache, "value": cache, "head_dim": 16, "block_size": 0}
    with pytest.raises(error) as caught:
        check_kernel_limits(**arguments | change)
    assert str(caught.value) == message


def test_a_stride_that_is_never_taken_may_be_anything() -> None:
    cache = torch.ones(1, 8, 1, 24).half()[..., :16]
    check_kernel_limits(torch.ones(1, 1, 1, 16).half(), cache[:, :1], cache[:, :1], 16, 0)


# Telling.


def test_backend_info_with_nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "")
    monkeypatch.delenv("ASCEND_HOME_PATH", raising=False)
    found = toptheta_npu.backend_info()
    by_name = {finding.name: finding for finding in found.findings}
    missing = [name for name, finding in by_name.items() if not finding.good]
    assert missing == ["torch_npu", "CANN", "op package", "adapter"]
    assert (found.usable, found.backend, found.loaded) == (False, "npu", None)
    assert by_name["op package"].remedy == "build and install it with: op_host/build.sh --install-path=DIR"
    assert json.loads(found.to_json())["findings"][5]["name"] == "op package"
    assert "torch_npu" not in sys.modules


def test_backend_info_with_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vendor = make_package(tmp_path)
    monkeypatch.setenv(CUSTOM_PATH, str(vendor))
    by_name = {finding.name: finding for finding in toptheta_npu.backend_info().findings}
    assert by_name["op package"].found == f"{vendor}, from {CUSTOM_PATH}, of the user {os.getuid()}"
    library = vendor / "torch" / "libtoptheta_npu_adapter.so"
    assert by_name["adapter"].found == f"{library}, for torch {torch.__version__}"
    monkeypatch.setattr(environment, "PREPARED", environment.Prepared(vendor, too_late=True))
    late = {finding.name: finding for finding in toptheta_npu.backend_info().findings}["op package"]
    assert late.remedy == (
        f"import toptheta_npu before torch, or: export {CUSTOM_PATH}={vendor}${{{CUSTOM_PATH}:+:${CUSTOM_PATH}}}"
    )


def test_the_version_of_cann_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x86_64-linux").mkdir()
    (tmp_path / "libascendcl.so").touch()
    (tmp_path / "x86_64-linux" / "ascend_toolkit_install.info").write_text("package_name=toolkit\nversion=8.1.RC1\n")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path))
    (cann,) = [item for item in toptheta_npu.backend_info().findings if item.name == "CANN"]
    assert (cann.found, cann.problem) == (f"{tmp_path}, version 8.1.RC1", None)


def test_a_device_that_answers_shows_that_there_is_cann(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "")
    monkeypatch.setattr(info, "_torch_npu", lambda: info.Finding("torch_npu", "2.13.0"))
    monkeypatch.setattr(info, "_devices", lambda: info.Finding("devices", "1 x Ascend910B1"))
    by_name = {finding.name: finding for finding in toptheta_npu.backend_info(probe=True).findings}
    assert by_name["CANN"] == info.Finding("CANN", "where torch_npu finds it")


def test_doctor_says_what_is_missing_and_what_to_type() -> None:
    done = CliRunner().invoke(app, ["doctor", "--no-probe"])
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert lines[0] == "What works here"
    assert any(line.startswith("missing op package") for line in lines)
    assert "        to do: build and install it with: op_host/build.sh --install-path=DIR" in lines
    assert lines[-1] == "NPU tensors raise an error here. CPU and CUDA tensors run the PyTorch fallback as ever."


def test_doctor_under_the_fallback() -> None:
    with toptheta_npu.use_backend("fallback"):
        done = CliRunner().invoke(app, ["doctor", "--no-probe"])
    assert done.stdout.splitlines()[-1] == (
        "The backend is 'fallback': NPU tensors run the PyTorch fallback on the NPU."
    )


def test_doctor_as_json() -> None:
    done = CliRunner().invoke(app, ["doctor", "--no-probe", "--json"])
    report = json.loads(done.stdout)
    assert (report["usable"], report["backend"]) == (False, "npu")
    assert {finding["name"] for finding in report["findings"]} >= {"torch", "torch_npu", "CANN", "op package"}


def test_probe_of_a_torch_npu_that_dies_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch_npu.py").write_text("import os\nos.abort()\n")
    (tmp_path / "torch_npu-2.13.0.dist-info").mkdir()
    release = ".".join(torch.__version__.split(".")[:2])
    metadata = f"Metadata-Version: 2.1\nName: torch_npu\nVersion: {release}.0\n"
    (tmp_path / "torch_npu-2.13.0.dist-info" / "METADATA").write_text(metadata)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    monkeypatch.syspath_prepend(tmp_path)
    (devices,) = [item for item in toptheta_npu.backend_info(probe=True).findings if item.name == "devices"]
    assert devices.problem is not None
    assert devices.problem.startswith("torch_npu does not start: ")
    assert "torch_npu" not in sys.modules
