/* Descriptor to problem. See desc.h. */
#include "desc.h"

#include <inttypes.h>
#include <math.h>

#include "dtype.h"
#include "error.h"
#include "kernel.h"
#include "layout.h"
#include "simd/fpenv.h"
#include "sized.h"

static attree_status check_dimension(const char *name, int64_t value, int64_t least)
{
    if (value < least)
        return attree__fail(ATTREE_ERROR_SHAPE, "%s is %" PRId64 "; it must be at least %" PRId64, name, value, least);
    if (value > ATTREE__LIMIT)
        return attree__fail(ATTREE_ERROR_OVERFLOW, "%s is %" PRId64 "; it must be at most %" PRId64, name, value,
                            (int64_t)ATTREE__LIMIT);
    return ATTREE_OK;
}

static attree_status check_dimensions(const attree_desc *desc)
{
    const struct {
        const char *name;
        int64_t value, least;
    } dimensions[] = {
        {"batch", desc->batch, 0},     {"q_heads", desc->q_heads, 1}, {"kv_heads", desc->kv_heads, 1},
        {"q_len", desc->q_len, 0},     {"kv_len", desc->kv_len, 0},   {"qk_width", desc->qk_width, 0},
        {"v_width", desc->v_width, 1},
    };
    for (size_t i = 0; i < sizeof dimensions / sizeof *dimensions; i++) {
        const attree_status status = check_dimension(dimensions[i].name, dimensions[i].value, dimensions[i].least);
        if (status != ATTREE_OK)
            return status;
    }
    if (desc->q_heads % desc->kv_heads != 0)
        return attree__fail(ATTREE_ERROR_SHAPE, "q_heads is %" PRId64 "; it must be a multiple of kv_heads, %" PRId64,
                            desc->q_heads, desc->kv_heads);
    return ATTREE_OK;
}

/* For tensors without that dimension. */
static attree_strides without_width(const attree_strides *s)
{
    return (attree_strides){s->batch, s->head, s->token, 0};
}

/* Queries and results. */
static attree_status resolve_tensors(attree__problem *p, const attree_desc *desc)
{
    const int64_t batch = attree__problem_q_batches(p), heads = p->q_heads, tokens = p->q_len;
    const attree_strides lse = without_width(&desc->lse);
    const attree__tensor tensors[] = {
        {"q", &desc->q, {batch, heads, tokens, p->qk_width}, p->q_type, false, &p->q, &p->q_span},
        {"o", &desc->o, {batch, heads, tokens, p->v_width}, p->o_type, true, &p->o, &p->o_span},
        {"lse", &lse, {batch, heads, tokens, 1}, ATTREE_F32, true, &p->lse, &p->lse_span},
    };
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
        const attree_status status = attree__layout_resolve(&tensors[i]);
        if (status != ATTREE_OK)
            return status;
    }
    return ATTREE_OK;
}

/* Types with blocks: all of a width must be whole blocks. */
static attree_status check_blocks(const char *name, int64_t width, int32_t type)
{
    if (attree__dtype_has_blocks(type) && width % ATTREE__QUANT_BLOCK != 0)
        return attree__fail(ATTREE_ERROR_SHAPE, "%s is %" PRId64 "; types with blocks need a multiple of 32", name,
                            width);
    return ATTREE_OK;
}

/* Strides of a tensor whose rows lie as they must: what the caller says about width is ignored. */
static attree_strides with_adjacent_width(const attree_strides *s)
{
    const bool dense = !s->batch && !s->head && !s->token;
    return (attree_strides){s->batch, s->head, s->token, dense ? 0 : 1};
}

/* Keys and values. What is the batch of a dense cache is the page of a paged one; what is a token is a panel. */
static attree_status resolve_cache(attree__problem *p, const attree_desc *desc)
{
    const bool paged = p->page_size > 0;
    const int64_t batch = paged ? p->page_count : desc->kv_starts && p->batch > 0 ? 1 : p->batch;
    const int64_t tokens = paged ? p->page_size : p->shard.end - p->shard.first;
    const int64_t panels = tokens / ATTREE__PIECE + (tokens % ATTREE__PIECE != 0), heads = p->kv_heads;
    int64_t panel_width;
    if (attree__mul_overflows(p->qk_width, ATTREE__PIECE, &panel_width))
        return attree__fail(ATTREE_ERROR_OVERFLOW, "qk_width is %" PRId64 "; a panel overflows 64 bits", p->qk_width);
    const attree_strides k = p->panels || attree__dtype_has_blocks(p->k_type) ? with_adjacent_width(&desc->k) : desc->k;
    const attree_strides v = attree__dtype_has_blocks(p->v_type) ? with_adjacent_width(&desc->v) : desc->v;
    const attree_strides k_scales = without_width(&desc->k_scales), v_scales = without_width(&desc->v_scales);
    const int64_t k_units = p->panels ? panel_width : attree__dtype_units(p->k_type, p->qk_width);
    const int64_t v_units = attree__dtype_units(p->v_type, p->v_width);
    const attree__tensor tensors[] = {
        {"k", &k, {batch, heads, p->panels ? panels : tokens, k_units}, p->k_type, false, &p->k, &p->k_span},
        {"v", &v, {batch, heads, tokens, v_units}, p->v_type, false, &p->v, &p->v_span},
        {"k_scales", &k_scales, {batch, heads, tokens, 1}, ATTREE_F32, false, &p->k_scales, &p->k_scales_span},
        {"v_scales", &v_scales, {batch, heads, tokens, 1}, ATTREE_F32, false, &p->v_scales, &p->v_scales_span},
    };
    attree_status status = check_blocks("qk_width", p->qk_width, p->k_type);
    if (status == ATTREE_OK)
        status = check_blocks("v_width", p->v_width, p->v_type);
    for (int i = 0; i < 4 && status == ATTREE_OK; i++)
        if (i < 2 || attree__dtype_has_row_scales(i == 2 ? p->k_type : p->v_type))
            status = attree__layout_resolve(&tensors[i]);
    if (p->panels || attree__dtype_has_blocks(p->k_type))
        p->k.width = 1;
    if (attree__dtype_has_blocks(p->v_type))
        p->v.width = 1;
    return status;
}

static attree_status resolve_shard(attree__problem *p, const attree_desc *desc)
{
    const int64_t begin = desc->shard_begin, end = desc->shard_end;
    p->shard = (attree__keys){0, p->kv_len};
    if (begin == 0 && end == 0)
        return ATTREE_OK;
    if (begin < 0 || begin > p->kv_len || (begin % ATTREE__BLOCK != 0 && begin != p->kv_len))
        return attree__fail(ATTREE_ERROR_VALUE,
                            "shard_begin is %" PRId64 "; it must be a multiple of 256, at most kv_len, %" PRId64, begin,
                            p->kv_len);
    if (end < begin || end > p->kv_len || (end % ATTREE__BLOCK != 0 && end != p->kv_len))
        return attree__fail(ATTREE_ERROR_VALUE,
                            "shard_end is %" PRId64 "; it must be kv_len, %" PRId64
                            ", or a multiple of 256, at least shard_begin",
                            end, p->kv_len);
    if (desc->kv_starts)
        return attree__fail(ATTREE_ERROR_VALUE, "kv_starts is given; it must be NULL for a shard");
    p->shard = (attree__keys){begin, end};
    return ATTREE_OK;
}

static attree_status resolve_pages(attree__problem *p, const attree_desc *desc)
{
    const struct {
        const char *name;
        int64_t value;
    } numbers[] = {
        {"page_size", desc->page_size}, {"page_count", desc->page_count}, {"table_width", desc->table_width}};
    for (int i = 0; i < 3; i++) {
        const attree_status status = check_dimension(numbers[i].name, numbers[i].value, 0);
        if (status != ATTREE_OK)
            return status;
    }
    p->page_size = desc->page_size;
    p->page_count = desc->page_count;
    p->table_width = desc->table_width;
    if (p->page_size == 0 && (p->page_count > 0 || p->table_width > 0))
        return attree__fail(ATTREE_ERROR_VALUE, "page_size is 0; with page_count or table_width it must be at least 1");
    if (p->page_size == 0)
        return ATTREE_OK;
    if (desc->kv_starts)
        return attree__fail(ATTREE_ERROR_VALUE, "kv_starts is given; it must be NULL for a paged cache");
    if (p->panels && p->page_size % ATTREE__PIECE != 0)
        return attree__fail(ATTREE_ERROR_VALUE, "page_size is %" PRId64 "; panels need a multiple of 16", p->page_size);
    int64_t bytes;
    if (attree__mul_overflows(p->batch, p->table_width, &bytes) ||
        attree__mul_overflows(bytes, (int64_t)sizeof(int32_t), &bytes) || bytes > ATTREE__LIMIT)
        return attree__fail(ATTREE_ERROR_OVERFLOW, "the size of page_table overflows 64 bits; table_width is %" PRId64,
                            p->table_width);
    const int64_t keys = p->shard.end - p->shard.first, pages = keys / p->page_size + (keys % p->page_size != 0);
    const int64_t unused = p->table_width > pages ? p->table_width - pages : 0; /* the last row may end before these */
    p->table_span.high = p->batch > 0 ? bytes - unused * (int64_t)sizeof(int32_t) : 0;
    return ATTREE_OK;
}

/* What states of all rows take; measured when they are asked for. */
static attree_status measure_states(attree__problem *p, bool asked)
{
    const int64_t batch = attree__problem_q_batches(p);
    int64_t count = p->v_width + 2;
    if (attree__mul_overflows(count, batch, &count) || attree__mul_overflows(count, p->q_heads, &count) ||
        attree__mul_overflows(count, p->q_len, &count) ||
        attree__mul_overflows(count, (int64_t)sizeof(float), &count) || count > ATTREE__LIMIT) {
        if (asked)
            return attree__fail(ATTREE_ERROR_OVERFLOW, "the size of states overflows 64 bits");
        count = -1;
    }
    p->states_span = (attree__span){0, count};
    return ATTREE_OK;
}

/* Whether nobody said how a tensor over pairs lies, and a dense one would not fit 64 bits: an error only when it is
 * given to a run. */
static bool overflows_by_default(const attree_pairs *given, const int64_t size[4])
{
    if (given->batch_stride || given->head_stride || given->query_stride || given->key_stride)
        return false;
    int64_t count = (int64_t)sizeof(float);
    for (int d = 0; d < 4; d++)
        if (size[d] == 0)
            return false;
    for (int d = 0; d < 4; d++)
        if (attree__mul_overflows(count, size[d], &count) || count >= ATTREE__LIMIT)
            return true;
    return false;
}

/* A tensor over pairs: its sizes, then its layout as for any tensor. Its elements are of a type of 4 or 2 bytes; those
 * of a mask are measured as if they were floats, and then made bytes or bits. */
static attree_status resolve_pairs(attree__pairs *pairs, const char *name, const attree_pairs *given,
                                   const attree__problem *p, int32_t type)
{
    static const char *const dimensions[] = {"batches", "heads", "queries", "keys"};
    const int64_t whole[4] = {p->batch, p->q_heads, p->q_len, p->kv_len};
    const int64_t asked[4] = {given->batches, given->heads, given->queries, given->keys};
    attree_strides strides = {given->batch_stride, given->head_stride, given->query_stride, given->key_stride};
    attree__tensor t = {.name = name, .given = &strides, .type = type, .span = &pairs->span};
    for (int d = 0; d < 4; d++) {
        if (asked[d] != 0 && asked[d] != 1 && asked[d] != whole[d])
            return attree__fail(ATTREE_ERROR_SHAPE,
                                "%s.%s is %" PRId64 "; it must be 1, to be the same for all, or %" PRId64, name,
                                dimensions[d], asked[d], whole[d]);
        t.size[d] = asked[d] == 1 && whole[d] > 0 ? 1 : whole[d];
    }
    if (overflows_by_default(given, t.size)) {
        *pairs = (attree__pairs){.span = {0, -1}};
        return ATTREE_OK;
    }
    attree_strides resolved;
    t.strides = &resolved;
    const attree_status status = attree__layout_resolve(&t);
    pairs->batch = resolved.batch;
    pairs->head = resolved.head;
    pairs->query = resolved.token;
    pairs->key = resolved.width;
    return status;
}

/* floor(x / 8) */
static int64_t whole_bytes(int64_t bits) { return bits >= 0 ? bits / 8 : -((7 - bits) / 8); }

static attree_status resolve_mask_and_bias(attree__problem *p, const attree_desc *desc)
{
    if (desc->mask_kind < ATTREE_MASK_BYTES || desc->mask_kind > ATTREE_MASK_BITS)
        return attree__fail(ATTREE_ERROR_VALUE, "mask_kind is %" PRId32 "; it must be an attree_mask, 0 or 1",
                            desc->mask_kind);
    p->mask_kind = desc->mask_kind;
    p->bias_type = desc->bias_type;
    attree_status status = attree__layout_check_type("bias_type", desc->bias_type, false);
    if (status == ATTREE_OK)
        status = resolve_pairs(&p->bias, "bias", &desc->bias, p, p->bias_type);
    if (status == ATTREE_OK)
        status = resolve_pairs(&p->mask, "mask", &desc->mask, p, ATTREE_F32);
    attree__span *const span = &p->mask.span; /* of floats, so far */
    if (status != ATTREE_OK || span->high < 0)
        return status;
    span->low /= 4;
    span->high /= 4;
    if (p->mask_kind == ATTREE_MASK_BITS) {
        span->low = whole_bytes(span->low);
        span->high = whole_bytes(span->high + 7);
    }
    return status;
}

/* 1 / sqrt(D) as the contract rounds it, whatever the caller's rounding mode is. */
static float default_scale(int64_t qk_width)
{
    const attree__fpenv caller = attree__fpenv_enter();
    const float scale = qk_width > 0 ? 1.0f / sqrtf((float)qk_width) : 1.0f;
    attree__fpenv_leave(caller);
    return scale;
}

static attree_status resolve_window(attree__problem *p, const attree_desc *desc)
{
    p->window_left = p->window_right = -1;
    if (desc->flags & ATTREE_USE_WINDOW) {
        const struct {
            const char *name;
            int64_t given;
            int64_t *side;
        } sides[] = {{"window_left", desc->window_left, &p->window_left},
                     {"window_right", desc->window_right, &p->window_right}};
        for (int i = 0; i < 2; i++) {
            if (sides[i].given < -1)
                return attree__fail(ATTREE_ERROR_VALUE, "%s is %" PRId64 "; it must be at least 0, or -1 for no limit",
                                    sides[i].name, sides[i].given);
            *sides[i].side = sides[i].given;
        }
    }
    if (desc->flags & ATTREE_CAUSAL)
        p->window_right = 0;
    return ATTREE_OK;
}

static attree_status check_q_offset(const char *name, int64_t offset)
{
    if (offset < -ATTREE__LIMIT || offset > ATTREE__LIMIT)
        return attree__fail(ATTREE_ERROR_OVERFLOW, "%s is %" PRId64 "; its magnitude must be less than 2^62", name,
                            offset);
    return ATTREE_OK;
}

static attree_status resolve_scores(attree__problem *p, const attree_desc *desc)
{
    p->default_q_offset = !(desc->flags & ATTREE_USE_Q_OFFSET);
    if (!p->default_q_offset) {
        const attree_status status = check_q_offset("q_offset", desc->q_offset);
        if (status != ATTREE_OK)
            return status;
        p->q_offset = desc->q_offset;
    }
    p->scale = default_scale(p->qk_width);
    if (desc->flags & ATTREE_USE_SCALE) {
        if (!attree__is_finite(desc->scale))
            return attree__fail(ATTREE_ERROR_VALUE, "scale is %g; it must be finite", (double)desc->scale);
        p->scale = desc->scale;
    }
    if (!attree__is_finite(desc->softcap) || desc->softcap < 0.0f)
        return attree__fail(ATTREE_ERROR_VALUE, "softcap is %g; it must be positive, or 0 for none",
                            (double)desc->softcap);
    p->softcap = desc->softcap;
    return ATTREE_OK;
}

static attree_status resolve_options(attree__problem *p, const attree_desc *desc)
{
    const uint32_t known = ATTREE_CAUSAL | ATTREE_USE_Q_OFFSET | ATTREE_USE_SCALE | ATTREE_USE_WINDOW |
                           ATTREE_K_PANELS | ATTREE_STATES | ATTREE_WEIGHTS | ATTREE_WEIGHTS_BY_HEAD;
    if (desc->flags & ~known)
        return attree__fail(ATTREE_ERROR_VALUE, "flags is 0x%" PRIx32 "; bits 0x%" PRIx32 " are unknown", desc->flags,
                            desc->flags & ~known);
    if (desc->empty_rows < ATTREE_EMPTY_ZERO || desc->empty_rows > ATTREE_EMPTY_ERROR)
        return attree__fail(ATTREE_ERROR_VALUE, "empty_rows is %" PRId32 "; it must be an attree_empty, 0 to 2",
                            desc->empty_rows);
    if (desc->threads < 0 || desc->threads > 65536)
        return attree__fail(ATTREE_ERROR_VALUE, "threads is %" PRId32 "; it must be 0 to 65536", desc->threads);
    p->empty_rows = (attree_empty)desc->empty_rows;
    p->panels = (desc->flags & ATTREE_K_PANELS) != 0;
    p->states = (desc->flags & ATTREE_STATES) != 0;
    p->weights = (desc->flags & ATTREE_WEIGHTS) != 0;
    p->weights_by_head = (desc->flags & ATTREE_WEIGHTS_BY_HEAD) != 0;
    p->ragged_q = desc->q_starts != NULL;
    p->ragged_kv = desc->kv_starts != NULL;
    if (p->panels && attree__dtype_has_blocks(p->k_type))
        return attree__fail(ATTREE_ERROR_TYPE, "k_type has blocks; it must not have them in panels");
    if (p->panels && desc->kv_starts)
        return attree__fail(ATTREE_ERROR_VALUE, "kv_starts is given; it must be NULL for panels");
    const attree_status status = resolve_window(p, desc);
    return status == ATTREE_OK ? resolve_scores(p, desc) : status;
}

/* starts[B + 1] must cut `tokens` tokens into pieces. */
static attree_status check_starts(const char *name, const int64_t *starts, int64_t batch, int64_t tokens)
{
    if (!starts)
        return ATTREE_OK;
    if (starts[0] != 0)
        return attree__fail(ATTREE_ERROR_SHAPE, "%s[0] is %" PRId64 "; it must be 0", name, starts[0]);
    for (int64_t b = 0; b < batch; b++)
        if (starts[b + 1] < starts[b])
            return attree__fail(ATTREE_ERROR_SHAPE,
                                "%s[%" PRId64 "] is %" PRId64 "; it must be at least %" PRId64 ", the one before it",
                                name, b + 1, starts[b + 1], starts[b]);
    if (starts[batch] != tokens)
        return attree__fail(ATTREE_ERROR_SHAPE,
                            "%s[%" PRId64 "] is %" PRId64 "; it must be the number of tokens, %" PRId64, name, batch,
                            starts[batch], tokens);
    return ATTREE_OK;
}

static attree_status check_sequences(attree__problem *p, const attree_desc *desc)
{
    attree_status status = check_starts("q_starts", desc->q_starts, p->batch, p->q_len);
    if (status == ATTREE_OK)
        status = check_starts("kv_starts", desc->kv_starts, p->batch, p->kv_len);
    for (int64_t b = 0; b < p->batch && status == ATTREE_OK && (desc->kv_lens || desc->q_offsets); b++) {
        const int64_t room = desc->kv_starts ? desc->kv_starts[b + 1] - desc->kv_starts[b] : p->kv_len;
        if (desc->kv_lens && (desc->kv_lens[b] < 0 || desc->kv_lens[b] > room))
            status = attree__fail(ATTREE_ERROR_SHAPE, "kv_lens[%" PRId64 "] is %" PRId64 "; it must be 0 to %" PRId64,
                                  b, desc->kv_lens[b], room);
        else if (desc->q_offsets)
            status = check_q_offset("one of q_offsets", desc->q_offsets[b]);
    }
    return status;
}

bool attree__problem_has_sequences(const attree__problem *p)
{
    return p->kv_lens || p->q_offsets || p->q_starts || p->kv_starts;
}

attree__sequence attree__problem_sequence(const attree__problem *p, int64_t b)
{
    attree__sequence s = {0, p->q_len, 0, p->kv_len, p->q_offset};
    if (p->q_starts) {
        s.q_start = p->q_starts[b];
        s.q_len = p->q_starts[b + 1] - s.q_start;
    }
    if (p->kv_starts) {
        s.kv_start = p->kv_starts[b];
        s.kv_len = p->kv_starts[b + 1] - s.kv_start;
    }
    if (p->kv_lens)
        s.kv_len = p->kv_lens[b];
    if (p->q_offsets)
        s.q_offset = p->q_offsets[b];
    else if (p->default_q_offset)
        s.q_offset = s.kv_len - s.q_len;
    return s;
}

static attree_status check_types(const attree_desc *desc)
{
    const struct {
        const char *name;
        int32_t type;
    } types[] = {
        {"q_type", desc->q_type}, {"o_type", desc->o_type}, {"k_type", desc->k_type}, {"v_type", desc->v_type}};
    attree_status status = ATTREE_OK;
    for (int i = 0; i < 4 && status == ATTREE_OK; i++)
        status = attree__layout_check_type(types[i].name, types[i].type, i >= 2);
    return status;
}

static attree_status init_problem(attree__problem *problem, const attree_desc *desc)
{
    attree_status status = check_dimensions(desc);
    if (status == ATTREE_OK)
        status = check_types(desc);
    if (status != ATTREE_OK)
        return status;
    *problem = (attree__problem){
        .batch = desc->batch,
        .q_heads = desc->q_heads,
        .kv_heads = desc->kv_heads,
        .group = desc->q_heads / desc->kv_heads,
        .q_len = desc->q_len,
        .kv_len = desc->kv_len,
        .qk_width = desc->qk_width,
        .v_width = desc->v_width,
        .q_type = desc->q_type,
        .k_type = desc->k_type,
        .v_type = desc->v_type,
        .o_type = desc->o_type,
        .isa = desc->isa,
        .threads = desc->threads,
        .kv_lens = desc->kv_lens,
        .q_offsets = desc->q_offsets,
        .q_starts = desc->q_starts,
        .kv_starts = desc->kv_starts,
    };
    typedef attree_status (*resolver)(attree__problem *, const attree_desc *);
    static const resolver steps[] = {
        resolve_options, check_sequences, resolve_shard,         resolve_pages,
        resolve_tensors, resolve_cache,   resolve_mask_and_bias, attree__problem_resolve_weights};
    for (size_t i = 0; i < sizeof steps / sizeof *steps && status == ATTREE_OK; i++)
        status = steps[i](problem, desc);
    return status == ATTREE_OK ? measure_states(problem, problem->states) : status;
}

attree_status attree__problem_init(attree__problem *problem, const attree_desc *desc)
{
    const attree__sized kind = {"desc", sizeof(attree_desc), offsetof(attree_desc, q)};
    attree_desc whole;
    const attree_status status = attree__sized_copy(&whole, desc, &kind);
    return status == ATTREE_OK ? init_problem(problem, &whole) : status;
}

attree__keys attree__problem_visible(const attree__problem *p, const attree__sequence *s, int64_t i)
{
    /* Nothing here overflows: |q_offset| and sizes are within ATTREE__LIMIT. */
    const int64_t position = i + s->q_offset;
    attree__keys keys = {p->shard.first, s->kv_len < p->shard.end ? s->kv_len : p->shard.end};
    if (p->window_left >= 0 && p->window_left < position && position - p->window_left > keys.first)
        keys.first = position - p->window_left < s->kv_len ? position - p->window_left : s->kv_len;
    if (p->window_right >= 0 && p->window_right < s->kv_len - position - 1) {
        const int64_t end = position + p->window_right + 1;
        keys.end = end < keys.end ? end > 0 ? end : 0 : keys.end;
    }
    return keys;
}

attree__keys attree__problem_active_keys(const attree__problem *p, const attree__sequence *s)
{
    if (s->q_len == 0)
        return (attree__keys){0, 0};
    const attree__keys first = attree__problem_visible(p, s, 0), last = attree__problem_visible(p, s, s->q_len - 1);
    return (attree__keys){first.first, last.end};
}
