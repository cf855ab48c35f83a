#!/usr/bin/env bash
# Usage: scripts/valgrind.sh [TEST...]
#
# Runs tests under valgrind's memcheck, once with the scalar kernels and once with AVX2's, which are the widest that
# valgrind knows, on few of their cases: the two at the same time, for valgrind runs one thread at a time. The programs are
# those of the release preset.
#
#   TEST...   test_NAME of build/release/tests; features, paged and append when left out
#   --help    this text
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

tests=()
while (($#)); do
    case $1 in
    --help | -h) usage && exit ;;
    -*) fail "unknown argument $1; see --help" ;;
    *) tests+=("$1") ;;
    esac
    shift
done
if ((${#tests[@]} == 0)); then
    tests=(test_features test_paged test_append)
fi

"$root/scripts/setup.sh" --analysers
build release --preset release
export ATTREE_TEST_THIN=${ATTREE_TEST_THIN:-41} OMP_NUM_THREADS=2
# under_memcheck ISA TEST
under_memcheck() {
    ATTREE_ISA=$1 quietly valgrind --quiet --error-exitcode=99 --leak-check=full \
        --show-leak-kinds=definite --errors-for-leak-kinds=definite "$root/build/release/tests/$2"
}

for test in "${tests[@]}"; do
    say "$test ..."
    under_memcheck scalar "$test" &
    under_memcheck avx2 "$test" || fail "$test, avx2"
    wait $! || fail "$test, scalar"
done
say "No errors."
