# shellcheck shell=bash
# What the scripts in this folder share. Sourced, not run.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# Prints the comment at the top of the script: its help.
usage() {
    sed -n '2,/^[^#]/s/^#\( \|$\)//p' "$0"
}

say() {
    printf '%s\n' "$*"
}

fail() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit 1
}

# quietly COMMAND...: shows what the command printed only if it fails, and then stops the script.
quietly() {
    local log
    log=$(mktemp)
    if "$@" >"$log" 2>&1; then
        rm -f "$log"
    else
        cat "$log" >&2
        rm -f "$log"
        fail "failed: $*"
    fi
}

# build NAME CMAKE_ARGUMENT... [-- TARGET...]: configures build/NAME, with Ninja and ccache when present, and builds all of
# it or these targets. ATTREE_WERROR=ON in the environment: warnings are errors.
build() {
    local dir=$root/build/$1 generator=() arguments=() targets=() language
    say "Building build/$1 ..."
    shift
    while (($#)) && [[ $1 != -- ]]; do
        arguments+=("$1")
        shift
    done
    if (($# > 1)); then
        targets=(--target "${@:2}")
    fi
    if [[ ! -f $dir/CMakeCache.txt ]] && command -v ninja >/dev/null; then
        generator=(-G Ninja)
    fi
    if command -v ccache >/dev/null; then
        for language in C CXX; do
            arguments+=("-DCMAKE_${language}_COMPILER_LAUNCHER=ccache")
        done
    fi
    if [[ ${ATTREE_WERROR:-} ]]; then
        arguments+=("-DATTREE_WERROR=$ATTREE_WERROR")
    fi
    quietly cmake -S "$root" -B "$dir" "${generator[@]}" "${arguments[@]}"
    quietly cmake --build "$dir" --parallel "$(nproc)" "${targets[@]}"
}
