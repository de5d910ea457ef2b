#!/usr/bin/env bash
# The build by the options of Ascend's operator repositories; op_host/build.sh does the work.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
operator=top_theta_incremental_attention
vendor=toptheta

usage() {
    cat <<END
usage: bash build.sh --pkg [--soc=NAME] [--ops=$operator] [--vendor_name=$vendor] [-jN] [--install-path=DIR]
       bash build.sh -u
       bash build.sh --make_clean

  --pkg               build the operator package, custom_opp_<os>_<arch>.run; needs CANN 8.3.RC1 or newer
  --soc=NAME          the SoC, ascend910b (Atlas A2) or ascend910_93 (Atlas A3); both by default
  --ops=NAME          there is one operator
  --vendor_name=NAME  $vendor, the only name by which the PyTorch side looks for the package
  -jN                 parallel jobs
  --install-path=DIR  also install the package into DIR/vendors/$vendor
  -u                  run the unit tests of tiling, shape inference, aclnn interface and kernel over the host model; needs
                      neither CANN nor a device, but the Python environment that \`make\` sets up
  --make_clean        remove what a build has left
  --help, -h          this text

On a machine with CANN, first run its set_env.sh. docs/ascend.md has every step and what each needs.
END
}

fail() {
    echo "build.sh: $1" >&2
    exit 1
}

only() { # argument, given, the one value that is there
    [ "$2" = "$3" ] || fail "$1: expected $3, got $2"
}

action=
options=()
for argument in "$@"; do
    case $argument in
        --pkg | -u | --make_clean)
            [ -z "$action" ] || fail "$argument: excludes $action; leave one of them out"
            action=$argument
            ;;
        --ops=*) only --ops "${argument#*=}" "$operator" ;;
        --vendor_name=*) only --vendor_name "${argument#*=}" "$vendor" ;;
        --soc=?* | --install-path=?*) options+=("$argument") ;;
        -j[1-9]*) options+=("--jobs=${argument#-j}") ;;
        --help | -h) usage; exit 0 ;;
        *) usage >&2; fail "$argument: expected one of the options above" ;;
    esac
done

case $action in
    --pkg) exec bash "$root/op_host/build.sh" ${options[@]+"${options[@]}"} ;;
    --make_clean) exec rm -rf "$root/build/op_package" ;;
    -u)
        [ ${#options[@]} -eq 0 ] || fail "${options[0]}: needs --pkg; leave it out, or use that"
        exec make -C "$root" test-operator
        ;;
    *) usage >&2; fail "expected --pkg, -u or --make_clean, got none of them" ;;
esac
