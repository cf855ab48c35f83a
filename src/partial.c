/* Partial results of many rows: combining states, and results in the form (o, lse). */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "contract.h"
#include "cpu.h"
#include "dtype.h"
#include "error.h"
#include "simd/fpenv.h"
#include "tree.h"

int64_t attree_tree_split(int64_t blocks) { return blocks > 1 ? attree__tree_split(blocks) : 0; }

/* rows * width numbers must fit memory. */
static attree_status check_sizes(int64_t rows, int64_t v_width)
{
    int64_t count;
    if (rows < 0 || v_width < 1)
        return attree__fail(ATTREE_ERROR_SHAPE,
                            "rows is %" PRId64 " and v_width %" PRId64 "; they must be at least 0 and 1", rows,
                            v_width);
    if (attree_state_count(v_width) == 0 || attree__mul_overflows(rows, v_width + 2, &count) ||
        count > INT64_MAX / (int64_t)sizeof(float))
        return attree__fail(ATTREE_ERROR_OVERFLOW, "rows is %" PRId64 " and v_width %" PRId64 "; states overflow", rows,
                            v_width);
    return attree__cpu_require();
}

static attree_status check_pointer(const char *name, const void *pointer, int64_t rows, int64_t alignment)
{
    if (rows > 0 && !pointer)
        return attree__fail(ATTREE_ERROR_NULL, "%s is NULL", name);
    if ((uintptr_t)pointer % (uintptr_t)alignment != 0)
        return attree__fail(ATTREE_ERROR_ALIGN, "%s is %p; it must be aligned to %" PRId64 " bytes", name, pointer,
                            alignment);
    return ATTREE_OK;
}

/* Step 6 for states of the form m, l, u[0] ... */
static ATTREE_WITH_FMA void merge_state(float *result, const float *left, const float *right, int64_t count)
{
    if (left[0] == -INFINITY || right[0] == -INFINITY) {
        memmove(result, right[0] == -INFINITY ? left : right, (size_t)count * sizeof *result);
        return;
    }
    const attree__factors f = attree__contract_factors(left[0], right[0]);
    result[0] = f.m + 0.0f; /* no -0, as in what a run exports */
    for (int64_t i = 1; i < count; i++)
        result[i] = attree__canonical(fmaf(right[i], f.b, left[i] * f.a));
}

attree_status attree_states_merge(float *result, const float *left, const float *right, int64_t rows, int64_t v_width)
{
    attree_status status = check_sizes(rows, v_width);
    if (status == ATTREE_OK)
        status = check_pointer("result", result, rows, sizeof *result);
    if (status == ATTREE_OK)
        status = check_pointer("left", left, rows, sizeof *left);
    if (status == ATTREE_OK)
        status = check_pointer("right", right, rows, sizeof *right);
    if (status != ATTREE_OK)
        return status;
    const int64_t count = v_width + 2;
    const attree__fpenv caller = attree__fpenv_enter();
    for (int64_t r = 0; r < rows; r++)
        merge_state(result + r * count, left + r * count, right + r * count, count);
    attree__fpenv_leave(caller);
    return ATTREE_OK;
}

/* One row of a result, o[E] from element `first` on. */
typedef struct result_row {
    void *o;
    const void *other;
    int32_t type;
    int64_t first, width;
} result_row;

static void fill_row(const result_row *r, float x)
{
    for (int64_t e = 0; e < r->width; e++)
        attree__store(r->o, r->type, r->first + e, x);
}

/* Returns the row's lse. */
static ATTREE_WITH_FMA float merge_row(const result_row *r, float lse, float other)
{
    if (isnan(lse) || isnan(other)) {
        fill_row(r, NAN);
        return NAN;
    }
    if (other == -INFINITY) {
        if (lse == -INFINITY)
            fill_row(r, 0.0f);
        return lse;
    }
    if (lse == -INFINITY) {
        const int64_t bytes = attree__dtype_bytes(r->type), at = r->first * bytes;
        memcpy((char *)r->o + at, (const char *)r->other + at, (size_t)(r->width * bytes));
        return other;
    }
    const attree__factors f = attree__contract_factors(lse, other);
    const float sum = f.a + f.b;
    for (int64_t e = r->first; e < r->first + r->width; e++) {
        const float a = attree__load(r->o, r->type, e), b = attree__load(r->other, r->type, e);
        attree__store(r->o, r->type, e, attree__canonical(fmaf(b, f.b, a * f.a) / sum));
    }
    return attree__contract_lse(f.m, sum);
}

/* Nothing is written when a sum is refused. */
static attree_status check_lse(const char *name, const float *lse, int64_t rows)
{
    for (int64_t r = 0; r < rows; r++)
        if (attree__bits_of(lse[r]) == 0x7f800000u)
            return attree__fail(ATTREE_ERROR_NONFINITE, "%s[%" PRId64 "] is inf; a row without keys has -inf", name, r);
    return ATTREE_OK;
}

/* The public signature. NOLINTNEXTLINE(readability-function-size) */
attree_status attree_merge_outputs(void *o, float *lse, const void *other_o, const float *other_lse, int32_t type,
                                   int64_t rows, int64_t v_width)
{
    if (!attree__dtype_is_float(type))
        return attree__fail(ATTREE_ERROR_TYPE, "type is %" PRId32 "; it must be a float type, 0 to 2", type);
    const struct {
        const char *name;
        const void *pointer;
        int64_t alignment;
    } pointers[] = {{"o", o, attree__dtype_bytes(type)},
                    {"lse", lse, sizeof *lse},
                    {"other_o", other_o, attree__dtype_bytes(type)},
                    {"other_lse", other_lse, sizeof *other_lse}};
    attree_status status = check_sizes(rows, v_width);
    for (int i = 0; i < 4 && status == ATTREE_OK; i++)
        status = check_pointer(pointers[i].name, pointers[i].pointer, rows, pointers[i].alignment);
    if (status == ATTREE_OK)
        status = check_lse("lse", lse, rows);
    if (status == ATTREE_OK)
        status = check_lse("other_lse", other_lse, rows);
    if (status != ATTREE_OK)
        return status;
    const attree__fpenv caller = attree__fpenv_enter();
    for (int64_t r = 0; r < rows; r++)
        lse[r] = merge_row(&(result_row){o, other_o, type, r * v_width, v_width}, lse[r], other_lse[r]);
    attree__fpenv_leave(caller);
    return ATTREE_OK;
}
