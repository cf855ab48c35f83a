#!/usr/bin/env bash
# Usage: scripts/differential.sh [--preset NAME] [--seconds N] [ARGUMENT...]
#
# Builds the differential fuzzer, tests/differential, and lets it compare random problems with the bits of the contract.
# Stops at the first that differs, makes it simpler, and says how to run it again.
#
#   --preset NAME   release (default), debug or asan; built in build/NAME
#   --seconds N     how long, 60 when left out
#   ARGUMENT...     given to the fuzzer:
#                     --seed S         the first seed; a new one each time when left out
#                     --count N        no more problems than this
#                     --isa NAME       only scalar, avx2, avx512 or neon
#                     --features       at the end also how many problems had which fields
#                     --one SEED       instead: the problem of this seed
#                     --fields TEXT    instead: the problem of these fields, "name=value name=value"
#   --help          this text
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

preset=release seconds=60 arguments=()
while (($#)); do
    case $1 in
    --preset | --seconds)
        (($# > 1)) || fail "$1 needs a value; see --help"
        if [[ $1 == --preset ]]; then preset=$2; else seconds=$2; fi
        shift
        ;;
    --help | -h) usage && exit ;;
    *) arguments+=("$1") ;;
    esac
    shift
done
[[ $seconds =~ ^[0-9]+$ ]] || fail "the seconds are $seconds; they must be a number"
case $preset in
release | debug | asan) ;;
*) fail "the preset is $preset; it must be release, debug or asan" ;;
esac

"$root/scripts/setup.sh"
build "$preset" --preset "$preset" -- test_differential
exec "$root/build/$preset/tests/differential/test_differential" --seconds "$seconds" "${arguments[@]}"
