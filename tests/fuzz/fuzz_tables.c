/* Page tables and ragged offsets. A table may hold anything: a run is refused exactly when an entry that some query
 * needs is no page, and then nothing is written; otherwise it has the bits of the same keys in a dense cache. Offsets
 * are refused unless they cut the tokens into pieces; otherwise every entry has the bits that it has alone. */
#include "attree/attree.h"
#include "fuzz.h"

enum { BATCH = 3, KEYS = 40, QUERIES = 5, H = 2, D = 4, E = 4, TABLE = 48 };

typedef struct problem {
    attree_desc desc;
    int64_t kv_lens[BATCH], q_starts[BATCH + 1], kv_starts[BATCH + 1];
    int32_t table[BATCH * TABLE];
    float q[BATCH * H * QUERIES * D], k[BATCH * KEYS * D], v[BATCH * KEYS * E];
    float o[BATCH * H * QUERIES * E];
} problem;

static attree_status run(const attree_desc *desc, const attree_args *args)
{
    attree_args a = *args;
    a.size = sizeof a;
    const attree_status status = attree_attention(desc, &a);
    FUZZ_REQUIRE(status == ATTREE_OK || attree_last_error()[0] != 0);
    return status;
}

static void fill_numbers(float *numbers, int64_t count, fuzz_input *in)
{
    uint32_t x = (uint32_t)fuzz_bits(in, 2) + 1;
    for (int64_t i = 0; i < count; i++) {
        x = x * 1664525u + 1013904223u;
        numbers[i] = (float)(int32_t)x * 0x1p-31f;
    }
}

static attree_desc any_desc(fuzz_input *in)
{
    attree_desc d = {.size = sizeof d, .q_heads = H, .kv_heads = 1, .qk_width = D, .v_width = E, .threads = 1};
    d.batch = fuzz_integer(in, 0, BATCH);
    d.q_len = fuzz_integer(in, 0, QUERIES);
    d.kv_len = fuzz_integer(in, 0, KEYS);
    d.flags = fuzz_byte(in) & (ATTREE_CAUSAL | ATTREE_USE_WINDOW | ATTREE_USE_Q_OFFSET);
    d.q_offset = fuzz_integer(in, -6, 50);
    d.window_left = fuzz_integer(in, -1, 30);
    d.window_right = fuzz_integer(in, -1, 10);
    return d;
}

/* ---- Pages ---- */

/* Whether a query of entry b may see key j. */
static bool sees(const problem *p, int64_t b, int64_t i, int64_t j)
{
    const attree_desc *d = &p->desc;
    const int64_t len = d->kv_lens ? p->kv_lens[b] : d->kv_len;
    const int64_t position = i + (d->flags & ATTREE_USE_Q_OFFSET ? d->q_offset : len - d->q_len);
    const bool window = d->flags & ATTREE_USE_WINDOW;
    bool in = j < len;
    in = in && !(d->flags & ATTREE_CAUSAL && j > position);
    in = in && !(window && d->window_left >= 0 && j < position - d->window_left);
    return in && !(window && d->window_right >= 0 && j > position + d->window_right);
}

static bool is_needed(const problem *p, int64_t b, int64_t j)
{
    for (int64_t i = 0; i < p->desc.q_len; i++)
        if (sees(p, b, i, j))
            return true;
    return false;
}

/* The dense keys, or values, of what the table says; what is in no page is NaN. Returns whether all that is needed is
 * in one. */
static bool gather(const problem *p, const float *pages, float *to, int64_t width)
{
    const attree_desc *d = &p->desc;
    bool whole = true;
    memset(to, 0xff, (size_t)(d->batch * d->kv_len * width) * sizeof *to);
    for (int64_t b = 0; b < d->batch; b++)
        for (int64_t j = 0; j < d->kv_len; j++) {
            const int64_t entry = j / d->page_size;
            const int32_t id = entry < d->table_width ? p->table[b * d->table_width + entry] : -1;
            if (id >= 0 && id < d->page_count)
                memcpy(to + (b * d->kv_len + j) * width, pages + (id * d->page_size + j % d->page_size) * width,
                       (size_t)width * sizeof *to);
            else if (is_needed(p, b, j))
                whole = false;
        }
    return whole;
}

static void fill_table(problem *p, fuzz_input *in)
{
    attree_desc *const d = &p->desc;
    d->page_size = fuzz_integer(in, 1, 20);
    d->page_count = fuzz_integer(in, 0, 7);
    d->table_width = fuzz_chance(in, 8) ? fuzz_integer(in, 0, TABLE) : (d->kv_len + d->page_size - 1) / d->page_size;
    for (int64_t b = 0; b < d->batch; b++)
        p->kv_lens[b] = fuzz_integer(in, 0, d->kv_len);
    d->kv_lens = fuzz_chance(in, 2) ? p->kv_lens : NULL;
    for (int64_t n = 0; n < d->batch * d->table_width; n++) {
        const uint8_t choice = fuzz_byte(in);
        p->table[n] = choice < 240 && d->page_count > 0 ? (int32_t)(choice % d->page_count) : (int32_t)fuzz_bits(in, 4);
    }
}

static void check_pages(problem *p, fuzz_input *in)
{
    attree_desc *const d = &p->desc;
    fill_table(p, in);
    const size_t k_bytes = (size_t)(d->page_count * d->page_size * D) * sizeof(float);
    float *const k = malloc(k_bytes + 1), *const v = malloc(k_bytes + 1);
    int32_t *const table = malloc((size_t)(d->batch * d->table_width) * sizeof *table + 1); /* of its size */
    memcpy(table, p->table, (size_t)(d->batch * d->table_width) * sizeof *table);
    fill_numbers(k, d->page_count * d->page_size * D, in);
    fill_numbers(v, d->page_count * d->page_size * E, in);
    const size_t o_bytes = (size_t)(d->batch * H * d->q_len * E) * sizeof(float);
    memset(p->o, 0xff, sizeof p->o);
    const attree_status status = run(d, &(attree_args){.q = p->q, .k = k, .v = v, .o = p->o, .page_table = table});
    const bool whole = gather(p, k, p->k, D) && gather(p, v, p->v, E);
    FUZZ_REQUIRE((status == ATTREE_OK) == whole);
    float o[BATCH * H * QUERIES * E];
    memset(o, 0xff, sizeof o);
    if (whole) {
        attree_desc dense = *d;
        dense.page_size = dense.page_count = dense.table_width = 0;
        FUZZ_REQUIRE(run(&dense, &(attree_args){.q = p->q, .k = p->k, .v = p->v, .o = o}) == ATTREE_OK);
    }
    FUZZ_REQUIRE(memcmp(o, p->o, whole ? o_bytes : sizeof o) == 0);
    free(k);
    free(v);
    free(table);
}

/* ---- Ragged ---- */

static void fill_starts(int64_t *starts, int64_t batch, int64_t tokens, fuzz_input *in)
{
    starts[0] = fuzz_chance(in, 30) ? fuzz_integer(in, -1, 1) : 0;
    for (int64_t b = 0; b < batch; b++) {
        const int64_t there = starts[b] < tokens && starts[b] >= 0 ? tokens - starts[b] : 0;
        starts[b + 1] = starts[b] + fuzz_integer(in, 0, there);
        if (fuzz_chance(in, 30))
            starts[b + 1] = fuzz_chance(in, 2) ? (int64_t)fuzz_bits(in, 8) : fuzz_integer(in, -2, 50);
    }
    if (!fuzz_chance(in, 6))
        starts[batch] = tokens;
}

static bool cut(const int64_t *starts, int64_t batch, int64_t tokens)
{
    bool right = starts[0] == 0 && starts[batch] == tokens;
    for (int64_t b = 0; b < batch; b++)
        right = right && starts[b] <= starts[b + 1];
    return right;
}

/* Entry b alone: its bits are those that the ragged run found. */
static void check_entry(const problem *p, int64_t b)
{
    const attree_desc *d = &p->desc;
    attree_desc alone = *d;
    alone.batch = 1;
    alone.q_len = p->q_starts[b + 1] - p->q_starts[b];
    alone.kv_len = p->kv_starts[b + 1] - p->kv_starts[b];
    alone.q_starts = alone.kv_starts = NULL;
    alone.q = (attree_strides){0, d->q_len * D, D, 1};
    alone.o = (attree_strides){0, E, H * E, 1};
    if (alone.q_len == 0)
        return;
    float o[H * QUERIES * E];
    FUZZ_REQUIRE(run(&alone, &(attree_args){.q = p->q + p->q_starts[b] * D,
                                            .k = p->k + p->kv_starts[b] * D,
                                            .v = p->v + p->kv_starts[b] * E,
                                            .o = o}) == ATTREE_OK);
    for (int64_t h = 0; h < H; h++)
        for (int64_t i = 0; i < alone.q_len; i++)
            FUZZ_REQUIRE(
                memcmp(o + (i * H + h) * E, p->o + (h * d->q_len + p->q_starts[b] + i) * E, E * sizeof(float)) == 0);
}

static void check_starts(problem *p, fuzz_input *in)
{
    attree_desc *const d = &p->desc;
    fill_starts(p->q_starts, d->batch, d->q_len, in);
    fill_starts(p->kv_starts, d->batch, d->kv_len, in);
    int64_t *const q_starts = malloc((size_t)(d->batch + 1) * sizeof *q_starts);
    int64_t *const kv_starts = malloc((size_t)(d->batch + 1) * sizeof *kv_starts);
    memcpy(q_starts, p->q_starts, (size_t)(d->batch + 1) * sizeof *q_starts);
    memcpy(kv_starts, p->kv_starts, (size_t)(d->batch + 1) * sizeof *kv_starts);
    d->q_starts = q_starts;
    d->kv_starts = kv_starts;
    fill_numbers(p->k, BATCH * KEYS * D, in);
    fill_numbers(p->v, BATCH * KEYS * E, in);
    memset(p->o, 0xff, sizeof p->o);
    const attree_status status = run(d, &(attree_args){.q = p->q, .k = p->k, .v = p->v, .o = p->o});
    const bool right = cut(q_starts, d->batch, d->q_len) && cut(kv_starts, d->batch, d->kv_len);
    FUZZ_REQUIRE(status == (right ? ATTREE_OK : ATTREE_ERROR_SHAPE));
    for (int64_t b = 0; b < d->batch && right; b++)
        check_entry(p, b);
    free(q_starts);
    free(kv_starts);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input in = {data, size};
    static problem p;
    const bool pages = fuzz_chance(&in, 2);
    p.desc = any_desc(&in);
    fill_numbers(p.q, BATCH * H * QUERIES * D, &in);
    if (pages)
        check_pages(&p, &in);
    else
        check_starts(&p, &in);
    return 0;
}
