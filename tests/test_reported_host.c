/* The library inside a host program: fork, threads of the host's, the floating-point mode, settings and environment of
 * OpenMP, a second OpenMP runtime. Numbers are those of README.md.
 *
 * With the argument default_threads only the test runs that depends on the environment of OpenMP. */
#define _GNU_SOURCE /* sched_getaffinity, environ */
#include <dlfcn.h>
#include <fenv.h>
#include <float.h>
#include <math.h>
#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../src/simd/fpenv.h"
#include "support.h"

#define COUNT_OF(array) (sizeof(array) / sizeof *(array))

/* ---- A problem that knows its answer ---- */

typedef struct known {
    attree_desc desc;
    tensors t;
    float *expected; /* o, then lse */
} known;

/* Answers are those of one thread. */
static known make_known(attree_desc desc, uint64_t seed)
{
    desc.threads = 1;
    known k = {.desc = desc, .t = make_tensors(&desc, seed)};
    k.expected = result_of(&desc, &k.t);
    return k;
}

static void free_known(known *k)
{
    free(k->expected);
    free_tensors(&k->t);
}

/* Decode with enough keys for several workers; its keys are split. */
static known make_split(void) { return make_known(make_desc(1, 2, 1, 1, 20000, 32, 32), 5); }

static bool is_expected(const known *k, const float *got)
{
    return memcmp(k->expected, got, (size_t)(k->t.o_count + k->t.lse_count) * sizeof(float)) == 0;
}

/* Whether attree_attention with this many threads gives the answer. Fails no test, so it may run in any thread. */
static bool gives_the_answer(const known *k, int32_t threads)
{
    const size_t bytes = (size_t)(k->t.o_count + k->t.lse_count) * sizeof(float);
    float *const got = malloc(bytes);
    if (!got)
        return false;
    memset(got, 0xff, bytes);
    attree_desc desc = k->desc;
    desc.threads = threads;
    const attree_args args = {
        .size = sizeof args, .q = k->t.q, .k = k->t.k, .v = k->t.v, .o = got, .lse = got + k->t.o_count};
    const bool right = attree_attention(&desc, &args) == ATTREE_OK && is_expected(k, got);
    free(got);
    return right;
}

/* Arguments for a run of a ready plan, with a workspace, whose results go to `got`. */
static attree_args make_args(const known *k, const attree_plan *plan, float *got)
{
    const size_t bytes = attree_plan_workspace(plan);
    return (attree_args){.size = sizeof(attree_args),
                         .q = k->t.q,
                         .k = k->t.k,
                         .v = k->t.v,
                         .o = got,
                         .lse = got + k->t.o_count,
                         .workspace = aligned_alloc(64, bytes),
                         .workspace_bytes = bytes};
}

/* ---- fork ---- */

/* A run on `count` threads of the host's, which one barrier keeps in step. */
typedef struct crew {
    const attree_plan *plan;
    attree_args args;
    pthread_barrier_t barrier;
    int32_t count;
} crew;

static void *crew_member(void *arg)
{
    crew *const c = arg;
    for (int32_t phase = 0; phase < attree_plan_phases(c->plan); phase++) {
        (void)attree_run_worker(c->plan, &c->args, phase);
        pthread_barrier_wait(&c->barrier);
    }
    return NULL;
}

/* gives_the_answer for a crew of 3. */
static bool crew_gives_the_answer(const known *k)
{
    enum { COUNT = 3 };
    attree_desc desc = k->desc;
    desc.threads = COUNT;
    attree_plan *plan;
    if (attree_plan_create(&plan, &desc) != ATTREE_OK)
        return false;
    float *const got = malloc((size_t)(k->t.o_count + k->t.lse_count) * sizeof(float));
    crew c = {.plan = plan, .args = make_args(k, plan, got), .count = COUNT};
    pthread_barrier_init(&c.barrier, NULL, COUNT);
    bool right = attree_run_begin(plan, &c.args) == ATTREE_OK;
    pthread_t threads[COUNT];
    for (int i = 0; i < COUNT && right; i++)
        if (pthread_create(&threads[i], NULL, crew_member, &c) != 0)
            return false;
    for (int i = 0; i < COUNT && right; i++)
        pthread_join(threads[i], NULL);
    right = right && attree_run_end(plan, &c.args) == ATTREE_OK && is_expected(k, got);
    pthread_barrier_destroy(&c.barrier);
    attree_plan_destroy(plan);
    free(c.args.workspace);
    free(got);
    return right;
}

/* Sanitizers of threads cannot start any after a fork. */
#if defined(__SANITIZE_THREAD__)
#define THREADS_AFTER_FORK false
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define THREADS_AFTER_FORK false
#endif
#endif
#ifndef THREADS_AFTER_FORK
#define THREADS_AFTER_FORK true
#endif

/* Forks; the child must get the answer alone and with its own threads, within 20 s. */
static void expect_child_gives_the_answer(const known *k)
{
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        alarm(20);
        const bool alone = gives_the_answer(k, 1);
        const bool crewed = !THREADS_AFTER_FORK || crew_gives_the_answer(k);
        _exit((alone ? 0 : 1) + (crewed ? 0 : 2));
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        fail_msg("the child ended with status 0x%x", (unsigned)status);
}

/* case 122: threads in the parent, fork, a child that leaves OpenMP alone */
static void a_child_computes_what_its_parent_does(void **state)
{
    (void)state;
    known k = make_split();
    assert_true(gives_the_answer(&k, 8));
    assert_true(gives_the_answer(&k, 8));
    expect_child_gives_the_answer(&k);
    assert_true(gives_the_answer(&k, 8)); /* the parent is well */
    free_known(&k);
}

/* A thread that runs a ready plan until it is told to stop. It leaves the heap alone: an allocator need not be usable
 * in a child that was forked while another thread was inside it (AddressSanitizer's is not). */
typedef struct runner {
    const known *k;
    attree_plan *plan;
    attree_args args;
    float *got;
    _Atomic bool stop;
    bool right;
} runner;

static void *run_repeatedly(void *arg)
{
    runner *const r = arg;
    r->right = true;
    while (!atomic_load(&r->stop))
        r->right = attree_run(r->plan, &r->args) == ATTREE_OK && is_expected(r->k, r->got) && r->right;
    return NULL;
}

/* case 122: fork while another thread is inside a run */
static void a_fork_during_a_run(void **state)
{
    (void)state;
    known k = make_split();
    runner r = {.k = &k, .got = malloc((size_t)(k.t.o_count + k.t.lse_count) * sizeof(float))};
    assert_int_equal(attree_plan_create(&r.plan, &k.desc), ATTREE_OK);
    r.args = make_args(&k, r.plan, r.got);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, run_repeatedly, &r), 0);
    for (int n = 0; n < 5; n++)
        expect_child_gives_the_answer(&k);
    atomic_store(&r.stop, true);
    pthread_join(thread, NULL);
    assert_true(r.right);
    attree_plan_destroy(r.plan);
    free(r.args.workspace);
    free(r.got);
    free_known(&k);
}

/* ---- The floating-point mode ---- */

/* Rounding, flushing of subnormals, masks; not the sticky flags. */
static uint64_t control_bits(void)
{
    const attree__fpenv now = attree__fpenv_enter();
    attree__fpenv_leave(now);
#if defined(__x86_64__)
    return now & ~0x3fu;
#else
    return now.control;
#endif
}

static void flush_subnormals(void)
{
#if defined(__x86_64__)
    _mm_setcsr(_mm_getcsr() | 0x8040u); /* FTZ, DAZ */
#else
    attree__fpenv now = attree__fpenv_enter();
    now.control |= UINT64_C(1) << 24; /* FZ */
    attree__fpenv_leave(now);
#endif
}

static bool subnormals_are_kept(void)
{
    volatile float half = FLT_MIN;
    half = half / 2.0f;
    return half > 0.0f && fpclassify(half) == FP_SUBNORMAL;
}

/* case 124: loading and unloading the shared library, and calling, change no mode of the calling thread */
static void the_mode_is_as_before_loading(void **state)
{
    (void)state;
    const uint64_t before = control_bits();
    assert_true(subnormals_are_kept());
    void *const library = dlopen(ATTREE_TEST_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    assert_non_null(library);
    assert_true(control_bits() == before && subnormals_are_kept());
    known k = make_split();
    for (int32_t threads = 1; threads <= 3; threads++) {
        assert_true(gives_the_answer(&k, threads));
        assert_true(control_bits() == before && subnormals_are_kept());
    }
    assert_int_equal(dlclose(library), 0);
    assert_true(control_bits() == before && subnormals_are_kept());
    free_known(&k);
}

/* case 125: subnormal values, and weights times values that become subnormal, are kept whatever the caller's mode and
 * however many workers; the mode stays */
static void flushing_of_the_caller_changes_no_bit(void **state)
{
    (void)state;
    const int rounding[] = {FE_TONEAREST, FE_UPWARD};
    for (int shape = 0; shape < 4; shape++) {
        known k = shape % 2 ? make_known(make_desc(1, 2, 1, 40, 600, 8, 24), 3) : make_split();
        for (int64_t i = 0; i < k.t.v_count; i++)
            k.t.v[i] = shape / 2 ? 1e-40f * (float)(1 + i % 7) : FLT_MIN * (float)(1 + i % 3);
        free(k.expected);
        k.expected = result_of(&k.desc, &k.t);
        assert_true(k.expected[0] > 0.0f && (shape / 2 == 0 || k.expected[0] < FLT_MIN));
        const uint64_t plain = control_bits();
        for (int n = 0; n < 4; n++) {
            fesetround(rounding[n % 2]);
            flush_subnormals();
            const uint64_t before = control_bits();
            const bool right = gives_the_answer(&k, n / 2 ? 8 : 1), kept = control_bits() == before;
            const bool flushes = !subnormals_are_kept();
            fesetenv(FE_DFL_ENV);
            assert_true(right);
            assert_true(kept && flushes);
            assert_true(control_bits() == plain && subnormals_are_kept());
        }
        free_known(&k);
    }
}

/* ---- Many threads ---- */

typedef struct caller {
    known k;
    int32_t threads, runs;
    bool right;
} caller;

static void *call_repeatedly(void *arg)
{
    caller *const c = arg;
    c->right = true;
    for (int32_t n = 0; n < c->runs; n++)
        c->right = gives_the_answer(&c->k, c->threads) && c->right;
    return NULL;
}

/* case 127: more calling threads than any table could have been made for */
static void two_hundred_callers(void **state)
{
    (void)state;
    enum { CALLERS = 200 };
    known k = make_known(make_desc(1, 2, 1, 30, 300, 8, 8), 1);
    static caller callers[CALLERS];
    pthread_t threads[CALLERS];
    for (int n = 0; n < CALLERS; n++) {
        callers[n] = (caller){.k = k, .threads = 1, .runs = 3};
        assert_int_equal(pthread_create(&threads[n], NULL, call_repeatedly, &callers[n]), 0);
    }
    for (int n = 0; n < CALLERS; n++) {
        pthread_join(threads[n], NULL);
        assert_true(callers[n].right);
    }
    free_known(&k);
}

/* case 128: callers at the same time, each with a problem of its own */
static void callers_share_nothing(void **state)
{
    (void)state;
    enum { CALLERS = 16 };
    caller callers[CALLERS];
    pthread_t threads[CALLERS];
    for (int n = 0; n < CALLERS; n++) {
        attree_desc d = make_desc(1 + n % 2, 4, 2, n % 3 ? 1 + n : 40, 10 + 70 * n, 4 + n, 20 - n);
        d.flags = n % 2 ? ATTREE_CAUSAL : 0;
        callers[n] = (caller){.k = make_known(d, (uint64_t)n), .threads = 1 + n % 4 / 3, .runs = 40};
    }
    for (int n = 0; n < CALLERS; n++)
        assert_int_equal(pthread_create(&threads[n], NULL, call_repeatedly, &callers[n]), 0);
    for (int n = 0; n < CALLERS; n++) {
        pthread_join(threads[n], NULL);
        assert_true(callers[n].right);
        free_known(&callers[n].k);
    }
}

static int32_t workers_of(const known *k, int32_t threads)
{
    attree_desc desc = k->desc;
    desc.threads = threads;
    attree_plan *plan;
    char text[256];
    assert_int_equal(attree_plan_create(&plan, &desc), ATTREE_OK);
    assert_int_equal(attree_plan_describe(plan, text, sizeof text), ATTREE_OK);
    attree_plan_destroy(plan);
    const char *at = strstr(text, " workers");
    assert_non_null(at);
    while (at > text && at[-1] >= '0' && at[-1] <= '9')
        at--;
    return (int32_t)strtol(at, NULL, 10);
}

/* case 130: another number of workers in every call */
static void the_number_of_workers_alternates(void **state)
{
    (void)state;
    const int32_t counts[] = {1, 6, 2, 5, 1, 3};
    known k = make_split();
    alarm(60);
    for (int n = 0; n < 200; n++) {
        const int32_t threads = counts[n % (int)COUNT_OF(counts)];
        if (n < (int)COUNT_OF(counts))
            assert_int_equal(workers_of(&k, threads), threads);
        if (!thinned_out())
            assert_true(gives_the_answer(&k, threads));
    }
    alarm(0);
    free_known(&k);
}

/* ---- OpenMP ---- */

/* What a library must not change. */
typedef struct settings {
    int most, dynamic, levels;
    cpu_set_t cpus;
    uint64_t environment;
} settings;

static settings current_settings(void)
{
    settings s = {omp_get_max_threads(), omp_get_dynamic(), omp_get_max_active_levels(), .environment = 1};
    CPU_ZERO(&s.cpus);
    assert_int_equal(sched_getaffinity(0, sizeof s.cpus, &s.cpus), 0);
    for (char **variable = environ; *variable; variable++)
        for (const char *c = *variable; *c; c++)
            s.environment = s.environment * 31 + (unsigned char)*c;
    return s;
}

static void expect_settings(const settings *expected)
{
    const settings now = current_settings();
    assert_int_equal(now.most, expected->most);
    assert_int_equal(now.dynamic, expected->dynamic);
    assert_int_equal(now.levels, expected->levels);
    assert_true(CPU_EQUAL(&now.cpus, &expected->cpus));
    assert_true(now.environment == expected->environment);
}

/* case 131: a hundred calls of every kind leave OpenMP's settings, the affinity and the environment alone */
static void settings_of_the_process_are_kept(void **state)
{
    (void)state;
    const int32_t threads[] = {0, 1, 2, 3, 8, 300};
    known split = make_split(), tiny = make_known(make_desc(1, 1, 1, 1, 4, 4, 4), 1);
    const int most = omp_get_max_threads();
    for (int chosen = 1; chosen <= 5; chosen += 4) {
        omp_set_num_threads(chosen);
        const settings before = current_settings();
        for (int n = 0; n < 100; n++) {
            if (thinned_out())
                continue;
            assert_true(gives_the_answer(n % 3 ? &tiny : &split, threads[n % (int)COUNT_OF(threads)]));
            expect_settings(&before);
        }
        assert_int_equal(workers_of(&split, 0), chosen);
        expect_settings(&before);
    }
    omp_set_num_threads(most);
    free_known(&split);
    free_known(&tiny);
}

/* case 133: run by CTest with OMP_NUM_THREADS a list, 0, negative, empty or nonsense: the default number of threads is
 * then OpenMP's business, but it is a number, and results are right */
static void default_threads(void **state)
{
    (void)state;
    known k = make_split();
    const int32_t workers = workers_of(&k, 0);
    assert_true(workers >= 1 && workers <= omp_get_max_threads());
    assert_true(gives_the_answer(&k, 0));
    assert_true(gives_the_answer(&k, 3));
    free_known(&k);
}

typedef struct nest {
    const known *k;
    _Atomic int calls, wrong;
} nest;

static void call_in_a_team(void *arg)
{
    nest *const n = arg;
    for (int32_t threads = 0; threads <= 4; threads++) {
        atomic_fetch_add(&n->calls, 1);
        if (!gives_the_answer(n->k, threads))
            atomic_fetch_add(&n->wrong, 1);
    }
}

/* case 134: runs inside a parallel region of the host's, with this program's OpenMP runtime and with others that are
 * installed; GOMP_parallel is the entry point that all of them have */
static void runs_inside_teams_of_any_runtime(void **state)
{
    (void)state;
    static const char *const names[] = {"libgomp.so.1", "libomp.so.5", "libiomp5.so"};
    known k = make_split();
    nest n = {.k = &k};
    alarm(60);
#pragma omp parallel num_threads(3)
    call_in_a_team(&n);
    assert_true(n.calls >= 5 && n.wrong == 0);
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        void *const runtime = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        void *const symbol = runtime ? dlsym(runtime, "GOMP_parallel") : NULL;
        if (!symbol)
            continue;
        void (*parallel)(void (*)(void *), void *, unsigned, unsigned);
        memcpy(&parallel, &symbol, sizeof parallel);
        n.calls = 0;
        parallel(call_in_a_team, &n, 3, 0);
        assert_true(n.calls >= 5 && n.wrong == 0);
    }
    alarm(0);
    free_known(&k);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest alone[] = {cmocka_unit_test(default_threads)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_mode_is_as_before_loading),
        cmocka_unit_test(flushing_of_the_caller_changes_no_bit),
        cmocka_unit_test(a_child_computes_what_its_parent_does),
        cmocka_unit_test(a_fork_during_a_run),
        cmocka_unit_test(two_hundred_callers),
        cmocka_unit_test(callers_share_nothing),
        cmocka_unit_test(the_number_of_workers_alternates),
        cmocka_unit_test(settings_of_the_process_are_kept),
        cmocka_unit_test(default_threads),
        cmocka_unit_test(runs_inside_teams_of_any_runtime),
    };
    if (argc == 2 && strcmp(argv[1], "default_threads") == 0)
        return cmocka_run_group_tests(alone, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
