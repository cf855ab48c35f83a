#!/usr/bin/env bash
# Usage: scripts/fuzz.sh [--seconds N] [TARGET...]
#        scripts/fuzz.sh --minimize TARGET
#
# Builds the fuzz targets of tests/fuzz with clang, AddressSanitizer, UndefinedBehaviorSanitizer and libFuzzer
# (build/fuzz), and runs each, one after the other, from its corpus in tests/fuzz/corpus. Stops at the first fault that
# one finds: the input is left in build/fuzz. Inputs that reach new code go to build/fuzz/corpus.
#
#   TARGET             desc, tables, bits or attncase; all of them when left out
#   --seconds N        how long each runs, 60 when left out
#   --minimize TARGET  instead: of its two corpora, the fewest inputs that reach the same code, into build/fuzz/minimal
#   --help             this text
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

seconds=60 minimize='' targets=()
while (($#)); do
    case $1 in
    --seconds | --minimize)
        (($# > 1)) || fail "$1 needs a value; see --help"
        if [[ $1 == --seconds ]]; then seconds=$2; else minimize=yes targets=("$2"); fi
        shift
        ;;
    --help | -h) usage && exit ;;
    desc | tables | bits | attncase) targets+=("$1") ;;
    *) fail "unknown argument $1; see --help" ;;
    esac
    shift
done
[[ $seconds =~ ^[0-9]+$ ]] || fail "the seconds are $seconds; they must be a number"
if ((${#targets[@]} == 0)); then
    targets=(desc tables bits attncase)
fi

"$root/scripts/setup.sh" --analysers
build fuzz -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_BUILD_TYPE=RelWithDebInfo \
    -DCMAKE_C_FLAGS_RELWITHDEBINFO="-O1 -g" -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -g" -DATTREE_BENCHMARKS=OFF \
    -DATTREE_SANITIZE=fuzzer-no-link,address,undefined -DATTREE_FUZZ=ON -- "${targets[@]/#/fuzz_}"
cd "$root/build/fuzz"
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
for target in "${targets[@]}"; do
    given=$root/tests/fuzz/corpus/$target
    mkdir -p "corpus/$target"
    if [[ $minimize ]]; then
        rm -rf "minimal/$target"
        mkdir -p "minimal/$target"
        quietly "tests/fuzz/fuzz_$target" -merge=1 "minimal/$target" "$given" "corpus/$target"
        say "minimal/$target: $(find "minimal/$target" -type f | wc -l) inputs"
        continue
    fi
    say "$target, for $seconds s ..."
    "tests/fuzz/fuzz_$target" -max_total_time="$seconds" -timeout=30 -rss_limit_mb=4096 -malloc_limit_mb=2048 \
        -max_len=4096 -print_final_stats=1 "corpus/$target" "$given" 2>&1 |
        tee "$target.log" | grep -E '^(SUMMARY|stat::|==|artifact|.*: runtime error)|cov:.*(DONE|RELOAD)' || true
    if grep -qE '^(SUMMARY|==[0-9]+== ERROR)' "$target.log"; then
        fail "$target found a fault: see build/fuzz/$target.log"
    fi
done
