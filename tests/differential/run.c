/* All forms of a call. See run.h. */
#define _GNU_SOURCE
#include "run.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../src/dtype.h"

const char *const call_names[CALL_FORMS] = {"attention", "run",    "update", "workers",
                                            "threads",   "shards", "chunks", "states"};

enum { WORKERS = 200, ABSENT, OTHER, CUTS };

/* ---- Statuses ---- */

/* What a run over queries first <= i < end says when it has written all. */
static attree_status expected_status(const job *j, key_range queries, char *sentence, size_t room)
{
    const fields *f = j->t->f;
    for (int64_t b = 0; b < f->batch && f->empty_rows == ATTREE_EMPTY_ERROR; b++) {
        const entry *e = &j->t->s.entry[b];
        for (int64_t h = 0; h < j->t->heads; h++)
            for (int64_t i = queries.first; i < queries.end && i < e->q_len; i++)
                if (j->r->empty[j->r->first_row[b] + h * e->q_len + i]) {
                    (void)snprintf(sentence, room, "query %" PRId64 " of head %" PRId64 ", batch %" PRId64 " sees",
                                   i - queries.first, h, b);
                    return ATTREE_ERROR_EMPTY;
                }
    }
    return ATTREE_OK;
}

static bool check_status(const job *j, attree_status status, bool states, key_range queries)
{
    char sentence[128] = "";
    const attree_status expected = states ? ATTREE_OK : expected_status(j, queries, sentence, sizeof sentence);
    if (status != expected)
        return job_fails(j, "status is %s (%s), not %s", attree_status_name(status),
                         status == ATTREE_OK ? "" : attree_last_error(), attree_status_name(expected));
    if (!strstr(status == ATTREE_OK ? "" : attree_last_error(), sentence))
        return job_fails(j, "\"%s\" does not say \"%s\"", attree_last_error(), sentence);
    return true;
}

/* ---- Workers of the caller ---- */

typedef struct crew {
    const job *j;
    const attree_plan *plan;
    const attree_args *args;
    int32_t size;
    pthread_barrier_t barrier;
} crew;

typedef struct worker {
    crew *crew;
    int32_t number;
    bool failed;
} worker;

/* Some workers do not come to some phases; one always does. */
static bool comes(const crew *c, int32_t phase, int32_t number)
{
    const fields *f = c->j->t->f;
    const uint64_t always = hash_of(f, WORKERS, (uint64_t)phase) % (uint64_t)c->size;
    return (uint64_t)number == always || hash_of(f, ABSENT, (uint64_t)(phase * 100 + number)) % 4 > 0;
}

static void *work(void *user)
{
    worker *const w = user;
    const crew *c = w->crew;
    const uint64_t before = mode_enter(c->j);
    for (int32_t phase = 0; phase < attree_plan_phases(c->plan); phase++) {
        if (comes(c, phase, w->number) && attree_run_worker(c->plan, c->args, phase) != ATTREE_OK)
            w->failed = true;
        pthread_barrier_wait(&w->crew->barrier);
    }
    if (!mode_leave(c->j, before))
        w->failed = true;
    return NULL;
}

static attree_status work_in_threads(crew *c)
{
    pthread_t threads[64];
    worker workers[64];
    bool failed = false;
    pthread_barrier_init(&c->barrier, NULL, (unsigned)c->size);
    for (int32_t n = 0; n < c->size; n++) {
        workers[n] = (worker){c, n, false};
        if (pthread_create(&threads[n], NULL, work, &workers[n]) != 0)
            return ATTREE_ERROR_MEMORY; /* there is no going on: others wait */
    }
    for (int32_t n = 0; n < c->size; n++) {
        pthread_join(threads[n], NULL);
        failed = failed || workers[n].failed;
    }
    pthread_barrier_destroy(&c->barrier);
    return failed ? ATTREE_ERROR_VALUE : attree_run_end(c->plan, c->args);
}

static attree_status work_in_turns(const crew *c)
{
    const uint64_t start = hash_of(c->j->t->f, WORKERS, 77);
    for (int32_t phase = 0; phase < attree_plan_phases(c->plan); phase++)
        for (int32_t n = 0; n < c->size; n++) {
            const int32_t number = (int32_t)((start + (uint64_t)(phase ? n : c->size - n)) % (uint64_t)c->size);
            if (comes(c, phase, number) && attree_run_worker(c->plan, c->args, phase) != ATTREE_OK)
                return ATTREE_ERROR_VALUE;
        }
    return attree_run_end(c->plan, c->args);
}

/* ---- One call ---- */

/* A plan of quite another problem. */
static attree_status make_other_plan(const job *j, attree_plan **plan)
{
    const fields *f = j->t->f;
    const uint64_t hash = hash_of(f, OTHER, 0);
    int64_t lens[40];
    for (uint64_t b = 0; b < 40; b++)
        lens[b] = (int64_t)(hash_of(f, OTHER, b + 1) % 3000);
    const attree_desc desc = {.size = sizeof desc,
                              .batch = (int64_t)(hash % 41),
                              .q_heads = 6,
                              .kv_heads = 3,
                              .q_len = (int64_t)(hash >> 8 & 1023),
                              .kv_len = 3000,
                              .qk_width = 1 + (int64_t)(hash >> 20 & 127),
                              .v_width = 1 + (int64_t)(hash >> 30 & 127),
                              .isa = (int32_t)(hash >> 40 & 1 ? j->isa : ATTREE_ISA_AUTO),
                              .threads = 1 + (int32_t)(hash >> 50 & 31),
                              .kv_lens = hash >> 60 & 1 ? lens : NULL};
    return attree_plan_create(plan, &desc);
}

static attree_status make_plan(const job *j, attree_plan **plan, const attree_desc *d)
{
    if (j->form != CALL_UPDATE)
        return attree_plan_create(plan, d);
    const attree_status status = make_other_plan(j, plan);
    return status == ATTREE_OK ? attree_plan_update(*plan, d) : status;
}

/* False when the problem needs more memory than there is for it. */
static bool take_workspace(const job *j, const attree_plan *plan, attree_args *a)
{
    a->workspace_bytes = attree_plan_workspace(plan);
    a->workspace = memory_take(SLOT_WORKSPACE, a->workspace_bytes, j->t->f->at_start >> SLOT_WORKSPACE & 1, GARBAGE);
    return a->workspace != NULL;
}

static attree_status run_plan(const job *j, const attree_plan *plan, const attree_args *a)
{
    if (j->form != CALL_WORKERS && j->form != CALL_THREADS)
        return attree_run(plan, a);
    crew c = {.j = j, .plan = plan, .args = a, .size = (int32_t)j->t->f->workers};
    const attree_status status = attree_run_begin(plan, a);
    if (status != ATTREE_OK)
        return status;
    return j->form == CALL_THREADS ? work_in_threads(&c) : work_in_turns(&c);
}

/* In the caller's floating-point environment. *plan stays, for what follows, unless the call makes its own. */
static bool call(const job *j, const attree_desc *d, attree_args *a, attree_plan **plan)
{
    const key_range queries = {d->batch > 0 ? j->user.first_query : 0, j->user.first_query + d->q_len};
    const bool states = d->flags & (ATTREE_STATES | ATTREE_WEIGHTS);
    attree_status status;
    *plan = NULL;
    const uint64_t before = mode_enter(j);
    if (j->form == CALL_ATTENTION || j->form == CALL_CHUNKS)
        status = attree_attention(d, a);
    else {
        status = make_plan(j, plan, d);
        j->counts->two_phases += status == ATTREE_OK && attree_plan_phases(*plan) == 2;
        if (status == ATTREE_OK && !take_workspace(j, *plan, a)) {
            (void)mode_leave(j, before);
            return job_fails(j, "too large");
        }
        if (status == ATTREE_OK)
            status = run_plan(j, *plan, a);
    }
    if (!mode_leave(j, before))
        return job_fails(j, "the caller's floating-point environment is not restored");
    if (*plan && status == ATTREE_OK && a->control && a->control->done != attree_plan_tasks(*plan))
        return job_fails(j, "%" PRId64 " of %" PRId64 " tasks are done", a->control->done, attree_plan_tasks(*plan));
    if (*plan && !memory_margin_is_kept(SLOT_WORKSPACE))
        return job_fails(j, "written beside the workspace");
    return check_status(j, status, states, queries);
}

static bool finish(const job *j, const attree_plan *plan, attree_args *a)
{
    const uint64_t before = mode_enter(j);
    if (!take_workspace(j, plan, a)) {
        (void)mode_leave(j, before);
        return job_fails(j, "too large");
    }
    const attree_status status = attree_finish(plan, a);
    if (!mode_leave(j, before))
        return job_fails(j, "attree_finish does not restore the floating-point environment");
    return check_status(j, status, false, (key_range){0, j->t->f->q_len}) && check_results(j);
}

/* ---- Forms ---- */

static void describe(job *j, attree_desc *d, attree_args *a)
{
    tensors_describe(j->t, d, a);
    d->isa = j->isa;
    j->user = (score_user){j->t->f, &j->t->s, 0, &j->wrong};
    a->user = &j->user;
    j->control = (attree_control){.done = -1};
    a->control = &j->control;
}

/* Weights of all rows and their sums, after a run that wrote lse. */
static bool run_weights(const job *j, const attree_desc *d, const attree_args *a)
{
    weights_run w;
    attree_plan *plan = NULL;
    const bool good =
        make_weights_run(j, d, a, &w) && call(j, &w.d, &w.a, &plan) && check_weights_run(j, &w) && check_results(j);
    attree_plan_destroy(plan);
    free_weights_run(&w);
    return good;
}

static bool run_simply(job *j)
{
    attree_desc d;
    attree_args a;
    attree_plan *plan;
    describe(j, &d, &a);
    bool good = call(j, &d, &a, &plan) && check_results(j) && check_output(j, &j->t->states, NULL, "states");
    if (good && plan && j->t->f->weights && a.lse && j->r->rows > 0)
        good = check_weights(j, plan, &a);
    attree_plan_destroy(plan);
    return good && (!j->t->f->weights || !a.lse || run_weights(j, &d, &a));
}

static bool run_states(job *j)
{
    attree_desc d;
    attree_args a;
    attree_plan *plan;
    describe(j, &d, &a);
    d.flags |= ATTREE_STATES;
    a.states = (float *)(void *)j->t->states.data;
    bool good = call(j, &d, &a, &plan) && check_output(j, &j->t->states, j->r->states, "states") &&
                check_output(j, &j->t->o, NULL, "o") && check_output(j, &j->t->lse, NULL, "lse");
    good = good && finish(j, plan, &a) && check_output(j, &j->t->states, j->r->states, "states");
    attree_plan_destroy(plan);
    return good;
}

/* Blocks first ... first + count - 1 of the keys, in one shard or several, into states. *plan: of one of them. */
static bool run_shards(job *j, int64_t first, int64_t count, float *states, attree_plan **plan)
{
    const fields *f = j->t->f;
    const size_t bytes = j->t->states.bytes;
    if (count > 1 && hash_of(f, CUTS, (uint64_t)(first * 1000 + count)) % 4 > 0) {
        int64_t split = 1;
        while (2 * split < count)
            split *= 2;
        float *const right = malloc(bytes + 1);
        bool good = run_shards(j, first, split, states, plan);
        attree_plan_destroy(*plan);
        *plan = NULL;
        good = good && run_shards(j, first + split, count - split, right, plan);
        const int64_t rows = j->t->q_batches * j->t->heads * f->q_len;
        const uint64_t before = mode_enter(j);
        if (good && attree_states_merge(states, states, right, rows, f->v_width) != ATTREE_OK)
            good = job_fails(j, "attree_states_merge: %s", attree_last_error());
        free(right);
        return mode_leave(j, before) && good;
    }
    attree_desc d;
    attree_args a;
    const int64_t end = (first + count) * BLOCK;
    const key_range keys = {first * BLOCK, end < f->kv_len ? end : f->kv_len};
    *plan = NULL;
    if (!tensors_place_keys(j->t, keys) || !tensors_clear_outputs(j->t))
        return job_fails(j, "too large");
    describe(j, &d, &a);
    d.flags |= ATTREE_STATES;
    d.shard_begin = keys.first;
    d.shard_end = keys.end;
    a.states = (float *)(void *)j->t->states.data;
    if (!call(j, &d, &a, plan))
        return false;
    memcpy(states, j->t->states.start, bytes);
    return true;
}

static bool run_in_shards(job *j)
{
    const fields *f = j->t->f;
    const int64_t blocks = (f->kv_len + BLOCK - 1) / BLOCK;
    float *const states = malloc(j->t->states.bytes + 1);
    attree_plan *plan = NULL;
    bool good = run_shards(j, 0, blocks > 0 ? blocks : 1, states, &plan);
    if (good) {
        memcpy(j->t->states.start, states, j->t->states.bytes);
        good = check_output(j, &j->t->states, j->r->states, "states");
    }
    attree_desc d;
    attree_args a;
    describe(j, &d, &a);
    a.states = (float *)(void *)j->t->states.data;
    good = good && finish(j, plan, &a);
    attree_plan_destroy(plan);
    free(states);
    return tensors_place_keys(j->t, (key_range){0, f->kv_len}) && good;
}

/* Strides of a mask or bias for some of the queries; returns from which byte on. */
static int64_t cut_pairs(const pairs *p, attree_pairs *said, int64_t first)
{
    const attree_strides s = said_strides(&p->in_memory);
    said->batch_stride = s.batch;
    said->head_stride = s.head;
    said->query_stride = s.token;
    said->key_stride = s.width;
    said->queries = p->size[2] == 1 ? 1 : 0;
    const int64_t units = unit_at(&p->in_memory, 0, 0, first, 0);
    return p->in_memory.unit > 0 ? units * p->in_memory.unit : units / 8;
}

static const void *moved(const void *pointer, int64_t bytes)
{
    return pointer ? (const void *)((uintptr_t)pointer + (uintptr_t)bytes) : NULL;
}

static bool run_chunk(job *j, int64_t first, int64_t count)
{
    const tensors *t = j->t;
    attree_desc d;
    attree_args a;
    int64_t offsets[BATCH_MOST];
    describe(j, &d, &a);
    d.q_len = count;
    d.q = said_strides(&t->q);
    d.o = said_strides(&t->o);
    d.lse = said_strides(&t->lse);
    for (int64_t b = 0; b < d.batch; b++)
        offsets[b] = t->s.entry[b].q_offset + first;
    d.q_offsets = offsets;
    a.q = moved(a.q, unit_at(&t->q, 0, 0, first, 0) * t->q.unit);
    a.o = (char *)a.o + unit_at(&t->o, 0, 0, first, 0) * t->o.unit;
    a.lse = a.lse ? a.lse + unit_at(&t->lse, 0, 0, first, 0) : NULL;
    if (t->f->mask)
        a.mask = moved(a.mask, cut_pairs(&t->mask, &d.mask, first));
    if (t->f->bias)
        a.bias = moved(a.bias, cut_pairs(&t->bias, &d.bias, first));
    j->user.first_query = first;
    attree_plan *plan;
    return call(j, &d, &a, &plan);
}

static bool run_chunks(job *j)
{
    const fields *f = j->t->f;
    /* Bits of a mask begin at a whole byte. */
    const int64_t step = f->mask == 2 ? (f->chunk + 7) / 8 * 8 : f->chunk;
    for (int64_t first = 0; first < f->q_len; first += step)
        if (!run_chunk(j, first, f->q_len - first < step ? f->q_len - first : step))
            return false;
    return check_results(j);
}

/* ---- All ---- */

static void count_problem(const fields *f, counts *c)
{
    c->problems++;
    for (int n = 0; n < FIELDS; n++)
        c->with[n] += field_value(f, n) != field_table[n].simplest;
    const int64_t types[4] = {f->q_type, f->k_type, f->v_type, f->o_type};
    for (int n = 0; n < 4; n++)
        c->types[n][types[n]]++;
    c->values[f->q_values]++;
    c->values[f->k_values]++;
    c->values[f->v_values]++;
}

static bool run_form(job *j)
{
    j->counts->calls[j->form]++;
    j->counts->isas[j->isa]++;
    if (!tensors_clear_outputs(j->t))
        return job_fails(j, "too large");
    const bool good = j->form == CALL_SHARDS   ? run_in_shards(j)
                      : j->form == CALL_CHUNKS ? run_chunks(j)
                      : j->form == CALL_STATES ? run_states(j)
                                               : run_simply(j);
    return good && j->wrong ? job_fails(j, "a score or block function is told of what is not there") : good;
}

bool run_problem(const fields *f, counts *c, char *message)
{
    tensors t;
    reference r;
    count_problem(f, c);
    message[0] = 0;
    if (!tensors_make(&t, f)) {
        c->too_large++;
        tensors_free(&t);
        return true;
    }
    reference_make(&r, &t);
    bool good = true;
    for (int32_t isa = 0; isa < ISAS; isa++)
        for (int form = 0; form < CALL_FORMS && good; form++)
            if (f->isas >> isa & 1 && f->calls >> form & 1) {
                job j = {.t = &t, .r = &r, .isa = isa, .form = (call_form)form, .counts = c, .message = message};
                good = run_form(&j);
            }
    job j = {.t = &t, .r = &r, .isa = ATTREE_ISA_AUTO, .counts = c, .message = message};
    if (good && f->append)
        good = check_append(&j);
    if (!good && strstr(message, "too large")) {
        c->too_large++;
        good = true;
    }
    reference_free(&r);
    tensors_free(&t);
    return good;
}
