/* Running a plan on the caller's own threads: POSIX threads and a barrier, no OpenMP. And all forms of a call beside
 * each other. */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "support.h"

typedef struct crew {
    const attree_plan *plan;
    attree_args args;
    int32_t workers;
    int rounds;
    bool one_is_late;
    pthread_barrier_t barrier;
} crew;

typedef struct member {
    crew *crew;
    int32_t worker;
    attree_status status;
} member;

static void *work(void *arg)
{
    member *const m = arg;
    for (int32_t phase = 0; phase < attree_plan_phases(m->crew->plan) && m->status == ATTREE_OK; phase++) {
        if (m->crew->one_is_late && m->worker == 0)
            nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
        m->status = attree_run_worker(m->crew->plan, &m->crew->args, phase);
        pthread_barrier_wait(&m->crew->barrier);
    }
    return NULL;
}

/* Runs the plan with as many threads as workers, started here; o and lse are in args. */
static void run_crew(crew *c)
{
    pthread_t threads[64];
    member members[64];
    pthread_barrier_init(&c->barrier, NULL, (unsigned)c->workers);
    for (int32_t w = 0; w < c->workers; w++) {
        members[w] = (member){c, w, ATTREE_OK};
        assert_int_equal(pthread_create(&threads[w], NULL, work, &members[w]), 0);
    }
    for (int32_t w = 0; w < c->workers; w++) {
        pthread_join(threads[w], NULL);
        assert_int_equal(members[w].status, ATTREE_OK);
    }
    pthread_barrier_destroy(&c->barrier);
}

static void own_threads_give_the_bits_of_openmp(void **state)
{
    (void)state;
    const int32_t counts[] = {1, 2, 5, 64};
    const int64_t shapes[][7] = {{1, 1, 1, 1, 40000, 32, 32}, {2, 4, 2, 100, 700, 32, 40}};
    for (int s = 0; s < 2; s++) {
        attree_desc d =
            make_desc(shapes[s][0], shapes[s][1], shapes[s][2], shapes[s][3], shapes[s][4], shapes[s][5], shapes[s][6]);
        d.flags = ATTREE_CAUSAL;
        d.threads = 5;
        tensors t = make_tensors(&d, (uint64_t)s + 3);
        float *const expected = result_of(&d, &t);
        attree_plan *plan;
        assert_int_equal(attree_plan_create(&plan, &d), ATTREE_OK);
        for (int n = 0; n < 8; n++) {
            crew c = {.plan = plan, .workers = counts[n / 2], .one_is_late = n % 2};
            c.args = (attree_args){.size = sizeof c.args, .q = t.q, .k = t.k, .v = t.v, .o = t.o, .lse = t.lse};
            c.args.workspace_bytes = attree_plan_workspace(plan);
            c.args.workspace = aligned_alloc(64, c.args.workspace_bytes);
            memset(c.args.workspace, 0xff, c.args.workspace_bytes);
            memset(t.o, 0xff, (size_t)t.o_count * sizeof(float));
            assert_int_equal(attree_run_begin(plan, &c.args), ATTREE_OK);
            run_crew(&c);
            assert_int_equal(attree_run_end(plan, &c.args), ATTREE_OK);
            assert_same_bits(expected, t.o, t.o_count);
            assert_same_bits(expected + t.o_count, t.lse, t.lse_count);
            free(c.args.workspace);
        }
        attree_plan_destroy(plan);
        free(expected);
        free_tensors(&t);
    }
}

/* Many host threads run one plan at the same time, each with its own workspace and output. */
static void *run_repeatedly(void *arg)
{
    crew *const c = arg;
    for (int n = 0; n < c->rounds; n++)
        if (attree_run(c->plan, &c->args) != ATTREE_OK)
            return c;
    return NULL;
}

static void one_plan_runs_concurrently(void **state)
{
    (void)state;
    enum { RUNS = 16 };
    attree_desc d = make_desc(1, 4, 2, 20, 600, 24, 24);
    d.threads = 2;
    tensors t = make_tensors(&d, 9);
    float *const expected = result_of(&d, &t);
    attree_plan *plan;
    assert_int_equal(attree_plan_create(&plan, &d), ATTREE_OK);
    pthread_t threads[RUNS];
    crew crews[RUNS];
    for (int n = 0; n < RUNS; n++) {
        crews[n] = (crew){.plan = plan, .rounds = thinned_out() ? 3 : 20};
        crews[n].args = (attree_args){.size = sizeof(attree_args), .q = t.q, .k = t.k, .v = t.v};
        crews[n].args.o = malloc((size_t)t.o_count * sizeof(float));
        crews[n].args.workspace_bytes = attree_plan_workspace(plan);
        crews[n].args.workspace = aligned_alloc(64, attree_plan_workspace(plan));
        assert_int_equal(pthread_create(&threads[n], NULL, run_repeatedly, &crews[n]), 0);
    }
    for (int n = 0; n < RUNS; n++) {
        void *failed;
        pthread_join(threads[n], &failed);
        assert_null(failed);
        assert_same_bits(expected, crews[n].args.o, t.o_count);
        free(crews[n].args.o);
        free(crews[n].args.workspace);
    }
    attree_plan_destroy(plan);
    free(expected);
    free_tensors(&t);
}

/* ---- All forms of a call ---- */

/* Rows whose number is just beyond a multiple of a tile's, or of tiles': what is left for the last tile is little. */
static const struct {
    int64_t q_len, kv_len, qk_width, v_width, q_heads, kv_heads;
    int32_t threads;
    uint32_t flags;
} shapes[] = {
    {289, 4, 43, 48, 5, 1, 2, 0},
    {1441, 300, 64, 64, 1, 1, 2, 0},
    {1450, 300, 64, 64, 2, 1, 4, 0},
    {394, 394, 128, 128, 8, 1, 2, 0},
    {394, 394, 128, 128, 8, 1, 4, 0},
    {362, 362, 128, 128, 32, 8, 13, ATTREE_CAUSAL},
    {725, 725, 128, 128, 32, 8, 25, ATTREE_CAUSAL},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static void run_whole(const attree_plan *plan, const attree_args *args)
{
    assert_int_equal(attree_run(plan, args), ATTREE_OK);
}

static void run_one_by_one(const attree_plan *plan, const attree_args *args)
{
    enum { WORKERS = 3 };
    assert_int_equal(attree_run_begin(plan, args), ATTREE_OK);
    for (int32_t phase = 0; phase < attree_plan_phases(plan); phase++)
        for (int32_t w = 0; w < WORKERS; w++)
            assert_int_equal(attree_run_worker(plan, args, phase), ATTREE_OK);
    assert_int_equal(attree_run_end(plan, args), ATTREE_OK);
}

static void run_threads(const attree_plan *plan, const attree_args *args)
{
    crew c = {.plan = plan, .args = *args, .workers = 5};
    assert_int_equal(attree_run_begin(plan, args), ATTREE_OK);
    run_crew(&c);
    assert_int_equal(attree_run_end(plan, args), ATTREE_OK);
}

/* The problem's plan, made at once, or an update of that of another problem. */
static attree_plan *plan_of(const attree_desc *d, bool update)
{
    attree_desc other = make_desc(1, 2, 1, 700, 900, 32, 32);
    other.threads = 7;
    attree_plan *plan;
    assert_int_equal(attree_plan_create(&plan, update ? &other : d), ATTREE_OK);
    if (update)
        assert_int_equal(attree_plan_update(plan, d), ATTREE_OK);
    return plan;
}

static void expect_same(const tensors *expected, const tensors *t)
{
    assert_same_bits(expected->o, t->o, t->o_count);
    assert_same_bits(expected->lse, t->lse, t->lse_count);
}

static void clear(const tensors *t) { forget_results(t); }

/* The forms that take a plan, each with a workspace of the size that it asks for. */
static void expect_same_of_plans(const attree_desc *d, const tensors *expected, const tensors *t)
{
    void (*const forms[])(const attree_plan *, const attree_args *) = {run_whole, run_one_by_one, run_threads};
    for (int n = 0; n < 6; n++) {
        attree_plan *const plan = plan_of(d, n >= 3);
        const size_t bytes = attree_plan_workspace(plan);
        void *const workspace = aligned_alloc(64, bytes);
        assert_non_null(workspace);
        memset(workspace, 0xff, bytes);
        const attree_args args = {.size = sizeof args,
                                  .q = t->q,
                                  .k = t->k,
                                  .v = t->v,
                                  .o = t->o,
                                  .lse = t->lse,
                                  .workspace = workspace,
                                  .workspace_bytes = bytes};
        clear(t);
        forms[n % 3](plan, &args);
        expect_same(expected, t);
        free(workspace);
        attree_plan_destroy(plan);
    }
}

static void expect_same_of_one_call(const attree_desc *d, const tensors *expected, const tensors *t)
{
    const attree_args args = {.size = sizeof args, .q = t->q, .k = t->k, .v = t->v, .o = t->o, .lse = t->lse};
    clear(t);
    assert_int_equal(attree_attention(d, &args), ATTREE_OK);
    expect_same(expected, t);
}

/* Each shape on every instruction set, against the scalar kernels on one thread. */
static void all_forms_of_a_call_give_the_same_bits(void **state)
{
    (void)state;
    attree_isa isas[8];
    const int count = available_isas(isas);
    for (int n = 0; n < SHAPES; n++) {
        attree_desc d = make_desc(1, shapes[n].q_heads, shapes[n].kv_heads, shapes[n].q_len, shapes[n].kv_len,
                                  shapes[n].qk_width, shapes[n].v_width);
        if (n > 0 && thinned_out())
            continue;
        d.flags = shapes[n].flags;
        d.isa = ATTREE_ISA_SCALAR;
        tensors expected = make_tensors(&d, (uint64_t)n), t = make_tensors(&d, (uint64_t)n);
        run_tensors(&d, &expected);
        d.threads = shapes[n].threads;
        for (int i = 0; i < count; i++) {
            d.isa = (int32_t)isas[i];
            expect_same_of_one_call(&d, &expected, &t);
            if (isas[i] != ATTREE_ISA_SCALAR) /* slow, and cut by the same plan code */
                expect_same_of_plans(&d, &expected, &t);
        }
        free_tensors(&expected);
        free_tensors(&t);
    }
}

#if defined(_OPENMP)
/* Threads that have called the score function. */
typedef struct meeting {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    pthread_t threads[8];
    int count;
} meeting;

/* Each thread waits in its first call until a second one has come, or a minute has passed. */
static void meet(const attree_score_tile *tile, void *user)
{
    (void)tile;
    meeting *const m = user;
    struct timespec end;
    (void)clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += 60;
    pthread_mutex_lock(&m->mutex);
    bool known = false;
    for (int n = 0; n < m->count; n++)
        known = known || pthread_equal(m->threads[n], pthread_self());
    if (!known && m->count < 8) {
        m->threads[m->count++] = pthread_self();
        pthread_cond_broadcast(&m->changed);
        while (m->count < 2 && pthread_cond_timedwait(&m->changed, &m->mutex, &end) == 0)
            ;
    }
    pthread_mutex_unlock(&m->mutex);
}

static void attree_run_works_with_as_many_threads_as_asked_for(void **state)
{
    (void)state;
    attree_desc d = make_desc(1, 4, 4, 64, 600, 32, 32);
    d.threads = 2;
    tensors t = make_tensors(&d, 9);
    meeting m = {.count = 0};
    pthread_mutex_init(&m.mutex, NULL);
    pthread_cond_init(&m.changed, NULL);
    const attree_args args = {.size = sizeof args, .q = t.q, .k = t.k, .v = t.v, .o = t.o, .score = meet, .user = &m};
    run_expecting(ATTREE_OK, &d, &args);
    assert_int_equal(m.count, 2);
    pthread_cond_destroy(&m.changed);
    pthread_mutex_destroy(&m.mutex);
    free_tensors(&t);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(own_threads_give_the_bits_of_openmp),
        cmocka_unit_test(one_plan_runs_concurrently),
        cmocka_unit_test(all_forms_of_a_call_give_the_same_bits),
#if defined(_OPENMP)
        cmocka_unit_test(attree_run_works_with_as_many_threads_as_asked_for),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
