#!/usr/bin/env bash
# Usage: scripts/check.sh [--fast] [--no-tests]
#
# To be run before each commit; stops at the first thing that is wrong:
#   format             clang-format changes nothing
#   arithmetic         no flag or pragma lets a compiler change the arithmetic contract
#   warnings           none from gcc, none from clang (build/check-gcc, build/check-clang)
#   lint               clang-tidy and cppcheck find nothing in src
#   tests              pass once per instruction set of this machine, and once as clang compiles them
#
#   --fast       leaves out lint
#   --no-tests   leaves out tests
#   --help       this text
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

check_format() {
    local file wrong=()
    say "Format ..."
    while IFS= read -r -d '' file; do
        clang-format "$file" | cmp -s "$file" - || wrong+=("$file")
    done < <(find . \( -path ./build -o -name '.?*' \) -prune -o -type f -regex '.*\.\(c\|h\|cc\|cpp\|hpp\)' -print0)
    if ((${#wrong[@]} > 0)); then
        fail "not formatted; run: clang-format -i ${wrong[*]}"
    fi
}

# Build files: -ffast-math, its parts, contraction. Sources: the same by pragma or attribute, and reordered reductions.
check_arithmetic() {
    say "Arithmetic ..."
    local unsafe='-Ofast|-f(fast|unsafe|associative|reciprocal|finite)-math|-ffp-contract=(fast|on)|-fno-signed-zeros'
    local inside='(pragma|optimize|_Pragma).*(Ofast|fast-math|unsafe-math|associative-math|float_control)'
    inside+='|pragma.*(FP_CONTRACT +(ON|DEFAULT)|fp (contract\((on|fast)|reassociate\(on)|simd.*reduction)'
    if find . -path ./build -prune -o -type f -regex '.*\(CMakeLists\.txt\|CMake.*Presets\.json\|\.cmake\)' -print0 |
        xargs -0 grep -nE "^[^#]*($unsafe)" || grep -rnE "$inside" include src; then
        fail "the lines above would change the arithmetic contract"
    fi
}

# build_with COMPILER C++_COMPILER
build_with() {
    build "check-$1" -DCMAKE_C_COMPILER="$1" -DCMAKE_CXX_COMPILER="$2" -DCMAKE_BUILD_TYPE=Release -DATTREE_WERROR=ON
}

# The library's sources that this machine compiles. -UNDEBUG lets clang-tidy learn from assertions.
check_lint() {
    say "clang-tidy ..."
    sed -n 's/^ *"file": "\(.*\)",\{0,1\}$/\1/p' build/check-clang/compile_commands.json | grep -F "$root/src/" |
        quietly xargs -d '\n' -n 1 -P "$(nproc)" clang-tidy -p build/check-clang --quiet --extra-arg=-UNDEBUG
    say "cppcheck ..."
    quietly cppcheck --project=build/check-clang/compile_commands.json --file-filter="src/*" --quiet \
        --enable=warning,style,performance,portability --inline-suppr --error-exitcode=1 -D"__$(uname -m)__"
}

# machine_has FLAG...: as /proc/cpuinfo spells them.
machine_has() {
    local flag
    for flag in "$@"; do
        grep -qw -m 1 "$flag" /proc/cpuinfo || return 1
    done
}

# run_tests COMPILER ISA; an empty ISA is the library's own choice.
run_tests() {
    say "Tests: $1${2:+, $2} ..."
    ATTREE_ISA=$2 quietly ctest --test-dir "build/check-$1" --output-on-failure --no-tests=error
}

check_tests() {
    run_tests gcc scalar
    if machine_has avx2 fma; then
        run_tests gcc avx2
    else
        say "Tests: avx2 skipped, not on this machine."
    fi
    if machine_has avx512f avx512bw avx512dq avx512vl; then
        run_tests gcc avx512
    else
        say "Tests: avx512 skipped, not on this machine."
    fi
    run_tests clang ""
}

lint=yes tests=yes
while (($#)); do
    case $1 in
    --fast) lint=no ;;
    --no-tests) tests=no ;;
    --help | -h) usage && exit ;;
    *) fail "unknown argument $1; see --help" ;;
    esac
    shift
done

cd "$root"
scripts/setup.sh --check-tools
check_format
check_arithmetic
build_with gcc g++
build_with clang clang++
if [[ $lint == yes ]]; then
    check_lint
fi
if [[ $tests == yes ]]; then
    check_tests
fi
say "All is well."
