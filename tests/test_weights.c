/* attree_weights of batches whose entries differ: which of weights[] is written, and with what. That weights add up and
 * give o is in test_relations. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support.h"

enum { B = 3, KEYS = 600, ROOM = KEYS + 8 };
static const int64_t kv_starts[B + 1] = {0, 300, 300, KEYS}, kv_lens[B] = {290, 0, 257};

/* Entry b has `keys` keys, of which `visible` may be seen; numbers of weights from `keys` on stay as they were. */
static void check_entry(const attree_plan *plan, const attree_args *args, int64_t b, const int64_t counts[2])
{
    float weights[ROOM], untouched[ROOM];
    memset(weights, 0xff, sizeof weights);
    memset(untouched, 0xff, sizeof untouched);
    const int64_t keys = counts[0], visible = counts[1];
    assert_int_equal(attree_weights(plan, args, b, 1, 2, weights), ATTREE_OK);
    double sum = 0.0;
    for (int64_t j = 0; j < keys; j++) {
        assert_true(j < visible ? weights[j] > 0.0f : weights[j] == 0.0f);
        sum += (double)weights[j];
    }
    assert_true(close_to(sum, visible > 0 ? 1.0 : 0.0, 1e-5));
    assert_same_bits(weights + keys, untouched + keys, ROOM - keys);
}

/* entries[b]: keys of batch entry b, and how many of them may be seen. */
static void check_batch(const attree_desc *desc, const int64_t entries[B][2])
{
    attree_plan *plan;
    tensors t = make_tensors(desc, 3);
    attree_args args = {.size = sizeof args, .q = t.q, .k = t.k, .v = t.v, .o = t.o, .lse = t.lse};
    assert_int_equal(attree_plan_create(&plan, desc), ATTREE_OK);
    args.workspace_bytes = attree_plan_workspace(plan);
    args.workspace = aligned_alloc(64, args.workspace_bytes);
    assert_int_equal(attree_run(plan, &args), ATTREE_OK);
    for (int64_t b = 0; b < B; b++)
        check_entry(plan, &args, b, entries[b]);
    free(args.workspace);
    attree_plan_destroy(plan);
    free_tensors(&t);
}

static void padding_has_weight_zero(void **state)
{
    (void)state;
    attree_desc d = make_desc(B, 2, 1, 4, KEYS, 8, 8);
    d.kv_lens = kv_lens;
    check_batch(&d, (const int64_t[B][2]){{KEYS, kv_lens[0]}, {KEYS, kv_lens[1]}, {KEYS, kv_lens[2]}});
}

static void ragged_keys_have_weights_of_their_own(void **state)
{
    (void)state;
    attree_desc d = make_desc(B, 2, 1, 4, KEYS, 8, 8);
    d.kv_starts = kv_starts;
    check_batch(&d, (const int64_t[B][2]){{300, 300}, {0, 0}, {300, 300}});
    d.kv_lens = kv_lens;
    check_batch(&d, (const int64_t[B][2]){{290, 290}, {0, 0}, {257, 257}});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(padding_has_weight_zero),
        cmocka_unit_test(ragged_keys_have_weights_of_their_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
