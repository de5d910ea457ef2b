#!/usr/bin/env bash
# Writes the operator as a folder of the experimental area of an operator repository such as cann/ops-transformer:
# bash op_host/experimental/export.sh experimental/attention
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
operator=top_theta_incremental_attention

if [ $# -ne 1 ] || [ ! -d "$1" ]; then
    echo "export.sh: expected one folder that exists, got ${*:-nothing}; such as experimental/attention" >&2
    exit 1
fi
folder=$1/$operator
if [ -e "$folder" ]; then
    echo "export.sh: $folder: expected nothing there, got a file or folder; remove it first" >&2
    exit 1
fi
mkdir -p "$folder"/{docs,examples,op_host,op_kernel,tests/ut}
cp "$root"/op_kernel/*.h "$root"/op_kernel/*.cpp "$folder/op_kernel"
cp "$root"/op_host/*.h "$root"/op_host/*.cpp "$root/op_host/experimental/CMakeLists.txt" "$folder/op_host"
cp "$root/examples/test_aclnn_$operator.cpp" "$folder/examples"
cp -r "$root"/tests/ut/op_{api,host,kernel} "$folder/tests/ut" # and not the stand-ins for what is there
echo 'add_subdirectory(ut)' >"$folder/tests/CMakeLists.txt"
echo 'add_subdirectory(op_host)' >"$folder/tests/ut/CMakeLists.txt"
cp "$root/LICENSE" "$folder"
for page in README README_en; do # their links hold only there
    cp "$root/op_host/experimental/$page.md.in" "$folder/$page.md"
done
# pages that stay behind are no links there
sed -E 's/\[([^]]*)\]\((\.\.\/)?[a-z0-9-]+\.md(#[^)]*)?\)/\1/g' "$root/docs/aclnnTopThetaIncrementalAttention.md" \
    >"$folder/docs/aclnnTopThetaIncrementalAttention.md"
echo "$folder"
