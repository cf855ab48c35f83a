/* What the programs test_reported_*.c share: a problem in plain f32 arrays that is run on every path and in every type,
 * and the answer, materialised in double, from one rule for the score of a query and a key. */
#ifndef ATTREE_TESTS_CASES_H
#define ATTREE_TESTS_CASES_H

#include "support.h"

typedef struct job job;

/* The score of query at[2] of head at[1] of entry at[0] and its key at[3], from scale * q.k; -INFINITY hides the key.
 * Not asked about keys beyond the entry's length. */
typedef double (*score_rule)(const job *j, const int64_t at[4], double s);

struct job {
    attree_desc desc; /* dense tensors, q_starts and the like as they shall be */
    attree_args args; /* mask, bias and what follows; pointers to tensors are set by solve */
    tensors t;        /* f32, whatever desc's types are; o and lse are results */
    void *mask, *bias;
    score_rule rule;   /* of the score function */
    int64_t number[4]; /* what a rule wants to know */
    double real[2];
};

/* Random inputs. */
job make_job(const attree_desc *desc, uint64_t seed);
/* K is 0, and every number in V is the index of its key: results are means of indices, lse is log(count). */
job make_counting_job(const attree_desc *desc);
void free_job(job *j);

/* A dense mask that hides what the rule hides. Bytes that show are of many kinds. */
void give_mask(job *j, attree_mask kind, score_rule rule);
/* A dense bias: what the rule makes of 0. */
void give_bias(job *j, int32_t type, score_rule rule);
/* A score function: the rule. The job must stay where it is. */
void give_score_function(job *j, score_rule rule);

/* Hides what the rule hides, in one of the ways there are. By blocks: a score function, and a block function that says
 * where it is needed. */
enum { HIDE_BY_BYTES, HIDE_BY_BITS, HIDE_BY_BIAS, HIDE_BY_FUNCTION, HIDE_BY_BLOCKS, WAYS_TO_HIDE };
void hide(job *j, int way, score_rule rule);

/* The tokens of an entry, in tensors [B, ...] or, when ragged, [1, ...]. */
typedef struct entry {
    int64_t q_batch, q_start, q_len, kv_batch, kv_start, kv_len, q_offset;
} entry;
entry entry_of(const job *j, int64_t b);
/* Of query i among the keys. */
int64_t position(const job *j, int64_t b, int64_t i);
/* Number of the row in o's [rows, E] and in lse. */
int64_t row_of(const job *j, int64_t b, int64_t h, int64_t i);

/* Hide what ATTREE_CAUSAL and the window of desc hide; s otherwise. */
double geometry(const job *j, const int64_t at[4], double s);

/* Runs with poisoned o, lse and workspace. */
void solve(job *j);
/* Fails unless o and lse are softmax attention with the scores of the rule, and with the sinks in args; rows without a
 * visible key are +0, and lse -inf. */
void expect_attention(const job *j, score_rule rule);
/* Fails unless each number of o's row, and lse, are these within rounding. */
void expect_row(const job *j, int64_t row, double o, double lse);

/* Solves with every instruction set, and one thread and three; the first result is checked, the others must have its
 * bits. */
void on_every_path(job *j, void (*check)(const job *));
/* The same with all tensors in f32, then f16, then bf16: inputs are rounded to the type, in place. */
void in_every_type(job *j, void (*check)(const job *));
void set_type(job *j, int32_t type);

/* Each is written to every element of keys `first` ... `end` - 1 in K and V, of all heads of one batch entry. */
void fill_keys(job *j, int64_t b, int64_t first, int64_t end, float number);

/* q = 1, D = 1, scale 1 or desc's: scores are k. */
job make_given_job(const attree_desc *desc, const float *k, const float *v);
/* real[0] and real[1] are o and lse of every row. */
void check_given(const job *j);

#endif /* ATTREE_TESTS_CASES_H */
