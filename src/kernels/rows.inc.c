/* What is done with rows of one element type. Included once for each type, with ROWS_TYPE and ROWS(name), a name of the
 * type's own; and with ROWS_FLOAT for float types, which are also those of queries, outputs and biases. */

static void ROWS(pack_keys)(float *slab, const key_job *job) { pack_keys_of(slab, ROWS_TYPE, job); }

static void ROWS(pack_values)(const packed_values *to, const values_job *job) { pack_values_of(to, ROWS_TYPE, job); }

static void ROWS(score_direct)(int64_t rows, const score_job *job) { score_direct_of(rows, ROWS_TYPE, job); }

static void ROWS(score_panels)(int64_t rows, const score_job *job) { score_adjacent_of(rows, ROWS_TYPE, job); }

static int64_t ROWS(fold_values)(int64_t rows, int64_t columns, const value_job *job)
{
    return value_span_rows(rows, ROWS_TYPE, columns, job);
}

#ifdef ROWS_FLOAT

static void ROWS(interleaved_scores)(const strip *strips, int32_t count)
{
    interleaved_scores_of(ROWS_TYPE, strips, count);
}

static void ROWS(interleaved_values)(const strip *const *strips, int32_t count)
{
    interleaved_values_of(ROWS_TYPE, strips, count);
}

static void ROWS(pack_queries)(float *packed, const attree__queries *q, int64_t width)
{
    pack_queries_of(packed, q, ROWS_TYPE, width);
}

static void ROWS(add_bias)(const attree__pair_source *p, const term_row *row) { add_bias_of(p, ROWS_TYPE, row); }

static void ROWS(divide)(void *o, const float *u, float l, int64_t v_width)
{
    divide_into(o, ROWS_TYPE, u, l, v_width);
}

#endif

static const row_kernels ROWS(kernels) = {
    .direct_rows = DIRECT_ROWS,
    .pack_keys = ROWS(pack_keys),
    .pack_values = ROWS(pack_values),
    .score_direct = ROWS(score_direct),
    .score_panels = ROWS(score_panels),
    .fold_values = ROWS(fold_values),
#ifdef ROWS_FLOAT
    .direct_value_rows = INT64_MAX,
    .interleaved_scores = ROWS(interleaved_scores),
    .interleaved_values = ROWS(interleaved_values),
    .pack_queries = ROWS(pack_queries),
    .add_bias = ROWS(add_bias),
    .divide = ROWS(divide),
#else
    .direct_value_rows = DIRECT_ROWS,
#endif
};

#undef ROWS_TYPE
#undef ROWS
#undef ROWS_FLOAT
