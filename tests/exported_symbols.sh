#!/bin/sh
# Usage: exported_symbols.sh NM LIBRARY LIST HEADER
#
# The shared library exports what LIST says, and the header declares just that. Who adds a function adds it to the list;
# who takes one away breaks programs, and raises SOVERSION.
set -eu

# compare WHAT LIST: standard input with the list.
compare() {
    LC_ALL=C sort | diff "$2" - && return
    echo "$1: not what $2 lists; lines with < are only there" >&2
    return 1
}

"$1" -D --defined-only "$2" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' | compare "$2" "$3"
sed -n 's/^ATTREE_API .*\b\(attree_[a-z0-9_]*\)(.*/\1/p' "$4" | compare "$4" "$3"
