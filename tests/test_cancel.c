/* Runs that their host stops, and how far a run says that it is. */
#include <stdlib.h>
#include <string.h>

#include "support.h"

enum { H = 4, G = 2, D = 16, E = 16 };

typedef struct job {
    attree_desc desc;
    tensors t;
    attree_plan *plan;
    attree_args args;
    attree_control control;
    int64_t calls, stop; /* of the score function: how many there were, and which one cancels; 0: none */
} job;

/* Leaves scores as they are; cancels the run when it is called for the stop-th time. */
static void count_tiles(const attree_score_tile *tile, void *user)
{
    (void)tile;
    job *const j = user;
    if (__atomic_add_fetch(&j->calls, 1, __ATOMIC_RELAXED) == j->stop)
        __atomic_store_n(&j->control.cancel, 1, __ATOMIC_RELAXED);
}

static void make_job(job *j, int64_t queries, int64_t keys, int32_t threads)
{
    memset(j, 0, sizeof *j);
    j->desc = make_desc(1, H, G, queries, keys, D, E);
    j->desc.threads = threads;
    j->t = make_tensors(&j->desc, 1);
    assert_int_equal(attree_plan_create(&j->plan, &j->desc), ATTREE_OK);
    j->args = (attree_args){.size = sizeof j->args,
                            .q = j->t.q,
                            .k = j->t.k,
                            .v = j->t.v,
                            .o = j->t.o,
                            .lse = j->t.lse,
                            .score = count_tiles,
                            .user = j,
                            .control = &j->control};
    j->args.workspace_bytes = attree_plan_workspace(j->plan);
    j->args.workspace = aligned_alloc(64, j->args.workspace_bytes);
    assert_non_null(j->args.workspace);
}

static void free_job(job *j)
{
    free(j->args.workspace);
    attree_plan_destroy(j->plan);
    free_tensors(&j->t);
}

static void clear_job(job *j, int64_t stop)
{
    memset(j->t.o, 0xff, (size_t)j->t.o_count * sizeof(float));
    memset(j->t.lse, 0xff, (size_t)j->t.lse_count * sizeof(float));
    j->control = (attree_control){.done = -7};
    j->calls = 0;
    j->stop = stop;
}

/* On threads of the host's own: this one, as two workers. */
static attree_status run_as_worker(const job *j)
{
    attree_status status = attree_run_begin(j->plan, &j->args);
    for (int32_t phase = 0; phase < attree_plan_phases(j->plan) && status == ATTREE_OK; phase++)
        for (int n = 0; n < 2 && status == ATTREE_OK; n++)
            status = attree_run_worker(j->plan, &j->args, phase);
    const attree_status end = attree_run_end(j->plan, &j->args);
    assert_true(status == ATTREE_OK || status == end);
    return end;
}

static attree_status run_job(const job *j, bool own) { return own ? run_as_worker(j) : attree_run(j->plan, &j->args); }

static bool untouched(const float *numbers, int64_t count)
{
    const unsigned char *const bytes = (const unsigned char *)numbers;
    for (size_t n = 0; n < (size_t)count * sizeof *numbers; n++)
        if (bytes[n] != 0xff)
            return false;
    return true;
}

/* Each row of o is whole, with its lse, or neither is touched. Returns how many rows are whole. */
static int64_t whole_rows(const job *j, const float *o, const float *lse)
{
    int64_t whole = 0;
    for (int64_t r = 0; r < j->t.lse_count; r++) {
        if (untouched(j->t.o + r * E, E)) {
            assert_true(untouched(j->t.lse + r, 1));
            continue;
        }
        assert_same_bits(o + r * E, j->t.o + r * E, E);
        assert_same_bits(lse + r, j->t.lse + r, 1);
        whole++;
    }
    return whole;
}

/* Stops the run at every call of the score function, with few or many of them, then runs it again. */
static void stop_everywhere(job *j, bool own, const float *o, const float *lse)
{
    const int64_t calls = j->calls;
    for (int64_t stop = 1; stop < calls; stop += 1 + calls / 29) {
        clear_job(j, stop);
        const attree_status status = run_job(j, own);
        const int64_t whole = whole_rows(j, o, lse);
        if (status == ATTREE_OK)
            assert_int_equal(whole, j->t.lse_count);
        else {
            assert_int_equal(status, ATTREE_ERROR_CANCELLED);
            assert_true(j->control.done < attree_plan_tasks(j->plan));
            assert_true(whole < j->t.lse_count);
            assert_true(j->calls < calls);
        }
        assert_int_equal(j->control.cancel, 1);
    }
    clear_job(j, 0);
    assert_int_equal(run_job(j, own), ATTREE_OK);
    assert_int_equal(whole_rows(j, o, lse), j->t.lse_count);
    assert_int_equal(j->control.done, attree_plan_tasks(j->plan));
}

/* Tiles alone, chunks, and one long task. */
static const int64_t shapes[][3] = {{1100, 700, 1}, {1, 40000, 3}, {3, 9000, 1}, {200, 5000, 2}};

static void a_run_stops_when_it_is_told_to(void **state)
{
    (void)state;
    for (size_t n = 0; n < sizeof shapes / sizeof *shapes; n++) {
        job j;
        make_job(&j, shapes[n][0], shapes[n][1], (int32_t)shapes[n][2]);
        clear_job(&j, 0);
        assert_int_equal(attree_run(j.plan, &j.args), ATTREE_OK);
        assert_int_equal(j.control.done, attree_plan_tasks(j.plan));
        float *const o = malloc((size_t)j.t.o_count * sizeof *o), *const lse = malloc((size_t)j.t.lse_count * 4);
        assert_true(o && lse);
        memcpy(o, j.t.o, (size_t)j.t.o_count * sizeof *o);
        memcpy(lse, j.t.lse, (size_t)j.t.lse_count * sizeof *lse);
        const int64_t calls = j.calls;
        for (int own = 0; own < 2; own++) {
            j.calls = calls;
            stop_everywhere(&j, own, o, lse);
        }
        free(o);
        free(lse);
        free_job(&j);
    }
}

static void a_run_that_is_cancelled_before_it_begins_does_nothing(void **state)
{
    (void)state;
    for (int own = 0; own < 2; own++) {
        job j;
        make_job(&j, 3, 5000, 2);
        clear_job(&j, 0);
        j.control.cancel = -1;
        assert_int_equal(run_job(&j, own), ATTREE_ERROR_CANCELLED);
        assert_true(strstr(attree_last_error(), "cancel") != NULL);
        assert_int_equal(j.control.done, 0);
        assert_int_equal(j.calls, 0);
        assert_true(untouched(j.t.o, j.t.o_count) && untouched(j.t.lse, j.t.lse_count));
        free_job(&j);
    }
}

/* A long task of one worker is left within it, not at its end. */
static void a_task_is_left_between_blocks(void **state)
{
    (void)state;
    job j;
    make_job(&j, 300, 20000, 1);
    assert_int_equal(attree_plan_phases(j.plan), 1);
    clear_job(&j, 1);
    assert_int_equal(attree_run(j.plan, &j.args), ATTREE_ERROR_CANCELLED);
    const int64_t rows = 300 * H / G; /* of a group: each block calls for few of them at a time */
    assert_true(j.calls <= rows);
    assert_int_equal(j.control.done, 0);
    free_job(&j);
}

static void tasks_are_those_of_all_phases(void **state)
{
    (void)state;
    assert_int_equal(attree_plan_tasks(NULL), 0);
    job j;
    make_job(&j, 1, 40000, 3);
    assert_int_equal(attree_plan_phases(j.plan), 2);
    assert_true(attree_plan_tasks(j.plan) > G);
    j.args.control = NULL; /* nobody asks */
    assert_int_equal(attree_run(j.plan, &j.args), ATTREE_OK);
    free_job(&j);
}

static void a_control_that_is_an_input_is_refused(void **state)
{
    (void)state;
    job j;
    make_job(&j, 3, 500, 1);
    j.args.control = (attree_control *)(void *)((char *)&j.control + 4);
    assert_int_equal(attree_run(j.plan, &j.args), ATTREE_ERROR_ALIGN);
    assert_true(strstr(attree_last_error(), "control") != NULL);
    j.args.control = (attree_control *)(void *)j.t.q;
    assert_int_equal(attree_run(j.plan, &j.args), ATTREE_ERROR_ALIAS);
    free_job(&j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_stops_when_it_is_told_to),
        cmocka_unit_test(a_run_that_is_cancelled_before_it_begins_does_nothing),
        cmocka_unit_test(a_task_is_left_between_blocks),
        cmocka_unit_test(tasks_are_those_of_all_phases),
        cmocka_unit_test(a_control_that_is_an_input_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
