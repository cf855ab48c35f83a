/* What the library is told of a problem. See tensors.h. */
#include <math.h>

#include "tensors.h"

/* Strides as the problem's layout has them said: not at all, or each. */
static attree_strides strides_of(const tensor *t) { return t->given ? said_strides(t) : (attree_strides){0, 0, 0, 0}; }

static attree_pairs pairs_of(const pairs *p)
{
    const attree_strides s = strides_of(&p->in_memory);
    return (attree_pairs){.batches = p->size[0],
                          .heads = p->size[1],
                          .queries = p->size[2],
                          .keys = p->size[3],
                          .batch_stride = s.batch,
                          .head_stride = s.head,
                          .query_stride = s.token,
                          .key_stride = s.width};
}

static const void *input(const tensor *t)
{
    return t->bytes > 0 ? memory_read_only(t->slot, t->start) + (t->data - t->start) : NULL;
}

static void describe_scores(const tensors *t, attree_desc *d)
{
    const fields *f = t->f;
    d->flags = (f->causal ? ATTREE_CAUSAL : 0) | (f->use_q_offset ? ATTREE_USE_Q_OFFSET : 0) |
               (f->use_scale ? ATTREE_USE_SCALE : 0) | (f->use_window ? ATTREE_USE_WINDOW : 0) |
               (f->panels ? ATTREE_K_PANELS : 0);
    d->scale = f->use_scale ? (float)f->scale / 1000.0f : NAN; /* ignored, as those below */
    d->q_offset = f->use_q_offset ? f->q_offset : INT64_MIN;
    d->window_left = f->use_window ? f->window_left : -77;
    d->window_right = f->use_window ? f->window_right : INT64_MIN;
    d->softcap = (float)f->softcap / 1000.0f;
    d->empty_rows = (int32_t)f->empty_rows;
    d->mask_kind = f->mask == 2 ? ATTREE_MASK_BITS : ATTREE_MASK_BYTES;
    d->bias_type = (int32_t)f->bias_type;
    if (f->mask)
        d->mask = pairs_of(&t->mask);
    if (f->bias)
        d->bias = pairs_of(&t->bias);
    const sequences *s = &t->s;
    d->kv_lens = f->kv_lens ? s->kv_lens : NULL;
    d->q_offsets = f->q_offsets ? s->q_offsets : NULL;
    d->q_starts = f->q_starts ? s->q_starts : NULL;
    d->kv_starts = f->kv_starts ? s->kv_starts : NULL;
}

static void describe_args(const tensors *t, attree_args *a)
{
    const fields *f = t->f;
    *a = (attree_args){
        .size = sizeof *a,
        .q = input(&t->q),
        .k = input(&t->k.in_memory),
        .v = input(&t->v.in_memory),
        .o = t->o.data,
        .lse = f->no_lse ? NULL : (float *)(void *)t->lse.data,
        .mask = f->mask ? input(&t->mask.in_memory) : NULL,
        .bias = f->bias ? input(&t->bias.in_memory) : NULL,
        .alibi_slopes = f->alibi ? t->slopes_in_memory : NULL,
        .alibi_heads = t->heads,
        .sinks = f->sinks ? t->sinks_in_memory : NULL,
        .sink_heads = t->heads,
        .score = f->score ? score_function : NULL,
        .block = f->score == 2 ? block_function : NULL,
        .k_scales = t->k.scales ? input(&t->k.scales_in_memory) : NULL,
        .v_scales = t->v.scales ? input(&t->v.scales_in_memory) : NULL,
        .page_table = t->table_in_memory,
    };
}

void tensors_describe(const tensors *t, attree_desc *d, attree_args *a)
{
    const fields *f = t->f;
    *d = (attree_desc){
        .size = sizeof *d,
        .batch = f->batch,
        .q_heads = t->heads,
        .kv_heads = f->kv_heads,
        .q_len = f->q_len,
        .kv_len = f->kv_len,
        .qk_width = f->qk_width,
        .v_width = f->v_width,
        .q = strides_of(&t->q),
        .k = strides_of(&t->k.in_memory),
        .v = strides_of(&t->v.in_memory),
        .o = strides_of(&t->o),
        .lse = strides_of(&t->lse),
        .k_scales = strides_of(&t->k.scales_in_memory),
        .v_scales = strides_of(&t->v.scales_in_memory),
        .q_type = (int32_t)f->q_type,
        .k_type = (int32_t)f->k_type,
        .v_type = (int32_t)f->v_type,
        .o_type = (int32_t)f->o_type,
        .threads = (int32_t)f->threads,
    };
    if (f->page_size > 0) {
        d->page_size = f->page_size;
        d->page_count = t->page_count;
        d->table_width = t->table_width;
    }
    describe_scores(t, d);
    describe_args(t, a);
}
