/* A random problem as a list of numbers: drawn from a seed, made valid, printed and read again. What has no number of
 * its own (elements, lengths of batch entries, page tables) follows from `seed` by hashing. */
#ifndef ATTREE_TESTS_DIFFERENTIAL_PROBLEM_H
#define ATTREE_TESTS_DIFFERENTIAL_PROBLEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "attree/attree.h"

enum { BATCH_MOST = 16, BLOCK = 256 };

/* How the library is called; the problem is done in each way whose bit is set in `calls`. */
typedef enum call_form {
    CALL_ATTENTION, /* attree_attention */
    CALL_RUN,       /* attree_plan_create, attree_run */
    CALL_UPDATE,    /* the plan was one of another problem */
    CALL_WORKERS,   /* attree_run_worker, one worker after the other, in any order */
    CALL_THREADS,   /* the same in threads of the caller */
    CALL_SHARDS,    /* states of shards, merged along the tree; attree_finish */
    CALL_CHUNKS,    /* some queries after the others */
    CALL_STATES,    /* states of all keys; attree_finish */
    CALL_FORMS
} call_form;

/* Element values. */
typedef enum values_kind {
    VALUES_PLAIN,
    VALUES_NAN,
    VALUES_INFINITE,
    VALUES_SUBNORMAL,
    VALUES_LARGEST,
    VALUES_HUGE,
    VALUES_EQUAL,
    VALUES_INTEGERS,
    VALUES_WIDE,
    VALUES_KINDS
} values_kind;

/* The bits of a layout. 0: dense, all strides left 0. Otherwise an order of the dimensions and, for each dimension, a
 * bit to run backwards, to leave room after it, to repeat (inputs only). */
enum {
    LAYOUT_ORDER = 31,
    LAYOUT_BACKWARDS = 1 << 5,
    LAYOUT_ROOM = 1 << 9,
    LAYOUT_REPEAT = 1 << 13,
    LAYOUT_SPREAD = 1 << 17, /* the fastest dimension, too */
    LAYOUT_GIVEN = 1 << 18   /* strides are said */
};

typedef struct fields {
    int64_t seed;
    int64_t batch, kv_heads, group, q_len, kv_len, qk_width, v_width;
    int64_t isas, calls;
    int64_t threads, workers, chunk;
    int64_t q_type, k_type, v_type, o_type;
    int64_t q_layout, k_layout, v_layout, o_layout, lse_layout, k_scales_layout, v_scales_layout;
    int64_t q_starts, kv_starts, kv_lens, q_offsets;
    int64_t page_size, panels;
    int64_t use_scale, scale; /* thousandths */
    int64_t causal, use_window, window_left, window_right, use_q_offset, q_offset;
    int64_t softcap;                                   /* thousandths */
    int64_t alibi, sinks;                              /* sinks: 2 has some of -inf */
    int64_t bias, bias_type, bias_sizes, bias_layout;  /* sizes: a bit for each dimension that is 1 */
    int64_t mask, mask_shows, mask_sizes, mask_layout; /* 1: bytes, 2: bits; of 16 keys so many are shown */
    int64_t score, cell_queries, cell_keys; /* 1: score function, 2: block function as well; what they do in cells */
    int64_t empty_rows;
    int64_t q_values, k_values, v_values;
    int64_t no_lse, weights, append;
    int64_t rounding, flush; /* of the caller: 0 to 3; 1: results, 2: inputs */
    int64_t at_start;        /* a bit for each tensor that begins where a guard page ends */
} fields;

typedef enum field_kind { FIELD_SEED, FIELD_SIZE, FIELD_BITS, FIELD_CHOICE } field_kind;

typedef struct field_info {
    const char *name;
    size_t offset;
    int64_t simplest;
    field_kind kind;
} field_info;

extern const field_info field_table[];
enum { FIELDS = sizeof(fields) / sizeof(int64_t) };

int64_t *field_of(fields *f, int n);
int64_t field_value(const fields *f, int n);

/* Mixes the bits of x, of which neighbours may be given. */
uint64_t mix(uint64_t x);
/* Number n of the problem's list `what`. */
uint64_t hash_of(const fields *f, uint64_t what, uint64_t n);

/* isas: those of this machine, a bit for each. */
fields draw_problem(uint64_t seed, int64_t isas);

/* Makes any fields valid. */
void mend_fields(fields *f, int64_t isas);

/* "name=value name=value", of fields that are not the simplest. Async-signal-safe; cut to capacity. */
void print_fields(const fields *f, char *text, size_t capacity);
/* False, and what is wrong in *wrong, when it cannot be read. */
bool read_fields(fields *f, const char *text, const char **wrong);

/* A batch entry: its query i is token q_start + i of batch q_batch of q, o and lse, at position q_offset + i; its key j
 * is token kv_start + j of batch kv_batch of k and v. */
typedef struct entry {
    int64_t q_start, q_len, kv_start, kv_len, q_offset, q_batch, kv_batch;
} entry;

typedef struct sequences {
    entry entry[BATCH_MOST];
    int64_t q_starts[BATCH_MOST + 1], kv_starts[BATCH_MOST + 1], kv_lens[BATCH_MOST], q_offsets[BATCH_MOST];
} sequences;

sequences sequences_of(const fields *f);

/* Keys first <= j < end that the geometry lets query i see; first = end: none. */
typedef struct key_range {
    int64_t first, end;
} key_range;
key_range keys_seen(const fields *f, const entry *e, int64_t i);

/* What the caller's functions are told: the problem, and the call's first query. */
typedef struct score_user {
    const fields *problem;
    const sequences *entries;
    int64_t first_query;
    bool *wrong; /* set when a tile is not inside the problem */
} score_user;
void score_function(const attree_score_tile *tile, void *user);
attree_block_answer block_function(const attree_score_tile *tile, void *user);

#endif /* ATTREE_TESTS_DIFFERENTIAL_PROBLEM_H */
