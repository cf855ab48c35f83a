#!/usr/bin/env bash
# Usage: scripts/package_test.sh
#
# Makes the Debian packages libattree0, libattree-dev and attree-tools in build/package, and tests them: what is in them,
# what they depend on, that a program finds the library by CMake and by pkg-config, that the tools run. As root it
# installs them with dpkg and removes them at the end; otherwise, or where attree is installed already, it unpacks them
# into a temporary directory.
#
#   --help   this text
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

case ${1:-} in
"") ;;
--help | -h) usage && exit ;;
*) fail "unknown argument $1; see --help" ;;
esac

packages=(libattree0 libattree-dev attree-tools)
build_dir=$root/build/package
temporary=$(mktemp -d)
installed=''

clean_up() {
    if [[ $installed ]]; then
        dpkg --purge "${packages[@]}" >/dev/null
    fi
    rm -rf "$temporary"
}
trap clean_up EXIT

# deb PACKAGE: its file.
deb() {
    local files=("$build_dir"/deb/"$1"_*.deb)
    if ((${#files[@]} != 1)) || [[ ! -f ${files[0]} ]]; then
        fail "there should be one package $1 in build/package/deb"
    fi
    printf '%s\n' "${files[0]}"
}

# expect_file PACKAGE REGULAR_EXPRESSION...: of paths in the package.
expect_file() {
    local package=$1 pattern
    shift
    dpkg-deb --fsys-tarfile "$(deb "$package")" | tar -t >"$temporary/list"
    for pattern in "$@"; do
        grep -qE "^\./usr/$pattern\$" "$temporary/list" || fail "$package has no /usr/$pattern"
    done
}

# expect_field PACKAGE FIELD REGULAR_EXPRESSION
expect_field() {
    local value
    value=$(dpkg-deb -f "$(deb "$1")" "$2")
    grep -qE -- "$3" <<<"$value" || fail "$1: $2 is \"$value\"; it should match $3"
}

check_contents() {
    local version
    version=$(sed -n 's/^project(attree VERSION \([0-9.]*\).*/\1/p' "$root/CMakeLists.txt")
    expect_file libattree0 "lib/[^/]+/libattree\.so\.0" "lib/[^/]+/libattree\.so\.$version" share/doc/libattree0/copyright
    expect_file libattree-dev include/attree/attree.h "lib/[^/]+/libattree\.so" "lib/[^/]+/libattree\.a" \
        "lib/[^/]+/pkgconfig/attree\.pc" "lib/[^/]+/cmake/attree/attree-config\.cmake"
    expect_file attree-tools bin/attree bin/attree_bench share/man/man1/attree.1
    expect_field libattree0 Depends 'libc6 .*libgomp1 .*libsleef3'
    expect_field libattree-dev Depends "libattree0 \(= $version\)"
    expect_field attree-tools Depends "libattree0 \(= $version\)"
    expect_field attree-tools Depends 'libbenchmark.*libstdc\+\+6'
    local package
    for package in "${packages[@]}"; do
        expect_field "$package" Version "^$version\$"
        expect_field "$package" Description '^exact attention on CPUs - '
    done
}

# smoke PREFIX: the programs, and a project that uses the library, found where the packages put it.
smoke() {
    local prefix=$1 libdir
    libdir=$(cd "$prefix" && dirname lib/*/libattree.so.0)
    if [[ ! $installed ]]; then
        export LD_LIBRARY_PATH=$prefix/$libdir
    fi
    quietly "$prefix/bin/attree" --version
    quietly "$prefix/bin/attree" verify
    quietly "$prefix/bin/attree" run "$root/tests/data/ocr_block0_83.attncase"
    quietly "$prefix/bin/attree" bench --shape decode/f32/H4/G2/D64/Q1/K500/full/T1/hot --benchmark_min_time=0.01
    # Manual pages are left out of some small images.
    if [[ -f $prefix/share/man/man1/attree.1 ]] && command -v man >/dev/null; then
        quietly man --warnings -l "$prefix/share/man/man1/attree.1"
    fi
    quietly cmake -S "$root/tests/consumer" -B "$temporary/consumer" -DCMAKE_PREFIX_PATH="$prefix"
    quietly cmake --build "$temporary/consumer"
    quietly ctest --test-dir "$temporary/consumer" --output-on-failure --no-tests=error
    quietly "$root/tests/consumer/pkg_config.sh" "$prefix" "$libdir" "$temporary/pkg_config"
}

# is_any_installed: dpkg would replace, and we would remove, what the user has.
is_any_installed() {
    dpkg-query -W -f='${db:Status-Status}\n' "${packages[@]}" 2>/dev/null | grep -qx installed
}

"$root/scripts/setup.sh"
rm -rf "$build_dir/deb"
build package --preset release -B "$build_dir" -DCMAKE_INSTALL_PREFIX=/usr -DBUILD_TESTING=OFF
say "Packing ..."
quietly cpack --config "$build_dir/CPackConfig.cmake" -G DEB -B "$build_dir/deb"
say "Contents ..."
check_contents
if [[ $(id -u) -eq 0 ]] && ! is_any_installed; then
    say "Installing and testing ..."
    installed=yes
    quietly dpkg -i "$(deb libattree0)" "$(deb libattree-dev)" "$(deb attree-tools)"
    smoke /usr
    dpkg --purge "${packages[@]}" >/dev/null
    installed=''
    if command -v attree >/dev/null; then
        fail "attree is still there after the packages were removed"
    fi
else
    say "Unpacking and testing ..."
    for package in "${packages[@]}"; do
        dpkg-deb -x "$(deb "$package")" "$temporary/root"
    done
    smoke "$temporary/root/usr"
fi
say "The packages are in build/package/deb."
