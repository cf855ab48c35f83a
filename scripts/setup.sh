#!/usr/bin/env bash
# Usage: scripts/setup.sh [--check-tools] [--aarch64] [--analysers]
#
# Installs, with apt, the packages that attree needs and this machine lacks; says which and why before it does.
# When nothing is missing it changes nothing. Needs root, or sudo, only when something is missing.
#
#   --check-tools   also what scripts/check.sh needs: clang, the formatter and the linters
#   --aarch64       also what preset aarch64 needs: a cross-compiler, an emulator and arm64 libraries
#   --analysers     also what preset tsan, scripts/fuzz.sh and scripts/valgrind.sh need
#   --help          this text
#
# With ATTREE_SKIP_SETUP=1 in the environment it does nothing, for systems that get the packages in another way.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# Each line: package, what it is for.
packages=(
    "gcc               C compiler, with OpenMP"
    "g++               C++ compiler, for the benchmark"
    "cmake             build system"
    "ninja-build       build system"
    "ccache            compiles nothing twice that several builds have in common"
    "pkg-config        finds SLEEF"
    "libsleef-dev      exp and log with the same bits for every vector width"
    "libbenchmark-dev  Google Benchmark, for attree_bench"
    "libcmocka-dev     test framework"
    "doxygen           reference documentation"
    "python3-numpy     the Python package and its tests"
    "dpkg-dev          dependencies of the packages that scripts/package_test.sh makes"
    "file              tells programs from other files, for packages"
)
check_packages=(
    "clang             second compiler"
    "libomp-dev        OpenMP for clang"
    "clang-format      source formatter"
    "clang-tidy        linter"
    "cppcheck          linter"
)
aarch64_packages=(
    "gcc-aarch64-linux-gnu  cross-compiler"
    "g++-aarch64-linux-gnu  cross-compiler"
    "qemu-user              runs AArch64 programs"
    "libsleef-dev:arm64     SLEEF for AArch64"
    "libcmocka-dev:arm64    test framework for AArch64"
    "libgomp1:arm64         OpenMP's runtime for AArch64"
)
analyser_packages=(
    "clang             ThreadSanitizer that knows OpenMP; libFuzzer"
    "libomp-dev        OpenMP for clang, and its support library for ThreadSanitizer"
    "libclang-rt-dev   sanitizers and libFuzzer, for clang"
    "valgrind          memcheck"
)
# These come along when anything else is installed; their absence alone is no reason to ask for root.
optional=(
    "libopenblas-dev   optional: the comparison in the benchmark"
    "libopenmpi-dev    optional: attree_mpi"
    "openmpi-bin       optional: attree_mpi's tests"
)

# is_installed PACKAGE[:ARCHITECTURE]: for this machine's architecture when none is named: the same package may be there
# for another one as well, or only for that.
is_installed() {
    local architecture
    architecture=$(dpkg --print-architecture)
    [[ $1 == *:* ]] && architecture=${1#*:}
    dpkg-query -W -f='${Architecture} ${db:Status-Status}\n' "$1" 2>/dev/null |
        grep -xE "(all|$architecture) installed" >/dev/null
}

# as_root COMMAND...
as_root() {
    if [[ $(id -u) -eq 0 ]]; then
        "$@"
    else
        sudo "$@"
    fi
}

apt_get() {
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=120 "$@" </dev/null
}

# add_architectures PACKAGE...: of packages named PACKAGE:ARCHITECTURE.
add_architectures() {
    local package
    for package in "$@"; do
        if [[ $package == *:* ]]; then
            as_root dpkg --add-architecture "${package#*:}"
        fi
    done
}

# install PACKAGE...: tries twice, for a mirror that is briefly away.
install() {
    local attempt
    for attempt in 1 2; do
        if add_architectures "$@" && apt_get update && apt_get install --no-install-recommends "$@"; then
            return 0
        fi
        say "apt-get failed (attempt $attempt of 2)"
        sleep 3
    done
    return 1
}

while (($#)); do
    case $1 in
    --check-tools) packages+=("${check_packages[@]}") ;;
    --aarch64) packages+=("${aarch64_packages[@]}") ;;
    --analysers) packages+=("${analyser_packages[@]}") ;;
    --help | -h) usage && exit ;;
    *) fail "unknown argument $1; see --help" ;;
    esac
    shift
done

if [[ -n ${ATTREE_SKIP_SETUP:-} ]]; then
    exit
fi
if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    printf '  %s\n' "${packages[@]}" "${optional[@]}" >&2
    fail "no apt here. Install what your distribution calls the packages above, then set ATTREE_SKIP_SETUP=1."
fi

missing=()
for package in "${packages[@]}"; do
    is_installed "${package%% *}" || missing+=("$package")
done
if ((${#missing[@]} == 0)); then
    say "Packages: nothing is missing."
    exit
fi
for package in "${optional[@]}"; do
    is_installed "${package%% *}" || missing+=("$package")
done

say "Missing packages:"
printf '  %s\n' "${missing[@]}"
names=("${missing[@]%% *}")
if [[ $(id -u) -ne 0 ]] && ! command -v sudo >/dev/null; then
    fail "neither root nor sudo. As root: apt-get install --no-install-recommends ${names[*]}"
fi
say "Installing them with apt-get ..."
quietly install "${names[@]}"
say "Installed."
