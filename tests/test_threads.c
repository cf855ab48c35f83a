/* Threads as a host may have them: with odd floating-point modes, and teams smaller than asked for.
 *
 * With the argument teams only the test runs that depends on the environment of OpenMP. Forks, many callers, and teams
 * of other runtimes are in test_reported_host. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <omp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../src/simd/fpenv.h"
#include "support.h"

#define COUNT_OF(array) (sizeof(array) / sizeof *(array))

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
        forget_results(&s.t);
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
        forget_results(&s.t);
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
        cmocka_unit_test(host_threads_may_have_any_mode),
        cmocka_unit_test(openmp_threads_may_have_any_mode),
        cmocka_unit_test(every_function_works_in_any_mode),
        cmocka_unit_test(the_team_may_be_smaller_than_asked),
    };
    if (argc == 2 && strcmp(argv[1], "teams") == 0)
        return cmocka_run_group_tests(teams, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
