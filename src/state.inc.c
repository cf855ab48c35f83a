/* The state algebra for one number type. Included by state.c with
 *   real        the type                    NAME(x)   x with the type's suffix
 *   real_exp, real_log, real_fma            CUTOFF    weights are zero below this
 * defined. */

static real NAME(weight)(real t) { return t < CUTOFF ? 0 : real_exp(t); }

static attree_status NAME(check_pointer)(const char *name, const real *pointer)
{
    if (!pointer)
        return attree__fail(ATTREE_ERROR_NULL, "%s is NULL", name);
    if ((uintptr_t)pointer % sizeof(real) != 0)
        return attree__fail(ATTREE_ERROR_ALIGN, "%s is %p; it must be aligned to %zu bytes", name,
                            (const void *)pointer, sizeof(real));
    return ATTREE_OK;
}

static attree_status NAME(check_state)(const char *name, const real *state, int64_t v_width)
{
    const attree_status status = NAME(check_pointer)(name, state);
    if (status != ATTREE_OK)
        return status;
    if (attree_state_count(v_width) == 0)
        return attree__fail(ATTREE_ERROR_SHAPE, "v_width is %" PRId64 "; it must be at least 1 and fit memory",
                            v_width);
    return attree__cpu_require();
}

attree_status NAME(attree_state_init)(real *state, int64_t v_width)
{
    const attree_status status = NAME(check_state)("state", state, v_width);
    if (status != ATTREE_OK)
        return status;
    state[0] = -INFINITY;
    for (int64_t i = 1; i < v_width + 2; i++)
        state[i] = 0;
    return ATTREE_OK;
}

static attree_status NAME(check_keys)(int64_t v_width, int64_t n, const real *scores, const real *values,
                                      int64_t value_stride)
{
    if (n < 0)
        return attree__fail(ATTREE_ERROR_SHAPE, "n is %" PRId64 "; it must be at least 0", n);
    if (n == 0)
        return ATTREE_OK;
    attree_status status = NAME(check_pointer)("scores", scores);
    if (status == ATTREE_OK)
        status = NAME(check_pointer)("values", values);
    if (status != ATTREE_OK)
        return status;
    int64_t reach, bytes;
    if (attree__mul_overflows(n - 1, value_stride, &reach) || attree__add_overflows(reach, v_width, &bytes) ||
        attree__mul_overflows(reach, (int64_t)sizeof(real), &reach) ||
        attree__mul_overflows(bytes, (int64_t)sizeof(real), &bytes) || (uint64_t)n > SIZE_MAX / sizeof(real))
        return attree__fail(ATTREE_ERROR_OVERFLOW,
                            "n is %" PRId64 " and value_stride %" PRId64 "; offsets overflow 64 bits", n, value_stride);
    for (int64_t j = 0; j < n; j++) {
        if (!isfinite(scores[j]))
            return attree__fail(ATTREE_ERROR_NONFINITE, "score %" PRId64 " is %g; it must be finite", j,
                                (double)scores[j]);
        for (int64_t e = 0; e < v_width; e++)
            if (!isfinite(values[j * value_stride + e]))
                return attree__fail(ATTREE_ERROR_NONFINITE,
                                    "component %" PRId64 " of value %" PRId64 " is %g; it must be finite", e, j,
                                    (double)values[j * value_stride + e]);
    }
    return ATTREE_OK;
}

/* l grows by the sixteen partial sums of the block, key j in lane j mod 16 (contract, step 4). */
static real NAME(block_sum)(const real *scores, int64_t n, real m)
{
    real lane[ATTREE__LANES] = {0};
    for (int64_t j = 0; j < n; j++)
        lane[j % ATTREE__LANES] += NAME(weight)(scores[j] - m);
    for (int half = ATTREE__LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            lane[i] += lane[i + half];
    return lane[0];
}

/* u += p * value. */
static ATTREE_WITH_FMA void NAME(add_value)(real *u, int64_t v_width, real p, const real *value)
{
    for (int64_t e = 0; e < v_width; e++)
        u[e] = real_fma(p, value[e], u[e]);
}

/* The public signature. NOLINTNEXTLINE(readability-function-size) */
attree_status NAME(attree_state_push)(real *state, int64_t v_width, int64_t n, const real *scores, const real *values,
                                      int64_t value_stride)
{
    attree_status status = NAME(check_state)("state", state, v_width);
    if (status == ATTREE_OK)
        status = NAME(check_keys)(v_width, n, scores, values, value_stride);
    if (status != ATTREE_OK || n == 0)
        return status;

    const attree__fpenv caller = attree__fpenv_enter();
    real m = state[0], *const u = state + 2;
    for (int64_t j = 0; j < n; j++)
        m = scores[j] > m ? scores[j] : m;
    const real scale = state[0] == -INFINITY ? 0 : NAME(weight)(state[0] - m); /* of what was there before */
    state[0] = m;
    state[1] = state[1] * scale + NAME(block_sum)(scores, n, m);
    for (int64_t e = 0; e < v_width; e++)
        u[e] *= scale;
    for (int64_t j = 0; j < n; j++) {
        NAME(add_value)(u, v_width, NAME(weight)(scores[j] - m), values + j * value_stride);
    }
    attree__fpenv_leave(caller);
    return ATTREE_OK;
}

attree_status NAME(attree_state_push_key)(real *state, int64_t v_width, real score, const real *value)
{
    return NAME(attree_state_push)(state, v_width, 1, &score, value, 0);
}

static attree_status NAME(check_merge)(const char *name, const real *state, int64_t v_width)
{
    const attree_status status = NAME(check_state)(name, state, v_width);
    if (status == ATTREE_OK && (isnan(state[0]) || state[0] == INFINITY || isnan(state[1])))
        return attree__fail(ATTREE_ERROR_NONFINITE, "%s has m = %g, l = %g; m must be finite or -inf and l not NaN",
                            name, (double)state[0], (double)state[1]);
    return status;
}

/* result = left * left_scale + right * right_scale, for l and u. */
static ATTREE_WITH_FMA void NAME(add_scaled)(real *result, const real *left, const real *right, int64_t count,
                                             const real scales[2])
{
    for (int64_t i = 0; i < count; i++)
        result[i] = real_fma(right[i], scales[1], left[i] * scales[0]);
}

attree_status NAME(attree_state_merge)(real *result, const real *left, const real *right, int64_t v_width)
{
    attree_status status = NAME(check_state)("result", result, v_width);
    if (status == ATTREE_OK)
        status = NAME(check_merge)("left", left, v_width);
    if (status == ATTREE_OK)
        status = NAME(check_merge)("right", right, v_width);
    if (status != ATTREE_OK)
        return status;

    if (left[0] == -INFINITY || right[0] == -INFINITY) {
        memmove(result, left[0] == -INFINITY ? right : left, attree_state_count(v_width) * sizeof(real));
        return ATTREE_OK;
    }
    const attree__fpenv caller = attree__fpenv_enter();
    const real m = left[0] > right[0] ? left[0] : right[0];
    const real scales[2] = {NAME(weight)(left[0] - m), NAME(weight)(right[0] - m)};
    result[0] = m;
    NAME(add_scaled)(result + 1, left + 1, right + 1, v_width + 1, scales);
    attree__fpenv_leave(caller);
    return ATTREE_OK;
}

attree_status NAME(attree_state_finish)(const real *state, int64_t v_width, real *o, real *lse)
{
    attree_status status = NAME(check_state)("state", state, v_width);
    if (status != ATTREE_OK)
        return status;
    status = NAME(check_pointer)("o", o);
    if (status == ATTREE_OK && lse)
        status = NAME(check_pointer)("lse", lse);
    if (status != ATTREE_OK)
        return status;
    if (state[0] == -INFINITY)
        return attree__fail(ATTREE_ERROR_EMPTY, "the state is empty; it must hold at least one key");
    const attree__fpenv caller = attree__fpenv_enter();
    for (int64_t e = 0; e < v_width; e++)
        o[e] = state[2 + e] / state[1];
    if (lse)
        *lse = state[0] + real_log(state[1]);
    attree__fpenv_leave(caller);
    return ATTREE_OK;
}
