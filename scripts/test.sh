#!/usr/bin/env bash
# Usage: scripts/test.sh [--preset NAME] [--isa NAME] [--long] [ARGUMENT...]
#
# Installs what is missing, builds a preset and runs its tests.
#
#   --preset NAME   release (default), debug, o1 (less optimised), asan, tsan, or aarch64 (cross-compiled, run by
#                   qemu-user, with fewer cases); built in build/NAME
#   --isa NAME      the kernels that the library chooses: scalar, avx2, avx512 or neon; default: the widest there is
#   --long          also the tests labelled long, of a minute or so
#   ARGUMENT...     given to ctest, for example -R state or --verbose; after -- anything is
#   --help          this text
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

preset=release
tests=(-LE long)
arguments=()
while (($#)); do
    case $1 in
    --preset | --isa)
        (($# > 1)) || fail "$1 needs a name; see --help"
        if [[ $1 == --preset ]]; then preset=$2; else export ATTREE_ISA=$2; fi
        shift
        ;;
    --long) tests=() ;;
    --help | -h) usage && exit ;;
    --) arguments+=("${@:2}") && break ;;
    *) arguments+=("$1") ;;
    esac
    shift
done
case ${ATTREE_ISA:-scalar} in
scalar | avx2 | avx512 | neon) ;;
*) fail "the instruction set is $ATTREE_ISA; it must be scalar, avx2, avx512 or neon" ;;
esac

case $preset in
aarch64) "$root/scripts/setup.sh" --aarch64 ;;
tsan) "$root/scripts/setup.sh" --analysers ;;
*) "$root/scripts/setup.sh" ;;
esac
build "$preset" --preset "$preset"
if [[ $preset == tsan ]]; then
    # What synchronises OpenMP's threads is told to the sanitizer by a library that comes with LLVM's OpenMP; the runtime
    # itself and SLEEF are not instrumented.
    archer=$(realpath "$(clang -print-resource-dir)/../../libarcher.so")
    [[ -f $archer ]] || fail "$archer is missing; it comes with libomp-dev"
    export OMP_TOOL_LIBRARIES=$archer
    export TSAN_OPTIONS="ignore_noninstrumented_modules=1 ${TSAN_OPTIONS:-}"
fi
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
exec ctest --test-dir "$root/build/$preset" --output-on-failure --no-tests=error "${tests[@]}" "${arguments[@]}"
