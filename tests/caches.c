/* See caches.h. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include "../src/dtype.h"
#include "caches.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PANEL = 16, BLOCK = 32 };

const int32_t quantised_types[QUANTISED_TYPES] = {ATTREE_I8, ATTREE_Q8_0, ATTREE_Q4_0, ATTREE_F8_E4M3, ATTREE_F8_E5M2};

_Static_assert(QUANTISED_TYPES == ATTREE__DTYPE_COUNT - ATTREE_I8, "quantised_types lacks a type");

bool has_blocks(int32_t type) { return type == ATTREE_Q8_0 || type == ATTREE_Q4_0; }

/* Bytes of what strides count. */
static int64_t unit_bytes(int32_t type) { return (int64_t)attree_row_bytes(type, has_blocks(type) ? BLOCK : 1); }

/* Units of a row that hold numbers; from one of them to the next. */
static int64_t row_units(const cache_layout *l) { return has_blocks(l->type) ? l->width / BLOCK : l->width; }
static int64_t spread(const cache_layout *l) { return l->spread ? 2 : 1; }

/* Steps of a page's tokens, or of its panels, and units of each. */
static int64_t steps(const cache_layout *l) { return l->panels ? (l->tokens + PANEL - 1) / PANEL : l->tokens; }
static int64_t step_units(const cache_layout *l) { return l->panels ? l->width * PANEL : row_units(l) * spread(l); }

static int64_t round_up(int64_t x, int64_t multiple) { return (x + multiple - 1) / multiple * multiple; }

static void map_pool(page_pool *pool, bool accessible)
{
    const int protection = accessible ? PROT_READ | PROT_WRITE : PROT_NONE;
    pool->mapping = mmap(NULL, pool->mapping_bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_true(pool->mapping != MAP_FAILED);
}

/* count pages of units, which are unit bytes each. */
static page_pool make_pool(const cache_layout *l, int64_t units, int64_t unit)
{
    const int64_t system = sysconf(_SC_PAGESIZE), bytes = units * unit;
    page_pool pool = {.bytes = bytes, .stride = bytes, .mapping_bytes = (size_t)(l->pages * bytes + 1)};
    if (!l->apart) {
        map_pool(&pool, true);
        memset(pool.mapping, 0xff, pool.mapping_bytes);
        pool.first = pool.mapping;
        return pool;
    }
    const int64_t inner = round_up(bytes, system), odd = unit % 2 == 0 && unit > 4 ? unit / 2 : 1;
    pool.stride = round_up(inner + system, system * odd);
    pool.mapping_bytes = (size_t)(l->pages * pool.stride + system);
    map_pool(&pool, false);
    pool.first = (char *)pool.mapping + system + (l->at_start ? 0 : inner - bytes);
    return pool;
}

cache make_cache(const cache_layout *l)
{
    cache c = {.layout = *l, .opened = calloc((size_t)l->pages + 1, sizeof(bool))};
    assert_non_null(c.opened);
    const int64_t unit = unit_bytes(l->type), units = step_units(l), count = steps(l);
    c.rows = make_pool(l, l->heads * count * units, unit);
    c.strides =
        l->token_major ? (attree_strides){0, units, l->heads * units, 1} : (attree_strides){0, count * units, units, 1};
    c.strides.width = spread(l);
    c.strides.batch = c.rows.stride / unit;
    if (l->type == ATTREE_I8) {
        c.scales = make_pool(l, l->heads * l->tokens, sizeof(float));
        c.scale_strides = l->token_major ? (attree_strides){0, 1, l->heads, 0} : (attree_strides){0, l->tokens, 1, 0};
        c.scale_strides.batch = c.scales.stride / (int64_t)sizeof(float);
    }
    return c;
}

void free_cache(cache *c)
{
    free(c->opened);
    munmap(c->rows.mapping, c->rows.mapping_bytes);
    if (c->scales.mapping)
        munmap(c->scales.mapping, c->scales.mapping_bytes);
}

void *cache_data(const cache *c) { return c->rows.first; }

float *cache_scales(const cache *c) { return (float *)(void *)c->scales.first; }

/* Makes a page of a pool accessible. */
static void open_page(const page_pool *pool, int64_t page)
{
    const int64_t system = sysconf(_SC_PAGESIZE);
    char *const at = pool->first + page * pool->stride, *const from = at - (uintptr_t)at % (uintptr_t)system;
    const size_t bytes = (size_t)round_up(at + pool->bytes - from, system);
    assert_int_equal(mprotect(from, bytes, PROT_READ | PROT_WRITE), 0);
    memset(from, 0xff, bytes);
}

/* The first byte of a row, and bytes from number (or block) to number. */
static char *row_at(const cache *c, cache_at at, int64_t *step)
{
    const cache_layout *l = &c->layout;
    const int64_t unit = unit_bytes(l->type);
    *step = (l->panels ? PANEL : spread(l)) * unit;
    int64_t units = at.page * c->strides.batch + at.head * c->strides.head;
    units += l->panels ? at.token / PANEL * c->strides.token + at.token % PANEL : at.token * c->strides.token;
    return c->rows.first + units * unit;
}

static float *scale_at(const cache *c, cache_at at)
{
    return cache_scales(c) + at.page * c->scale_strides.batch + at.head * c->scale_strides.head +
           at.token * c->scale_strides.token;
}

void cache_write(cache *c, cache_at at, const float *numbers)
{
    const cache_layout *l = &c->layout;
    if (l->apart && !c->opened[at.page]) {
        c->opened[at.page] = true;
        open_page(&c->rows, at.page);
        if (l->type == ATTREE_I8)
            open_page(&c->scales, at.page);
    }
    const int64_t unit = unit_bytes(l->type);
    int64_t step;
    char *const row = row_at(c, at, &step);
    char *const adjacent = malloc((size_t)(row_units(l) * unit) + 1);
    assert_non_null(adjacent);
    float *const scale = l->type == ATTREE_I8 ? scale_at(c, at) : NULL;
    if (l->type == ATTREE_F16 ||
        l->type == ATTREE_BF16) /* what is too large becomes infinite; attree_quantize refuses */
        for (int64_t i = 0; i < l->width; i++)
            attree__store(adjacent, l->type, i, numbers[i]);
    else
        assert_int_equal(attree_quantize(l->type, l->width, numbers, adjacent, scale), ATTREE_OK);
    for (int64_t n = 0; n < row_units(l); n++)
        memcpy(row + n * step, adjacent + n * unit, (size_t)unit);
    free(adjacent);
}

void cache_read(const cache *c, cache_at at, float *numbers)
{
    const cache_layout *l = &c->layout;
    const int64_t unit = unit_bytes(l->type);
    int64_t step;
    const char *const row = row_at(c, at, &step);
    char *const adjacent = malloc((size_t)(row_units(l) * unit) + 1);
    assert_non_null(adjacent);
    for (int64_t n = 0; n < row_units(l); n++)
        memcpy(adjacent + n * unit, row + n * step, (size_t)unit);
    const float scale = l->type == ATTREE_I8 ? *scale_at(c, at) : 0.0f;
    assert_int_equal(attree_dequantize(l->type, l->width, adjacent, scale, numbers), ATTREE_OK);
    free(adjacent);
}

void assert_same_caches(const cache *a, const cache *b)
{
    assert_true(a->rows.mapping_bytes == b->rows.mapping_bytes);
    assert_memory_equal(a->rows.mapping, b->rows.mapping, a->rows.mapping_bytes);
    if (a->scales.mapping)
        assert_memory_equal(a->scales.mapping, b->scales.mapping, a->scales.mapping_bytes);
}

void describe_keys(attree_desc *desc, const cache *k)
{
    desc->k_type = k->layout.type;
    desc->k = k->strides;
    desc->k_scales = k->scale_strides;
    desc->flags = k->layout.panels ? desc->flags | ATTREE_K_PANELS : desc->flags & ~ATTREE_K_PANELS;
}

void describe_values(attree_desc *desc, const cache *v)
{
    desc->v_type = v->layout.type;
    desc->v = v->strides;
    desc->v_scales = v->scale_strides;
}

void point_to_caches(attree_args *args, const cache *k, const cache *v)
{
    args->k = cache_data(k);
    args->v = cache_data(v);
    args->k_scales = cache_scales(k);
    args->v_scales = cache_scales(v);
}

const char *type_name(int32_t type) { return attree__dtypes[type].name; }
