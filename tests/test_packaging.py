"""The wheel and the source distribution hold what the repository shows, the fallback behind its link included."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.markdown import ROOT, links
from tests.tiers import full

pytestmark = full

_ELSEWHERE = ("tests/npu/", "tests/vllm/", "tests/real_model/", "tests/triton/test_kernels.py")
NEEDED = {
    "toptheta_npu/py.typed",
    "toptheta_npu/ops/decode.py",
    "toptheta_npu/npu/adapter.cpp",
    "toptheta_npu/fallback/reference.py",
    "toptheta_npu/fallback/incremental.py",
    "toptheta_npu/evaluation/tasks/harness/tasks/toptheta_key_value.yaml",
    "toptheta_npu/vllm/signatures/vllm_ascend.json",
    "toptheta_npu/assets/tiny_llama/config.json",
    "toptheta_npu/assets/tiny_llama/model.safetensors",
    "toptheta_npu/assets/tiny_llama/tokenizer.json",
    "toptheta_npu/assets/tiny_llama/thresholds_pre_softmax.theta",
    "toptheta_npu/assets/tiny_llama/thresholds_post_softmax.theta",
}
# whatever is imported or compiled
NEEDED |= {
    str(file.relative_to(ROOT)) for file in (ROOT / "toptheta_npu").rglob("*") if file.suffix in (".py", ".cpp", ".h")
}


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    # a copy: builds leave files beside the sources, and two of them at once would meet
    tree = folder / "tree"
    ignored = shutil.ignore_patterns(
        ".git", ".venv", ".*_cache", ".hypothesis", "build", "dist", "*.egg-info", "__pycache__"
    )
    shutil.copytree(ROOT, tree, symlinks=True, ignore=ignored)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(tree)]
    # build makes the wheel from the source distribution, so this proves both
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return folder


def test_wheel_holds_package_and_assets(distributions: Path) -> None:
    (wheel,) = distributions.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert names >= NEEDED
    assert not [name for name in names if name.startswith(("tests/", "fallback/", "benchmarks/"))]


def test_source_distribution_holds_the_fallback(distributions: Path) -> None:
    (archive,) = distributions.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        names = {name.split("/", 1)[-1] for name in tar.getnames()}
    assert names >= NEEDED
    assert names >= {"op_kernel/top_theta_incremental_attention.cpp", "op_host/build.sh", "emulator/ascendc/run.py"}
    # the README is on package pages too, where what it links to is found in this archive
    linked = {link.partition("#")[0] for link in links(ROOT / "README.md") if ":" not in link}
    assert linked - {""} <= names


@pytest.fixture(scope="module")
def unpacked(distributions: Path) -> Path:
    (archive,) = distributions.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(distributions / "unpacked", filter="data")
    (folder,) = (distributions / "unpacked").iterdir()
    return folder


def test_source_distribution_has_every_file_of_the_tree(distributions: Path, unpacked: Path) -> None:
    tree = distributions / "tree"
    files = {path.relative_to(tree) for path in tree.rglob("*") if path.is_file()}
    missing = [
        path for path in files
        if not (unpacked / path).is_file() and "egg-info" not in str(path) and path.parts[0] != "build"
    ]  # fmt: skip
    assert not missing


def test_source_distribution_has_the_same_fallback_twice(unpacked: Path) -> None:
    for file in (ROOT / "fallback").glob("*.py"):
        for copy in (unpacked / "fallback" / file.name, unpacked / "toptheta_npu" / "fallback" / file.name):
            assert copy.read_bytes() == file.read_bytes()


@pytest.fixture
def without_links(distributions: Path, tmp_path: Path) -> Path:
    """Give the tree as a zip archive, or git with core.symlinks=false, brings it: a text file in place of the link."""
    tree = tmp_path / "tree"
    shutil.copytree(distributions / "tree", tree, symlinks=True)
    link = tree / "toptheta_npu" / "fallback"
    link.unlink()
    link.write_text("../fallback")
    return tree


def install(site: Path, *what: str) -> None:
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-build-isolation", "--target", str(site)]
    result = subprocess.run([*command, *what], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_zip_without_links_installs(without_links: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    install(site, shutil.make_archive(str(tmp_path / "toptheta_npu"), "zip", without_links))
    assert {str(file.relative_to(site)) for file in site.rglob("*") if file.is_file()} >= NEEDED


def test_a_tree_without_links_installs_editable(without_links: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    install(site, "--editable", str(without_links))
    # a Python with the packages of this one, but without what is installed editable there
    script = (
        f"import site, sys; sys.path += {[str(site), *(path for path in sys.path if path.endswith('-packages'))]};"
        f"site.addsitedir({str(site)!r});"
        "import toptheta_npu; from toptheta_npu.fallback import reference; print(reference.__file__)"
    )
    python = Path(sys.base_prefix) / "bin" / "python3"
    result = subprocess.run([python, "-I", "-c", script], capture_output=True, text=True, cwd=tmp_path)
    assert result.stdout.strip() == str(without_links / "fallback" / "reference.py"), result.stderr


def pytest_in(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment)


def test_all_tests_are_found_in_the_unpacked_source_distribution(unpacked: Path) -> None:
    done = pytest_in(unpacked, "--collect-only", "tests")
    assert done.returncode == 0, done.stdout[-3000:]
    files = {line.partition("::")[0] for line in done.stdout.splitlines() if "::" in line}
    # where there is no NPU, no vLLM, no real model or no interpreter of Triton, files of their tests are left out
    expected = {str(file.relative_to(ROOT)) for file in (ROOT / "tests").rglob("test_*.py")}
    assert files >= {file for file in expected if not file.startswith(_ELSEWHERE)}


def test_a_test_runs_in_the_unpacked_source_distribution(unpacked: Path) -> None:
    done = pytest_in(
        unpacked, "tests/fallback/test_reference.py", "tests/test_documentation.py", "-k", "by_hand or links"
    )
    assert done.returncode == 0, done.stdout[-3000:]


def test_the_oldest_versions_that_are_tested_are_those_of_pyproject() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    makefile = (ROOT / "Makefile").read_text()
    oldest = (ROOT / "tests/transformers_oldest.txt").read_text()
    for package, text in (("transformers", oldest), ("tokenizers", oldest), ("torch", makefile)):
        # the first of them is of torch itself or of the extra hf; the extra gguf needs a newer transformers
        floor, *_ = re.findall(rf'"{package}>=([\d.]+)', project)
        assert re.search(rf"{package}=={re.escape(floor)}[.\d]", text), package
    (floor,) = re.findall(r'requires-python = ">=([\d.]+)"', project)
    assert f"OLDEST_PYTHON ?= python{floor}\n" in makefile


def test_lint_formats_every_cpp_file_without_git() -> None:
    makefile = (ROOT / "Makefile").read_text()
    (folders,) = re.findall(r"^CPP_FOLDERS := (.*)$", makefile, re.MULTILINE)
    outside = {"build", "dist", ".venv"}
    files = [file.relative_to(ROOT) for pattern in ("*.cpp", "*.h") for file in ROOT.rglob(pattern)]
    assert {file.parts[0] for file in files} - outside <= set(folders.split())
    assert "git ls-files" not in makefile


def test_import_from_the_wheel_alone(distributions: Path, tmp_path: Path) -> None:
    (wheel,) = distributions.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    script = (
        "import torch, toptheta_npu; from toptheta_npu.assets import TINY_LLAMA, load_tiny_llama_thresholds;"
        "q, k, v = torch.randn(1, 4, 1, 16), torch.randn(1, 2, 9, 16), torch.randn(1, 2, 9, 16);"
        "toptheta_npu.incremental_attention(q, k, v, torch.zeros(4));"
        "load_tiny_llama_thresholds('pre_softmax'); print(toptheta_npu.__file__)"
    )
    environment = {"PYTHONPATH": str(tmp_path / "site"), "PATH": "/usr/bin:/bin"}
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip().startswith(str(tmp_path / "site"))
