#!/bin/sh
# Usage: expect.sh STATUS REGULAR_EXPRESSION COMMAND [ARGUMENT...]
#
# Runs the command; succeeds when its status is STATUS and a line that it printed matches.
status=$1 expected=$2
shift 2
output=$("$@" 2>&1)
found=$?
printf '%s\n' "$output"
if [ "$found" -ne "$status" ]; then
    echo "the exit status is $found; it must be $status" >&2
    exit 1
fi
if ! printf '%s\n' "$output" | tr '\r' '\n' | grep -qE -e "$expected"; then
    echo "nothing matches: $expected" >&2
    exit 1
fi
