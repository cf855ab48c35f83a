/* Phases of a run, descriptions, names, the version and the last error. */
#define _POSIX_C_SOURCE 200809L /* setenv, pthread_barrier_t */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arguments.h"

/* ---- Workers, describing ---- */

static void test_bad_phases(void **state)
{
    const problem *p = *state;
    const int32_t bad[] = {-1, INT32_MIN, attree_plan_phases(p->plan), INT32_MAX};
    assert_int_equal(attree_run_begin(p->plan, &p->args), ATTREE_OK);
    memcpy(p->before, p->memory, p->floats * sizeof(float));
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        forget_last_error();
        expect_error("attree_run_worker", attree_run_worker(p->plan, &p->args, bad[i]), ATTREE_ERROR_VALUE, "phase");
        expect_untouched(p);
    }
    for (int32_t phase = 0; phase < attree_plan_phases(p->plan); phase++) /* the run can still be done */
        assert_int_equal(attree_run_worker(p->plan, &p->args, phase), ATTREE_OK);
    assert_int_equal(attree_run_end(p->plan, &p->args), ATTREE_OK);
    expect_right(p, p->args.o, p->args.lse);
}

static void test_describe(void **state)
{
    const problem *p = *state;
    char whole[512], text[512];
    memset(text, '#', sizeof text);
    forget_last_error();
    expect_error("attree_plan_describe", attree_plan_describe(NULL, text, sizeof text), ATTREE_ERROR_NULL, "plan");
    expect_error("attree_plan_describe", attree_plan_describe(p->plan, NULL, 10), ATTREE_ERROR_NULL, "text");
    expect_error("attree_plan_describe", attree_plan_describe(p->plan, text, 0), ATTREE_ERROR_VALUE, "capacity");
    for (size_t i = 0; i < sizeof text; i++)
        assert_int_equal(text[i], '#');

    assert_int_equal(attree_plan_describe(p->plan, whole, sizeof whole), ATTREE_OK);
    assert_true(strlen(whole) > 0 && !strchr(whole, '\n'));
    for (size_t capacity = 1; capacity < strlen(whole) + 3; capacity++) {
        memset(text, '#', sizeof text);
        assert_int_equal(attree_plan_describe(p->plan, text, capacity), ATTREE_OK);
        const size_t length = capacity - 1 < strlen(whole) ? capacity - 1 : strlen(whole);
        assert_int_equal(strlen(text), length);
        assert_memory_equal(text, whole, length);
        assert_int_equal(text[capacity], '#');
    }
}

/* ---- Names, version, the last error ---- */

static void test_status_names(void **unused)
{
    (void)unused;
    enum { STATUSES = ATTREE_ERROR_NONFINITE + 1 };
    for (int i = 0; i < STATUSES; i++) {
        const char *const name = attree_status_name((attree_status)i);
        assert_non_null(name);
        assert_true(strncmp(name, i == 0 ? "ATTREE_OK" : "ATTREE_ERROR_", i == 0 ? 10 : 13) == 0);
        for (int j = 0; j < i; j++)
            assert_string_not_equal(name, attree_status_name((attree_status)j));
    }
    const int unknown[] = {-1, INT_MIN, INT_MAX, 1000};
    for (size_t i = 0; i < COUNT_OF(unknown); i++) {
        const char *const name = attree_status_name((attree_status)unknown[i]);
        assert_non_null(name);
        assert_true(strncmp(name, "ATTREE_", 7) != 0);
    }
    assert_string_equal(attree_status_name(ATTREE_ERROR_SHAPE), "ATTREE_ERROR_SHAPE");
}

static void test_version(void **unused)
{
    (void)unused;
    char version[64];
    snprintf(version, sizeof version, "%d.%d.%d", ATTREE_VERSION_MAJOR, ATTREE_VERSION_MINOR, ATTREE_VERSION_PATCH);
    assert_string_equal(attree_version(), version);
}

/* A success leaves the sentence; the next failure replaces it. */
static void test_last_error_stays_until_the_next(void **state)
{
    const problem *p = *state;
    attree_desc desc = valid_desc();
    desc.threads = -1;
    expect_bad_desc(p, &desc, ATTREE_ERROR_VALUE, "threads");
    assert_int_equal(attree_run(p->plan, &p->args), ATTREE_OK);
    assert_true(last_error_names("threads"));
    forget_last_error();
    assert_false(last_error_names("threads"));
}

typedef struct failing_thread {
    pthread_barrier_t *both_failed;
    size_t field; /* offset of an int32_t that it sets to -1 */
    bool empty_first;
    char sentence[256]; /* after both have failed */
} failing_thread;

static void *fail_in_a_thread(void *argument)
{
    failing_thread *const self = argument;
    self->empty_first = attree_last_error()[0] == '\0';
    attree_desc desc = valid_desc();
    const int32_t bad = -1;
    memcpy((char *)&desc + self->field, &bad, sizeof bad);
    attree_plan *plan;
    (void)attree_plan_create(&plan, &desc);
    pthread_barrier_wait(self->both_failed);
    snprintf(self->sentence, sizeof self->sentence, "%s", attree_last_error());
    return NULL;
}

static void test_last_error_is_per_thread(void **unused)
{
    (void)unused;
    pthread_barrier_t both_failed;
    pthread_t threads[2];
    failing_thread selves[2] = {{.both_failed = &both_failed, .field = offsetof(attree_desc, threads)},
                                {.both_failed = &both_failed, .field = offsetof(attree_desc, empty_rows)}};
    forget_last_error();
    assert_int_equal(pthread_barrier_init(&both_failed, NULL, 2), 0);
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, fail_in_a_thread, &selves[i]), 0);
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    pthread_barrier_destroy(&both_failed);
    assert_true(selves[0].empty_first && selves[1].empty_first);
    assert_non_null(strstr(selves[0].sentence, "threads"));
    assert_non_null(strstr(selves[1].sentence, "empty_rows"));
    assert_true(last_error_names("state")); /* this thread's own */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_PROBLEM(test_bad_phases),
        WITH_PROBLEM(test_describe),
        cmocka_unit_test(test_status_names),
        cmocka_unit_test(test_version),
        WITH_PROBLEM(test_last_error_stays_until_the_next),
        cmocka_unit_test(test_last_error_is_per_thread),
    };
    return cmocka_run_group_tests_name("arguments_calls", tests, NULL, NULL);
}
