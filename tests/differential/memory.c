/* Guarded memory. See memory.h. */
#define _GNU_SOURCE
#include "memory.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MARGIN = 256 };

typedef struct room {
    char *write, *read; /* capacity bytes each */
    const unsigned char *margin;
    int fill;
} room;

static room rooms[SLOTS];
static const size_t capacity = (size_t)64 << 20;

/* A view of the file with a page on each side that may not be accessed. */
static char *map_view(int file, int protection)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *const all = mmap(NULL, capacity + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED ||
        mmap(all + page, capacity, protection, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, file, 0) == MAP_FAILED)
        return NULL;
    return all + page;
}

bool memory_open(void)
{
    for (int n = 0; n < SLOTS; n++) {
        const int file = memfd_create("differential", MFD_CLOEXEC);
        if (file < 0 || ftruncate(file, (off_t)capacity) != 0)
            return false;
        rooms[n].write = map_view(file, PROT_READ | PROT_WRITE);
        rooms[n].read = map_view(file, PROT_READ);
        close(file);
        if (!rooms[n].write || !rooms[n].read)
            return false;
    }
    return true;
}

char *memory_take(slot n, size_t bytes, bool at_start, int fill)
{
    room *const r = &rooms[n];
    if (bytes + MARGIN > capacity)
        return NULL;
    char *const from = at_start ? r->write : r->write + capacity - bytes - MARGIN;
    memset(from, fill, bytes + MARGIN);
    r->margin = (const unsigned char *)(at_start ? from + bytes : from);
    r->fill = fill;
    return at_start ? from : from + MARGIN;
}

const char *memory_read_only(slot n, const char *writable) { return writable - rooms[n].write + rooms[n].read; }

bool memory_margin_is_kept(slot n)
{
    for (int i = 0; i < MARGIN; i++)
        if (rooms[n].margin[i] != rooms[n].fill)
            return false;
    return true;
}
