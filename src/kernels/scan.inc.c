/* What masks and biases leave of a block, found before anything is computed: masks are mostly triangles, windows,
 * padding and documents, in which each row sees one range of keys and nothing is added to their scores. */

/* Keys of a row that a mask or bias may leave: none outside first ... end - 1. plain: all of these are shown, and
 * nothing is added. */
typedef struct row_scan {
    int32_t first, end;
    bool plain;
} row_scan;

/* What is looked for in the elements of a row: some key that is shown; or one that is hidden or whose score changes. */
typedef enum sought { SHOWN, CHANGED } sought;

/* Whether some of 8 bytes of elements are sought. They are `bytes` wide: masks, of which 0 hides; or biases, of which
 * -inf hides and zeros of either sign change nothing. */
ATTREE_INLINE uint64_t found_in(uint64_t word, const int bytes, const int32_t bias_type, const sought what)
{
    const uint64_t each = bytes == 2 ? 0x0001000100010001u : bytes == 4 ? 0x0000000100000001u : 0x0101010101010101u;
    const uint64_t sign = each << (8 * bytes - 1);
    if (bytes == 1)
        return what == SHOWN ? word : (word - each) & ~word & sign; /* some byte is 0 */
    const uint64_t hidden = each * (bias_type == ATTREE_F32   ? 0xff800000u
                                    : bias_type == ATTREE_F16 ? 0xfc00u
                                                              : 0xff80u);
    return what == SHOWN ? word ^ hidden : word & ~sign;
}

/* Elements that are looked at together. */
#define SCAN_STEP 64

/* Whether some of the elements of keys j ... j + SCAN_STEP - 1 are sought, or, in the tail, of those in the range. */
ATTREE_INLINE bool step_has(const char *elements, const int bytes, const int32_t bias_type, const sought what,
                            key_range keys)
{
    uint64_t found = 0;
    if (keys.to - keys.from == SCAN_STEP) {
        uint64_t words[SCAN_STEP * 4 / 8]; /* of the widest */
        memcpy(words, elements + keys.from * bytes, (size_t)(SCAN_STEP * bytes));
        for (int i = 0; i < SCAN_STEP * bytes / 8; i++)
            found |= found_in(words[i], bytes, bias_type, what);
        return found != 0;
    }
    for (int64_t j = keys.from; j < keys.to && !found; j++) { /* the element, as often as it fits */
        uint64_t word = 0;
        memcpy(&word, elements + j * bytes, (size_t)bytes);
        word *= bytes == 2 ? 0x0001000100010001u : bytes == 4 ? 0x0000000100000001u : 0x0101010101010101u;
        found = found_in(word, bytes, bias_type, what);
    }
    return found != 0;
}

/* elements: of the row, from key 0 on. */
ATTREE_INLINE row_scan scan_row_of(const char *elements, const int bytes, const int32_t bias_type, row_scan row)
{
    int64_t from = row.first, to = row.end;
    while (from < to && !step_has(elements, bytes, bias_type, SHOWN, (key_range){from, at_most(from + SCAN_STEP, to)}))
        from = at_most(from + SCAN_STEP, to);
    while (from < to && !step_has(elements, bytes, bias_type, SHOWN, (key_range){from, from + 1}))
        from++;
    while (from < to &&
           !step_has(elements, bytes, bias_type, SHOWN, (key_range){to - SCAN_STEP > from ? to - SCAN_STEP : from, to}))
        to = to - SCAN_STEP > from ? to - SCAN_STEP : from;
    while (from < to && !step_has(elements, bytes, bias_type, SHOWN, (key_range){to - 1, to}))
        to--;
    bool plain = true;
    for (int64_t j = from; j < to && plain; j += SCAN_STEP)
        plain = !step_has(elements, bytes, bias_type, CHANGED, (key_range){j, at_most(j + SCAN_STEP, to)});
    return (row_scan){(int32_t)from, (int32_t)to, plain};
}

/* Bits of a packed mask that are looked at together: with those before them in a byte, they are in 8 bytes. */
#define BITS_STEP 56

/* Bits n ... n + count - 1, count <= BITS_STEP. Reads no byte that has none of them. */
ATTREE_INLINE uint64_t mask_bits(const uint8_t *bytes, int64_t n, int64_t count)
{
    const int64_t first = n >> 3, read = ((n + count - 1) >> 3) - first + 1;
    uint64_t word = 0;
    if (read == (int64_t)sizeof word)
        memcpy(&word, bytes + first, sizeof word);
    else
        for (int64_t i = 0; i < read; i++)
            word |= (uint64_t)bytes[first + i] << 8 * i;
    return word >> (n & 7) & (((uint64_t)1 << count) - 1);
}

/* n: the bit of key 0. */
static row_scan scan_bits(const uint8_t *bytes, int64_t n, row_scan row)
{
    int64_t from = 0, to = 0, shown = 0;
    for (int64_t j = row.first; j < row.end; j += BITS_STEP) {
        const uint64_t word = mask_bits(bytes, n + j, at_most(BITS_STEP, row.end - j));
        if (word == 0)
            continue;
        from = shown ? from : j + __builtin_ctzll(word);
        to = j + 64 - __builtin_clzll(word);
        shown += __builtin_popcountll(word);
    }
    return (row_scan){(int32_t)from, (int32_t)to, shown == to - from};
}

static row_scan scan_bias(const attree__pair_source *p, int64_t n, row_scan row)
{
    const char *const at = (const char *)p->data + n * attree__dtype_bytes(p->type);
    switch (p->type) {
    case ATTREE_F32: return scan_row_of(at, 4, ATTREE_F32, row);
    case ATTREE_F16: return scan_row_of(at, 2, ATTREE_F16, row);
    default: return scan_row_of(at, 2, ATTREE_BF16, row);
    }
}

static row_scan scan_mask(const attree__pair_source *p, int64_t n, row_scan row)
{
    return p->type == ATTREE_MASK_BITS ? scan_bits(p->data, n, row) : scan_row_of((const char *)p->data + n, 1, 0, row);
}

/* Whether there is something to scan: keys beside each other. */
ATTREE_INLINE bool can_be_scanned(const attree__pair_source *p) { return p->data && p->key == 1; }

static void scan(attree__terms *t, int64_t rows, int32_t *first, int32_t *end)
{
    const bool bias = can_be_scanned(&t->bias), mask = can_be_scanned(&t->mask);
    const bool shared = (!bias || t->bias.head == 0) && (!mask || t->mask.head == 0); /* by the heads of a group */
    bool plain_bias = bias, plain_mask = mask;
    attree__query_row last = {-1, 0};
    row_scan found = {0, 0, true};
    int32_t from = 0, to = 0; /* what geometry showed of the last row scanned */
    for (int64_t r = 0; r < rows && (bias || mask); r++) {
        const attree__query_row at = attree__query_row_at(t->first + r, t->heads);
        if (first[r] >= end[r])
            continue;
        if (!shared || at.query != last.query || first[r] != from || end[r] != to) {
            last = at;
            found = (row_scan){from = first[r], to = end[r], true};
            if (bias) {
                found = scan_bias(&t->bias, t->bias.base + at.query * t->bias.query + at.head * t->bias.head, found);
                plain_bias = plain_bias && found.plain;
            }
            if (mask) {
                found = scan_mask(&t->mask, t->mask.base + at.query * t->mask.query + at.head * t->mask.head, found);
                plain_mask = plain_mask && found.plain;
            }
        }
        const bool none = found.first >= found.end;
        first[r] = none ? 0 : found.first;
        end[r] = none ? 0 : found.end;
    }
    if (plain_bias)
        t->bias.data = NULL;
    if (plain_mask)
        t->mask.data = NULL;
}
