/* What a plan costs: one allocation, and none to update it or to run it; little time. Linked with --wrap, so that calls
 * of allocation functions come here first. */
#define _POSIX_C_SOURCE 200809L /* clock_gettime */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "support.h"

static long allocations;

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);

void *__wrap_malloc(size_t bytes)
{
    allocations++;
    return __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    allocations++;
    return __real_calloc(count, bytes);
}

void *__wrap_realloc(void *memory, size_t bytes)
{
    allocations++;
    return __real_realloc(memory, bytes);
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes)
{
    allocations++;
    return __real_aligned_alloc(alignment, bytes);
}

/* ---- A decoder's batch ---- */

enum { B = 64, H = 4, G = 2, D = 16, MOST = 400, QUERIES = 2 * B - 2, TIMES = 301 };

/* Sequence 0 has 64 new tokens, 1 has none, the others have one. */
typedef struct decoder {
    int64_t q_starts[B + 1], kv_lens[B];
    attree_desc desc;
    tensors t;
} decoder;

static void make_decoder(decoder *s)
{
    s->q_starts[0] = 0;
    for (int64_t b = 0; b < B; b++) {
        s->q_starts[b + 1] = s->q_starts[b] + (b == 0 ? 64 : b == 1 ? 0 : 1);
        s->kv_lens[b] = b == 0 ? 64 : 1 + (b * 37) % (MOST - 1);
    }
    s->desc = make_desc(B, H, G, QUERIES, MOST, D, D);
    s->t = make_tensors(&s->desc, 1); /* with more queries than are used */
    s->t.o_count = H * QUERIES * D;
    s->t.lse_count = H * QUERIES;
    s->desc.flags = ATTREE_CAUSAL;
    s->desc.q_starts = s->q_starts;
    s->desc.kv_lens = s->kv_lens;
}

static attree_plan *make_plan(const attree_desc *desc)
{
    attree_plan *plan;
    assert_int_equal(attree_plan_create(&plan, desc), ATTREE_OK);
    return plan;
}

/* Into t; no allocation. */
static void run_plan(const decoder *s, const attree_plan *plan)
{
    const size_t bytes = attree_plan_workspace(plan);
    void *const workspace = aligned_alloc(64, bytes);
    assert_non_null(workspace);
    memset(workspace, 0xff, bytes);
    forget_results(&s->t);
    const attree_args args = {.size = sizeof args,
                              .q = s->t.q,
                              .k = s->t.k,
                              .v = s->t.v,
                              .o = s->t.o,
                              .lse = s->t.lse,
                              .workspace = workspace,
                              .workspace_bytes = bytes};
    const long before = allocations;
    const attree_status status = attree_run(plan, &args);
    const long made = allocations - before;
    if (status != ATTREE_OK)
        fail_msg("%s", attree_last_error());
    assert_int_equal(made, 0);
    free(workspace);
}

/* The next step of decoding: every sequence has one more key and one query. */
static void advance(decoder *s)
{
    for (int64_t b = 0; b < B; b++)
        s->kv_lens[b]++;
    for (int64_t b = 0; b <= B; b++)
        s->q_starts[b] = b;
    s->desc.q_len = B;
    s->t.o_count = H * B * D;
    s->t.lse_count = H * B;
}

static float *results(const decoder *s, const attree_plan *plan)
{
    run_plan(s, plan);
    float *const copy = malloc((size_t)(s->t.o_count + s->t.lse_count) * sizeof *copy);
    assert_non_null(copy);
    memcpy(copy, s->t.o, (size_t)s->t.o_count * sizeof *copy);
    memcpy(copy + s->t.o_count, s->t.lse, (size_t)s->t.lse_count * sizeof *copy);
    return copy;
}

/* ---- Allocations ---- */

static void a_plan_is_one_allocation_and_a_run_none(void **state)
{
    (void)state;
    decoder s;
    make_decoder(&s);
    for (int32_t threads = 0; threads <= 3; threads++) {
        s.desc.threads = threads;
        const long before = allocations;
        attree_plan *const plan = make_plan(&s.desc);
        assert_int_equal(allocations - before, 1);
        if (threads == 1)
            run_plan(&s, plan);
        attree_plan_destroy(plan);
    }
    s.desc.threads = -1;
    const long before = allocations;
    attree_plan *plan;
    assert_int_equal(attree_plan_create(&plan, &s.desc), ATTREE_ERROR_VALUE);
    assert_int_equal(allocations, before);
    free_tensors(&s.t);
}

static void expect_fresh_results(const decoder *s, const attree_plan *plan)
{
    attree_plan *const fresh = make_plan(&s->desc);
    assert_true(attree_plan_workspace(plan) == attree_plan_workspace(fresh));
    assert_int_equal(attree_plan_phases(plan), attree_plan_phases(fresh));
    char text[2][512];
    assert_int_equal(attree_plan_describe(plan, text[0], sizeof text[0]), ATTREE_OK);
    assert_int_equal(attree_plan_describe(fresh, text[1], sizeof text[1]), ATTREE_OK);
    assert_string_equal(text[0], text[1]);
    float *const updated = results(s, plan), *const right = results(s, fresh);
    assert_same_bits(right, updated, s->t.o_count + s->t.lse_count);
    free(updated);
    free(right);
    attree_plan_destroy(fresh);
}

static void an_update_allocates_nothing(void **state)
{
    (void)state;
    decoder s;
    make_decoder(&s);
    attree_plan *const plan = make_plan(&s.desc);
    for (int step = 0; step < 5; step++) {
        advance(&s);
        const long before = allocations;
        assert_int_equal(attree_plan_update(plan, &s.desc), ATTREE_OK);
        assert_int_equal(allocations - before, 0);
        expect_fresh_results(&s, plan);
    }
    attree_plan_destroy(plan);
    free_tensors(&s.t);
}

/* Fewer batch entries, more, many more, fewer again: only what grows beyond what there was is allocated, once. */
static void a_batch_may_grow_and_shrink(void **state)
{
    (void)state;
    decoder s;
    make_decoder(&s);
    advance(&s);
    const struct {
        int64_t batch;
        long allocations;
    } steps[] = {{5, 0}, {7, 1}, {7, 0}, {3, 0}, {0, 0}, {7, 0}, {40, 1}, {B, 1}, {1, 0}, {B, 0}};
    attree_plan *plan = NULL;
    for (size_t n = 0; n < sizeof steps / sizeof *steps; n++) {
        s.desc.batch = s.desc.q_len = steps[n].batch;
        s.t.o_count = H * s.desc.q_len * D;
        s.t.lse_count = H * s.desc.q_len;
        plan = plan ? plan : make_plan(&s.desc);
        const long before = allocations;
        assert_int_equal(attree_plan_update(plan, &s.desc), ATTREE_OK);
        assert_int_equal(allocations - before, steps[n].allocations);
        expect_fresh_results(&s, plan);
    }
    attree_plan_destroy(plan);
    free_tensors(&s.t);
}

/* Fault n of a desc for twice as many batch entries, whose arrays these are. */
static void spoil(attree_desc *desc, int n, const int64_t *starts, int64_t *lens)
{
    switch (n) {
    case 0: desc->size = 0; break;
    case 1: desc->threads = -1; break;
    case 2: desc->kv_len = -1; break;
    case 3: desc->isa = 99; break;
    case 4: desc->qk_width = INT64_MAX / 4; break;
    case 5: desc->q_len++; break; /* where q_starts does not end */
    case 6:                       /* found last: the workspace overflows */
        desc->kv_lens = NULL;
        desc->kv_len = (int64_t)1 << 30;
        desc->k = desc->v = (attree_strides){0, 0, 0, 1};
        desc->v_width = (int64_t)1 << 40;
        desc->threads = 65536;
        break;
    default: /* a larger batch, found last, and whose last length is wrong */
        if (n == 7)
            spoil(desc, 6, starts, lens);
        desc->batch = desc->q_len = 2 * B;
        desc->q_starts = starts;
        desc->kv_lens = n == 7 ? NULL : lens;
        lens[2 * B - 1] = MOST + 1;
        break;
    }
}

enum { FAULTS = 9 };

/* After an update that is refused the plan is the one it was. */
static void a_refused_update_changes_nothing(void **state)
{
    (void)state;
    decoder s;
    make_decoder(&s);
    attree_plan *const plan = make_plan(&s.desc);
    float *const right = results(&s, plan);
    const size_t workspace = attree_plan_workspace(plan);
    int64_t lens[2 * B], starts[2 * B + 1] = {0};
    for (int64_t b = 0; b < 2 * B; b++) {
        lens[b] = b % MOST;
        starts[b + 1] = b + 1;
    }
    for (int n = 0; n < 2 * FAULTS; n++) { /* of a new plan, then of one that has been updated */
        attree_desc bad = s.desc;
        if (n == FAULTS)
            assert_int_equal(attree_plan_update(plan, &s.desc), ATTREE_OK);
        spoil(&bad, n % FAULTS, starts, lens);
        if (attree_plan_update(plan, &bad) == ATTREE_OK)
            fail_msg("fault %d is not refused", n % FAULTS);
        assert_true(attree_plan_workspace(plan) == workspace);
        float *const again = results(&s, plan);
        assert_same_bits(right, again, s.t.o_count + s.t.lse_count);
        free(again);
    }
    assert_int_equal(attree_plan_update(NULL, &s.desc), ATTREE_ERROR_NULL);
    assert_int_equal(attree_plan_update(plan, NULL), ATTREE_ERROR_NULL);
    free(right);
    attree_plan_destroy(plan);
    free_tensors(&s.t);
}

/* ---- Time ---- */

/* Sanitizers and emulators are slow. */
static double allowance(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return 100.0;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
    return 100.0;
#endif
#endif
    return getenv("ATTREE_TEST_THIN") ? 100.0 : 1.0;
}

/* Of this thread's time, which others on the machine do not add to. */
static double microseconds(void)
{
    struct timespec now;
    assert_int_equal(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now), 0);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *times)
{
    qsort(times, TIMES, sizeof *times, compare);
    return times[TIMES / 2];
}

static void plans_take_less_than_100_microseconds(void **state)
{
    (void)state;
    static const int32_t threads[] = {1, 8, 64};
    decoder s;
    make_decoder(&s);
    advance(&s);
    s.desc.kv_len = 100000; /* nothing is run: tasks of many chunks for every sequence */
    for (int64_t b = 0; b < B; b++)
        s.kv_lens[b] = 1000 + b * 1500;
    for (int n = 0; n < 3; n++) {
        double made[TIMES], updated[TIMES];
        s.desc.threads = threads[n];
        for (int i = 0; i < TIMES; i++) {
            const double start = microseconds();
            attree_plan *const plan = make_plan(&s.desc);
            const double middle = microseconds();
            assert_int_equal(attree_plan_update(plan, &s.desc), ATTREE_OK);
            updated[i] = microseconds() - middle;
            made[i] = middle - start;
            attree_plan_destroy(plan);
        }
        const double make = median(made), update = median(updated);
        print_message("%d sequences, %d threads: a plan takes %.1f us, an update %.1f us\n", B, threads[n], make,
                      update);
        assert_true(make < 100.0 * allowance());
        assert_true(update < 100.0 * allowance());
    }
    free_tensors(&s.t);
}

/* Entries of all lengths, in any order: sorting them must not be what takes the time. */
static void a_thousand_entries_take_less_than_100_microseconds(void **state)
{
    (void)state;
    enum { MANY = 1024 };
    int64_t lens[MANY];
    random_source random = {5};
    for (int64_t b = 0; b < MANY; b++)
        lens[b] = random_integer(&random, 1, 8192);
    attree_desc d = make_desc(MANY, 32, 8, 1, 8192, 128, 128);
    d.kv_lens = lens;
    d.threads = 2;
    double made[TIMES];
    for (int i = 0; i < TIMES; i++) {
        const double start = microseconds();
        attree_plan *const plan = make_plan(&d);
        made[i] = microseconds() - start;
        attree_plan_destroy(plan);
    }
    const double make = median(made);
    print_message("%d sequences of any length: a plan takes %.1f us\n", MANY, make);
    assert_true(make < 100.0 * allowance());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plan_is_one_allocation_and_a_run_none),
        cmocka_unit_test(an_update_allocates_nothing),
        cmocka_unit_test(a_batch_may_grow_and_shrink),
        cmocka_unit_test(a_refused_update_changes_nothing),
        cmocka_unit_test(plans_take_less_than_100_microseconds),
        cmocka_unit_test(a_thousand_entries_take_less_than_100_microseconds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
