/* Runs with ATTREE_WEIGHTS: the weights of all rows have the bits of attree_weights, row by row, and sums of keys those
 * of the tree over queries. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support.h"

enum { B = 2, H = 6, G = 2, Q = 300, K = 700, D = 24, E = 8, LEAF = 128, ROWS = B * H * Q };

typedef struct job {
    attree_desc desc;
    tensors t;
    attree_plan *plain; /* whose run writes lse */
    attree_args args;
    float *rows, *weights, *by_row, *sums; /* [B][H][Q][K], twice; [B][H][K], twice */
} job;

static const int64_t lens[B] = {K, 590};

static float *floats(int64_t count)
{
    float *const numbers = malloc((size_t)count * sizeof *numbers);
    assert_non_null(numbers);
    memset(numbers, 0xff, (size_t)count * sizeof *numbers);
    return numbers;
}

static void *take_workspace(attree_args *args, const attree_plan *plan)
{
    args->workspace_bytes = attree_plan_workspace(plan);
    args->workspace = aligned_alloc(64, args->workspace_bytes);
    assert_non_null(args->workspace);
    memset(args->workspace, 0xff, args->workspace_bytes);
    return args->workspace;
}

/* What each row's weights and each head's sums should be, by the arithmetic of single rows. */
static void add_leaves(float *leaves, int64_t first, int64_t count)
{
    if (count < 2)
        return;
    const int64_t split = count > 2 ? 2 : 1; /* of at most 4 leaves */
    add_leaves(leaves, first, split);
    add_leaves(leaves, first + split, count - split);
    for (int64_t j = 0; j < K; j++)
        leaves[first * K + j] += leaves[(first + split) * K + j];
}

static void expect_by_row(job *j)
{
    for (int64_t n = 0; n < B * H; n++) {
        float leaves[(Q + LEAF - 1) / LEAF * K] = {0.0f};
        for (int64_t i = 0; i < Q; i++) {
            float *const row = j->rows + (n * Q + i) * K;
            assert_int_equal(attree_weights(j->plain, &j->args, n / H, n % H, i, row), ATTREE_OK);
            for (int64_t key = 0; key < K; key++)
                leaves[i / LEAF * K + key] += row[key];
        }
        add_leaves(leaves, 0, (Q + LEAF - 1) / LEAF);
        memcpy(j->by_row + n * K, leaves, K * sizeof *leaves);
    }
}

static job *make_job(int32_t isa)
{
    job *const j = calloc(1, sizeof *j);
    assert_non_null(j);
    j->desc = make_desc(B, H, G, Q, K, D, E);
    j->desc.isa = isa;
    j->desc.flags = ATTREE_CAUSAL | ATTREE_USE_WINDOW;
    j->desc.window_left = 400;
    j->desc.kv_lens = lens;
    j->desc.softcap = 3.0f;
    j->t = make_tensors(&j->desc, 4);
    assert_int_equal(attree_plan_create(&j->plain, &j->desc), ATTREE_OK);
    j->args =
        (attree_args){.size = sizeof j->args, .q = j->t.q, .k = j->t.k, .v = j->t.v, .o = j->t.o, .lse = j->t.lse};
    take_workspace(&j->args, j->plain);
    assert_int_equal(attree_run(j->plain, &j->args), ATTREE_OK);
    j->rows = floats((int64_t)ROWS * K);
    j->weights = floats((int64_t)ROWS * K);
    j->by_row = floats(B * H * K);
    j->sums = floats(B * H * K);
    return j;
}

static void free_job(job *j)
{
    free(j->args.workspace);
    free(j->rows);
    free(j->weights);
    free(j->by_row);
    free(j->sums);
    attree_plan_destroy(j->plain);
    free_tensors(&j->t);
    free(j);
}

/* With the flags; on workers of the host's own, or in one call. */
static void run_weights(job *j, uint32_t flags, int32_t threads, bool own)
{
    attree_desc d = j->desc;
    attree_args args = j->args;
    attree_plan *plan;
    d.flags |= ATTREE_WEIGHTS | flags;
    d.threads = threads;
    assert_int_equal(attree_plan_create(&plan, &d), ATTREE_OK);
    args.v = NULL;
    args.o = NULL;
    args.weights = j->weights;
    args.key_weights = j->sums;
    void *const workspace = take_workspace(&args, plan);
    memset(j->weights, 0xff, (size_t)ROWS * K * sizeof *j->weights);
    memset(j->sums, 0xff, (size_t)(B * H * K) * sizeof *j->sums);
    if (own) {
        assert_int_equal(attree_run_begin(plan, &args), ATTREE_OK);
        for (int32_t phase = 0; phase < attree_plan_phases(plan); phase++)
            for (int n = 0; n < 3; n++)
                assert_int_equal(attree_run_worker(plan, &args, phase), ATTREE_OK);
        assert_int_equal(attree_run_end(plan, &args), ATTREE_OK);
    } else
        assert_int_equal(attree_run(plan, &args), ATTREE_OK);
    free(workspace);
    attree_plan_destroy(plan);
}

/* Sums of a key/value head: those of its query heads in turn. */
static void expect_sums_of_key_heads(const job *j)
{
    for (int64_t n = 0; n < B * G; n++)
        for (int64_t key = 0; key < K; key++) {
            float sum = j->by_row[n * (H / G) * K + key];
            for (int64_t h = 1; h < H / G; h++)
                sum += j->by_row[(n * (H / G) + h) * K + key];
            assert_same_bits(&sum, j->sums + n * K + key, 1);
        }
}

static void all_rows_have_the_bits_of_single_rows(void **state)
{
    (void)state;
    attree_isa isas[8];
    const int count = available_isas(isas);
    for (int n = 0; n < count; n++) {
        if (n > 0 && thinned_out())
            continue;
        job *const j = make_job((int32_t)isas[n]);
        expect_by_row(j);
        for (int form = 0; form < 3; form++) {
            run_weights(j, ATTREE_WEIGHTS_BY_HEAD, form + 1, form == 2);
            assert_same_bits(j->rows, j->weights, (int64_t)ROWS * K);
            assert_same_bits(j->by_row, j->sums, B * H * K);
        }
        run_weights(j, 0, 2, false);
        expect_sums_of_key_heads(j);
        free_job(j);
    }
}

/* lse that is not the rows': weights that are huge, infinite, NaN, nothing. */
static void any_lse_is_taken_as_it_is(void **state)
{
    (void)state;
    static const float shifts[] = {-70.0f, -79.0f, -82.0f, -88.5f, -90.0f, -300.0f, 60.0f, 90.0f, 300.0f};
    attree_isa isas[8];
    const int count = available_isas(isas);
    for (int n = 0; n < count; n++) {
        job *const j = make_job((int32_t)isas[n]);
        for (int64_t r = 0; r < j->t.lse_count; r++) {
            const int64_t kind = r % 12;
            j->t.lse[r] = kind < 9 ? j->t.lse[r] + shifts[kind] : kind == 9 ? NAN : kind == 10 ? INFINITY : -INFINITY;
        }
        expect_by_row(j);
        run_weights(j, ATTREE_WEIGHTS_BY_HEAD, 2, false);
        assert_same_bits(j->rows, j->weights, (int64_t)ROWS * K);
        assert_same_bits(j->by_row, j->sums, B * H * K);
        free_job(j);
    }
}

/* ---- Sizes of nothing ---- */

static void keys_without_queries_have_weight_zero(void **state)
{
    (void)state;
    attree_desc d = make_desc(2, 2, 1, 0, 300, 8, 8);
    d.flags = ATTREE_WEIGHTS;
    float *const sums = floats(2 * 300);
    float k[2 * 300 * 8] = {0.0f};
    attree_args args = {.size = sizeof args, .k = k, .key_weights = sums};
    run_expecting(ATTREE_OK, &d, &args);
    for (int64_t n = 0; n < 2 * 300; n++)
        assert_true(sums[n] == 0.0f);
    d.kv_len = 0;
    run_expecting(ATTREE_OK, &d, &args);
    free(sums);
}

/* ---- Refusals ---- */

static void what_is_wrong_is_refused(void **state)
{
    (void)state;
    job *const j = make_job(ATTREE_ISA_AUTO);
    attree_desc d = j->desc;
    attree_args args = j->args;
    d.flags |= ATTREE_WEIGHTS;
    run_expecting(ATTREE_ERROR_NULL, &d, &args);
    assert_true(last_error_names("key_weights"));
    args.key_weights = j->t.q;
    run_expecting(ATTREE_ERROR_ALIAS, &d, &args);
    args.key_weights = j->t.lse;
    run_expecting(ATTREE_ERROR_ALIAS, &d, &args);
    args.key_weights = j->sums;
    args.lse = NULL;
    run_expecting(ATTREE_ERROR_NULL, &d, &args);
    assert_true(last_error_names("lse"));
    args.lse = j->t.lse;
    args.weights = (char *)j->weights + 1;
    run_expecting(ATTREE_ERROR_ALIGN, &d, &args);
    args.weights = j->sums;
    run_expecting(ATTREE_ERROR_ALIAS, &d, &args);
    args.weights = j->weights;
    attree_plan *plan;
    attree_desc bad = d;
    bad.flags |= ATTREE_STATES;
    expect_error("both", attree_plan_create(&plan, &bad), ATTREE_ERROR_VALUE, "flags");
    bad = d;
    bad.weights_type = ATTREE_Q8_0;
    expect_error("type", attree_plan_create(&plan, &bad), ATTREE_ERROR_TYPE, "weights_type");
    bad = d;
    bad.key_weights = (attree_strides){K, 0, 1, 0};
    expect_error("strides", attree_plan_create(&plan, &bad), ATTREE_ERROR_STRIDE, "key_weights");
    bad = d;
    bad.weights = (attree_strides){1, 1, 1, 1};
    expect_error("strides", attree_plan_create(&plan, &bad), ATTREE_ERROR_STRIDE, "weights");
    assert_int_equal(attree_plan_create(&plan, &d), ATTREE_OK);
    void *const workspace = take_workspace(&args, plan);
    expect_error("finish", attree_finish(plan, &args), ATTREE_ERROR_VALUE, "ATTREE_WEIGHTS");
    attree_control control = {.cancel = 1};
    args.control = &control;
    expect_error("cancelled", attree_run(plan, &args), ATTREE_ERROR_CANCELLED, "cancel");
    assert_int_equal(control.done, 0);
    free(workspace);
    attree_plan_destroy(plan);
    free_job(j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_rows_have_the_bits_of_single_rows),
        cmocka_unit_test(any_lse_is_taken_as_it_is),
        cmocka_unit_test(keys_without_queries_have_weight_zero),
        cmocka_unit_test(what_is_wrong_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
