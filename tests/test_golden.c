/* One number for all results of a fixed set of problems. It is the same on every machine, compiler and instruction set:
 * any machine can check itself against every other. */
#include <stdio.h>
#include <stdlib.h>

#include "../src/dtype.h"
#include "support.h"

/* When the contract changes, and only then, this changes with it. */
#define GOLDEN UINT64_C(0xd98022e639101ab4)

/* FNV-1a, byte by byte, lowest first. */
static uint64_t hash_floats(uint64_t hash, const float *numbers, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        for (int shift = 0; shift < 32; shift += 8)
            hash = (hash ^ (attree__bits_of(numbers[i]) >> shift & 255u)) * UINT64_C(1099511628211);
    return hash;
}

static uint64_t hash_problem(uint64_t hash, attree_desc d, uint64_t seed)
{
    tensors t = make_tensors(&d, seed);
    float *const result = result_of(&d, &t); /* what a 16-bit o leaves of its floats is NaN */
    hash = hash_floats(hash, result, t.o_count + t.lse_count);
    free(result);
    free_tensors(&t);
    return hash;
}

static uint64_t hash_all(attree_isa isa)
{
    static const int64_t shapes[][7] = {
        {1, 1, 1, 1, 1, 1, 1},      {1, 4, 2, 5, 300, 40, 24},  {1, 8, 1, 1, 1300, 33, 65},
        {2, 3, 3, 40, 513, 15, 15}, {1, 7, 1, 3, 1030, 96, 80}, {1, 2, 2, 60, 257, 128, 128},
        {1, 1, 1, 17, 17, 64, 200}, {1, 16, 2, 2, 700, 64, 64},
    };
    uint64_t hash = UINT64_C(14695981039346656037);
    for (int n = 0; n < 24; n++) {
        const int64_t *s = shapes[n % 8];
        attree_desc d = make_desc(s[0], s[1], s[2], s[3], s[4], s[5], s[6]);
        d.isa = (int32_t)isa;
        d.flags = n % 2 ? ATTREE_CAUSAL : 0;
        d.k_type = d.v_type = n / 8;
        d.q_type = n % 3;
        d.o_type = n % 5 % 3;
        if (n % 3 > 0) { /* scores that span tens, so that weights and merges are not all alike */
            d.flags |= ATTREE_USE_SCALE;
            d.scale = (float)(n % 3);
        }
        hash = hash_problem(hash, d, (uint64_t)n + 1);
    }
    return hash;
}

static void every_instruction_set_gives_the_golden_hash(void **state)
{
    (void)state;
    attree_isa isas[8];
    const int count = available_isas(isas);
    for (int i = 0; i < count; i++) {
        const uint64_t hash = hash_all(isas[i]);
        if (hash != GOLDEN)
            fail_msg("instruction set %d: hash 0x%016llx is not the golden one", (int)isas[i],
                     (unsigned long long)hash);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_instruction_set_gives_the_golden_hash)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
