/* Keys spread over ranks: the exact combination has the bits of one process, the other one is near it; how shards are
 * cut; and an error on one rank is an error on all. Each rank computes the whole problem for comparison. */
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <attree_mpi.h>

enum { BLOCK = 256, WIDTH = 32, V_WIDTH = 64, HEADS = 6 };

static int rank, ranks;

static void require(bool fine, const char *what, int64_t number)
{
    if (fine)
        return;
    (void)fprintf(stderr, "rank %d of %d: %s, %" PRId64 "; %s\n", rank, ranks, what, number, attree_last_error());
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void *allocate(size_t bytes)
{
    void *const memory = malloc(bytes + 1);
    require(memory != NULL, "no memory", (int64_t)bytes);
    memset(memory, 0xff, bytes);
    return memory;
}

/* ---- Shards ---- */

/* Whether blocks begin ... end - 1 are a node of the tree over n, which begins at first. */
static bool is_node(int64_t begin, int64_t end, int64_t first, int64_t n)
{
    while (n > 1 && !(begin == first && end == first + n)) {
        int64_t split = 1;
        while (split * 2 < n)
            split *= 2;
        if (begin >= first + split) {
            first += split;
            n -= split;
        } else
            n = split;
    }
    return begin == first && end == first + n;
}

static void check_shards(int64_t kv_len, int count)
{
    const int64_t n = (kv_len + BLOCK - 1) / BLOCK;
    const bool powers = n >= count && (n & (n - 1)) == 0 && (count & (count - 1)) == 0;
    int64_t at = 0;
    for (int r = 0; r < count; r++) {
        attree_mpi_shard s;
        require(attree_mpi_shard_of(&s, kv_len, r, count) == ATTREE_OK, "a shard", kv_len);
        require(s.keys.begin == at && s.nodes >= 0 && s.nodes <= ATTREE_MPI_NODES, "where a shard begins", kv_len);
        require(!powers || s.nodes == 1, "one node", kv_len);
        for (int i = 0; i < s.nodes; i++) {
            require(s.node[i].begin == at && at % BLOCK == 0, "where a node begins", kv_len);
            at = s.node[i].end;
            require(is_node(s.node[i].begin / BLOCK, (at + BLOCK - 1) / BLOCK, 0, n), "a node", kv_len);
        }
        require(s.keys.end == at, "where a shard ends", kv_len);
        require(((at - s.keys.begin + BLOCK - 1) / BLOCK - 1) * 8 * count <= n * 9, "a fair share", kv_len);
    }
    require(at == kv_len, "all keys", kv_len);
}

static void test_shards(void)
{
    static const int counts[] = {1, 2, 3, 4, 5, 7, 8, 12, 31, 32, 100, 1000, 1024};
    for (int c = 0; c < 13; c++) {
        for (int64_t n = 0; n < 700; n++)
            check_shards(n * BLOCK - (n > 0 ? n % 3 * 100 : 0), counts[c]);
        for (int64_t n = 700; n < INT64_C(1) << 45; n = n * 5 / 3 + 1)
            check_shards(n * BLOCK, counts[c]);
        check_shards(INT64_C(1) << 40, counts[c]);
        check_shards(INT64_C(1) << 50, counts[c]);
    }
    attree_mpi_shard s;
    require(attree_mpi_shard_of(NULL, 1, 0, 1) == ATTREE_ERROR_NULL, "NULL", 0);
    require(attree_mpi_shard_of(&s, -1, 0, 1) == ATTREE_ERROR_SHAPE, "a negative length", 0);
    require(attree_mpi_shard_of(&s, 1, 1, 1) == ATTREE_ERROR_VALUE, "a rank that is not there", 0);
}

/* ---- Problems ---- */

typedef struct kind {
    const char *name;
    int64_t batch, groups, queries;
    uint32_t flags;
    int32_t k_type, v_type;
    bool sinks, padded; /* padded: k and v of a rank with strides, a token after each head's */
    int64_t page, short_by;
    int64_t left, right;
} kind;

static const kind kinds[] = {
    {.name = "decode", .batch = 1, .groups = 2, .queries = 1},
    {.name = "decode, f16, sinks", .batch = 2, .groups = 3, .queries = 1, .k_type = 1, .v_type = 1, .sinks = true},
    {.name = "prefill", .batch = 1, .groups = 2, .queries = 37, .flags = ATTREE_CAUSAL, .padded = true},
    {.name = "window", .batch = 1, .groups = 6, .queries = 5, .flags = ATTREE_USE_WINDOW, .left = 600, .right = 3},
    {.name = "from 0", .batch = 1, .groups = 1, .queries = 9, .flags = ATTREE_CAUSAL | ATTREE_USE_Q_OFFSET},
    {.name = "panels", .batch = 1, .groups = 2, .queries = 2, .flags = ATTREE_K_PANELS, .v_type = 1, .sinks = true},
    {.name = "int8", .batch = 2, .groups = 2, .queries = 3, .k_type = ATTREE_I8, .v_type = ATTREE_I8, .short_by = 300},
    {.name = "ggml", .batch = 1, .groups = 2, .queries = 2, .k_type = ATTREE_Q8_0, .v_type = ATTREE_Q4_0},
    {.name = "pages", .batch = 1, .groups = 2, .queries = 4, .flags = ATTREE_CAUSAL, .page = 64, .k_type = ATTREE_BF16},
};

/* Numbers of a tensor [B, G, K, width] in its type, with room for a last page, and its scales. */
typedef struct cache {
    int32_t type;
    int64_t width;
    char *rows;
    float *scales;
} cache;

static uint64_t seed;

static float random_number(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (float)(int64_t)(seed % 4001) / 1000.0f - 2.0f;
}

static cache make_cache(int32_t type, int64_t width, int64_t rows)
{
    const size_t bytes = attree_row_bytes(type, width);
    cache c = {type, width, allocate((size_t)(rows + 64) * bytes), allocate((size_t)rows * sizeof(float))};
    for (int64_t r = 0; r < rows; r++) {
        float numbers[V_WIDTH];
        for (int64_t e = 0; e < width; e++)
            numbers[e] = random_number();
        require(attree_quantize(type, width, numbers, c.rows + (size_t)r * bytes, &c.scales[r]) == ATTREE_OK, "type",
                type);
    }
    return c;
}

/* Tokens of a shard [B, G, tokens + pad, width], or its scales. In panels when asked. */
static void *slice(const attree_desc *d, const attree_mpi_keys *keys, const void *from, size_t bytes, int64_t pad)
{
    const int64_t tokens = keys->end - keys->begin;
    char *const to = allocate((size_t)(d->batch * d->kv_heads * (tokens + pad)) * bytes);
    for (int64_t n = 0; n < d->batch * d->kv_heads; n++)
        memcpy(to + (size_t)(n * (tokens + pad)) * bytes,
               (const char *)from + (size_t)(n * d->kv_len + keys->begin) * bytes, (size_t)tokens * bytes);
    return to;
}

static float *to_panels(const attree_desc *d, int64_t tokens, const float *rows)
{
    const int64_t panels = (tokens + 15) / 16, heads = d->batch * d->kv_heads;
    float *const to = allocate((size_t)(heads * panels * WIDTH * 16) * sizeof(float));
    for (int64_t n = 0; n < heads; n++)
        for (int64_t j = 0; j < tokens; j++)
            for (int64_t c = 0; c < WIDTH; c++)
                to[((n * panels + j / 16) * WIDTH + c) * 16 + j % 16] = rows[(n * tokens + j) * WIDTH + c];
    return to;
}

/* Pages of the whole cache of one batch entry: page n is tokens n * page ... of every head. */
static int32_t *use_pages(const kind *k, const attree_mpi_keys *keys, attree_desc *d)
{
    d->page_size = k->page;
    d->page_count = (d->kv_len + k->page - 1) / k->page;
    d->table_width = (keys->end - keys->begin + k->page - 1) / k->page;
    d->k = (attree_strides){k->page * WIDTH, d->kv_len * WIDTH, WIDTH, 1};
    d->v = (attree_strides){k->page * V_WIDTH, d->kv_len * V_WIDTH, V_WIDTH, 1};
    int32_t *const table = allocate((size_t)d->table_width * sizeof *table);
    for (int64_t n = 0; n < d->table_width; n++)
        table[n] = (int32_t)(keys->begin / k->page + n);
    return table;
}

/* A problem for whoever has some of its keys; what it owns is to be freed. */
typedef struct problem {
    attree_desc desc;
    attree_args args;
    void *own[5];
} problem;

static void give_keys(problem *p, const kind *k, const cache kv[2], const attree_mpi_keys *keys)
{
    attree_desc *const d = &p->desc;
    attree_args *const a = &p->args;
    void **const own = p->own;
    const int64_t tokens = keys->end - keys->begin, pad = k->padded ? 1 : 0;
    for (int i = 0; i < 2; i++) {
        own[i] = slice(d, keys, kv[i].rows, attree_row_bytes(kv[i].type, kv[i].width), pad);
        own[2 + i] = slice(d, keys, kv[i].scales, sizeof(float), 0);
    }
    own[4] = NULL;
    if (k->page)
        own[4] = use_pages(k, keys, d);
    if (d->flags & ATTREE_K_PANELS) {
        float *const panels = to_panels(d, tokens, own[0]);
        free(own[0]);
        own[0] = panels;
    }
    if (pad) {
        d->k = (attree_strides){d->kv_heads * (tokens + 1) * WIDTH, (tokens + 1) * WIDTH, WIDTH, 1};
        d->v = (attree_strides){d->kv_heads * (tokens + 1) * V_WIDTH, (tokens + 1) * V_WIDTH, V_WIDTH, 1};
    }
    a->k = k->page ? kv[0].rows : own[0];
    a->v = k->page ? kv[1].rows : own[1];
    a->k_scales = own[2];
    a->v_scales = own[3];
    a->page_table = own[4];
}

static void compare(const kind *k, const float *one, const float *many, int64_t count, bool exact)
{
    for (int64_t n = 0; n < count; n++)
        require(exact ? memcmp(&one[n], &many[n], sizeof *one) == 0
                      : one[n] == many[n] || fabsf(one[n] - many[n]) <= 2e-6f * (1.0f + fabsf(one[n])),
                k->name, n);
}

/* The whole problem, without keys. */
static void make_problem(problem *p, const kind *k, int64_t kv_len)
{
    static float q[2 * HEADS * 40 * WIDTH], sinks[HEADS];
    static int64_t lens[2];
    lens[0] = kv_len;
    lens[1] = kv_len > k->short_by ? kv_len - k->short_by : 0;
    seed = (uint64_t)kv_len * 977 + 1;
    for (int64_t n = 0; n < k->batch * HEADS * k->queries * WIDTH; n++)
        q[n] = random_number();
    for (int h = 0; h < HEADS; h++)
        sinks[h] = random_number();
    *p = (problem){.desc = {.size = sizeof p->desc,
                            .batch = k->batch,
                            .q_heads = HEADS,
                            .kv_heads = k->groups,
                            .q_len = k->queries,
                            .kv_len = kv_len,
                            .qk_width = WIDTH,
                            .v_width = V_WIDTH,
                            .flags = k->flags,
                            .k_type = k->k_type,
                            .v_type = k->v_type,
                            .window_left = k->left,
                            .window_right = k->right,
                            .kv_lens = k->short_by ? lens : NULL},
                   .args = {.size = sizeof p->args, .q = q, .sinks = k->sinks ? sinks : NULL, .sink_heads = HEADS}};
}

static void check_kind(const kind *k, int64_t kv_len)
{
    const int64_t rows = k->batch * HEADS * k->queries, count = rows * (V_WIDTH + 1);
    problem whole;
    make_problem(&whole, k, kv_len);
    const cache kv[] = {make_cache(k->k_type, WIDTH, k->batch * k->groups * kv_len),
                        make_cache(k->v_type, V_WIDTH, k->batch * k->groups * kv_len)};
    float *results[3]; /* one process, exact, any order */
    for (int n = 0; n < 3; n++) {
        attree_mpi_shard shard;
        problem p = whole;
        (void)attree_mpi_shard_of(&shard, kv_len, n ? rank : 0, n ? ranks : 1);
        give_keys(&p, k, kv, &shard.keys);
        p.args.o = results[n] = allocate((size_t)count * sizeof(float));
        p.args.lse = results[n] + rows * V_WIDTH;
        const attree_status status =
            n ? attree_mpi_run(&p.desc, &p.args, n - 1, MPI_COMM_WORLD) : attree_attention(&p.desc, &p.args);
        require(status == ATTREE_OK, k->name, (int64_t)status);
        for (int i = 0; i < 5; i++)
            free(p.own[i]);
    }
    compare(k, results[0], results[1], count, true);
    compare(k, results[0], results[2], count, false);
    for (int n = 0; n < 3; n++)
        free(results[n]);
    for (int i = 0; i < 2; i++) {
        free(kv[i].rows);
        free(kv[i].scales);
    }
}

/* Only the last rank has made a mistake, and nobody waits for it. */
static void test_errors(void)
{
    static float q[HEADS * WIDTH], k[8 * BLOCK * WIDTH], o[HEADS * WIDTH];
    attree_desc d = {.size = sizeof d, .batch = 1, .q_heads = HEADS, .kv_heads = 1, .q_len = 1, .kv_len = 8 * BLOCK};
    attree_args a = {.size = sizeof a, .q = q, .k = k, .v = k, .o = o};
    d.qk_width = d.v_width = WIDTH;
    if (rank == ranks - 1)
        a.k = NULL;
    for (int32_t order = 0; order < 2; order++)
        require(attree_mpi_run(&d, &a, order, MPI_COMM_WORLD) == ATTREE_ERROR_NULL, "an error on one rank", order);
    require(attree_mpi_run(&d, &a, 2, MPI_COMM_WORLD) == ATTREE_ERROR_VALUE, "an unknown order", 2);
    attree_mpi_states s = {.kv_len = 1, .rows = 1, .v_width = 0};
    require(attree_mpi_scratch(&s, ranks) == 0, "scratch of no width", 0);
    require(attree_mpi_combine_exact(&s, MPI_COMM_WORLD) == ATTREE_ERROR_SHAPE, "no width", 0);
    s.v_width = 1;
    require(attree_mpi_combine_any(&s, MPI_COMM_WORLD) == ATTREE_ERROR_NULL, "no states", 0);
}

int main(int argc, char **argv)
{
    static const int64_t lengths[] = {0, 1, 256, 300, 600, 1024, 1700, 3328, 3500};
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (rank == 0)
        test_shards();
    test_errors();
    for (size_t n = 0; n < sizeof kinds / sizeof *kinds; n++)
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
            check_kind(&kinds[n], lengths[i]);
    if (rank == 0)
        (void)printf("%d ranks: the bits of one process\n", ranks);
    MPI_Finalize();
    return 0;
}
