"""The wheel and the source distribution hold what the repository shows, the fallback behind its link included."""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.pages import ROOT, links

NEEDED = {
    "toptheta_npu/py.typed",
    "toptheta_npu/operator.py",
    "toptheta_npu/fallback/reference.py",
    "toptheta_npu/fallback/incremental.py",
    "toptheta_npu/assets/tiny_llama/config.json",
    "toptheta_npu/assets/tiny_llama/model.safetensors",
    "toptheta_npu/assets/tiny_llama/tokenizer.json",
    "toptheta_npu/assets/tiny_llama/thresholds_pre_softmax.safetensors",
    "toptheta_npu/assets/tiny_llama/thresholds_post_softmax.safetensors",
}


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    # a copy: builds leave files beside the sources, and two of them at once would meet
    tree = folder / "tree"
    ignored = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__")
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
