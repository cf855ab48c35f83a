#!/bin/sh
# Usage: wide_instructions.sh libattree.a
#
# Fails unless 512-bit registers are used in the AVX-512 kernels alone, 256-bit registers in these, the AVX2 kernels and
# the files with functions for FMA, and no object has a constructor, which would run before the CPU is asked.
set -eu
export LC_ALL=C

objdump -d "$1" | awk '
    /file format/ { file = $1 }
    /%zmm/ { zmm[file]++ }
    /%ymm/ { ymm[file]++ }
    END {
        for (file in zmm)
            if (file !~ /^isa_avx512/) { print file " uses 512-bit registers"; bad = 1 }
        for (file in ymm)
            if (file !~ /^(isa_avx2|isa_avx512|contract|partial|state)\./) { print file " uses 256-bit registers"; bad = 1 }
        if (zmm["isa_avx512.c.o:"] == 0 || ymm["isa_avx2.c.o:"] == 0) { print "the kernels use no wide registers"; bad = 1 }
        exit bad
    }'
if readelf -SW "$1" | grep -E '\.(init_array|ctors|preinit_array)'; then
    echo "an object has a constructor"
    exit 1
fi
