#!/usr/bin/env bash
# Builds the operator package and, if asked, installs it. See docs/ascend.md.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
vendor=toptheta
socs=ascend910b,ascend910_93
build_dir=$here/../build/op_package
install_path=
jobs=$(nproc)

usage() {
    cat <<END
usage: op_host/build.sh [--soc=NAMES] [--install-path=DIR] [--build-dir=DIR] [--jobs=N]

Builds the operator TopThetaIncrementalAttention with an installed CANN toolkit into custom_opp_<os>_<arch>.run.

  --soc=NAMES         compute units, separated by commas (default $socs)
  --install-path=DIR  also install the package into DIR/vendors/$vendor; needs no root
  --build-dir=DIR     where to build (default build/op_package)
  --jobs=N            parallel jobs (default: all cores, $jobs)
  --help              this text

First run the toolkit's set_env.sh, which sets ASCEND_HOME_PATH. After installing, the adapter for PyTorch is built
into DIR/vendors/$vendor/torch for the Python that has torch, torch_npu and the packages of toptheta_npu: that of the
environment variable PYTHON, or python3.
END
}

fail() {
    echo "build.sh: $1" >&2
    exit 1
}

run() {
    echo "+ $*"
    "$@"
}

for argument in "$@"; do
    case $argument in
        --soc=?*) socs=${argument#*=} ;;
        --install-path=?*) install_path=${argument#*=} ;;
        --build-dir=?*) build_dir=${argument#*=} ;;
        --jobs=?*) jobs=${argument#*=} ;;
        --help) usage; exit 0 ;;
        *) usage >&2; fail "$argument: expected one of the options above" ;;
    esac
done

check_toolkit() {
    local home=${ASCEND_HOME_PATH:-}
    if [ -z "$home" ]; then
        fail "ASCEND_HOME_PATH: expected the folder of an installed CANN toolkit, got nothing; run
    source /usr/local/Ascend/ascend-toolkit/set_env.sh    (CANN 8)
    source /usr/local/Ascend/cann/set_env.sh              (CANN 9)
or the set_env.sh of the place where CANN is installed"
    fi
    if [ ! -d "$home" ]; then
        fail "ASCEND_HOME_PATH: expected the folder of an installed CANN toolkit, got $home, which does not exist"
    fi
    local functions=$home/compiler/tikcpp/ascendc_kernel_cmake/fwk_modules/func.cmake
    if [ ! -f "$functions" ]; then
        fail "ASCEND_HOME_PATH: expected CANN's CMake functions for operator packages in
    $functions
got no such file; install the full toolkit, not only the runtime, of CANN 8.3.RC1 or newer"
    fi
}

find_program() {
    command -v "$1" >/dev/null || fail "$1: expected an installed program, got none; $2"
}

# Without torch_npu the package serves aclnn callers all the same, so this is no failure.
build_adapter() {
    local python=${PYTHON:-python3}
    export PYTHONPATH=$here/..${PYTHONPATH:+:$PYTHONPATH} TORCH_DEVICE_BACKEND_AUTOLOAD=0
    local wanted='import importlib.util, sys, toptheta_npu; sys.exit(importlib.util.find_spec("torch_npu") is None)'
    if "$python" -c "$wanted" 2>/dev/null; then
        run "$python" -m toptheta_npu.npu.build "$1"
        return
    fi
    echo "The adapter for PyTorch was not built: $python has not both torch_npu and what toptheta_npu needs."
    echo "To build it later, with a Python that has them: python -m toptheta_npu.npu.build $1"
}

check_toolkit
find_program cmake "install cmake 3.16 or newer"
find_program g++ "install g++ 7 or newer"
find_program python3 "install python3 with the packages that CANN's installation guide lists"

mkdir -p "$build_dir"
build_dir=$(cd "$build_dir" && pwd)
echo "Building for $socs with the toolkit in $ASCEND_HOME_PATH"
run cmake -S "$here" -B "$build_dir" -DCMAKE_BUILD_TYPE=Release "-DASCEND_CANN_PACKAGE_PATH=$ASCEND_HOME_PATH" \
    "-DASCEND_COMPUTE_UNIT=${socs//,/;}" "-Dvendor_name=$vendor"
run cmake --build "$build_dir" --target binary package --parallel "$jobs"

shopt -s nullglob
packages=("$build_dir"/custom_opp_*.run)
if [ ${#packages[@]} -ne 1 ]; then
    fail "$build_dir: expected one custom_opp_*.run, got ${#packages[@]}; remove the folder and build again"
fi
package=${packages[0]}
echo "Package: $package"

if [ -z "$install_path" ]; then
    echo "To install it: $0 --install-path=DIR, or $package --install-path=DIR"
    exit 0
fi
mkdir -p "$install_path"
install_path=$(cd "$install_path" && pwd)
installed=$install_path/vendors/$vendor
if [ -f "$installed/scripts/uninstall.sh" ]; then
    run bash "$installed/scripts/uninstall.sh"
fi
run bash "$package" --install-path="$install_path"
if [ ! -f "$installed/bin/set_env.bash" ]; then
    fail "$installed: expected an installed package, got none; see the messages above"
fi
build_adapter "$installed"
echo "Installed. In every shell that uses the operator:"
echo "    source $installed/bin/set_env.bash"
