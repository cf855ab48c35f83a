/* The weights that kernels compute, against SLEEF's scalar function: every float from 0 down to the cut-off, or with an
 * argument n every n-th one.
 *
 * A fold shows single weights: the first key has score 0, the i-th of the others a score t and a value that is 1 in
 * column i and 0 elsewhere, so that u[i] is exp(t). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "../src/cpu.h"
#include "../src/dtype.h"
#include "../src/kernel.h"
#include "../src/simd/exp.h"
#include "support.h"

enum { WEIGHTS = 240, KEYS = WEIGHTS + 1 };

static const attree__kernels *const tables[] = ATTREE__TABLES;
static uint32_t step = 61;

static float expected_weight(float t) { return t < ATTREE__CUTOFF ? 0.0f : attree__expf(t); }

static void check_weights(const attree__kernels *table, const float *k, const float *v, float *scratch)
{
    static float q[64] = {1.0f}, u[WEIGHTS];
    float m, l;
    const int32_t first = 0, end = KEYS;
    attree__fold fold = {
        .qk_width = 1,
        .v_width = WEIGHTS,
        .scale = 1.0f,
        .q = q,
        .rows = 1,
        .k = {.token = sizeof(float), .width = 1, .type = ATTREE_F32},
        .v = {.token = WEIGHTS * sizeof(float), .width = 1, .type = ATTREE_F32},
        .first = &first,
        .end = &end,
        .out = {&m, &l, u, WEIGHTS},
        .scratch = scratch,
    };
    attree__rows_place(&fold.k, k, ATTREE__PIECE * fold.k.token);
    attree__rows_place(&fold.v, v, ATTREE__PIECE * fold.v.token);
    table->fold(&(const attree__fold *){&fold}, 1);
    for (int i = 0; i < WEIGHTS; i++) {
        const float expected = expected_weight(k[i + 1]);
        if (attree__bits_of(u[i]) != attree__bits_of(expected))
            fail_msg("%s: exp(%a) is %a, not %a", table->name, (double)k[i + 1], (double)u[i], (double)expected);
    }
}

static void weights_have_the_bits_of_sleef(void **state)
{
    (void)state;
    float *const v = calloc((size_t)KEYS * WEIGHTS, sizeof(float));
    for (int i = 0; i < WEIGHTS; i++)
        v[(i + 1) * WEIGHTS + i] = 1.0f;
    for (size_t n = 0; n < sizeof tables / sizeof tables[0]; n++) {
        if (tables[n]->isa == ATTREE_ISA_SCALAR || !attree__cpu_has((attree_isa)tables[n]->isa))
            continue;
        const size_t floats = ((size_t)tables[n]->scratch_floats(1, WEIGHTS, 1) + 15) / 16 * 16;
        float *const scratch = aligned_alloc(64, floats * sizeof(float)), k[KEYS] = {0.0f};
        const uint32_t last = attree__bits_of(-90.0f); /* a bit beyond the cut-off */
        for (uint32_t bits = attree__bits_of(-0.0f); bits <= last;) {
            for (int i = 1; i < KEYS; i++, bits += step)
                k[i] = attree__float_of(bits <= last ? bits : last);
            check_weights(tables[n], k, v, scratch);
        }
        free(scratch);
    }
    free(v);
}

int main(int count, char **arguments)
{
    const char *const thin = getenv("ATTREE_TEST_THIN");
    if (count > 1)
        step = (uint32_t)strtoul(arguments[1], NULL, 10);
    else if (thin)
        step *= (uint32_t)strtoul(thin, NULL, 10);
    const struct CMUnitTest tests[] = {cmocka_unit_test(weights_have_the_bits_of_sleef)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
