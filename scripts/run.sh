#!/usr/bin/env bash
# Usage: scripts/run.sh [ARGUMENT...]
#
# Installs what is missing, builds the release preset and runs the benchmark on a short default set of shapes. Before
# that it checks and times the sample tensors ../shared/data/ocr/*.attncase, when they are present beside the checkout.
#
#   ARGUMENT...   given to attree_bench instead of all that, for example
#                 --shape decode/f32/H32/G8/D128/Q1/K8192/full/T2 or --benchmark_format=json; after -- anything is
#   --help        this text (attree_bench's own: scripts/run.sh -- --help)
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

arguments=()
while (($#)); do
    case $1 in
    --help | -h) usage && exit ;;
    --) arguments+=("${@:2}") && break ;;
    *) arguments+=("$1") ;;
    esac
    shift
done

# Standard output belongs to attree_bench, so that its JSON can be redirected.
{
    "$root/scripts/setup.sh"
    build release --preset release
} >&2

bench=$root/build/release/benchmarks/attree_bench
if ((${#arguments[@]} > 0)); then
    exec "$bench" "${arguments[@]}"
fi
for sample in "$root"/../shared/data/ocr/*.attncase; do
    if [[ -f $sample ]]; then
        "$bench" --case "$sample"
    fi
done
exec "$bench" --short
