/* The order of segments. See order.h.
 *
 * A radix sort of small keys, byte by byte from the lowest, then each segment is moved once: a batch of a thousand
 * entries takes some 20 microseconds, a third of the whole plan. */
#include "order.h"

#include <string.h>

enum { DIGITS = 8, VALUES = 256 };

/* Doubles that are not negative are ordered as their bits are. */
static uint64_t key_of(const attree__segment *s)
{
    const int64_t tasks = s->batches * s->tiles * s->chunks;
    const double work = tasks > 0 ? s->work / (double)tasks : 0.0;
    uint64_t bits;
    memcpy(&bits, &work, sizeof bits);
    return ~bits;
}

static int byte_of(uint64_t key, int digit) { return (int)(key >> 8 * digit & 255u); }

/* By one byte of the keys; what is equal stays in order. ends[v]: how many keys have a byte of v. */
static void sort_digit(attree__rank *to, const attree__rank *from, int64_t count, int digit, int64_t *ends)
{
    int64_t at = 0;
    for (int v = 0; v < VALUES; v++) {
        const int64_t keys = ends[v];
        ends[v] = at;
        at += keys;
    }
    for (int64_t n = 0; n < count; n++)
        to[ends[byte_of(from[n].key, digit)]++] = from[n];
}

/* Returns which of the two arrays, ranks or room, holds the result. */
static attree__rank *sort_ranks(attree__rank *ranks, attree__rank *room, int64_t count)
{
    int64_t counts[DIGITS][VALUES] = {{0}};
    for (int64_t n = 0; n < count; n++)
        for (int d = 0; d < DIGITS; d++)
            counts[d][byte_of(ranks[n].key, d)]++;
    for (int d = 0; d < DIGITS; d++) {
        if (counts[d][byte_of(ranks[0].key, d)] == count) /* all alike */
            continue;
        sort_digit(room, ranks, count, d, counts[d]);
        attree__rank *const sorted = room;
        room = ranks;
        ranks = sorted;
    }
    return ranks;
}

/* Few: what the counts of a radix sort would cost is more than the sort. */
static void insert_ranks(attree__rank *ranks, int64_t count)
{
    for (int64_t n = 1; n < count; n++) {
        const attree__rank moved = ranks[n];
        int64_t at = n;
        for (; at > 0 && ranks[at - 1].key > moved.key; at--)
            ranks[at] = ranks[at - 1];
        ranks[at] = moved;
    }
}

/* Moves segment ranks[n].segment to place n, along the cycles of the permutation. */
static void permute(attree__segment *segments, int64_t count, attree__rank *ranks)
{
    for (int64_t n = 0; n < count; n++) {
        if (ranks[n].segment == n)
            continue;
        const attree__segment first = segments[n];
        int64_t at = n;
        while (ranks[at].segment != n) {
            const int64_t from = ranks[at].segment;
            segments[at] = segments[from];
            ranks[at].segment = at;
            at = from;
        }
        segments[at] = first;
        ranks[at].segment = at;
    }
}

void attree__order_segments(attree__segment *segments, int64_t count, attree__rank *ranks)
{
    bool sorted = true;
    for (int64_t n = 0; n < count; n++) {
        ranks[n] = (attree__rank){key_of(&segments[n]), n};
        sorted = sorted && (n == 0 || ranks[n - 1].key <= ranks[n].key);
    }
    if (sorted)
        return;
    attree__rank *ordered = ranks;
    if (count <= 64)
        insert_ranks(ranks, count);
    else
        ordered = sort_ranks(ranks, ranks + count, count);
    permute(segments, count, ordered);
}
