/* Where elements lie: strides of masks and biases, sizes of 1, guard pages, pointers off every boundary, canaries
 * around outputs, offsets beyond 32 bits. Numbers are those of README.md. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS, MAP_NORESERVE */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "../src/dtype.h"
#include "cases.h"

#define COUNT_OF(array) (sizeof(array) / sizeof *(array))

/* ---- Tensors over pairs in guarded memory ---- */

/* number[0] has a bit for each dimension that the element depends on. */
static int64_t mixed(const job *j, const int64_t at[4])
{
    const int64_t primes[4] = {5, 3, 7, 11};
    int64_t sum = 0;
    for (int d = 0; d < 4; d++)
        sum += j->number[0] >> d & 1 ? at[d] * primes[d] : 0;
    return sum;
}

static double varied_mask(const job *j, const int64_t at[4], double s)
{
    return mixed(j, at) % 4 == 2 ? -(double)INFINITY : s;
}

static double varied_bias(const job *j, const int64_t at[4], double s)
{
    return varied_mask(j, at, s + (double)(mixed(j, at) % 13) / 8.0);
}

static void check_varied_mask(const job *j) { expect_attention(j, varied_mask); }
static void check_varied_bias(const job *j) { expect_attention(j, varied_bias); }

enum { BYTES, BITS, BIAS_F32, BIAS_F16, BIAS_BF16, KINDS };

static void put_pair(void *zero, int kind, int64_t n, double value)
{
    unsigned char *const byte = zero;
    const unsigned char bit = (unsigned char)(1u << (n & 7));
    switch (kind) {
    case BYTES: byte[n] = isinf(value) ? 0 : 3; break;
    case BITS: byte[n >> 3] = (unsigned char)(isinf(value) ? byte[n >> 3] & ~bit : byte[n >> 3] | bit); break;
    default: attree__store(zero, kind - BIAS_F32, n, (float)value); break;
    }
}

static void put_pairs(const job *j, void *zero, int kind, const int64_t size[4], const int64_t stride[4])
{
    const score_rule rule = kind < BIAS_F32 ? varied_mask : varied_bias;
    for (int64_t b = 0; b < size[0]; b++)
        for (int64_t h = 0; h < size[1]; h++)
            for (int64_t i = 0; i < size[2]; i++)
                for (int64_t key = 0; key < size[3]; key++)
                    put_pair(zero, kind, b * stride[0] + h * stride[1] + i * stride[2] + key * stride[3],
                             rule(j, (const int64_t[4]){b, h, i, key}, 0.0));
}

/* Bytes, from element 0, of what elements of these sizes and strides take: first ... end - 1. */
static void pair_span(int kind, const int64_t size[4], const int64_t stride[4], int64_t span[2])
{
    static const int64_t bits[KINDS] = {8, 1, 32, 16, 16};
    int64_t low = 0, high = 0;
    for (int d = 0; d < 4; d++)
        *(stride[d] < 0 ? &low : &high) += stride[d] * (size[d] - 1);
    span[0] = (low * bits[kind]) >> 3; /* rounds down */
    span[1] = ((high * bits[kind] + bits[kind] - 1) >> 3) + 1;
}

/* Gives the job a mask or bias of these sizes and strides that touches a guard page; returns the memory. What p says in
 * the dimensions of size 1 is passed on, and means nothing. */
static guarded spread(job *j, int kind, const attree_pairs *p, bool at_start)
{
    const int64_t size[4] = {p->batches, p->heads, p->queries, p->keys};
    int64_t stride[4] = {p->batch_stride, p->head_stride, p->query_stride, p->key_stride}, span[2];
    if (!stride[0] && !stride[1] && !stride[2] && !stride[3]) /* dense */
        for (int64_t d = 3, step = 1; d >= 0; step *= size[d--])
            stride[d] = step;
    for (int d = 0; d < 4; d++)
        stride[d] = size[d] == 1 ? 0 : stride[d];
    pair_span(kind, size, stride, span);
    const int64_t floats = (span[1] - span[0] + 3) / 4;
    const guarded memory = guarded_floats(floats, at_start);
    char *const first = (char *)memory.data + (at_start ? 0 : floats * 4 - (span[1] - span[0]));
    put_pairs(j, first - span[0], kind, size, stride);
    *(kind < BIAS_F32 ? &j->desc.mask : &j->desc.bias) = *p;
    *(kind < BIAS_F32 ? &j->args.mask : &j->args.bias) = first - span[0];
    *(kind < BIAS_F32 ? &j->desc.mask_kind : &j->desc.bias_type) = kind < BIAS_F32 ? kind : kind - BIAS_F32;
    return memory;
}

static void check_spread(const attree_desc *d, int kind, const attree_pairs *p, bool at_start)
{
    job j = make_job(d, 3);
    j.number[0] = (p->batches > 1) | (p->heads > 1) << 1 | (p->queries > 1) << 2 | (p->keys > 1) << 3;
    guarded memory = spread(&j, kind, p, at_start);
    set_type(&j, kind % 3);
    on_every_path(&j, kind < BIAS_F32 ? check_varied_mask : check_varied_bias);
    guarded_free(&memory);
    free_job(&j);
}

static const int64_t pair_shapes[][4] = {{2, 3, 3, 21}, {2, 2, 26, 40}, {3, 4, 2, 270}}; /* B, H, Q, K */

/* cases 77, 76: sizes of 1 in every combination, dense, and with any number as the stride that does not matter */
static void masks_of_size_1_are_repeated(void **state)
{
    (void)state;
    const int64_t any[] = {0, -7, INT64_MAX, INT64_MIN, 12345};
    for (size_t n = 0; n < COUNT_OF(pair_shapes) * 16 * KINDS * 2; n++) {
        const int64_t *const s = pair_shapes[n / 2 / KINDS / 16];
        const size_t sizes = n / 2 / KINDS % 16;
        const attree_desc d = make_desc(s[0], s[1], 1, s[2], s[3], 4, 3);
        attree_pairs p = {
            sizes & 1 ? s[0] : 1, sizes & 2 ? s[1] : 1, sizes & 4 ? s[2] : 1, sizes & 8 ? s[3] : 1, 0, 0, 0, 0};
        if (n % 2) { /* the dense strides, written out */
            p.key_stride = p.keys > 1 ? 1 : any[n % 5];
            p.query_stride = p.queries > 1 ? p.keys : any[(n + 1) % 5];
            p.head_stride = p.heads > 1 ? p.keys * p.queries : any[(n + 2) % 5];
            p.batch_stride = p.batches > 1 ? p.keys * p.queries * p.heads : any[(n + 3) % 5];
        }
        check_spread(&d, (int)(n / 2 % KINDS), &p, n / 4 % 2);
    }
}

/* cases 74, 82: a mask or bias with its dimensions in any order, apart, and reversed */
static void masks_of_any_strides(void **state)
{
    (void)state;
    static const int orders[][4] = {{0, 1, 2, 3}, {0, 1, 3, 2}, {3, 2, 1, 0}, {1, 0, 3, 2}, {2, 3, 0, 1}, {3, 0, 2, 1}};
    for (size_t n = 0; n < COUNT_OF(pair_shapes) * COUNT_OF(orders) * KINDS * 2; n++) {
        const int64_t *const s = pair_shapes[n / 2 / KINDS / COUNT_OF(orders)];
        const int *const order = orders[n / 2 / KINDS % COUNT_OF(orders)];
        const attree_desc d = make_desc(s[0], s[1], s[1] % 2 ? 1 : 2, s[2], s[3], 4, 3);
        int64_t stride[4], step = 1 + (int64_t)n % 3;
        for (int k = 3; k >= 0; k--) {
            stride[order[k]] = (n + (size_t)k) % 4 ? step : -step;
            step *= s[order[k]];
            step += k == 2 ? 3 : 0;
        }
        const attree_pairs p = {s[0], s[1], s[2], s[3], stride[0], stride[1], stride[2], stride[3]};
        check_spread(&d, (int)(n / 2 % KINDS), &p, n % 2);
    }
}

/* case 74: strides of 0 repeat, as in the other inputs */
static void masks_of_stride_0(void **state)
{
    (void)state;
    for (int n = 0; n < 2 * KINDS; n++) {
        const attree_desc d = make_desc(2, 2, 1, n / KINDS ? 30 : 1, 40, 4, 3);
        job j = make_job(&d, 3);
        j.number[0] = 8; /* keys only */
        const attree_pairs one_row = {1, 1, 1, 40, 0, 0, 0, 1};
        guarded memory = spread(&j, n % KINDS, &one_row, false);
        const attree_pairs repeated = {0, 2, 0, 40, 0, 0, 0, 1};
        *(n % KINDS < BIAS_F32 ? &j.desc.mask : &j.desc.bias) = repeated;
        on_every_path(&j, n % KINDS < BIAS_F32 ? check_varied_mask : check_varied_bias);
        guarded_free(&memory);
        free_job(&j);
    }
}

/* case 77: sizes that are neither 1 nor the problem's are refused */
static void masks_of_other_sizes_are_refused(void **state)
{
    (void)state;
    for (int n = 0; n < 24; n++) {
        attree_desc d = make_desc(2, 4, 2, 3, 5, 4, 3);
        attree_pairs *const p = n / 12 ? &d.mask : &d.bias;
        int64_t *const sizes[4] = {&p->batches, &p->heads, &p->queries, &p->keys};
        *sizes[n % 4] = n / 4 % 3 == 0 ? -1 : n / 4 % 3 == 1 ? 6 : INT64_MAX;
        tensors t = make_tensors(&d, 1);
        const attree_args args = {.q = t.q, .k = t.k, .v = t.v, .o = t.o, .lse = t.lse};
        run_expecting(ATTREE_ERROR_SHAPE, &d, &args);
        assert_non_null(strstr(attree_last_error(), n / 12 ? "mask." : "bias."));
        free_tensors(&t);
    }
}

/* ---- The other tensors in guarded memory ---- */

/* The numbers in the type, touching a guard page, `shift` bytes away from its end. */
static void *guard(guarded *memory, const float *numbers, int64_t count, int32_t type, int64_t shift)
{
    const int64_t bytes = count * attree__dtype_bytes(type);
    *memory = guarded_floats((bytes + (shift > 0 ? shift : 0) + 3) / 4, shift < 0);
    const int64_t room = (bytes + (shift > 0 ? shift : 0) + 3) / 4 * 4;
    void *const first = (char *)memory->data + (shift < 0 ? 0 : room - bytes - shift);
    for (int64_t i = 0; i < count; i++)
        attree__store(first, type, i, numbers[i]);
    return first;
}

/* Solves j, then again with every tensor in guarded memory (shift < 0: at its start), and compares. */
static void check_guarded(job *j, int64_t shift)
{
    attree_desc *const d = &j->desc;
    solve(j);
    guarded memory[5];
    attree_args args = j->args;
    args.q = guard(&memory[0], j->t.q, j->t.q_count, d->q_type, shift);
    args.k = guard(&memory[1], j->t.k, j->t.k_count, d->k_type, shift);
    args.v = guard(&memory[2], j->t.v, j->t.v_count, d->v_type, shift);
    args.o = guard(&memory[3], j->t.o, j->t.o_count, d->o_type, shift);
    args.lse = guard(&memory[4], j->t.lse, j->t.lse_count, ATTREE_F32, shift * 4 / attree__dtype_bytes(d->o_type));
    memset(args.o, 0xff, (size_t)(j->t.o_count * attree__dtype_bytes(d->o_type)));
    memset(args.lse, 0xff, (size_t)j->t.lse_count * 4);
    run_expecting(ATTREE_OK, d, &args);
    for (int64_t i = 0; i < j->t.o_count; i++) {
        const float o = attree__load(args.o, d->o_type, i);
        assert_same_bits(j->t.o + i, &o, 1);
    }
    assert_same_bits(j->t.lse, args.lse, j->t.lse_count);
    for (int i = 0; i < 5; i++)
        guarded_free(&memory[i]);
}

/* check_guarded for every instruction set. */
static void check_guarded_everywhere(job *j, int64_t shift)
{
    attree_isa isas[8];
    const int count = available_isas(isas);
    for (int i = 0; i < count; i++) {
        if (thinned_out())
            continue;
        j->desc.isa = (int32_t)isas[i];
        check_guarded(j, shift);
    }
}

/* case 83: pointers that no boundary but the element's suits, all widths, all types */
static void pointers_off_every_boundary(void **state)
{
    (void)state;
    for (int64_t width = 1; width <= 80; width++)
        for (int32_t type = ATTREE_F32; type <= ATTREE_BF16; type++) {
            const attree_desc d = make_desc(1, 1, 1, width % 3 ? 1 : 26, 19, width, 81 - width);
            job j = make_job(&d, (uint64_t)width);
            set_type(&j, type);
            check_guarded_everywhere(&j, attree__dtype_bytes(type));
            free_job(&j);
        }
}

/* case 83: a bias that is not aligned to its elements is refused; a mask of bytes or bits may lie anywhere */
static void biases_off_their_elements_are_refused(void **state)
{
    (void)state;
    float zeros[64] = {0};
    for (int32_t type = ATTREE_F32; type <= ATTREE_BF16; type++)
        for (int64_t shift = 0; shift < 4; shift++) {
            attree_desc d = make_desc(1, 1, 1, 2, 8, 4, 3);
            d.bias_type = type;
            tensors t = make_tensors(&d, 1);
            attree_args args = {.q = t.q, .k = t.k, .v = t.v, .o = t.o, .lse = t.lse};
            args.bias = (char *)zeros + shift;
            const bool fits = shift % attree__dtype_bytes(type) == 0;
            run_expecting(fits ? ATTREE_OK : ATTREE_ERROR_ALIGN, &d, &args);
            assert_true(fits || strstr(attree_last_error(), "bias"));
            args.bias = NULL;
            args.mask = (char *)zeros + shift; /* hides all */
            run_expecting(ATTREE_OK, &d, &args);
            assert_true(t.lse[0] == -INFINITY);
            free_tensors(&t);
        }
}

/* case 85: all widths and key counts to 130; every tensor ends, or starts, where memory does */
static void nothing_beyond_a_tensor_is_read(void **state)
{
    (void)state;
    const float slopes[2] = {0.5f, 0.25f}, sinks[2] = {0.0f, 1.0f};
    for (int64_t n = 1; n <= 130; n++)
        for (int kind = -1; kind < KINDS; kind++) {
            const int64_t keys = (n * 37) % 130 + 1, queries = n % 4 ? 1 + n % 3 : 26;
            const attree_desc d = make_desc(1, 2, 1, queries, keys, n, (n * 53) % 130 + 1);
            job j = make_job(&d, (uint64_t)n);
            j.number[0] = 15;
            guarded pairs = {0}, heads[2];
            const attree_pairs dense = {1, 2, queries, keys, 0, 0, 0, 0};
            if (kind >= 0)
                pairs = spread(&j, kind, &dense, n % 2);
            j.args.alibi_slopes = guard(&heads[0], slopes, 2, ATTREE_F32, n % 2 ? -1 : 0);
            j.args.sinks = guard(&heads[1], sinks, 2, ATTREE_F32, n % 2 ? -1 : 0);
            j.args.alibi_heads = j.args.sink_heads = 2;
            set_type(&j, (int32_t)((n + kind + 1) % 3));
            check_guarded_everywhere(&j, n % 2 ? -1 : 0);
            if (kind >= 0)
                guarded_free(&pairs);
            guarded_free(&heads[0]);
            guarded_free(&heads[1]);
            free_job(&j);
        }
}

/* ---- Outputs in larger buffers ---- */

enum { CANARY_ROOM = 20000, CANARY_FRAME = 500 };

/* o is [B][Q][H][E + 1] or [B][H][Q][E + 1], and lse likewise, in a buffer of canaries. */
static void check_canaries(const job *j, bool heads_inside)
{
    static float memory[CANARY_ROOM], expected[CANARY_ROOM];
    for (int i = 0; i < CANARY_ROOM; i++)
        memory[i] = expected[i] = 12345.0f;
    attree_desc d = j->desc;
    const int64_t gap = d.v_width + 1, lse = CANARY_ROOM / 4 * 3;
    d.o = heads_inside ? (attree_strides){d.q_len * d.q_heads * gap, gap, d.q_heads * gap, 1}
                       : (attree_strides){d.q_len * d.q_heads * gap, d.q_len * gap, gap, 1};
    d.lse = (attree_strides){d.o.batch / gap * 2, d.o.head / gap * 2, d.o.token / gap * 2, 0};
    for (int64_t row = 0; row < j->t.lse_count; row++) {
        const int64_t b = row / d.q_len / d.q_heads, h = row / d.q_len % d.q_heads, i = row % d.q_len;
        memcpy(expected + CANARY_FRAME + b * d.o.batch + h * d.o.head + i * d.o.token, j->t.o + row * d.v_width,
               (size_t)d.v_width * sizeof(float));
        expected[lse + b * d.lse.batch + h * d.lse.head + i * d.lse.token] = j->t.lse[row];
    }
    attree_args args = {.q = j->t.q, .k = j->t.k, .v = j->t.v, .o = memory + CANARY_FRAME, .lse = memory + lse};
    for (d.threads = 1; d.threads <= 8; d.threads++) {
        run_expecting(ATTREE_OK, &d, &args);
        assert_same_bits(expected, memory, CANARY_ROOM);
    }
}

/* cases 79, 80: canaries around and inside outputs in both orders, keys split or not, three entries of a batch */
static void outputs_are_written_where_they_belong(void **state)
{
    (void)state;
    const int64_t shapes[][4] = {{1, 1, 1, 6000}, {4, 2, 1, 6000}, {4, 1, 26, 300}, {1, 1, 30, 2100}, {3, 3, 7, 20}};
    for (size_t n = 0; n < COUNT_OF(shapes); n++) {
        attree_desc d = make_desc(3, shapes[n][0], shapes[n][1], shapes[n][2], shapes[n][3], 8, 12);
        attree_isa isas[8];
        const int count = available_isas(isas);
        for (int i = 0; i < count; i++) {
            d.isa = (int32_t)isas[i];
            job j = make_job(&d, n);
            solve(&j);
            check_canaries(&j, false);
            check_canaries(&j, true);
            free_job(&j);
        }
    }
}

static double rule_of_reversed(const job *j, const int64_t at[4], double s)
{
    (void)j, (void)at;
    return s;
}

/* Element (b, h, n, c) moved to the mirrored place in every dimension. */
static void mirror(float *numbers, int64_t count)
{
    for (int64_t i = 0; i < count / 2; i++) {
        const float other = numbers[count - 1 - i];
        numbers[count - 1 - i] = numbers[i];
        numbers[i] = other;
    }
}

/* case 82: all tensors reversed in all dimensions, outputs too */
static void tensors_backwards(void **state)
{
    (void)state;
    for (int n = 0; n < 6; n++) {
        attree_desc d = make_desc(2, 4, 2, n % 2 ? 30 : 1, 290, 6, 5);
        d.flags = n / 2 ? ATTREE_CAUSAL : 0;
        job j = make_job(&d, 2);
        solve(&j);
        expect_attention(&j, n / 2 ? geometry : rule_of_reversed);
        float *const o = malloc((size_t)j.t.o_count * sizeof(float)), *const lse = malloc((size_t)j.t.lse_count * 4);
        assert_true(o && lse);
        mirror(j.t.q, j.t.q_count);
        mirror(j.t.k, j.t.k_count);
        mirror(j.t.v, j.t.v_count);
        d.q = (attree_strides){-4 * d.q_len * 6, -d.q_len * 6, -6, -1};
        d.k = (attree_strides){-2 * 290 * 6, -290 * 6, -6, -1};
        d.v = (attree_strides){-2 * 290 * 5, -290 * 5, -5, -1};
        d.o = (attree_strides){-4 * d.q_len * 5, -d.q_len * 5, -5, -1};
        d.lse = (attree_strides){-4 * d.q_len, -d.q_len, -1, 0};
        d.threads = n == 5 ? 3 : 1;
        const attree_args args = {.q = j.t.q + j.t.q_count - 1,
                                  .k = j.t.k + j.t.k_count - 1,
                                  .v = j.t.v + j.t.v_count - 1,
                                  .o = o + j.t.o_count - 1,
                                  .lse = lse + j.t.lse_count - 1};
        run_expecting(ATTREE_OK, &d, &args);
        mirror(o, j.t.o_count);
        mirror(lse, j.t.lse_count);
        assert_same_bits(j.t.o, o, j.t.o_count);
        assert_same_bits(j.t.lse, lse, j.t.lse_count);
        free(o);
        free(lse);
        free_job(&j);
    }
}

/* ---- Offsets beyond 32 bits ---- */

/* Memory of which only the pages in use exist; NULL when the system will not have it. */
static void *sparse(size_t bytes)
{
    void *const memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static void scatter(float *memory, attree_strides s, float *dense, const int64_t size[4], bool back)
{
    for (int64_t n = 0; n < size[0] * size[1] * size[2] * size[3]; n++) {
        const int64_t c = n % size[3], token = n / size[3] % size[2], h = n / size[3] / size[2] % size[1];
        const int64_t b = n / size[3] / size[2] / size[1];
        float *const at = memory + b * s.batch + h * s.head + token * s.token + c * s.width;
        *(back ? dense + n : at) = *(back ? at : dense + n);
    }
}

/* Each stride in turn is so large that 32 bits of an offset, in elements or bytes, are those of another element. */
static void check_sparse(const attree_strides *s, float *inputs, float *outputs, const attree_desc *dense)
{
    attree_desc d = *dense;
    job j = make_job(&d, 4);
    solve(&j);
    expect_attention(&j, geometry);
    float *const q = inputs, *const k = q + 4096, *const v = q + 8192, *const o = outputs;
    const int64_t queries = d.q_len, keys = d.kv_len, width = d.qk_width;
    const int64_t query_size[4] = {d.batch, d.q_heads, queries, width},
                  key_size[4] = {d.batch, d.kv_heads, keys, width};
    scatter(q, *s, j.t.q, query_size, false);
    scatter(k, *s, j.t.k, key_size, false);
    scatter(v, *s, j.t.v, key_size, false);
    d.q = d.k = d.v = d.o = *s;
    float *const got = malloc((size_t)j.t.o_count * sizeof(float)), *const lse = malloc((size_t)j.t.lse_count * 4);
    assert_true(got && lse);
    const attree_args args = {.q = q, .k = k, .v = v, .o = o, .lse = lse};
    attree_isa isas[8];
    const int count = available_isas(isas);
    for (int i = 0; i < count; i++) {
        d.isa = (int32_t)isas[i];
        d.threads = 1 + i;
        run_expecting(ATTREE_OK, &d, &args);
        scatter(o, *s, got, query_size, true);
        assert_same_bits(j.t.o, got, j.t.o_count);
        assert_same_bits(j.t.lse, lse, j.t.lse_count);
    }
    free(got);
    free(lse);
    free_job(&j);
}

/* case 118: strides of 2^30 elements times 4, 2^27 times 33, 2^29 times 8 and so on */
static void strides_near_32_bits(void **state)
{
    (void)state;
    const size_t bytes = ((size_t)5 << 32) + ((size_t)1 << 20); /* of 20 GiB, a few pages are used */
    const attree_desc batches = make_desc(5, 2, 1, 2, 3, 4, 4), tokens = make_desc(1, 2, 1, 34, 34, 4, 4);
    const attree_desc heads = make_desc(1, 9, 9, 1, 3, 4, 4), widths = make_desc(1, 1, 1, 2, 3, 5, 5);
    const struct {
        const attree_desc *desc;
        attree_strides strides;
    } cases[] = {
        {&batches, {(int64_t)1 << 30, 64, 4, 1}},
        {&tokens, {0, 64, (int64_t)1 << 27, 1}},
        {&heads, {0, (int64_t)1 << 29, 4, 1}},
        {&widths, {0, 0, 8, (int64_t)1 << 30}},
    };
    for (size_t n = 0; n < COUNT_OF(cases); n++) {
        void *const inputs = sparse(bytes), *const outputs = sparse(bytes);
        if (!inputs || !outputs)
            skip();
        check_sparse(&cases[n].strides, inputs, outputs, cases[n].desc);
        munmap(inputs, bytes);
        munmap(outputs, bytes);
    }
}

/* case 119: 8300 entries of 16 heads, 2^19 elements apart: products of run-time sizes beyond 32 bits */
static void many_entries_far_apart(void **state)
{
    (void)state;
    enum { BATCH = 8300, HEADS = 16, WIDTH = 128, APART = 1 << 19 };
    const size_t bytes = (size_t)BATCH * APART * sizeof(uint16_t);
    uint16_t *const q = sparse(bytes), *const o = sparse(bytes), *const v = malloc((size_t)BATCH * WIDTH * 2);
    assert_non_null(v);
    if (!q || !o) {
        free(v);
        skip();
    }
    for (int64_t i = 0; i < (int64_t)BATCH * WIDTH; i++) /* f16, from 1 on */
        v[i] = (uint16_t)(0x3c00 + i % 0x1007);
    attree_desc d = make_desc(BATCH, HEADS, 1, 1, 1, WIDTH, WIDTH);
    d.q_type = d.k_type = d.v_type = d.o_type = ATTREE_F16;
    d.q = d.o = (attree_strides){APART, WIDTH, 0, 1};
    d.threads = 3;
    const attree_args args = {.q = q, .k = v, .v = v, .o = o};
    run_expecting(ATTREE_OK, &d, &args);
    for (int64_t b = 0; b < BATCH; b++)
        for (int64_t h = 0; h < HEADS; h++)
            assert_memory_equal(o + b * APART + h * WIDTH, v + b * WIDTH, WIDTH * sizeof(uint16_t));
    munmap(q, bytes);
    munmap(o, bytes);
    free(v);
}

/* ---- The workspace ---- */

/* case 41: a workspace that other problems have used, and is not cleared, changes nothing */
static void workspaces_can_be_used_again(void **state)
{
    (void)state;
    const int64_t shapes[][7] = {{1, 1, 1, 1, 6000, 16, 16}, {2, 4, 2, 40, 300, 8, 24}, {1, 2, 1, 1, 1, 3, 3},
                                 {3, 2, 2, 5, 700, 33, 1},   {1, 8, 1, 90, 90, 24, 8},  {1, 1, 1, 0, 4, 2, 2}};
    enum { ROOM = 1 << 24 };
    void *const workspace = aligned_alloc(64, ROOM);
    assert_non_null(workspace);
    memset(workspace, 0xff, ROOM);
    for (size_t n = 0; n < 4 * COUNT_OF(shapes); n++) {
        const int64_t *const s = shapes[n % COUNT_OF(shapes)];
        attree_desc d = make_desc(s[0], s[1], s[2], s[3], s[4], s[5], s[6]);
        d.threads = n % 4 == 3 ? 1 : 3;
        d.flags = n / COUNT_OF(shapes) % 2 ? ATTREE_CAUSAL : 0;
        tensors t = make_tensors(&d, n);
        float *const expected = result_of(&d, &t);
        attree_plan *plan;
        assert_int_equal(attree_plan_create(&plan, &d), ATTREE_OK);
        assert_true(attree_plan_workspace(plan) <= ROOM);
        const attree_args args = {.size = sizeof args,
                                  .q = t.q,
                                  .k = t.k,
                                  .v = t.v,
                                  .o = t.o,
                                  .lse = t.lse,
                                  .workspace = workspace,
                                  .workspace_bytes = ROOM};
        assert_int_equal(attree_run(plan, &args), ATTREE_OK);
        assert_same_bits(expected, t.o, t.o_count);
        assert_same_bits(expected + t.o_count, t.lse, t.lse_count);
        attree_plan_destroy(plan);
        free(expected);
        free_tensors(&t);
    }
    free(workspace);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(masks_of_size_1_are_repeated),
        cmocka_unit_test(masks_of_any_strides),
        cmocka_unit_test(masks_of_stride_0),
        cmocka_unit_test(masks_of_other_sizes_are_refused),
        cmocka_unit_test(pointers_off_every_boundary),
        cmocka_unit_test(biases_off_their_elements_are_refused),
        cmocka_unit_test(nothing_beyond_a_tensor_is_read),
        cmocka_unit_test(outputs_are_written_where_they_belong),
        cmocka_unit_test(tensors_backwards),
        cmocka_unit_test(strides_near_32_bits),
        cmocka_unit_test(many_entries_far_apart),
        cmocka_unit_test(workspaces_can_be_used_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
