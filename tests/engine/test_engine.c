/* The engine's promise, end to end: logits have the same bits whatever the threads, the batch, the chunks, the pages,
 * the layout of keys and the instruction set; and they are those of naive attention within rounding. */
#define _POSIX_C_SOURCE 200809L /* setenv */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "../support.h"
#include "engine.h"

static const options usual = {.layers = 2,
                              .heads = 4,
                              .groups = 2,
                              .width = 128,
                              .hidden = 160,
                              .vocabulary = 150,
                              .seed = 5,
                              .requests = 5,
                              .only = -1,
                              .prompt = 320, /* so that some have two blocks of keys */
                              .tokens = 10,
                              .batch = 3,
                              .chunk = 40,
                              .threads = 1,
                              .page = 16};

static void assert_same_answers(const answers *expected, const answers *actual, const char *what)
{
    for (int64_t i = 0; i < actual->count; i++) {
        const request *const b = &actual->requests[i], *const a = &expected->requests[b->id];
        assert_int_equal(a->goal, b->goal);
        if (a->hash != b->hash || memcmp(a->tokens, b->tokens, (size_t)a->goal * sizeof *a->tokens) != 0)
            fail_msg("request %" PRId64 " is answered differently with %s: logits %016" PRIx64 ", not %016" PRIx64,
                     b->id, what, b->hash, a->hash);
    }
}

static void assert_same_with(const answers *expected, const options *o, const char *what)
{
    if (thinned_out())
        return;
    answers all = answer(o);
    assert_same_answers(expected, &all, what);
    free_arena(&all.memory);
}

/* 0 stands for the usual value, and -1 for 0. */
typedef struct variation {
    const char *name;
    int64_t threads, batch, chunk, page, panels;
} variation;

static const variation variations[] = {
    {"two threads", .threads = 2},
    {"three threads, panels", .threads = 3, .chunk = 64, .panels = 1},
    {"one request at a time, whole prompts", .batch = 1, .chunk = -1},
    {"all requests at once, pages of 1", .batch = 5, .page = 1},
    {"chunks of 64, pages of 64 in panels", .chunk = 64, .page = 64, .panels = 1},
    {"chunks of 7, pages of 48", .chunk = 7, .page = 48},
    {"prompts token by token, pages of 7", .chunk = 1, .page = 7},
    {"whole prompts, a page for all of a request", .chunk = -1, .page = 330},
};

static bool has_panels(int32_t type) { return type != ATTREE_Q8_0 && type != ATTREE_Q4_0; }

static options vary(const options *base, const variation *v)
{
    options o = *base;
    o.threads = v->threads ? v->threads : o.threads;
    o.batch = v->batch ? v->batch : o.batch;
    o.chunk = v->chunk > 0 ? v->chunk : v->chunk < 0 ? 0 : o.chunk;
    o.page = v->page ? v->page : o.page;
    o.panels = v->panels && has_panels(o.type);
    return o;
}

/* Each request without the others. */
static void check_alone(const answers *expected, const options *base)
{
    for (int64_t i = 0; i < base->requests; i++) {
        options o = *base;
        o.only = i;
        assert_same_with(expected, &o, "nobody else");
    }
}

static void check_isas(const answers *expected, const options *base)
{
    static const char *const names[] = {"auto", "scalar", "avx2", "avx512", "neon"};
    char saved[16] = "";
    const char *const given = getenv("ATTREE_ISA");
    if (given)
        strncpy(saved, given, sizeof saved - 1);
    attree_isa isas[8];
    const int count = available_isas(isas);
    for (int i = 0; i < count; i++) {
        setenv("ATTREE_ISA", names[isas[i]], 1);
        assert_same_with(expected, base, names[isas[i]]);
    }
    setenv("ATTREE_ISA", saved, 1); /* empty is as if it were not set */
}

static void check_type(int32_t type)
{
    if (type % 2 && thinned_out())
        return;
    options base = usual;
    base.type = type;
    base.tied = type % 2;
    answers expected = answer(&base);
    for (size_t i = 0; i < sizeof variations / sizeof *variations; i++) {
        const options o = vary(&base, &variations[i]);
        assert_same_with(&expected, &o, variations[i].name);
    }
    check_alone(&expected, &base);
    check_isas(&expected, &base);
    free_arena(&expected.memory);
}

/* With one layer, both paths cache the same numbers. With more, a difference in the last bit can become one in the last
 * bit of a narrow type. */
static void check_naive(int32_t type)
{
    if (type % 2 && thinned_out())
        return;
    options o = usual;
    o.type = type;
    o.layers = type == ATTREE_F32 ? 3 : 1;
    const comparison c = compare_paths(&o);
    print_message("%s: %" PRId64 " positions, %" PRId64 " with the same token; logits differ by at most %.3g\n",
                  type_names[type], c.positions, c.same_tokens, c.difference);
    assert_true(c.positions > o.requests * o.tokens);
    assert_true(c.difference < 1e-4);
    assert_true(c.same_tokens >= c.positions - c.positions / 100);
}

static void test_f32(void **state) { (void)state, check_type(ATTREE_F32); }
static void test_f16(void **state) { (void)state, check_type(ATTREE_F16); }
static void test_bf16(void **state) { (void)state, check_type(ATTREE_BF16); }
static void test_i8(void **state) { (void)state, check_type(ATTREE_I8); }
static void test_q8_0(void **state) { (void)state, check_type(ATTREE_Q8_0); }
static void test_q4_0(void **state) { (void)state, check_type(ATTREE_Q4_0); }
static void test_f8(void **state) { (void)state, check_type(ATTREE_F8_E4M3); }

static void test_f8_e5m2(void **state) { (void)state, check_type(ATTREE_F8_E5M2); }

static void test_naive(void **state)
{
    (void)state;
    for (int32_t type = ATTREE_F32; type < TYPES; type++)
        check_naive(type);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f32), cmocka_unit_test(test_f16),     cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_i8),  cmocka_unit_test(test_q8_0),    cmocka_unit_test(test_q4_0),
        cmocka_unit_test(test_f8),  cmocka_unit_test(test_f8_e5m2), cmocka_unit_test(test_naive),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
