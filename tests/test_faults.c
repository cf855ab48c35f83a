/* Faults that a host program meets: no memory, odd floating-point modes, small stacks, teams smaller than asked for.
 * Linked with --wrap, so that the library's calls of allocation functions come here first.
 *
 * With the argument teams only the test runs that depends on the environment of OpenMP. Forks, many callers, and teams
 * of other runtimes are in test_reported_host. */
#define _GNU_SOURCE
#include <math.h>
#include <omp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../src/simd/fpenv.h"
#include "caches.h"
#include "support.h"

#define COUNT_OF(array) (sizeof(array) / sizeof *(array))

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

static void forget(const tensors *t)
{
    memset(t->o, 0xff, (size_t)t->o_count * sizeof(float));
    memset(t->lse, 0xff, (size_t)t->lse_count * sizeof(float));
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
            forget(&s.t);
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
    forget(t);
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

/* ---- A crew of the host's threads ---- */

typedef struct crew {
    const attree_plan *plan;
    attree_args args;
    int32_t workers;
    pthread_barrier_t barrier;
    bool odd_modes; /* every worker has a floating-point mode of its own */
} crew;

typedef struct member {
    crew *crew;
    int32_t worker;
    bool right;
} member;

/* ---- Modes ---- */

enum { MODES = 7 };

/* The environment n: MODES of rounding, flushing and exceptions that are not masked. */
static attree__fpenv odd_mode(int n)
{
#if defined(__x86_64__)
    static const unsigned modes[MODES] = {
        0x1f80 | 0x8040,          /* FTZ and DAZ */
        0x1f80 | 0x2000,          /* down */
        0x1f80 | 0x4000,          /* up */
        0x1f80 | 0x6000,          /* toward zero */
        0x1f80 | 0x8040 | 0x4000, /* FTZ, DAZ, up */
        0x1f80 & ~0x0e80u,        /* invalid, division by zero, overflow, underflow not masked */
        0x1f80 | 0x003f,          /* all sticky flags set */
    };
    return modes[n];
#else
    static const uint64_t modes[MODES] = {1u << 24, 2u << 22, 1u << 22, 3u << 22, 5u << 22, 0, 1u << 25};
    return (attree__fpenv){modes[n], n == 6 ? 0x1f : 0};
#endif
}

/* Rounding, flushing and masks. */
static bool controls_are(attree__fpenv expected)
{
    const attree__fpenv now = attree__fpenv_enter();
    attree__fpenv_leave(now);
#if defined(__x86_64__)
    return ((now ^ expected) & ~0x3fu) == 0;
#else
    return now.control == expected.control;
#endif
}

/* The same, and no flag of IEEE 754 was raised. (x86's sixth tells of subnormal operands.) */
static bool mode_is(attree__fpenv expected)
{
    const attree__fpenv now = attree__fpenv_enter();
    attree__fpenv_leave(now);
#if defined(__x86_64__)
    return ((now ^ expected) & ~0x02u) == 0;
#else
    return now.control == expected.control && now.status == expected.status;
#endif
}

static void set_mode(attree__fpenv mode) { attree__fpenv_leave(mode); }

static attree__fpenv usual_mode(void)
{
    const attree__fpenv now = attree__fpenv_enter();
    attree__fpenv_leave(now);
    return now;
}

static void *take_part(void *arg)
{
    member *const m = arg;
    const attree__fpenv mode = odd_mode(m->worker % MODES);
    for (int32_t phase = 0; phase < attree_plan_phases(m->crew->plan); phase++) {
        if (m->crew->odd_modes)
            set_mode(mode);
        const attree_status status = attree_run_worker(m->crew->plan, &m->crew->args, phase);
        m->right = m->right && status == ATTREE_OK && (!m->crew->odd_modes || mode_is(mode));
        pthread_barrier_wait(&m->crew->barrier);
    }
    return NULL;
}

/* Numbers that flushing, rounding and exceptions would change, and some that are not finite. */
static void make_delicate(tensors *t)
{
    for (int64_t i = 0; i < t->v_count; i++)
        t->v[i] *= i % 3 == 0 ? 1e-38f : i % 3 == 1 ? 1e-41f : 1.0f;
    for (int64_t i = 0; i < t->k_count; i++)
        t->k[i] *= i % 5 == 0 ? 1e-40f : 1.0f;
    t->v[1] = INFINITY;
    t->q[0] = NAN;
}

typedef struct modal {
    attree_desc desc;
    tensors t;
    float *expected;
} modal;

static modal make_modal(int shape, int32_t threads)
{
    modal s = {.desc = shape == 0 ? make_desc(1, 2, 1, 1, 20000, 32, 32) : make_desc(1, 4, 2, 70, 700, 24, 40)};
    s.t = make_tensors(&s.desc, 11);
    make_delicate(&s.t);
    s.desc.flags = shape == 2 ? ATTREE_CAUSAL : 0;
    s.expected = result_of(&s.desc, &s.t);
    s.desc.threads = threads;
    return s;
}

static void check_modal(const modal *s)
{
    assert_same_bits(s->expected, s->t.o, s->t.o_count);
    assert_same_bits(s->expected + s->t.o_count, s->t.lse, s->t.lse_count);
}

static void free_modal(modal *s)
{
    free(s->expected);
    free_tensors(&s->t);
}

static void run_crew(crew *c)
{
    pthread_t threads[16];
    member members[16];
    pthread_barrier_init(&c->barrier, NULL, (unsigned)c->workers);
    for (int32_t w = 0; w < c->workers; w++) {
        members[w] = (member){c, w, true};
        assert_int_equal(pthread_create(&threads[w], NULL, take_part, &members[w]), 0);
    }
    for (int32_t w = 0; w < c->workers; w++) {
        pthread_join(threads[w], NULL);
        assert_true(members[w].right);
    }
    pthread_barrier_destroy(&c->barrier);
}

static void give_workspace(attree_args *args, const attree_plan *plan)
{
    args->workspace_bytes = attree_plan_workspace(plan);
    args->workspace = aligned_alloc(64, args->workspace_bytes);
    assert_non_null(args->workspace);
    memset(args->workspace, 0xff, args->workspace_bytes);
}

/* The mode of each worker, of the thread that begins and of the one that plans may be another. */
static void host_threads_may_have_any_mode(void **state)
{
    (void)state;
    const attree__fpenv usual = usual_mode();
    for (int n = 0; n < 3 * MODES; n++) {
        if (thinned_out())
            continue;
        modal s = make_modal(n % 3, 7);
        crew c = {.workers = MODES, .odd_modes = true};
        attree_plan *plan;
        const attree__fpenv mode = odd_mode(n / 3);
        set_mode(mode);
        const attree_status made = attree_plan_create(&plan, &s.desc);
        const bool kept = controls_are(mode); /* plans may raise flags */
        set_mode(usual);
        assert_true(made == ATTREE_OK && kept);
        c.plan = plan;
        c.args = (attree_args){.size = sizeof c.args, .q = s.t.q, .k = s.t.k, .v = s.t.v, .o = s.t.o, .lse = s.t.lse};
        give_workspace(&c.args, plan);
        forget(&s.t);
        set_mode(mode);
        const attree_status begun = attree_run_begin(plan, &c.args);
        set_mode(usual);
        assert_int_equal(begun, ATTREE_OK);
        run_crew(&c);
        set_mode(mode);
        const attree_status ended = attree_run_end(plan, &c.args);
        set_mode(usual);
        assert_int_equal(ended, ATTREE_OK);
        check_modal(&s);
        free(c.args.workspace);
        attree_plan_destroy(plan);
        free_modal(&s);
    }
}

/* Every thread of OpenMP's team has the mode, before and after; but for flags, which LLVM's runtime clears. */
static bool team_has_mode(attree__fpenv mode, bool set)
{
    bool right = true;
#pragma omp parallel num_threads(8) reduction(&& : right)
    {
        if (set)
            set_mode(mode);
        right = controls_are(mode);
    }
    return right;
}

static void openmp_threads_may_have_any_mode(void **state)
{
    (void)state;
    const attree__fpenv usual = usual_mode();
    for (int n = 0; n < 3 * MODES; n++) {
        if (thinned_out())
            continue;
        modal s = make_modal(n % 3, 8);
        attree_plan *plan;
        assert_int_equal(attree_plan_create(&plan, &s.desc), ATTREE_OK);
        attree_args args = {.size = sizeof args, .q = s.t.q, .k = s.t.k, .v = s.t.v, .o = s.t.o, .lse = s.t.lse};
        give_workspace(&args, plan);
        forget(&s.t);
        const attree__fpenv mode = odd_mode(n / 3);
        const bool set = team_has_mode(mode, true);
        set_mode(mode); /* LLVM's runtime puts this thread's back after each region, and gives it to the others */
        const attree_status status = attree_run(plan, &args);
        const bool kept = team_has_mode(mode, false);
        (void)team_has_mode(usual, true);
        set_mode(usual);
        if (!set || !kept)
            fail_msg("mode %d: set %d, kept %d", n / 3, set, kept);
        assert_int_equal(status, ATTREE_OK);
        check_modal(&s);
        free(args.workspace);
        attree_plan_destroy(plan);
        free_modal(&s);
    }
}

/* ---- The other functions ---- */

enum { ROW = 64, ROWS = 3, STATE = ROW + 2 };

/* What everything else that computes makes of the same numbers; bytes are compared. */
typedef struct products {
    float merged[2 * STATE], o[ROWS * ROW], lse[ROWS], finished[ROW], finished_lse;
    float pushed[STATE], read[7][ROW], scales[7], finish_o[2 * ROW], finish_lse[2];
    double pushed_wide[STATE], finished_wide[ROW], wide_lse;
    unsigned char rows[7][4 * ROW];
    float weights[300], cache_k[300 * ROW], cache_v[300 * ROW];
} products;

/* Inputs, made once. */
typedef struct materials {
    float numbers[ROWS * ROW], others[ROWS * ROW], lse[ROWS], other_lse[ROWS], scores[ROWS];
    float left[2 * STATE], right[2 * STATE];
    double wide[ROWS * ROW], wide_scores[ROWS];
    attree_plan *plan; /* one head, two queries, 300 keys */
    attree_args args;
    attree_new_tokens tokens;
} materials;

static bool make_rows(const materials *m, products *p)
{
    bool right = true;
    for (int32_t type = 0; type < 7; type++) {
        right = right && attree_quantize(type, ROW, m->numbers, p->rows[type], &p->scales[type]) == ATTREE_OK;
        right = right && attree_dequantize(type, ROW, p->rows[type], p->scales[type], p->read[type]) == ATTREE_OK;
    }
    return right;
}

static bool make_states(const materials *m, products *p)
{
    memcpy(p->o, m->numbers, sizeof p->o);
    memcpy(p->lse, m->lse, sizeof p->lse);
    return attree_states_merge(p->merged, m->left, m->right, 2, ROW) == ATTREE_OK &&
           attree_merge_outputs(p->o, p->lse, m->others, m->other_lse, ATTREE_F32, ROWS, ROW) == ATTREE_OK &&
           attree_state_init_f32(p->pushed, ROW) == ATTREE_OK &&
           attree_state_push_f32(p->pushed, ROW, ROWS, m->scores, m->numbers, ROW) == ATTREE_OK &&
           attree_state_push_key_f32(p->pushed, ROW, 0.3f, m->others) == ATTREE_OK &&
           attree_state_merge_f32(p->pushed, p->pushed, m->left, ROW) == ATTREE_OK &&
           attree_state_finish_f32(p->pushed, ROW, p->finished, &p->finished_lse) == ATTREE_OK &&
           attree_state_init_f64(p->pushed_wide, ROW) == ATTREE_OK &&
           attree_state_push_f64(p->pushed_wide, ROW, ROWS, m->wide_scores, m->wide, ROW) == ATTREE_OK &&
           attree_state_finish_f64(p->pushed_wide, ROW, p->finished_wide, &p->wide_lse) == ATTREE_OK;
}

static bool make_of_plan(const materials *m, products *p)
{
    attree_args args = m->args;
    attree_new_tokens tokens = m->tokens;
    float states[2 * STATE];
    memcpy(states, m->left, sizeof states);
    args.o = p->finish_o;
    args.lse = p->finish_lse;
    args.states = states;
    tokens.cache_k = p->cache_k;
    tokens.cache_v = p->cache_v;
    return attree_run(m->plan, &args) == ATTREE_OK &&
           attree_weights(m->plan, &args, 0, 0, 1, p->weights) == ATTREE_OK &&
           attree_finish(m->plan, &args) == ATTREE_OK && attree_append(m->plan, &tokens) == ATTREE_OK;
}

static void make_materials(materials *m)
{
    random_source random = {77};
    fill_random(m->numbers, ROWS * ROW, &random, -1.0f, 1.0f);
    fill_random(m->others, ROWS * ROW, &random, -1e-38f, 1e-38f);
    fill_random(m->left, 2 * STATE, &random, 0.5f, 1.0f);
    fill_random(m->right, 2 * STATE, &random, 1e-41f, 1e-38f);
    for (int i = 0; i < ROWS; i++) {
        m->lse[i] = 0.7f * (float)i;
        m->other_lse[i] = 1e-40f * (float)i + 0.1f;
        m->scores[i] = (float)i / 3.0f;
        m->wide_scores[i] = i / 3.0;
    }
    for (int i = 0; i < ROWS * ROW; i++) {
        m->numbers[i] *= i % 4 == 0 ? 1e-39f : 1.0f;
        m->wide[i] = (double)m->numbers[i] * (i % 3 ? 1e-300 : 1e-270);
    }
    attree_desc desc = make_desc(1, 1, 1, 2, 300, ROW, ROW);
    assert_int_equal(attree_plan_create(&m->plan, &desc), ATTREE_OK);
    static float keys[300 * ROW], values[300 * ROW];
    fill_random(keys, 300 * ROW, &random, -1.0f, 1.0f);
    fill_random(values, 300 * ROW, &random, -1e-38f, 1e-38f);
    m->args = (attree_args){.size = sizeof m->args, .q = m->numbers, .k = keys, .v = values};
    give_workspace(&m->args, m->plan);
    m->tokens = (attree_new_tokens){.size = sizeof m->tokens, .k = m->others, .v = m->numbers};
}

static void every_function_works_in_any_mode(void **state)
{
    (void)state;
    static materials m;
    static products expected, got;
    make_materials(&m);
    assert_true(make_rows(&m, &expected) && make_states(&m, &expected) && make_of_plan(&m, &expected));
    const attree__fpenv usual = usual_mode();
    bool (*const parts[])(const materials *, products *) = {make_rows, make_states, make_of_plan};
    for (int n = 0; n < MODES; n++) {
        memset(&got, 0, sizeof got);
        const attree__fpenv mode = odd_mode(n);
        for (size_t part = 0; part < COUNT_OF(parts); part++) {
            set_mode(mode);
            const bool right = parts[part](&m, &got);
            const bool kept = mode_is(mode);
            set_mode(usual);
            if (!right || !kept)
                fail_msg("mode %d, part %d: right %d, kept %d", n, (int)part, right, kept);
        }
        assert_memory_equal(&expected, &got, sizeof got);
    }
    free(m.args.workspace);
    attree_plan_destroy(m.plan);
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
    for (int n = 0; n < 7 * 4 * count; n++) {
        const int32_t type = n % 7;
        const bool prefill = n / 7 % 2, deep = n / 14 % 2;
        one.desc = make_desc(1, 4, 2, prefill ? 100 : 1, 300, 64, 96);
        one.desc.isa = (int32_t)isas[n / 28];
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

/* ---- Teams ---- */

/* In whatever team OpenMP gives: in none, in a team, in teams of a team. */
static void the_team_may_be_smaller_than_asked(void **state)
{
    (void)state;
    static const int32_t counts[] = {0, 1, 2, 8, 300};
    const int levels = omp_get_max_active_levels();
    alarm(60);
    for (int n = 0; n < 3 * (int)COUNT_OF(counts); n++) {
        modal s = make_modal(n % 3, counts[n / 3]);
        attree_plan *plan;
        assert_int_equal(attree_plan_create(&plan, &s.desc), ATTREE_OK);
        for (int depth = 0; depth < 3; depth++) {
            atomic_int wrong = 0;
            omp_set_max_active_levels(depth + 1);
#pragma omp parallel num_threads(depth > 0 ? 3 : 1)
            {
                const size_t bytes = (size_t)(s.t.o_count + s.t.lse_count) * sizeof(float);
                float *const got = malloc(bytes);
                attree_args args = {.size = sizeof args, .q = s.t.q, .k = s.t.k, .v = s.t.v, .o = got};
                args.lse = got + s.t.o_count;
                args.workspace_bytes = attree_plan_workspace(plan);
                args.workspace = aligned_alloc(64, args.workspace_bytes);
                memset(got, 0xff, bytes);
                if (attree_run(plan, &args) != ATTREE_OK || memcmp(s.expected, got, bytes) != 0)
                    atomic_fetch_add(&wrong, 1);
                free(args.workspace);
                free(got);
            }
            assert_int_equal(wrong, 0);
        }
        attree_plan_destroy(plan);
        free_modal(&s);
    }
    alarm(0);
    omp_set_max_active_levels(levels);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest teams[] = {cmocka_unit_test(the_team_may_be_smaller_than_asked)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_call_without_memory_leaks_nothing),
        cmocka_unit_test(a_plan_without_memory_is_null),
        cmocka_unit_test(an_update_without_memory_changes_nothing),
        cmocka_unit_test(host_threads_may_have_any_mode),
        cmocka_unit_test(openmp_threads_may_have_any_mode),
        cmocka_unit_test(every_function_works_in_any_mode),
        cmocka_unit_test(every_kernel_fits_a_small_stack),
        cmocka_unit_test(the_team_may_be_smaller_than_asked),
    };
    if (argc == 2 && strcmp(argv[1], "teams") == 0)
        return cmocka_run_group_tests(teams, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
