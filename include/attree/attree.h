/* attree: exact attention on CPUs.
 *
 * Each block of 256 keys is folded into a summary (m, l, u) per query row: the running maximum of the scores, the sum
 * of exp(score - m) and the unnormalised value sum. A binary tree that depends on the number of blocks alone combines
 * the summaries, so a result has the same bits for any number of threads, any batch, any tiling and any instruction
 * set. The arithmetic is written out in src/contract.c and in docs/contract.md.
 *
 * Shape letters: B batch, H query heads, G key/value heads, Q queries, K keys, D query and key width, E value width.
 * Strides count elements, sizes count bytes, logarithms are natural. Head h reads key/value head h / (H / G).
 *
 *     s(b,h,i,j) = scale * sum_c q[b,h,i,c] * k[b,g,j,c]
 *     s = cap * tanh(s / cap)              with a soft cap
 *     s = slope[h] * (j - p_i) + s         with ALiBi; p_i = i + q_offset is the position of query i among the keys
 *     s = s + bias[b,h,i,j]                with an additive bias
 *     s = whatever the caller's function makes of it
 *     o(b,h,i,:) = sum_j softmax_j(s) v[b,g,j,:]         lse(b,h,i) = log sum_j exp(s)
 *
 * over the keys j that query i may see: j < kv_len[b], inside the window around p_i, not masked, s not -inf. A sink
 * adds exp(sink[h]) to the sum of exponentials, and nothing to the values. Every function is reentrant; none prints,
 * aborts, or keeps a pointer after it returns. A function that returns anything but ATTREE_OK has written nothing to
 * the caller's tensors, caches or states, but for three: ATTREE_ERROR_EMPTY, which comes when everything has been
 * written, and ATTREE_ERROR_UNFINISHED and ATTREE_ERROR_CANCELLED, when what the finished tasks compute has been. */
#ifndef ATTREE_ATTREE_H
#define ATTREE_ATTREE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define ATTREE_API __attribute__((visibility("default")))
#else
#define ATTREE_API
#endif

#define ATTREE_VERSION_MAJOR 0
#define ATTREE_VERSION_MINOR 1
#define ATTREE_VERSION_PATCH 0

/* Parts of the contract that callers must know to shard keys and to lay out panels: keys of a block, which is a leaf of
 * the merge tree; keys of a panel. */
#define ATTREE_BLOCK_KEYS 256
#define ATTREE_PANEL_KEYS 16

/* The version of the library that is running, "0.1.0"; static storage. */
ATTREE_API const char *attree_version(void);

/* ---- Errors ---------------------------------------------------------------------------------------------------- */

typedef enum attree_status {
    ATTREE_OK = 0,
    ATTREE_ERROR_NULL = 1,       /* a required pointer is NULL */
    ATTREE_ERROR_SIZE = 2,       /* a struct's size field is not one this library knows (a newer header, or 0) */
    ATTREE_ERROR_SHAPE = 3,      /* a dimension is negative, or H is not a multiple of G */
    ATTREE_ERROR_STRIDE = 4,     /* strides that make elements of an output share memory */
    ATTREE_ERROR_OVERFLOW = 5,   /* an offset or a size does not fit 64 bits */
    ATTREE_ERROR_TYPE = 6,       /* an unknown or unsupported element type */
    ATTREE_ERROR_VALUE = 7,      /* any other field is out of its range */
    ATTREE_ERROR_ALIGN = 8,      /* a pointer is not aligned to its element, or the workspace not to 64 bytes */
    ATTREE_ERROR_ALIAS = 9,      /* an output overlaps an input, another output or the workspace */
    ATTREE_ERROR_WORKSPACE = 10, /* the workspace is too small */
    ATTREE_ERROR_ISA = 11,       /* this machine lacks the instruction set that was asked for */
    ATTREE_ERROR_MEMORY = 12,    /* an allocation failed */
    ATTREE_ERROR_EMPTY = 13,     /* a state or a row without any visible key was to be finished */
    ATTREE_ERROR_NONFINITE = 14, /* a score, value or state that must be finite is not, or would not be */
    ATTREE_ERROR_UNFINISHED =
        15,                     /* a phase or a run was to end before its work was done, or without attree_run_begin */
    ATTREE_ERROR_CANCELLED = 16 /* args->control said to stop before all work was done */
} attree_status;

/* The name of a status, "ATTREE_ERROR_SHAPE"; static storage, never NULL. */
ATTREE_API const char *attree_status_name(attree_status status);

/* One sentence about the last error in the calling thread: the argument, what it was, what it must be. Empty before the
 * first error. Valid until this thread's next failing call. */
ATTREE_API const char *attree_last_error(void);

/* ---- What to compute, and on what -------------------------------------------------------------------------------- */

typedef enum attree_dtype {
    ATTREE_F32 = 0,  /* IEEE binary32 */
    ATTREE_F16 = 1,  /* IEEE binary16 */
    ATTREE_BF16 = 2, /* the upper half of a binary32 */
    /* Of k and v only. A number is the f32 product of a scale and an integer. */
    ATTREE_I8 = 3,      /* int8, with one f32 scale for each token and head: args->k_scales, v_scales */
    ATTREE_Q8_0 = 4,    /* ggml's blocks of 32: an f16 scale, 32 int8; 34 bytes. The width is a multiple of 32 */
    ATTREE_Q4_0 = 5,    /* ggml's blocks of 32: an f16 scale, 16 bytes; byte i has number i, plus 8, in its low half and
                           number i + 16 in its high half; 18 bytes. The width is a multiple of 32 */
    ATTREE_F8_E4M3 = 6, /* OCP 8-bit float: 4 bits of exponent, 3 of fraction, largest 448, no infinities; no scale */
    ATTREE_F8_E5M2 = 7  /* OCP 8-bit float: the upper half of a binary16, largest 57344; no scale */
} attree_dtype;

typedef enum attree_isa {
    ATTREE_ISA_AUTO = 0, /* the widest that this machine has, or that the environment variable ATTREE_ISA names */
    ATTREE_ISA_SCALAR = 1,
    ATTREE_ISA_AVX2 = 2,   /* AVX2, FMA and F16C */
    ATTREE_ISA_AVX512 = 3, /* AVX-512 F, BW, DQ and VL */
    ATTREE_ISA_NEON = 4    /* AArch64 */
} attree_isa;

/* What becomes of a query row that may attend to no key, and has no sink (with one: o = 0, lse = the sink). A score of
 * -inf hides its key. */
typedef enum attree_empty {
    ATTREE_EMPTY_ZERO = 0, /* o = 0, lse = -inf */
    ATTREE_EMPTY_NAN = 1,  /* o = NaN, lse = NaN */
    ATTREE_EMPTY_ERROR = 2 /* as ATTREE_EMPTY_ZERO, and the run returns ATTREE_ERROR_EMPTY naming the first such row */
} attree_empty;

/* Flags of attree_desc. A field that a flag enables is ignored, and may hold anything, while the flag is off. */
#define ATTREE_CAUSAL 1u       /* query i, at position q_offset + i, sees keys 0 ... q_offset + i only */
#define ATTREE_USE_Q_OFFSET 2u /* q_offset is set; without it, each batch entry's is its keys less its queries */
#define ATTREE_USE_SCALE 4u /* scale is set (any finite number, also 0 or negative); without it scale = 1 / sqrt(D) */
#define ATTREE_K_PANELS 16u /* k lies in panels of 16 keys; see attree_strides */
#define ATTREE_STATES 32u   /* a run writes args->states instead of o and lse */
#define ATTREE_WEIGHTS 64u  /* a run writes args->weights and key_weights instead of o; see "Weights" below */
#define ATTREE_WEIGHTS_BY_HEAD 128u /* key_weights are those of each query head, not of each key/value head */
#define ATTREE_USE_WINDOW 8u        /* window_left and window_right are set; with ATTREE_CAUSAL, both hold */

/* Where element (b, head, token, c) of a tensor lies: at b * batch + head * head + token * token + c * width elements
 * from the tensor's pointer. Negative strides are fine. All four zero: dense in the order [B, heads, tokens, width].
 * Otherwise a zero repeats the element along that dimension (inputs only). The stride of a dimension of size 0 or 1 is
 * ignored. Where width is ignored (lse, scales of ATTREE_I8, blocks, panels), batch, head and token all zero mean
 * dense.
 *
 * Of ATTREE_Q8_0 and ATTREE_Q4_0, strides count blocks of 32 numbers, and those of a row are adjacent (width is 1, or
 * ignored). In a paged cache, batch is the stride from page to page, and token that from token to token of a page. With
 * ATTREE_K_PANELS, token j and width c of k lie in panel j / 16 at c * 16 + j % 16: token is the stride from panel to
 * panel, and width is ignored; dense is [B, G, panels, D, 16]. Panels are for types without blocks, and not for
 * kv_starts. */
typedef struct attree_strides {
    int64_t batch, head, token, width;
} attree_strides;

typedef enum attree_mask {
    ATTREE_MASK_BYTES = 0, /* a byte for each element; 0 hides, anything else shows */
    ATTREE_MASK_BITS = 1   /* element n is bit n % 8, the least significant first, of byte n / 8; 0 hides */
} attree_mask;

/* A tensor over pairs of a query and a key, [B, H, Q, K]. Each size is the problem's, which 0 means too, or 1: one
 * element for all. Strides are as those of other tensors: all four zero means dense in its sizes; otherwise a zero
 * repeats. They count elements: bits in ATTREE_MASK_BITS, where rows need not start at a whole byte. */
typedef struct attree_pairs {
    int64_t batches, heads, queries, keys;
    int64_t batch_stride, head_stride, query_stride, key_stride;
} attree_pairs;

/* A problem. Zero-initialise it, set size and the dimensions, and every other zero means the default: dense f32
 * tensors, every query sees every key, scale 1/sqrt(D). */
typedef struct attree_desc {
    size_t size;        /* sizeof(attree_desc) */
    int64_t batch;      /* B >= 0 */
    int64_t q_heads;    /* H >= 1, a multiple of G */
    int64_t kv_heads;   /* G >= 1 */
    int64_t q_len;      /* Q >= 0 */
    int64_t kv_len;     /* K >= 0 */
    int64_t qk_width;   /* D >= 0; with D = 0 every score is 0, before bias and the like */
    int64_t v_width;    /* E >= 1 */
    attree_strides q;   /* [B, H, Q, D] */
    attree_strides k;   /* [B, G, K, D] */
    attree_strides v;   /* [B, G, K, E] */
    attree_strides o;   /* [B, H, Q, E] */
    attree_strides lse; /* [B, H, Q] */
    int32_t q_type;     /* attree_dtype of q, k, v, o, in any mix. Inputs are converted to f32 exactly, o is rounded
                           once, to nearest even. lse is always f32. */
    int32_t k_type;
    int32_t v_type;
    int32_t o_type;
    uint32_t flags;     /* ATTREE_CAUSAL | ... */
    float scale;        /* with ATTREE_USE_SCALE */
    int64_t q_offset;   /* position of query 0 among the keys, with ATTREE_USE_Q_OFFSET; may be negative */
    int32_t empty_rows; /* attree_empty */
    int32_t isa;        /* attree_isa: just this one. Asking for one that the machine lacks is an error. */
    int32_t threads;    /* workers of attree_run: 0 = OpenMP's default for the planning thread; at most 65536 */
    float softcap;      /* > 0: scores become softcap * tanh(score / softcap), before bias and masks, so that -inf
                           becomes -softcap; 0: they do not */
    int64_t window_left, window_right; /* with ATTREE_USE_WINDOW: query i sees keys p_i - window_left ... p_i +
                                          window_right; -1: no limit on that side */
    attree_pairs mask;                 /* of args->mask, when that is given */
    attree_pairs bias;                 /* of args->bias, when that is given */
    int32_t mask_kind;                 /* attree_mask */
    int32_t bias_type;                 /* attree_dtype */
    /* Per batch entry; read when the plan is made, and not kept. */
    const int64_t *kv_lens; /* [B]: entry b has kv_lens[b] keys, what its memory has beyond them is padding; or NULL */
    const int64_t *q_offsets; /* [B]: entry b has q_offset q_offsets[b], with or without the flag; or NULL */
    const int64_t *q_starts;  /* [B + 1], ragged queries; or NULL. See below. */
    const int64_t *kv_starts; /* [B + 1], ragged keys; or NULL */
    /* Scales of k and v, when these are ATTREE_I8: [B, G, K]. */
    attree_strides k_scales, v_scales;
    /* A paged cache: page_size > 0. See below. */
    int64_t page_size;   /* tokens of a page; 0: k and v are not paged */
    int64_t page_count;  /* pages that k and v have; page numbers are less than this */
    int64_t table_width; /* entries of a row of args->page_table */
    /* A shard: the run folds keys shard_begin <= j < shard_end only. Both 0: all keys. See below. */
    int64_t shard_begin, shard_end;
    /* With ATTREE_WEIGHTS. */
    attree_strides weights;     /* [B, H, Q, K]: token is from query to query, width from key to key */
    attree_strides key_weights; /* [B, G, K], or [B, H, K]: token is from key to key */
    int32_t weights_type;       /* of weights: ATTREE_F32, ATTREE_F16 or ATTREE_BF16 */
    int32_t unused;             /* 0 */
} attree_desc;

/* Ragged batches. With q_starts, the queries of all entries lie one after the other: entry b has tokens q_starts[b] ...
 * q_starts[b + 1] - 1 of q, o and lse, which have no batch dimension then ([1, H, q_len, D], and so on). q_starts[0] is
 * 0, no entry is less than the one before it, q_starts[B] is q_len. kv_starts does the same for k, v and kv_len. Either
 * may be given without the other. A mask or bias is still [B, H, q_len, kv_len], with the same token numbers. */

/* Paged caches. k is [page_count, G, page_size, D] (in any order, by strides), v likewise, and the keys of batch entry
 * b are in the pages that row b of args->page_table names: key j is token j % page_size of page page_table[b *
 * table_width + j / page_size]. Each entry has kv_len keys, or kv_lens[b]; kv_starts is not for paged caches. Entries
 * for keys that no query can see are never looked at, and the last row may end after those for the keys there are;
 * pages may occur any number of times. Panels need a page_size that is a multiple of 16; multiples of 16 are fast for
 * all types. */

/* Shards. The keys may be spread over several memories, or several runs, for example over machines, or over a prefix
 * that many sequences share and what follows it. Each run is told the whole problem (kv_len, positions, masks), has
 * only the tokens shard_begin <= j < shard_end of k and v (its token 0, or its page table's entry 0, is key
 * shard_begin), and writes states (ATTREE_STATES). attree_states_merge combines them, attree_finish makes o and lse of
 * them. shard_begin is a multiple of 256, and so is shard_end when it is less than kv_len; kv_starts is not for shards.
 * The empty shard, begin = end > 0, is fine. Bits: the tree over n = ceil(kv_len / 256) blocks splits at the largest
 * power of two below n, and so do its parts; when shards are such parts, and are merged as they were split, results
 * have the bits of a run over all keys. Otherwise they differ by rounding. */

/* Weights. With ATTREE_WEIGHTS a run reads q, k and args->lse, which a run without the flag has written for the same
 * problem, and writes softmax weights w(b,h,i,j) = exp(s(b,h,i,j) - lse(b,h,i)), on as many threads as any run:
 *
 *     weights[b,h,i,j] = w(b,h,i,j)                                          when args->weights is given
 *     key_weights[b,g,j] = sum over queries i and heads h of g of w(b,h,i,j) when args->key_weights is given
 *
 * 0 for hidden keys, for padding beyond kv_lens[b] and for keys outside the shard; with a sink they add up to less than
 * 1. v and o are not used, nor are their strides and v_width but for being valid. Weights of some of the queries, heads
 * or entries are those of a smaller problem: pointers to the first of them, and a desc with fewer (and q_offset, if the
 * last queries are not among them). With q_starts, weights are [1, H, q_len, K]; with kv_starts, key j of an entry is
 * its own j, and K is the largest number of keys of an entry.
 *
 * Bits: w is as attree_weights has it. For key_weights of a query head, w of queries 128 n ... 128 n + 127 of the
 * entry are added up in turn, in f32, and the sums by the tree that is also that of blocks; for those of a key/value
 * head, these sums of its query heads in turn. */

/* The scores of one batch entry and head for some queries and keys, in place: of query first_query + i and key
 * first_key + j at scores[i * query_stride + j]. May be changed by an attree_score_function. Keys that a query cannot
 * see for other reasons are among them, with any number in their place, and stay hidden. */
typedef struct attree_score_tile {
    float *scores;
    int64_t query_stride;
    int64_t batch, head;
    int64_t first_query, queries; /* indices of the batch entry, not positions: 0 <= i < Q */
    int64_t first_key, keys;
} attree_score_tile;

/* Called with scores after bias, before masks; -inf hides a key, and a key that the bias hid has -inf, which should
 * stay. Each new score must depend on the old one, on batch, head, query and key, and on nothing else: how tiles are
 * cut is not specified. Called by several threads at once. Must keep the floating-point environment, and return. */
typedef void (*attree_score_function)(const attree_score_tile *tile, void *user);

/* Told for a tile (its scores are NULL) before anything is computed, what the score function would do to it. */
typedef enum attree_block_answer {
    ATTREE_BLOCK_PARTIAL = 0, /* anything: it must be called */
    ATTREE_BLOCK_FULL = 1,    /* nothing: it need not be called */
    ATTREE_BLOCK_SKIP = 2     /* hide all keys: nothing need be computed */
} attree_block_answer;
typedef attree_block_answer (*attree_block_function)(const attree_score_tile *tile, void *user);

/* What a run and its host tell each other while it goes on; any other thread may use it. Both fields are to be read and
 * written by atomic operations (in C11 __atomic_load_n and __atomic_store_n, in C++ std::atomic_ref), and the struct
 * must stay until the run has returned. */
typedef struct attree_control {
    int64_t done;   /* written by the run: tasks that are finished, of the attree_plan_tasks() there are. 0 when it
                       begins; never decreases until the next begin */
    int32_t cancel; /* written by the host: anything but 0 makes the run stop. The run does not reset it */
    int32_t unused;
} attree_control;

/* The tensors of one run. Each pointer is to element (0, 0, 0, 0); it needs the alignment of its element type only, and
 * may be NULL when its tensor has no elements. What follows workspace_bytes is optional: zero means none of it. */
typedef struct attree_args {
    size_t size;            /* sizeof(attree_args) */
    const void *q, *k, *v;  /* inputs may overlap each other */
    void *o;                /* must overlap nothing else */
    float *lse;             /* may be NULL: not wanted */
    void *workspace;        /* attree_plan_workspace() bytes, aligned to 64; contents do not matter, before or after */
    size_t workspace_bytes; /* may be larger than needed */
    const void *mask;       /* which keys a query may see, of kind desc.mask_kind; together with everything else */
    const void *bias;       /* of type desc.bias_type; -inf hides the key, whatever its score */
    const float *alibi_slopes; /* [alibi_heads], each finite, in use as they are */
    int64_t alibi_heads;       /* H */
    const float *sinks;        /* [sink_heads], in the units of scores, finite or -inf: none. Part of lse. */
    int64_t sink_heads;        /* H */
    attree_score_function score;
    attree_block_function block;      /* only with score */
    void *user;                       /* passed to both */
    const float *k_scales, *v_scales; /* of k and v of type ATTREE_I8 */
    const int32_t *page_table;        /* [B, table_width], when page_size > 0 */
    float *states;           /* [B, H, Q, E + 2] or, ragged, [1, H, Q, E + 2], dense: see ATTREE_STATES. A state is
                                laid out as below, "State algebra"; a row with a NaN or +inf score has m = +inf and
                                l = NaN; a zero m is +0. Sinks are not part of states: attree_finish adds them. */
    attree_control *control; /* to cancel the run and to see how far it is; or NULL */
    void *weights;           /* with ATTREE_WEIGHTS: one of the two may be NULL; lse is read */
    float *key_weights;
} attree_args;

/* ---- The simple call --------------------------------------------------------------------------------------------- */

/* Attention, once: plans, allocates the workspace, runs and frees. args->workspace is ignored. Dense tensors need no
 * strides, and fields that are 0 mean what one would expect:
 *
 *     attree_desc desc = {.size = sizeof desc, .batch = 1, .q_heads = 8, .kv_heads = 2, .q_len = 1, .kv_len = 1000,
 *                         .qk_width = 64, .v_width = 64};
 *     attree_args args = {.size = sizeof args, .q = q, .k = k, .v = v, .o = o};
 *     if (attree_attention(&desc, &args) != ATTREE_OK)
 *         puts(attree_last_error()); */
ATTREE_API attree_status attree_attention(const attree_desc *desc, const attree_args *args);

/* ---- Plans: the same many times, without allocating -------------------------------------------------------------- */

/* A plan: validated shapes, the schedule and the workspace layout; no tensor pointers. Immutable, so that any number of
 * threads may run it at once, each run with its own workspace. */
typedef struct attree_plan attree_plan;

/* Makes *plan, to be freed by attree_plan_destroy. On error *plan is NULL.
 * Two environment variables are read here: ATTREE_ISA (scalar, avx2, avx512 or neon) when desc->isa is ATTREE_ISA_AUTO,
 * and ATTREE_STREAMS (1, 2 or 4: streams of memory that few rows read at once; the bits do not depend on it). */
ATTREE_API attree_status attree_plan_create(attree_plan **plan, const attree_desc *desc);

/* Makes the plan anew for another desc, without allocating when the number of batch entries did not grow: for a decoder
 * whose sequences have become a token longer. No run may be using the plan. Its workspace may grow. On error the plan
 * is as it was. */
ATTREE_API attree_status attree_plan_update(attree_plan *plan, const attree_desc *desc);

/* Frees a plan; NULL is fine. */
ATTREE_API void attree_plan_destroy(attree_plan *plan);

/* Bytes of workspace that a run needs; 0 for a NULL plan. Grows with threads * (tile rows) * (D + E log K), not with K
 * and never with Q * K. */
ATTREE_API size_t attree_plan_workspace(const attree_plan *plan);

/* What attree_control.done is when a run has done everything: tasks of all phases; 0 for a NULL plan. Tasks of a phase
 * take about as long as each other, and hardly any time after phase 0. */
ATTREE_API int64_t attree_plan_tasks(const attree_plan *plan);

/* Writes one line about the plan (kernel, tiles, tasks, workers) into text, cut to capacity bytes with a terminating 0.
 */
ATTREE_API attree_status attree_plan_describe(const attree_plan *plan, char *text, size_t capacity);

/* ---- Runs -------------------------------------------------------------------------------------------------------- */

/* Computes o, and lse when asked for. Never allocates. With one worker it does not enter the OpenMP runtime; with more,
 * it must not be called in a forked child whose parent has used OpenMP before the fork: GNU's runtime would hang there.
 * ATTREE_ERROR_EMPTY (only under ATTREE_EMPTY_ERROR) comes after everything has been written.
 *
 * ATTREE_ERROR_CANCELLED: args->control->cancel was set while work was left. Workers look at it before each block of
 * keys, so they stop within the time that one takes: far below a millisecond for most shapes, some milliseconds for
 * the longest tiles. A row of o, lse and states is then either whole or untouched, and nothing says which. The
 * workspace may be used for the next run. A run that is done before it sees the flag is ATTREE_OK. */
ATTREE_API attree_status attree_run(const attree_plan *plan, const attree_args *args);

/* The same from the caller's own threads, without OpenMP. One thread calls attree_run_begin, which checks the arguments
 * and prepares the workspace. Then, for each phase from 0 to attree_plan_phases() - 1, every worker calls
 * attree_run_worker and all wait for each other before the next phase. Any number of workers does, also more than
 * desc->threads, which says how finely work is cut: those for whom there is no scratch left return at once. A worker
 * that comes late or never leaves its work to the others. Last, when all have returned, one thread calls attree_run_end
 * for the status of the run. While a phase has tasks left that nobody has done, a later phase and attree_run_end are
 * ATTREE_ERROR_UNFINISHED: call attree_run_worker for what is left, then go on. So is anything without a begin. Once
 * the run has been cancelled, attree_run_worker and attree_run_end return ATTREE_ERROR_CANCELLED; attree_run_end still
 * comes last. */
ATTREE_API attree_status attree_run_begin(const attree_plan *plan, const attree_args *args);
ATTREE_API int32_t attree_plan_phases(const attree_plan *plan);
ATTREE_API attree_status attree_run_worker(const attree_plan *plan, const attree_args *args, int32_t phase);
ATTREE_API attree_status attree_run_end(const attree_plan *plan, const attree_args *args);

/* The softmax weights of one row: weights[j] = exp(s - lse) for key j of the batch entry, with the row's lse from
 * args->lse, which a run with the same plan and arguments has written; 0 for hidden keys, and for all keys of a row
 * that sees none. Written are weights[0] ... weights[kv_len - 1], whatever kv_lens[b] is (padding has 0); with
 * kv_starts, as many as the entry has keys. They add up to 1 within rounding, or to less when there is a sink. Uses
 * args->workspace; o is not touched. Not fast. */
ATTREE_API attree_status attree_weights(const attree_plan *plan, const attree_args *args, int64_t batch, int64_t head,
                                        int64_t query, float *weights);

/* ---- Caches ------------------------------------------------------------------------------------------------------ */

/* New keys and values for the cache of a plan: those of the plan's queries. Query i of each batch entry is token
 * q_offset + i of its cache; tokens before 0 or beyond the entry's keys are an error. */
typedef struct attree_new_tokens {
    size_t size;            /* sizeof(attree_new_tokens) */
    const void *k, *v;      /* [B, G, Q, D] and [B, G, Q, E]; ragged: [1, ...], as q */
    int32_t k_type, v_type; /* ATTREE_F32, ATTREE_F16 or ATTREE_BF16 */
    attree_strides k_strides, v_strides;
    void *cache_k, *cache_v;                /* where args->k, args->v of the runs that follow point to */
    float *cache_k_scales, *cache_v_scales; /* for ATTREE_I8 */
    const int32_t *page_table;              /* as in attree_args */
} attree_new_tokens;

/* Writes them, converted to the cache's types as attree_quantize does. In the calling thread. A number that
 * attree_quantize refuses is ATTREE_ERROR_NONFINITE; all are checked before the first is written. */
ATTREE_API attree_status attree_append(const attree_plan *plan, const attree_new_tokens *tokens);

/* Bytes of a row of `width` numbers: 0 when the type or the width is not possible. */
ATTREE_API size_t attree_row_bytes(int32_t type, int64_t width);

/* numbers[width] to a row of any type, to nearest even. The scale is that of the largest magnitude: max / 127 for
 * ATTREE_I8 (into *scale) and ATTREE_Q8_0, and -max / 8 with max's sign for ATTREE_Q4_0; the scales of blocks are
 * rounded to f16 before use, so that some codes differ from those of ggml's own quantisers, which use the f32 scale.
 * Zeros have scale 0. Codes of int8 are within +-127. ATTREE_F8_E4M3 saturates at +-448 and
 * ATTREE_F8_E5M2 at +-57344, infinities too. ATTREE_ERROR_NONFINITE: with a
 * scale, numbers that are not finite, or too large for it; in ATTREE_F16 and ATTREE_BF16, finite numbers that would
 * become infinite (NaN and infinities stay what they are). (Codes come from the f32 quotient number / scale: within an
 * f32 rounding of a tie, either neighbour.) */
ATTREE_API attree_status attree_quantize(int32_t type, int64_t width, const float *numbers, void *row, float *scale);

/* The numbers of a row, exactly as a run sees them; scale is that of ATTREE_I8. */
ATTREE_API attree_status attree_dequantize(int32_t type, int64_t width, const void *row, float scale, float *numbers);

/* ---- Partial results --------------------------------------------------------------------------------------------- */

/* Blocks of the left subtree of the merge tree over `blocks` blocks: the largest power of two below. 0 for a leaf, and
 * for no block. */
ATTREE_API int64_t attree_tree_split(int64_t blocks);

/* result[i] = left[i] combined with right[i], for rows states of E + 2 numbers each; result may be left or right. Rows
 * with NaN stay so: unlike attree_state_merge_f32, nothing is refused. */
ATTREE_API attree_status attree_states_merge(float *result, const float *left, const float *right, int64_t rows,
                                             int64_t v_width);

/* o, and lse when asked for, from args->states: what attree_run does last, with sinks and the rule for empty rows. The
 * plan may be that of any shard. Only states, o, lse, sinks and the workspace of args are used. */
ATTREE_API attree_status attree_finish(const attree_plan *plan, const attree_args *args);

/* The same algebra on results as engines exchange them: o[rows][E] of any float type, dense, and lse[rows]; the other
 * side's keys are added. A row without keys has lse = -inf, and whatever o: merging with it keeps the other side bit
 * for bit, and both empty give o = 0. A row with lse = NaN on either side becomes NaN; +inf, which some libraries mean
 * an empty row by, is ATTREE_ERROR_NONFINITE, and nothing is written. Formula: with m = max(lse, other), w = exp(lse -
 * m), v = exp(other - m): o = (w o + v o') / (w + v), lse = m + log(w + v). */
ATTREE_API attree_status attree_merge_outputs(void *o, float *lse, const void *other_o, const float *other_lse,
                                              int32_t type, int64_t rows, int64_t v_width);

/* ---- State algebra ----------------------------------------------------------------------------------------------- */

/* A state summarises some keys for one query row: an array of E + 2 numbers, m, l, u[0] ... u[E-1] (E = 64 in f32: 264
 * bytes), owned by the caller, without hidden parts, so it can be copied, stored or sent as it is. The empty state is
 * (-inf, 0, 0).
 *
 * Pushing folds keys into a state in the order given: m' = max(m, scores); l and u are multiplied by exp(m - m'); then
 * l += exp(s_j - m'), u += exp(s_j - m') v_j. The first block pushed into an empty state has the bits of a block of
 * attree_run when it holds the same keys. Source of the recurrence: Milakov and Gimelshein, "Online normalizer
 * calculation for softmax", 2018, extended from l to u. Merging follows the tree's combine step (docs/contract.md, "The
 * contract", step 6).
 *
 * Rules for all: v_width is E >= 1; pointers are aligned to their element; state must not overlap scores, values or o.
 * On any error the state, or the output, is as it was. */

/* Numbers in a state: E + 2; 0 when E < 1 or E + 2 numbers overflow a size. */
ATTREE_API size_t attree_state_count(int64_t v_width);

/* The empty state. */
ATTREE_API attree_status attree_state_init_f32(float *state, int64_t v_width);
ATTREE_API attree_status attree_state_init_f64(double *state, int64_t v_width);

/* Folds n >= 0 keys: scores[n], and values of key j at values + j * value_stride, its E numbers adjacent. A score or
 * value that is not finite is ATTREE_ERROR_NONFINITE. */
ATTREE_API attree_status attree_state_push_f32(float *state, int64_t v_width, int64_t n, const float *scores,
                                               const float *values, int64_t value_stride);
ATTREE_API attree_status attree_state_push_f64(double *state, int64_t v_width, int64_t n, const double *scores,
                                               const double *values, int64_t value_stride);

/* Folds one key. */
ATTREE_API attree_status attree_state_push_key_f32(float *state, int64_t v_width, float score, const float *value);
ATTREE_API attree_status attree_state_push_key_f64(double *state, int64_t v_width, double score, const double *value);

/* result = left combined with right, two summaries of disjoint keys. result may be left or right itself, but not
 * overlap them otherwise. The empty state is neutral, bit for bit. A state whose m is NaN or +inf, or whose l is NaN,
 * is refused with ATTREE_ERROR_NONFINITE. */
ATTREE_API attree_status attree_state_merge_f32(float *result, const float *left, const float *right, int64_t v_width);
ATTREE_API attree_status attree_state_merge_f64(double *result, const double *left, const double *right,
                                                int64_t v_width);

/* o[E] = u / l, and *lse = m + log(l) unless lse is NULL. An empty state is ATTREE_ERROR_EMPTY. */
ATTREE_API attree_status attree_state_finish_f32(const float *state, int64_t v_width, float *o, float *lse);
ATTREE_API attree_status attree_state_finish_f64(const double *state, int64_t v_width, double *o, double *lse);

#ifdef __cplusplus
}
#endif

#endif /* ATTREE_ATTREE_H */
