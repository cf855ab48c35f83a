/* The kernel table: what an instruction set provides, and each slot's contract.
 *
 * Kernels see one tile of query rows and one block of keys. They know nothing of plans, tasks or the tree. Every table
 * computes the bits of contract.c. */
#ifndef ATTREE_KERNEL_H
#define ATTREE_KERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "attree/attree.h"
#include "compiler.h"
#include "contract.h"
#include "dtype.h"

/* The states of a tile of rows: m[r], l[r], and u[r * u_stride + e] for e < E, with E <= u_stride. Numbers of u between
 * E and u_stride are padding that kernels may overwrite. */
typedef struct attree__states {
    float *m, *l, *u;
    int64_t u_stride; /* E rounded up to a multiple of ATTREE__LANES */
} attree__states;

/* The most blocks that are folded at once. */
#define ATTREE__FOLDS 4

/* Keys of a piece: of a panel, too. */
#define ATTREE__PIECE ATTREE_PANEL_KEYS

/* Keys or values of one block as they lie in memory, in pieces of 16 keys: the row of key j starts j % 16 * token bytes
 * after piece[j / 16], and its number c is c * width elements further. The last two pieces are of the next block: asked
 * for in advance, never read, and need not exist. */
typedef struct attree__rows {
    const char *piece[ATTREE__BLOCK / ATTREE__PIECE + 2];
    int64_t token;      /* bytes */
    int64_t width;      /* elements; 1 for types with blocks */
    const float *scale; /* of key j at scale[j], for types with scales of rows */
    int32_t ahead;      /* pieces from what is read to what is asked for in advance: 0, 1 or 2 */
    int32_t type;       /* attree_dtype */
} attree__rows;

/* Where the row of key j starts. */
static inline const char *attree__row(const attree__rows *rows, int64_t j)
{
    const uintptr_t piece = (uintptr_t)rows->piece[j / ATTREE__PIECE]; /* NULL for rows without numbers */
    return (const char *)(piece + (uintptr_t)(j % ATTREE__PIECE * rows->token));
}

/* Sets all pieces for rows that lie piece_bytes from piece to piece. data may be NULL. */
static inline void attree__rows_place(attree__rows *rows, const void *data, int64_t piece_bytes)
{
    for (int64_t n = 0; n < ATTREE__BLOCK / ATTREE__PIECE + 2; n++) /* integers: pieces beyond the keys do not exist */
        rows->piece[n] = (const char *)((uintptr_t)data + (uintptr_t)(n * piece_bytes));
}

/* The query rows of a tile as they lie in memory. Row r of the tile is row n = first + r of its group: query n / heads
 * of head n % heads; its element c is number n / heads * token + n % heads * head + c * width of data. */
typedef struct attree__queries {
    const void *data;
    int64_t token, head, width;
    int32_t type;
    int64_t heads, first, rows;
} attree__queries;

/* A tensor over pairs as a fold sees it: query i of head h (of the group) and key j (of the block) is element base +
 * i * query + h * head + j * key. */
typedef struct attree__pair_source {
    const void *data; /* NULL: there is none */
    int64_t base, query, head, key;
    int32_t type; /* attree_dtype of a bias, attree_mask of a mask */
} attree__pair_source;

/* Bias and mask of a row of a fold, for key j. */
static inline float attree__pair_bias(const attree__pair_source *p, int64_t query, int64_t head, int64_t j)
{
    return attree__load(p->data, p->type, p->base + query * p->query + head * p->head + j * p->key);
}

static inline bool attree__pair_shown(const attree__pair_source *p, int64_t query, int64_t head, int64_t j)
{
    const int64_t n = p->base + query * p->query + head * p->head + j * p->key;
    const uint8_t *const bytes = p->data;
    return p->type == ATTREE_MASK_BYTES ? bytes[n] != 0 : (bytes[n >> 3] >> (n & 7) & 1) != 0;
}

/* What happens to scores after step 1. Row r is row first + r of the group (query_row.h). */
typedef struct attree__terms {
    int64_t heads, first;
    float softcap;       /* 0: none */
    const float *slopes; /* of the group's heads; NULL: none */
    int64_t distance;    /* from the position of query 0 to key 0 of the block */
    attree__pair_source bias, mask;
    attree_score_function score; /* NULL: none */
    void *user;
    int64_t batch, first_head, first_key; /* what score is told: of the block's group and key 0 */
} attree__terms;

/* One fold: rows x keys. */
typedef struct attree__fold {
    int64_t qk_width, v_width; /* D >= 0, E >= 1 */
    float scale;
    const float *q;             /* as pack_queries made it */
    int64_t rows;               /* >= 1 */
    attree__rows k, v;          /* keys first[r] ... end[r] - 1 may be read, and nothing else */
    const int32_t *first, *end; /* row r sees keys first[r] <= j < end[r] of this block; first = end = 0 sees none */
    const attree__terms *terms; /* NULL: none */
    attree__states out;
    float *scratch; /* scratch_floats() floats, aligned to 64 bytes */
} attree__fold;

/* What becomes of the weights of a fold's rows. Row r is row n = first + r of its group: query n / heads of head n %
 * heads. */
typedef struct attree__weights_sink {
    const float *lse; /* of row r */
    int64_t heads, first;
    void *data; /* where weights are written, or NULL: key j of a row is element query * q + head * h + key * j */
    int64_t query, head, key;
    int32_t type; /* attree_dtype */
    int64_t keys; /* of the block, that are written */
    float *sums;  /* [heads][ATTREE__BLOCK], to which weights are added row by row; or NULL */
} attree__weights_sink;

typedef struct attree__kernels {
    const char *name;
    int32_t isa;         /* attree_isa */
    int32_t bundle_rows; /* query rows that a register tile takes together */
    int32_t decode_rows; /* tiles of at most so many rows are limited by what is read, not by what is computed */

    /* Tiles of at most so many rows may gain when several blocks are folded at once; 0: none do. */
    int64_t (*interleaved_rows)(int32_t k_type, int32_t v_type);

    /* Leaves out of first[r] ... end[r] - 1, keys of the block that row r sees, what a bias of -inf or a mask hides at
     * either end, and bias or mask (data becomes NULL) when they then change no score of the block. NULL: does not. */
    void (*scan)(attree__terms *terms, int64_t rows, int32_t *first, int32_t *end);

    /* Query rows as f32, in bundles of bundle_rows: [bundle][D][bundle_rows], the last one padded with zeros. packed
     * has room for ATTREE__LANES more numbers, which may be overwritten. */
    void (*pack_queries)(float *packed, const attree__queries *queries, int64_t qk_width);

    /* Floats of scratch that fold needs for at most `rows` rows. */
    int64_t (*scratch_floats)(int64_t qk_width, int64_t v_width, int64_t rows);

    /* Steps 1 to 5: the state of each row over the block's visible keys; (-inf, 0, 0) where there are none. A row with
     * a NaN or +inf score gets m = +inf, l = NaN. 1 <= count <= ATTREE__FOLDS folds of the same rows, which differ in
     * their blocks and in out only. */
    void (*fold)(const attree__fold *const *folds, int32_t count);

    /* Steps 1 and 2, then exp(s - lse) for each key of the block: +0 for those that a row does not see. f->v and f->out
     * are not used. */
    void (*weights)(const attree__fold *f, const attree__weights_sink *sink);

    /* Step 6 for each row: a = combine(a, b). */
    void (*combine)(const attree__states *a, const attree__states *b, int64_t rows, int64_t v_width);

    /* Step 7 for one row: o[e] = u[e] / l, e < E, as numbers of the type; every NaN becomes the canonical one. */
    void (*divide)(void *o, int32_t type, const float *u, float l, int64_t v_width);
} attree__kernels;

extern const attree__kernels attree__kernels_contract;
extern const attree__kernels attree__kernels_avx2;
extern const attree__kernels attree__kernels_avx512;
extern const attree__kernels attree__kernels_neon;

/* Steps 1 and 2 for one row of a fold: scores[j] of the keys the row sees; -inf for those hidden by bias, score
 * function or mask. f->q as attree__kernels_contract packs it. */
void attree__contract_scores(const attree__fold *f, int64_t r, float *scores);

/* The tables that are compiled for this architecture, widest first, the contract's last. */
#if defined(__aarch64__)
#define ATTREE__TABLES                                                                                                 \
    {                                                                                                                  \
        &attree__kernels_neon, &attree__kernels_contract                                                               \
    }
#else
#define ATTREE__TABLES                                                                                                 \
    {                                                                                                                  \
        &attree__kernels_avx512, &attree__kernels_avx2, &attree__kernels_contract                                      \
    }
#endif

#endif /* ATTREE_KERNEL_H */
