/* Too little memory: allocations that fail, small stacks. Linked with --wrap, so that the library's calls of allocation
 * functions come here first. Other faults of a host are in test_threads and test_reported_host. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../src/dtype.h"
#include "support.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

/* ---- Allocations ---- */

/* Allocations until one fails, less than 0: none does; and how many have not been freed. */
static atomic_long left = -1, live;

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
void __real_free(void *memory);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
void __wrap_free(void *memory);

static bool fails_now(void) { return atomic_load(&left) >= 0 && atomic_fetch_sub(&left, 1) == 0; }

static void *counted(void *memory)
{
    if (memory)
        atomic_fetch_add(&live, 1);
    return memory;
}

void *__wrap_malloc(size_t bytes) { return fails_now() ? NULL : counted(__real_malloc(bytes)); }
void *__wrap_calloc(size_t count, size_t bytes) { return fails_now() ? NULL : counted(__real_calloc(count, bytes)); }
void *__wrap_aligned_alloc(size_t alignment, size_t bytes)
{
    return fails_now() ? NULL : counted(__real_aligned_alloc(alignment, bytes));
}

void *__wrap_realloc(void *memory, size_t bytes)
{
    if (fails_now())
        return NULL;
    void *const moved = __real_realloc(memory, bytes);
    return memory ? moved : counted(moved);
}

void __wrap_free(void *memory)
{
    if (memory)
        atomic_fetch_sub(&live, 1);
    __real_free(memory);
}

enum { ENTRIES = 70 };

/* A batch of decoding sequences, of which the first `batch` are in use, and its answers. */
typedef struct decoder {
    int64_t kv_lens[ENTRIES];
    attree_desc desc;
    tensors t;
} decoder;

static void make_decoder(decoder *s, int64_t batch)
{
    s->desc = make_desc(batch, 2, 1, 1, 300, 16, 16);
    for (int64_t b = 0; b < ENTRIES; b++)
        s->kv_lens[b] = (b * 37) % 301;
    s->desc.kv_lens = s->kv_lens;
    s->t = make_tensors(&s->desc, 3);
}

static bool all_untouched(const tensors *t)
{
    const unsigned char *const o = (const unsigned char *)t->o, *const lse = (const unsigned char *)t->lse;
    for (size_t i = 0; i < (size_t)t->o_count * sizeof(float); i++)
        if (o[i] != 0xff)
            return false;
    for (size_t i = 0; i < (size_t)t->lse_count * sizeof(float); i++)
        if (lse[i] != 0xff)
            return false;
    return true;
}

/* A call that was let fail at allocation number n, from 0: whether there was one. */
static bool failed_cleanly(attree_status status, long before)
{
    const bool reached = atomic_load(&left) < 0;
    atomic_store(&left, -1);
    assert_int_equal(atomic_load(&live), before);
    assert_int_equal(status, reached ? ATTREE_ERROR_MEMORY : ATTREE_OK);
    if (reached)
        assert_non_null(strstr(attree_last_error(), "no memory"));
    return reached;
}

static void a_call_without_memory_leaks_nothing(void **state)
{
    (void)state;
    for (int n = 0; n < 6; n++) {
        decoder s;
        make_decoder(&s, n < 3 ? 1 : ENTRIES);
        s.desc.kv_lens = n % 2 ? s.kv_lens : NULL;
        s.desc.threads = n % 3 + 1;
        const attree_args args = {.size = sizeof args, .q = s.t.q, .k = s.t.k, .v = s.t.v, .o = s.t.o, .lse = s.t.lse};
        long fault = 0;
        bool failed = true;
        for (; failed; fault++) {
            forget_results(&s.t);
            const long before = atomic_load(&live);
            atomic_store(&left, fault);
            const attree_status status = attree_attention(&s.desc, &args);
            failed = failed_cleanly(status, before);
            assert_true(failed == all_untouched(&s.t));
        }
        assert_true(fault >= 3); /* the plan, the workspace, none */
        free_tensors(&s.t);
    }
}

static void a_plan_without_memory_is_null(void **state)
{
    (void)state;
    decoder s;
    make_decoder(&s, ENTRIES);
    for (long fault = 0; fault < 2; fault++) {
        int nothing;
        attree_plan *plan = (attree_plan *)(void *)&nothing;
        const long before = atomic_load(&live);
        atomic_store(&left, fault);
        const attree_status status = attree_plan_create(&plan, &s.desc);
        assert_int_equal(status, fault == 0 ? ATTREE_ERROR_MEMORY : ATTREE_OK);
        if (fault == 0)
            assert_null(plan);
        attree_plan_destroy(plan);
        atomic_store(&left, -1);
        assert_int_equal(atomic_load(&live), before);
    }
    free_tensors(&s.t);
}

static void run_into(const attree_plan *plan, const tensors *t)
{
    attree_args args = {.size = sizeof args, .q = t->q, .k = t->k, .v = t->v, .o = t->o, .lse = t->lse};
    args.workspace_bytes = attree_plan_workspace(plan);
    args.workspace = aligned_alloc(64, args.workspace_bytes);
    assert_non_null(args.workspace);
    forget_results(t);
    assert_int_equal(attree_run(plan, &args), ATTREE_OK);
    free(args.workspace);
}

/* Growing may fail, more than once; the plan stays what it was, and grows later. */
static void an_update_without_memory_changes_nothing(void **state)
{
    (void)state;
    decoder small, large;
    make_decoder(&small, 3);
    make_decoder(&large, ENTRIES);
    float *const small_result = result_of(&small.desc, &small.t), *const large_result =
                                                                      result_of(&large.desc, &large.t);
    const long before = atomic_load(&live);
    attree_plan *plan;
    assert_int_equal(attree_plan_create(&plan, &small.desc), ATTREE_OK);
    for (int n = 0; n < 6; n++) {
        const bool fails = n != 3;
        const size_t workspace = attree_plan_workspace(plan);
        large.desc.batch = n < 3 ? 40 : ENTRIES; /* what has grown to 40 grows again */
        if (n == 3)
            large.desc.batch = 40;
        const long held = atomic_load(&live);
        atomic_store(&left, fails ? 0 : -1);
        const attree_status status = attree_plan_update(plan, &large.desc);
        atomic_store(&left, -1);
        assert_int_equal(status, fails ? ATTREE_ERROR_MEMORY : ATTREE_OK);
        assert_int_equal(atomic_load(&live) - held, fails ? 0 : 1);
        if (!fails)
            assert_int_equal(attree_plan_update(plan, &small.desc), ATTREE_OK);
        assert_true(attree_plan_workspace(plan) == workspace);
        run_into(plan, &small.t);
        assert_same_bits(small_result, small.t.o, small.t.o_count);
        assert_same_bits(small_result + small.t.o_count, small.t.lse, small.t.lse_count);
    }
    large.desc.batch = ENTRIES;
    assert_int_equal(attree_plan_update(plan, &large.desc), ATTREE_OK);
    run_into(plan, &large.t);
    assert_same_bits(large_result, large.t.o, large.t.o_count);
    attree_plan_destroy(plan);
    assert_int_equal(atomic_load(&live), before);
    free(small_result);
    free(large_result);
    free_tensors(&small.t);
    free_tensors(&large.t);
}

/* ---- Stacks ---- */

enum { SMALL_STACK = 64 * 1024, PAINT = 0x5c };

typedef struct job {
    void (*work)(void);
    unsigned char *bottom; /* of the painted stack */
} job;

static void *do_job(void *arg)
{
    const job *const j = arg;
    j->work();
    return NULL;
}

/* Bytes that work takes of a stack of 64 KiB; with what the C library puts there for the thread itself. */
static size_t stack_of(void (*work)(void))
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char *const mapping =
        mmap(NULL, SMALL_STACK + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(mapping != MAP_FAILED);
    assert_int_equal(mprotect(mapping, page, PROT_NONE), 0);
    const job j = {work, mapping + page};
    memset(j.bottom, PAINT, SMALL_STACK);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    assert_int_equal(pthread_attr_setstack(&attributes, j.bottom, SMALL_STACK), 0);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, &attributes, do_job, (void *)(uintptr_t)&j), 0);
    pthread_join(thread, NULL);
    pthread_attr_destroy(&attributes);
    size_t free_bytes = 0;
    while (free_bytes < SMALL_STACK && j.bottom[free_bytes] == PAINT)
        free_bytes++;
    munmap(mapping, SMALL_STACK + page);
    return SMALL_STACK - free_bytes;
}

static void do_nothing(void) {}

/* What do_runs runs; and whether all went well. */
static struct {
    attree_desc desc;
    attree_args args;
    attree_status status;
} one;

static void do_one(void)
{
    one.status = attree_attention(&one.desc, &one.args);
    (void)attree_attention(&one.desc, NULL); /* the sentence of an error */
}

/* The scores of few keys at the end of 2^40: the merge tree is 33 levels deep. All keys and values are one. */
static void make_deep(void)
{
    one.desc.kv_len = (int64_t)1 << 40;
    one.desc.k = one.desc.v = (attree_strides){0, 96, 0, 1};
    one.desc.flags = ATTREE_CAUSAL | ATTREE_USE_WINDOW;
    one.desc.window_left = 700;
    one.desc.window_right = -1;
}

static void every_kernel_fits_a_small_stack(void **state)
{
    (void)state;
#if SANITIZED
    skip(); /* its frames are larger */
#endif
    const size_t nothing = stack_of(do_nothing);
    size_t most = 0;
    attree_isa isas[8];
    const int count = available_isas(isas);
    for (int n = 0; n < ATTREE__DTYPE_COUNT * 4 * count; n++) {
        const int32_t type = n % ATTREE__DTYPE_COUNT;
        const bool prefill = n / ATTREE__DTYPE_COUNT % 2, deep = n / (2 * ATTREE__DTYPE_COUNT) % 2;
        one.desc = make_desc(1, 4, 2, prefill ? 100 : 1, 300, 64, 96);
        one.desc.isa = (int32_t)isas[n / (4 * ATTREE__DTYPE_COUNT)];
        tensors t = make_tensors(&one.desc, 5);
        float *const scales = calloc(1200, sizeof *scales);
        memset(t.k, 0, (size_t)t.k_count * sizeof(float));
        memset(t.v, 0, (size_t)t.v_count * sizeof(float));
        one.desc.k_type = one.desc.v_type = type;
        one.desc.softcap = 3.0f;
        if (deep)
            make_deep();
        one.args = (attree_args){.size = sizeof one.args, .q = t.q, .k = t.k, .v = t.v, .o = t.o, .lse = t.lse};
        one.desc.k_scales = one.desc.v_scales = deep ? (attree_strides){0, 1, 0, 0} : (attree_strides){0};
        one.args.k_scales = one.args.v_scales = scales;
        const size_t bytes = stack_of(do_one);
        if (one.status != ATTREE_OK)
            fail_msg("%s", attree_status_name(one.status));
        most = bytes > most ? bytes : most;
        free(scales);
        free_tensors(&t);
    }
    print_message("%zu bytes of stack, of which a thread that does nothing has %zu\n", most, nothing);
    assert_true(most < 32 * 1024);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_call_without_memory_leaks_nothing),
        cmocka_unit_test(a_plan_without_memory_is_null),
        cmocka_unit_test(an_update_without_memory_changes_nothing),
        cmocka_unit_test(every_kernel_fits_a_small_stack),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
