/* Where a run reads and writes: a run touches no heap, in whatever thread, and stays inside what it was given. Every
 * buffer lies once before and once after memory that may not be accessed, inputs are read-only, the workspace has the
 * size that it must have; results have the bits of a run in ordinary memory. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../src/dtype.h"
#include "caches.h"
#include "support.h"

/* ---- The heap ---- */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define SANITIZED 1
#endif
#endif

static atomic_bool watching;
static atomic_long touched;

/* These replace the C library's for the whole process; a sanitizer has its own. */
#if defined(__GLIBC__) && !defined(SANITIZED)
#define COUNTS_CALLS true
extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *memory, size_t bytes);
extern void *__libc_memalign(size_t alignment, size_t bytes);
extern void __libc_free(void *memory);

static void note(void)
{
    if (atomic_load_explicit(&watching, memory_order_relaxed))
        atomic_fetch_add(&touched, 1);
}

void *malloc(size_t bytes)
{
    note();
    return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    note();
    return __libc_calloc(count, bytes);
}

void *realloc(void *memory, size_t bytes)
{
    note();
    return __libc_realloc(memory, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    note();
    return __libc_memalign(alignment, bytes);
}

int posix_memalign(void **memory, size_t alignment, size_t bytes)
{
    note();
    *memory = __libc_memalign(alignment, bytes);
    return *memory ? 0 : 12;
}

void free(void *memory)
{
    note();
    __libc_free(memory);
}
#else
#define COUNTS_CALLS false
#endif

/* ---- Buffers ---- */

enum { Q, K, V, O, LSE, WORKSPACE, K_SCALES, V_SCALES, TABLE, STATES, MASK, BIAS, SLOPES, SINKS, BUFFERS };

static bool is_output(int n) { return n == O || n == LSE || n == WORKSPACE || n == STATES; }

/* How they lie in memory: anyhow; right before, or right after, memory that may not be accessed. */
typedef enum placing { ANYHOW, ENDS_AT_GUARD, STARTS_AT_GUARD } placing;

typedef struct buffer {
    void *data;
    size_t bytes;
    void *mapping;
    size_t mapping_bytes;
} buffer;

static buffer map_buffer(size_t bytes, placing at, const void *contents, bool writable)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), inner = (bytes + page - 1) / page * page;
    buffer b = {.bytes = bytes, .mapping_bytes = inner + 2 * page};
    b.mapping = mmap(NULL, b.mapping_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(b.mapping != MAP_FAILED);
    char *const first = (char *)b.mapping + page;
    b.data = at == ENDS_AT_GUARD ? first + inner - bytes : first;
    if (inner == 0)
        return b;
    assert_int_equal(mprotect(first, inner, PROT_READ | PROT_WRITE), 0);
    memset(first, 0xff, inner);
    if (contents)
        memcpy(b.data, contents, bytes);
    if (!writable)
        assert_int_equal(mprotect(first, inner, PROT_READ), 0);
    return b;
}

static void unmap_buffer(buffer *b)
{
    if (b->mapping)
        munmap(b->mapping, b->mapping_bytes);
    b->mapping = NULL;
}

/* ---- Cases ---- */

typedef enum layout { DENSE, PAGED, ODD_PAGES, PANELS, PAGED_PANELS, RAGGED, STATES_OUT, LAYOUTS } layout;
static const char *const layout_names[] = {"dense", "paged", "odd pages", "panels", "paged panels", "ragged", "states"};

enum { B = 2, H = 4, G = 2, D = 32, E = 32, PAGE = 48, ODD_PAGE = 19 };

typedef struct problem {
    attree_desc desc;
    bool terms; /* mask, bias, slopes, sinks */
    int64_t lens[B], q_starts[B + 1], kv_starts[B + 1];
    buffer memory[BUFFERS]; /* contents; of outputs and workspace only sizes */
} problem;

static void *room(problem *p, int n, int64_t bytes)
{
    p->memory[n] = map_buffer((size_t)bytes, ANYHOW, NULL, true);
    return p->memory[n].data;
}

static void fill(problem *p, int n, int64_t count, float most, random_source *random)
{
    fill_random(room(p, n, count * (int64_t)sizeof(float)), count, random, -most, most);
}

/* rows of width numbers, as the type has them; and their scales. */
static void fill_rows(problem *p, int n, int64_t rows, int64_t width, random_source *random)
{
    const int32_t type = n == K ? p->desc.k_type : p->desc.v_type;
    const int64_t bytes = (int64_t)attree_row_bytes(type, width);
    char *const memory = room(p, n, rows * bytes);
    float numbers[64], scale = 0.0f;
    float *const scales = type == ATTREE_I8 ? room(p, n == K ? K_SCALES : V_SCALES, rows * 4) : NULL;
    for (int64_t r = 0; r < rows; r++) {
        fill_random(numbers, width, random, -1.0f, 1.0f);
        assert_int_equal(attree_quantize(type, width, numbers, memory + r * bytes, &scale), ATTREE_OK);
        if (scales)
            scales[r] = scale;
    }
}

static void make_table(problem *p, int64_t keys, int64_t page, random_source *random)
{
    attree_desc *const d = &p->desc;
    d->page_size = page;
    d->table_width = (keys + page - 1) / page;
    d->page_count = B * d->table_width;
    int32_t *const table = room(p, TABLE, B * d->table_width * 4);
    for (int64_t n = 0; n < B * d->table_width; n++)
        table[n] = (int32_t)random_integer(random, 0, d->page_count - 1);
}

static void make_ragged(problem *p, int64_t queries, int64_t keys)
{
    attree_desc *const d = &p->desc;
    p->q_starts[1] = queries / 2;
    p->q_starts[2] = d->q_len = queries + 3;
    p->kv_starts[1] = keys / 3;
    p->kv_starts[2] = d->kv_len = keys + 1;
    d->q_starts = p->q_starts;
    d->kv_starts = p->kv_starts;
}

static void make_terms(problem *p, random_source *random)
{
    const attree_desc *d = &p->desc;
    const int64_t pairs = d->batch * d->q_heads * d->q_len * d->kv_len;
    unsigned char *const bits = room(p, MASK, (pairs + 7) / 8);
    for (int64_t n = 0; n < (pairs + 7) / 8; n++)
        bits[n] = (unsigned char)random_integer(random, 0, 255);
    p->desc.mask_kind = ATTREE_MASK_BITS;
    fill(p, BIAS, pairs, 1.0f, random);
    fill(p, SLOPES, d->q_heads, 0.1f, random);
    fill(p, SINKS, d->q_heads, 1.0f, random);
    p->desc.softcap = 5.0f;
}

static bool has_panels(layout l) { return l == PANELS || l == PAGED_PANELS; }

static void make_keys(problem *p, layout l, random_source *random)
{
    const attree_desc *d = &p->desc;
    const int64_t parts = d->page_size > 0 ? d->page_count : l == RAGGED ? 1 : B;
    const int64_t tokens = d->page_size > 0 ? d->page_size : d->kv_len;
    fill_rows(p, K, parts * G * (has_panels(l) ? (tokens + 15) / 16 * 16 : tokens), D, random);
    fill_rows(p, V, parts * G * tokens, E, random);
    if (has_panels(l) && d->k_type == ATTREE_I8) /* no scales for the rest of a panel */
        p->memory[K_SCALES].bytes = (size_t)(parts * G * tokens * 4);
}

static void make_queries(problem *p, layout l, random_source *random)
{
    const attree_desc *d = &p->desc;
    const int64_t rows = (l == RAGGED ? 1 : B) * H * d->q_len;
    fill(p, Q, rows * D, 1.0f, random);
    if (d->q_type != ATTREE_F32)
        p->memory[Q].bytes /= 2;
    uint16_t *const halves = p->memory[Q].data;
    for (int64_t n = 0; n < rows * D && d->q_type == ATTREE_F16; n++)
        halves[n] &= 0xbbff; /* halves of floats, but none that is not finite */
    if (l == STATES_OUT)
        p->memory[STATES].bytes = (size_t)(rows * (E + 2) * 4);
    else {
        p->memory[O].bytes = (size_t)(rows * E * (d->o_type == ATTREE_F32 ? 4 : 2));
        p->memory[LSE].bytes = (size_t)(rows * 4);
    }
}

static problem *make_problem(layout l, int32_t type, bool prefill, bool terms)
{
    problem *const p = calloc(1, sizeof *p);
    assert_non_null(p);
    random_source random = {(uint64_t)l * 100 + (uint64_t)type * 10 + (prefill ? 3 : 1) + (terms ? 1 : 0)};
    const int64_t queries = prefill ? 19 : 1, keys = prefill ? 277 : 523;
    p->desc = make_desc(B, H, G, queries, keys, D, E);
    attree_desc *const d = &p->desc;
    d->k_type = d->v_type = type;
    d->q_type = d->o_type = type <= ATTREE_BF16 ? type : ATTREE_F32;
    d->flags = ATTREE_CAUSAL | (has_panels(l) ? ATTREE_K_PANELS : 0) | (l == STATES_OUT ? ATTREE_STATES : 0);
    if (l == PAGED || l == PAGED_PANELS || l == ODD_PAGES)
        make_table(p, keys, l == ODD_PAGES ? ODD_PAGE : PAGE, &random);
    if (l == RAGGED)
        make_ragged(p, queries, keys);
    if (l == DENSE) {
        p->lens[0] = keys - 40;
        p->lens[1] = keys;
        d->kv_lens = p->lens;
    }
    make_keys(p, l, &random);
    make_queries(p, l, &random);
    if (terms && l != RAGGED)
        make_terms(p, &random);
    return p;
}

static void free_problem(problem *p)
{
    for (int n = 0; n < BUFFERS; n++)
        unmap_buffer(&p->memory[n]);
    free(p);
}

/* ---- Running ---- */

/* The memory of one run, and where its arguments point. */
typedef struct run {
    buffer memory[BUFFERS];
    attree_args args;
} run;

static void *at(const run *r, int n) { return r->memory[n].bytes > 0 ? r->memory[n].data : NULL; }

static void make_run(run *r, const problem *p, const attree_plan *plan, placing placed)
{
    for (int n = 0; n < BUFFERS; n++) {
        const size_t bytes = n == WORKSPACE ? attree_plan_workspace(plan) : p->memory[n].bytes;
        r->memory[n] = map_buffer(bytes, placed, is_output(n) ? NULL : p->memory[n].data, is_output(n));
    }
    r->args = (attree_args){
        .size = sizeof r->args,
        .q = at(r, Q),
        .k = at(r, K),
        .v = at(r, V),
        .o = at(r, O),
        .lse = at(r, LSE),
        .workspace = at(r, WORKSPACE),
        .workspace_bytes = r->memory[WORKSPACE].bytes,
        .mask = at(r, MASK),
        .bias = at(r, BIAS),
        .alibi_slopes = at(r, SLOPES),
        .alibi_heads = H,
        .sinks = at(r, SINKS),
        .sink_heads = H,
        .k_scales = at(r, K_SCALES),
        .v_scales = at(r, V_SCALES),
        .page_table = at(r, TABLE),
        .states = at(r, STATES),
    };
}

static void free_run(run *r)
{
    for (int n = 0; n < BUFFERS; n++)
        unmap_buffer(&r->memory[n]);
}

static bool same_results(const run *a, const run *b)
{
    bool same = true;
    for (int n = 0; n < BUFFERS; n++)
        if (is_output(n) && n != WORKSPACE && a->memory[n].bytes > 0)
            same = same && memcmp(a->memory[n].data, b->memory[n].data, a->memory[n].bytes) == 0;
    return same;
}

/* A crew of threads that are there before anything is watched. */
enum { CREW = 5 };

typedef struct crew {
    const attree_plan *plan; /* NULL: go home */
    const attree_args *args;
    pthread_barrier_t start, phase;
    pthread_t threads[CREW];
    atomic_int wrong;
} crew;

static void *work(void *arg)
{
    crew *const c = arg;
    for (;;) {
        pthread_barrier_wait(&c->start);
        if (!c->plan)
            return NULL;
        for (int32_t phase = 0; phase < attree_plan_phases(c->plan); phase++) {
            if (attree_run_worker(c->plan, c->args, phase) != ATTREE_OK)
                atomic_fetch_add(&c->wrong, 1);
            pthread_barrier_wait(&c->phase);
        }
        pthread_barrier_wait(&c->start);
    }
}

static void start_crew(crew *c)
{
    pthread_barrier_init(&c->start, NULL, CREW + 1);
    pthread_barrier_init(&c->phase, NULL, CREW);
    for (int n = 0; n < CREW; n++)
        assert_int_equal(pthread_create(&c->threads[n], NULL, work, c), 0);
}

static void stop_crew(crew *c)
{
    c->plan = NULL;
    pthread_barrier_wait(&c->start);
    for (int n = 0; n < CREW; n++)
        pthread_join(c->threads[n], NULL);
    pthread_barrier_destroy(&c->start);
    pthread_barrier_destroy(&c->phase);
    assert_int_equal(atomic_load(&c->wrong), 0);
}

/* With the crew, or if that is NULL in this thread. */
static void run_watched(crew *c, const attree_plan *plan, const attree_args *args)
{
    atomic_store(&touched, 0);
    atomic_store(&watching, true);
    attree_status status;
    if (c) {
        c->plan = plan;
        c->args = args;
        status = attree_run_begin(plan, args);
        pthread_barrier_wait(&c->start);
        pthread_barrier_wait(&c->start);
        status = status == ATTREE_OK ? attree_run_end(plan, args) : status;
    } else
        status = attree_run(plan, args);
    atomic_store(&watching, false);
    if (status != ATTREE_OK)
        fail_msg("%s", attree_last_error());
    assert_int_equal(atomic_load(&touched), 0);
}

static attree_plan *make_plan(const problem *p, attree_isa isa, int32_t threads)
{
    attree_desc desc = p->desc;
    desc.isa = (int32_t)isa;
    desc.threads = threads;
    attree_plan *plan;
    if (attree_plan_create(&plan, &desc) != ATTREE_OK)
        fail_msg("%s", attree_last_error());
    return plan;
}

static void check_problem(problem *p, crew *c, const char *what)
{
    attree_isa isas[8];
    const int count = available_isas(isas);
    attree_plan *const plain = make_plan(p, ATTREE_ISA_SCALAR, 1);
    run expected;
    make_run(&expected, p, plain, ANYHOW);
    run_watched(NULL, plain, &expected.args);
    attree_plan_destroy(plain);
    for (int n = 0; n < count * 4; n++) {
        attree_plan *const plan = make_plan(p, isas[n / 4], n % 2 ? 3 : 1);
        run r;
        make_run(&r, p, plan, n / 2 % 2 ? STARTS_AT_GUARD : ENDS_AT_GUARD);
        run_watched(n % 2 ? c : NULL, plan, &r.args);
        if (!same_results(&expected, &r))
            fail_msg("%s: other bits with isa %d, %s", what, (int)isas[n / 4], n % 2 ? "a crew" : "one thread");
        free_run(&r);
        attree_plan_destroy(plan);
    }
    free_run(&expected);
}

static bool possible(layout l, int32_t type)
{
    const bool panels = l == PANELS || l == PAGED_PANELS, blocks = has_blocks(type);
    return !(panels && blocks);
}

static void runs_stay_inside_their_memory(void **state)
{
    (void)state;
    crew c = {.plan = NULL};
    start_crew(&c);
    for (int n = 0; n < LAYOUTS * ATTREE__DTYPE_COUNT * 4; n++) {
        const layout l = (layout)(n % LAYOUTS);
        const int32_t type = n / LAYOUTS % ATTREE__DTYPE_COUNT;
        const bool prefill = n / LAYOUTS / ATTREE__DTYPE_COUNT % 2;
        const bool terms = n / LAYOUTS / ATTREE__DTYPE_COUNT / 2;
        if (!possible(l, type) || thinned_out())
            continue;
        char what[64];
        (void)snprintf(what, sizeof what, "%s, %s, %s", layout_names[l], type_name(type),
                       prefill ? "prefill" : "decode");
        problem *const p = make_problem(l, type, prefill, terms);
        check_problem(p, &c, what);
        free_problem(p);
    }
    stop_crew(&c);
}

/* A workspace of one byte less, or at an odd place, is refused before anything is touched. */
static void a_smaller_workspace_is_refused(void **state)
{
    (void)state;
    problem *const p = make_problem(DENSE, ATTREE_F32, true, false);
    attree_plan *const plan = make_plan(p, ATTREE_ISA_AUTO, 3);
    assert_int_equal(attree_plan_workspace(plan) % 64, 0);
    run r;
    make_run(&r, p, plan, ENDS_AT_GUARD);
    r.args.workspace_bytes--;
    assert_int_equal(attree_run(plan, &r.args), ATTREE_ERROR_WORKSPACE);
    r.args.workspace_bytes++;
    r.args.workspace = (char *)r.args.workspace - 1;
    assert_int_equal(attree_run(plan, &r.args), ATTREE_ERROR_ALIGN);
    free_run(&r);
    attree_plan_destroy(plan);
    free_problem(p);
}

/* The counters count, or the tests above would say nothing. */
static void the_heap_is_watched(void **state)
{
    (void)state;
    if (!COUNTS_CALLS)
        skip();
    atomic_store(&touched, 0);
    atomic_store(&watching, true);
    void *volatile memory = malloc(1);
    memory = realloc(memory, 2);
    free(memory);
    char *const text = strdup("from inside the C library");
    free(text);
    atomic_store(&watching, false);
    assert_int_equal(atomic_load(&touched), 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_heap_is_watched),
        cmocka_unit_test(a_smaller_workspace_is_refused),
        cmocka_unit_test(runs_stay_inside_their_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
