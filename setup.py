"""Says where the packages are; all else is in pyproject.toml.

`toptheta_npu/fallback` is a link to `fallback`. Zip archives and git with core.symlinks=false leave a text file in its
place, so an installation takes the folder itself.
"""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["toptheta_npu*"], exclude=["toptheta_npu.fallback"]), "toptheta_npu.fallback"],
    package_dir={"toptheta_npu.fallback": "fallback"},
)
