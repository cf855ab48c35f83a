#!/bin/sh
# Usage: pkg_config.sh PREFIX LIBDIR DIRECTORY [COMPILER]
#
# Builds consumer.c in DIRECTORY with what attree.pc in PREFIX/LIBDIR says, once shared, once static, and runs it.
set -eu
here=$(dirname "$0")
prefix=$1 lib=$1/$2 out=$3 compiler=${4:-cc}
PKG_CONFIG_PATH=$lib/pkgconfig${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}
export PKG_CONFIG_PATH
mkdir -p "$out"

# The prefix comes from where attree.pc is: it need not be normalised.
if [ "$(cd "$(pkg-config --variable=prefix attree)" && pwd -P)" != "$(cd "$prefix" && pwd -P)" ]; then
    echo "another attree than that in $prefix was found" >&2
    exit 1
fi
# shellcheck disable=SC2046 # flags are words
"$compiler" -std=c11 "$here/consumer.c" -o "$out/shared" $(pkg-config --cflags --libs attree)
LD_LIBRARY_PATH=$lib "$out/shared"
# Of two libraries of a name, the linker takes the shared one: name the archive.
# shellcheck disable=SC2046
"$compiler" -std=c11 "$here/consumer.c" -o "$out/static" $(pkg-config --cflags attree) \
    $(pkg-config --static --libs attree | sed "s|-lattree|-l:libattree.a|")
"$out/static"
if nm -D --undefined-only "$out/static" | grep -q attree_; then
    echo "the static program needs the shared library" >&2
    exit 1
fi
