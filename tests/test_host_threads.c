/* The library without OpenMP, driven by a pool of POSIX threads as an inference engine has one. */
#define _GNU_SOURCE /* RTLD_DEFAULT */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "support.h"

/* ---- The pool ---- */

/* All who take part in a run meet here. */
typedef struct barrier {
    pthread_mutex_t mutex;
    pthread_cond_t all_here;
    int expected, here;
    unsigned long meeting;
} barrier;

static void barrier_wait(barrier *b)
{
    pthread_mutex_lock(&b->mutex);
    const unsigned long meeting = b->meeting;
    if (++b->here == b->expected) {
        b->here = 0;
        b->meeting++;
        pthread_cond_broadcast(&b->all_here);
    }
    while (meeting == b->meeting)
        pthread_cond_wait(&b->all_here, &b->mutex);
    pthread_mutex_unlock(&b->mutex);
}

/* One run: of `workers` only first <= worker < end come, and worker `late` sleeps before each phase. */
typedef struct job {
    const attree_plan *plan;
    const attree_args *args;
    int32_t workers, first, end, late;
} job;

typedef struct pool {
    pthread_mutex_t mutex;
    pthread_cond_t work, done;
    job job;
    unsigned long ticket; /* number of the job; published with it, under the mutex */
    int running;
    bool stopping;
    barrier barrier;
    atomic_int failures;
    int count;
    pthread_t threads[64];
    atomic_int arrivals; /* threads take their numbers from it */
} pool;

static void take_part(pool *p, const job *j, int32_t worker)
{
    if (worker < j->first || worker >= j->end)
        return;
    for (int32_t phase = 0; phase < attree_plan_phases(j->plan); phase++) {
        if (worker == j->late)
            nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        if (attree_run_worker(j->plan, j->args, phase) != ATTREE_OK)
            atomic_fetch_add(&p->failures, 1);
        barrier_wait(&p->barrier);
    }
}

static void *pool_thread(void *arg)
{
    pool *const p = arg;
    const int32_t worker = atomic_fetch_add(&p->arrivals, 1);
    unsigned long seen = 0;
    pthread_mutex_lock(&p->mutex);
    for (;;) {
        while (!p->stopping && p->ticket == seen)
            pthread_cond_wait(&p->work, &p->mutex);
        if (p->stopping)
            break;
        seen = p->ticket;
        const job j = p->job;
        pthread_mutex_unlock(&p->mutex);
        take_part(p, &j, worker);
        pthread_mutex_lock(&p->mutex);
        if (--p->running == 0)
            pthread_cond_signal(&p->done);
    }
    pthread_mutex_unlock(&p->mutex);
    return NULL;
}

static void pool_start(pool *p, int count)
{
    *p = (pool){.count = count};
    pthread_mutex_init(&p->mutex, NULL);
    pthread_cond_init(&p->work, NULL);
    pthread_cond_init(&p->done, NULL);
    pthread_mutex_init(&p->barrier.mutex, NULL);
    pthread_cond_init(&p->barrier.all_here, NULL);
    for (int n = 0; n < count; n++)
        if (pthread_create(&p->threads[n], NULL, pool_thread, p) != 0)
            abort();
}

static void pool_stop(pool *p)
{
    pthread_mutex_lock(&p->mutex);
    p->stopping = true;
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->mutex);
    for (int n = 0; n < p->count; n++)
        pthread_join(p->threads[n], NULL);
}

/* Runs a job; returns the status of the run. */
static attree_status pool_run(pool *p, const job *j)
{
    const attree_status status = attree_run_begin(j->plan, j->args);
    if (status != ATTREE_OK)
        return status;
    pthread_mutex_lock(&p->mutex);
    p->job = *j;
    p->barrier.expected = j->end - j->first;
    p->running = p->count;
    p->ticket++;
    pthread_cond_broadcast(&p->work);
    while (p->running > 0)
        pthread_cond_wait(&p->done, &p->mutex);
    pthread_mutex_unlock(&p->mutex);
    return attree_run_end(j->plan, j->args);
}

/* ---- A problem with its plan, its memory and its serial result. Asserts nothing: for any thread ---- */

typedef struct task {
    attree_desc desc;
    tensors t;
    attree_plan *plan;
    attree_args args;
    float *expected; /* o, then lse */
} task;

static void give_workspace(attree_args *args, const attree_plan *plan)
{
    args->workspace_bytes = attree_plan_workspace(plan);
    args->workspace = aligned_alloc(64, args->workspace_bytes);
    if (!args->workspace)
        abort();
    memset(args->workspace, 0xff, args->workspace_bytes);
}

static void forget(const task *k, const attree_args *args)
{
    memset(args->o, 0xff, (size_t)k->t.o_count * sizeof(float));
    memset(args->lse, 0xff, (size_t)k->t.lse_count * sizeof(float));
}

static bool is_right(const task *k, const attree_args *args)
{
    return memcmp(k->expected, args->o, (size_t)k->t.o_count * sizeof(float)) == 0 &&
           memcmp(k->expected + k->t.o_count, args->lse, (size_t)k->t.lse_count * sizeof(float)) == 0;
}

/* The expected result is that of a plan for one thread. */
static void task_start(task *k, const attree_desc *desc, int32_t threads, uint64_t seed)
{
    *k = (task){.desc = *desc, .t = make_tensors(desc, seed)};
    k->desc.threads = 1;
    k->expected = result_of(&k->desc, &k->t);
    k->desc.threads = threads;
    assert_int_equal(attree_plan_create(&k->plan, &k->desc), ATTREE_OK);
    k->args = (attree_args){.size = sizeof k->args, .q = k->t.q, .k = k->t.k, .v = k->t.v};
    k->args.o = k->t.o;
    k->args.lse = k->t.lse;
    give_workspace(&k->args, k->plan);
}

static void task_stop(task *k)
{
    attree_plan_destroy(k->plan);
    free(k->args.workspace);
    free(k->expected);
    free_tensors(&k->t);
}

/* Shapes of all sorts: chunks of keys, tiles of rows, both, too small for two workers, nothing at all. */
static attree_desc shape(int n)
{
    static const int64_t shapes[][7] = {
        {1, 1, 1, 1, 40000, 32, 32}, {2, 4, 2, 100, 700, 32, 40}, {1, 2, 1, 16, 9000, 24, 24},
        {1, 1, 1, 1, 64, 16, 16},    {3, 6, 2, 1, 5000, 32, 16},  {1, 1, 1, 0, 300, 8, 8},
        {1, 2, 2, 4, 0, 8, 8},       {1, 8, 8, 64, 257, 64, 64},
    };
    const int64_t *s = shapes[n % 8];
    attree_desc d = make_desc(s[0], s[1], s[2], s[3], s[4], s[5], s[6]);
    d.flags = n % 2 ? ATTREE_CAUSAL : 0;
    return d;
}

/* ---- Tests ---- */

static void there_is_no_openmp_in_this_process(void **state)
{
    (void)state;
    assert_null(dlsym(RTLD_DEFAULT, "omp_get_max_threads"));
    assert_null(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
    assert_null(dlsym(RTLD_DEFAULT, "__kmpc_fork_call"));
}

static void note_thread(const attree_score_tile *tile, void *user)
{
    pthread_t *const caller = user;
    if (!pthread_equal(*caller, pthread_self()))
        tile->scores[0] = -1e3f; /* shows in the result */
}

/* attree_run is the calling thread's work alone, also for a plan with room for more workers. */
static void attree_run_stays_in_the_calling_thread(void **state)
{
    (void)state;
    for (int n = 0; n < 8; n++) {
        const attree_desc d = shape(n);
        task k;
        pthread_t caller = pthread_self();
        task_start(&k, &d, 5, 11 + (uint64_t)n);
        for (int with_score = 0; with_score < 2; with_score++) {
            k.args.score = with_score ? note_thread : NULL;
            k.args.user = &caller;
            forget(&k, &k.args);
            assert_int_equal(attree_run(k.plan, &k.args), ATTREE_OK);
            assert_true(is_right(&k, &k.args));
        }
        task_stop(&k);
    }
}

static void the_default_is_one_thread(void **state)
{
    (void)state;
    attree_desc d = shape(0);
    attree_plan *plan;
    char text[256];
    d.threads = 0;
    assert_int_equal(setenv("OMP_NUM_THREADS", "4", 1), 0);
    assert_int_equal(attree_plan_create(&plan, &d), ATTREE_OK);
    assert_int_equal(attree_plan_describe(plan, text, sizeof text), ATTREE_OK);
    assert_non_null(strstr(text, " 1 workers"));
    attree_plan_destroy(plan);
}

/* As many workers as the plan is for, fewer, more; one that is late; some that never come. */
static void any_number_of_workers_gives_the_same_bits(void **state)
{
    (void)state;
    const int32_t counts[] = {1, 2, 5, 64};
    static pool p;
    pool_start(&p, 64);
    for (int n = 0; n < 8; n++) {
        const attree_desc d = shape(n);
        task k;
        task_start(&k, &d, 5, 30 + (uint64_t)n);
        for (int c = 0; c < 4 * 5; c++) {
            if (thinned_out())
                continue;
            const int32_t workers = counts[c / 5];
            job j = {k.plan, &k.args, workers, 0, workers, -1};
            if (c % 5 == 1) /* the first is late */
                j.late = 0;
            if (c % 5 == 2) /* the last is */
                j.late = workers - 1;
            if (c % 5 == 3) /* only the first comes */
                j.end = 1;
            if (c % 5 == 4) /* only the last */
                j.first = workers - 1;
            forget(&k, &k.args);
            assert_int_equal(pool_run(&p, &j), ATTREE_OK);
            assert_true(is_right(&k, &k.args));
        }
        task_stop(&k);
    }
    assert_int_equal(atomic_load(&p.failures), 0);
    pool_stop(&p);
}

/* The plan's other workers do without the first, or without all but one. */
static void any_worker_of_the_plan_may_be_missing(void **state)
{
    (void)state;
    static pool p;
    pool_start(&p, 5);
    const attree_desc d = shape(0);
    task k;
    task_start(&k, &d, 5, 50);
    for (int32_t first = 0; first < 5; first++)
        for (int32_t end = first + 1; end <= 5; end++) {
            const job j = {k.plan, &k.args, 5, first, end, -1};
            forget(&k, &k.args);
            assert_int_equal(pool_run(&p, &j), ATTREE_OK);
            assert_true(is_right(&k, &k.args));
        }
    assert_int_equal(atomic_load(&p.failures), 0);
    task_stop(&k);
    pool_stop(&p);
}

/* A worker who comes when all is done, before the end is asked for, changes nothing. */
static void a_worker_after_the_others_finds_nothing(void **state)
{
    (void)state;
    const attree_desc d = shape(0);
    task k;
    task_start(&k, &d, 5, 55);
    forget(&k, &k.args);
    assert_int_equal(attree_run_begin(k.plan, &k.args), ATTREE_OK);
    for (int32_t phase = 0; phase < attree_plan_phases(k.plan); phase++)
        assert_int_equal(attree_run_worker(k.plan, &k.args, phase), ATTREE_OK);
    assert_true(is_right(&k, &k.args));
    forget(&k, &k.args);
    for (int32_t phase = 0; phase < attree_plan_phases(k.plan); phase++)
        assert_int_equal(attree_run_worker(k.plan, &k.args, phase), ATTREE_OK);
    for (int64_t i = 0; i < k.t.o_count * (int64_t)sizeof(float); i++)
        assert_int_equal(((unsigned char *)k.t.o)[i], 0xff);
    assert_int_equal(attree_run_end(k.plan, &k.args), ATTREE_OK);
    task_stop(&k);
}

static void expect_unfinished(const task *k, attree_status status, const char *sentence)
{
    assert_int_equal(status, ATTREE_ERROR_UNFINISHED);
    if (!strstr(attree_last_error(), sentence))
        fail_msg("\"%s\" should say \"%s\"", attree_last_error(), sentence);
    for (int64_t i = 0; i < k->t.o_count * (int64_t)sizeof(float); i++)
        assert_int_equal(((unsigned char *)k->t.o)[i], 0xff);
}

/* Each phase that nobody worked is named, and can still be worked. */
static void a_run_that_is_not_finished_is_an_error(void **state)
{
    (void)state;
    const int with_work[] = {0, 1, 2, 4, 7};
    int32_t most_phases = 0;
    for (int n = 0; n < 5; n++) {
        const attree_desc d = shape(with_work[n]);
        task k;
        task_start(&k, &d, 5, 60 + (uint64_t)n);
        forget(&k, &k.args);
        assert_int_equal(attree_run_begin(k.plan, &k.args), ATTREE_OK);
        const int32_t phases = attree_plan_phases(k.plan);
        for (int32_t done = 0; done < phases; done++) {
            char sentence[32];
            (void)snprintf(sentence, sizeof sentence, "phase %d has ", (int)done);
            expect_unfinished(&k, attree_run_end(k.plan, &k.args), sentence);
            for (int32_t later = done + 1; later < phases; later++)
                expect_unfinished(&k, attree_run_worker(k.plan, &k.args, later), sentence);
            assert_int_equal(attree_run_worker(k.plan, &k.args, done), ATTREE_OK);
        }
        assert_int_equal(attree_run_end(k.plan, &k.args), ATTREE_OK);
        assert_true(is_right(&k, &k.args));
        most_phases = phases > most_phases ? phases : most_phases;
        task_stop(&k);
    }
    assert_int_equal(most_phases, 2);
}

/* Whatever the workspace holds: nothing, zeros, a run that has ended, one of another plan. */
static void a_run_without_a_begin_is_an_error(void **state)
{
    (void)state;
    const attree_desc d = shape(0);
    task k;
    task_start(&k, &d, 5, 70);
    attree_plan *other;
    assert_int_equal(attree_plan_create(&other, &k.desc), ATTREE_OK);
    for (int contents = 0; contents < 4; contents++) {
        memset(k.args.workspace, contents == 0 ? 0xff : 0, k.args.workspace_bytes);
        if (contents == 2)
            assert_int_equal(attree_run(k.plan, &k.args), ATTREE_OK);
        if (contents == 3)
            assert_int_equal(attree_run_begin(other, &k.args), ATTREE_OK);
        forget(&k, &k.args);
        for (int32_t phase = 0; phase < attree_plan_phases(k.plan); phase++)
            expect_unfinished(&k, attree_run_worker(k.plan, &k.args, phase), "attree_run_begin");
        expect_unfinished(&k, attree_run_end(k.plan, &k.args), "attree_run_begin");
    }
    attree_plan_destroy(other);
    task_stop(&k);
}

/* ---- Several at once ---- */

typedef struct caller {
    const task *task;
    attree_args args; /* its own output and workspace */
    int32_t workers;  /* of its own pool; 0: attree_run */
    int rounds, wrong;
    bool plans; /* a plan of its own for each round */
} caller;

static void caller_start(caller *c, const task *k)
{
    c->task = k;
    c->args = k->args;
    c->args.o = malloc((size_t)k->t.o_count * sizeof(float) + 1);
    c->args.lse = malloc((size_t)k->t.lse_count * sizeof(float) + 1);
    if (!c->args.o || !c->args.lse)
        abort();
    give_workspace(&c->args, k->plan);
}

static void caller_stop(caller *c)
{
    free(c->args.o);
    free(c->args.lse);
    free(c->args.workspace);
}

static void *call_repeatedly(void *arg)
{
    caller *const c = arg;
    pool *p = NULL;
    if (c->workers > 0) {
        p = malloc(sizeof *p);
        if (!p)
            abort();
        pool_start(p, c->workers);
    }
    const job j = {c->task->plan, &c->args, c->workers, 0, c->workers, -1};
    for (int round = 0; round < c->rounds; round++) {
        forget(c->task, &c->args);
        const attree_status status = p          ? pool_run(p, &j)
                                     : c->plans ? attree_attention(&c->task->desc, &c->args)
                                                : attree_run(c->task->plan, &c->args);
        c->wrong += status != ATTREE_OK || !is_right(c->task, &c->args);
    }
    if (p) {
        pool_stop(p);
        free(p);
    }
    return NULL;
}

static void call_all(caller *callers, int count)
{
    pthread_t threads[256];
    for (int n = 0; n < count; n++)
        assert_int_equal(pthread_create(&threads[n], NULL, call_repeatedly, &callers[n]), 0);
    for (int n = 0; n < count; n++)
        pthread_join(threads[n], NULL);
    for (int n = 0; n < count; n++)
        assert_int_equal(callers[n].wrong, 0);
}

static void two_pools_run_one_plan_at_once(void **state)
{
    (void)state;
    for (int n = 0; n < 3; n++) {
        const attree_desc d = shape(n);
        task k;
        task_start(&k, &d, 4, 60 + (uint64_t)n);
        const int rounds = thinned_out() ? 3 : 20;
        caller callers[] = {{.workers = 3, .rounds = rounds}, {.workers = 5, .rounds = rounds}};
        for (int i = 0; i < 2; i++)
            caller_start(&callers[i], &k);
        call_all(callers, 2);
        for (int i = 0; i < 2; i++)
            caller_stop(&callers[i]);
        task_stop(&k);
    }
}

/* Nothing is shared between runs: callers with problems of their own, each compared with its serial result. */
static void many_callers_do_not_disturb_each_other(void **state)
{
    (void)state;
    enum { CALLERS = 16 };
    attree_isa isas[8];
    const int isa_count = available_isas(isas);
    static task tasks[CALLERS];
    static caller callers[CALLERS];
    for (int n = 0; n < CALLERS; n++) {
        attree_desc d = make_desc(1 + n % 3, 2 * (1 + n % 2), 2, 1 + n % 5, 40 + 37 * n, 8 + n, 16 + n % 7);
        d.flags = n % 3 ? ATTREE_CAUSAL : 0;
        d.isa = (int32_t)isas[n % isa_count];
        d.k_type = d.o_type = n % 3;
        task_start(&tasks[n], &d, 1 + n % 4, 100 + (uint64_t)n);
        callers[n] = (caller){.rounds = thinned_out() ? 30 : 400, .plans = n % 4 == 1};
        caller_start(&callers[n], &tasks[n]);
    }
    call_all(callers, CALLERS);
    for (int n = 0; n < CALLERS; n++) {
        caller_stop(&callers[n]);
        task_stop(&tasks[n]);
    }
}

/* More threads than any constant that one might think of. */
static void two_hundred_callers_at_once(void **state)
{
    (void)state;
    enum { CALLERS = 200 };
    const attree_desc d = shape(thinned_out() ? 3 : 7);
    static caller callers[CALLERS];
    task k;
    task_start(&k, &d, 300, 200);
    for (int n = 0; n < CALLERS; n++) {
        callers[n] = (caller){.rounds = 2, .plans = n % 2};
        caller_start(&callers[n], &k);
    }
    call_all(callers, CALLERS);
    for (int n = 0; n < CALLERS; n++)
        caller_stop(&callers[n]);
    task_stop(&k);
}

/* Calls of a few microseconds, by turns with 1, 6, 2 and 5 workers of a pool that stays. */
static void tiny_calls_with_changing_workers(void **state)
{
    (void)state;
    const int32_t counts[] = {1, 6, 2, 5};
    static pool p;
    pool_start(&p, 6);
    for (int n = 0; n < 2; n++) {
        attree_desc d = n ? make_desc(1, 1, 1, 1, 13 * 1024, 64, 64) : make_desc(1, 2, 1, 1, 300, 8, 8);
        task k;
        task_start(&k, &d, 6, 300 + (uint64_t)n);
        assert_int_equal(attree_plan_phases(k.plan), 1 + n);
        for (int call = 0; call < (n ? 600 : 6000); call++) {
            if (thinned_out())
                continue;
            const int32_t workers = counts[call % 4];
            const job j = {k.plan, &k.args, workers, 0, workers, -1};
            forget(&k, &k.args);
            assert_int_equal(pool_run(&p, &j), ATTREE_OK);
            assert_true(is_right(&k, &k.args));
        }
        task_stop(&k);
    }
    assert_int_equal(atomic_load(&p.failures), 0);
    pool_stop(&p);
}

static void count_scores(const attree_score_tile *tile, void *user)
{
    atomic_fetch_add((atomic_llong *)user, (long long)(tile->queries * tile->keys));
}

/* No work is done twice, which results need not show. */
static void every_task_has_one_worker(void **state)
{
    (void)state;
    static pool p;
    pool_start(&p, 6);
    const attree_desc d = make_desc(1, 1, 1, 1, 6 * 16384, 8, 8);
    task k;
    task_start(&k, &d, 6, 400);
    atomic_llong scores = 0;
    k.args.score = count_scores;
    k.args.user = &scores;
    assert_int_equal(attree_run(k.plan, &k.args), ATTREE_OK);
    const long long once = atomic_load(&scores);
    assert_true(once >= d.kv_len);
    for (int call = 0; call < 300; call++) {
        if (thinned_out())
            continue;
        const job j = {k.plan, &k.args, 6, 0, 6, -1};
        atomic_store(&scores, 0);
        assert_int_equal(pool_run(&p, &j), ATTREE_OK);
        assert_true(atomic_load(&scores) == once);
    }
    task_stop(&k);
    pool_stop(&p);
}

int main(void)
{
    alarm(600); /* a run that hangs is a failure */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(there_is_no_openmp_in_this_process),
        cmocka_unit_test(attree_run_stays_in_the_calling_thread),
        cmocka_unit_test(the_default_is_one_thread),
        cmocka_unit_test(any_number_of_workers_gives_the_same_bits),
        cmocka_unit_test(any_worker_of_the_plan_may_be_missing),
        cmocka_unit_test(a_worker_after_the_others_finds_nothing),
        cmocka_unit_test(a_run_that_is_not_finished_is_an_error),
        cmocka_unit_test(a_run_without_a_begin_is_an_error),
        cmocka_unit_test(two_pools_run_one_plan_at_once),
        cmocka_unit_test(many_callers_do_not_disturb_each_other),
        cmocka_unit_test(two_hundred_callers_at_once),
        cmocka_unit_test(tiny_calls_with_changing_workers),
        cmocka_unit_test(every_task_has_one_worker),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
