/* Ranges of keys or columns, and whole numbers. */

/* from <= j < to; empty when to <= from. */
typedef struct key_range {
    int64_t from, to;
} key_range;

ATTREE_INLINE int64_t at_most(int64_t limit, int64_t x) { return x < limit ? x : limit; }

ATTREE_INLINE int64_t round_up(int64_t x, int64_t multiple) { return (x + multiple - 1) / multiple * multiple; }

ATTREE_INLINE key_range intersection(key_range a, key_range b)
{
    return (key_range){a.from > b.from ? a.from : b.from, at_most(a.to, b.to)};
}
