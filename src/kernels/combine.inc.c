/* Steps 6 and 7: combining and finishing states, value columns in the lanes. */

static void combine(const attree__states *a, const attree__states *b, int64_t rows, int64_t v_width)
{
    for (int64_t r = 0; r < rows; r++) {
        float *au = a->u + r * a->u_stride;
        const float *bu = b->u + r * b->u_stride;
        const float am = a->m[r], bm = b->m[r];
        if (bm == -INFINITY)
            continue;
        if (am == -INFINITY) {
            a->m[r] = bm;
            a->l[r] = b->l[r];
            memcpy(au, bu, (size_t)v_width * sizeof(float));
            continue;
        }
        const attree__factors f = attree__contract_factors(am, bm);
        const vf wide_fa = vf_all(f.a), wide_fb = vf_all(f.b);
        for (int64_t e = 0; e < v_width; e += VF_LANES) /* u rows are padded to whole vectors */
            vf_store(au + e, vf_fma(vf_load(bu + e), wide_fb, vf_mul(vf_load(au + e), wide_fa)));
        a->l[r] = fmaf(b->l[r], f.b, a->l[r] * f.a);
        a->m[r] = f.m;
    }
}

ATTREE_INLINE void divide_into(void *o, const int32_t type, const float *u, float l, int64_t v_width)
{
    const vf divisor = vf_all(l), nan = vf_all(NAN);
    for (int64_t e = 0; e < v_width; e += VF_LANES) { /* u rows are padded to whole vectors */
        const vf quotient = vf_replace_nan(vf_div(vf_load(u + e), divisor), nan);
        if (v_width - e >= VF_LANES)
            store_numbers(o, type, e, quotient);
        else
            store_first_numbers(o, type, e, v_width - e, quotient);
    }
}

static void divide(void *o, int32_t type, const float *u, float l, int64_t v_width)
{
    rows_of(type)->divide(o, u, l, v_width);
}
