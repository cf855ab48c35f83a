/* Asking for rows before they are read. */

/* Rows are short, so each is a stream of its own that hardware prefetchers do not follow far. Whoever reads a group of
 * rows asks for the rows some pieces on, in the order in which they lie. They may be of the next block, or beyond the
 * tensor: they need not exist. */
ATTREE_INLINE const char *row_ahead(const attree__rows *rows, int64_t j)
{
    const uintptr_t piece = (uintptr_t)rows->piece[j / ATTREE__PIECE + rows->ahead];
    return (const char *)(piece + (uintptr_t)(j % ATTREE__PIECE * rows->token));
}

/* Whether the rows of a piece lie as one. */
ATTREE_INLINE bool without_gaps(const attree__rows *rows, int64_t width)
{
    return rows->width == 1 && rows->token == attree__dtype_row_bytes(rows->type, width);
}

/* Walks through the cache lines of rows. */
typedef struct prefetcher {
    uintptr_t at, row, end, token, bytes; /* of the row: where it starts, where it ends; from row to row; of a row */
} prefetcher;

/* Starts with the row at first. Rows without gaps between them are like one. */
ATTREE_INLINE prefetcher make_prefetcher(const attree__rows *rows, const int32_t type, const char *first, int64_t width)
{
    const uintptr_t at = (uintptr_t)first, bytes = (uintptr_t)attree__dtype_row_bytes(type, width);
    return (prefetcher){at, at, without_gaps(rows, width) ? UINTPTR_MAX : at + bytes, (uintptr_t)rows->token, bytes};
}

/* The next lines: all of one row, or beyond its end. */
ATTREE_INLINE void prefetch_lines(prefetcher *p, const int64_t lines)
{
    for (int64_t i = 0; i < lines; i++) {
        attree__prefetch(p->at);
        p->at += 64;
        if (p->at >= p->end) {
            p->at = p->row += p->token;
            p->end = p->at + p->bytes;
        }
    }
}

/* Asks for the rows that come some pieces after some keys, line by line, a few lines at a time while others are
 * computed with: a core has buffers for some twenty lines, and asked for all at once, most would be dropped. */
typedef struct asker {
    const attree__rows *rows;
    key_range keys;
    int64_t step, bytes; /* keys and bytes of a row; of a panel, which is like one long row */
    int64_t lines;       /* each time */
    uintptr_t at, end;
} asker;

/* For keys with `width` numbers, in so many times. */
static asker make_asker(const attree__rows *rows, key_range keys, int64_t width, int64_t times)
{
    const int64_t step = rows->width > 1 ? ATTREE__PIECE : 1;
    const int64_t bytes = step * attree__dtype_row_bytes(rows->type, width);
    const int64_t lines = (keys.to - keys.from) / step * ((bytes + 63) / 64);
    return (asker){rows, keys, step, bytes, times > 0 ? (lines + times - 1) / times : 0, 0, 0};
}

ATTREE_INLINE void ask(asker *a)
{
    for (int64_t i = 0; i < a->lines; i++) {
        if (a->at >= a->end) {
            if (a->keys.from >= a->keys.to)
                return;
            a->at = (uintptr_t)row_ahead(a->rows, a->keys.from);
            a->end = a->at + (uintptr_t)a->bytes;
            a->keys.from += a->step;
        }
        attree__prefetch(a->at);
        a->at += 64;
    }
}
