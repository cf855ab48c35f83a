/* fault_dlopen LIBRARY [TIMES]: loads the shared library, runs it on one and several threads, and unloads it, many
 * times over. A program of its own because nothing else in it uses OpenMP: whatever the library brings goes with it. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "attree/attree.h"

typedef attree_status (*attention_function)(const attree_desc *desc, const attree_args *args);

enum { KEYS = 5000, WIDTH = 32, HEADS = 2 };

static int fail(const char *what)
{
    fprintf(stderr, "%s\n", what);
    return 1;
}

/* Into o. Returns whether that worked. */
static int run(attention_function attention, int32_t threads, float *o)
{
    static float q[HEADS * WIDTH], k[KEYS * WIDTH], v[KEYS * WIDTH];
    for (int i = 0; i < KEYS * WIDTH; i++) {
        k[i] = (float)(i % 13 - 6) * 0.1f;
        v[i] = (float)(i % 17);
    }
    for (int i = 0; i < HEADS * WIDTH; i++)
        q[i] = (float)(i % 5 - 2) * 0.25f;
    const attree_desc desc = {.size = sizeof desc,
                              .batch = 1,
                              .q_heads = HEADS,
                              .kv_heads = 1,
                              .q_len = 1,
                              .kv_len = KEYS,
                              .qk_width = WIDTH,
                              .v_width = WIDTH,
                              .threads = threads};
    const attree_args args = {.size = sizeof args, .q = q, .k = k, .v = v, .o = o};
    return attention(&desc, &args) == ATTREE_OK;
}

/* One life of the library; threads == 0: it fails, and so makes its sentence about the error. */
static int live(const char *path, int32_t threads, float *o)
{
    void *const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return fail(dlerror());
    void *const symbol = dlsym(library, "attree_attention");
    attention_function attention;
    memcpy(&attention, &symbol, sizeof attention);
    if (!symbol || !run(attention, threads, o))
        return fail("it did not run");
    if (attention(NULL, NULL) != ATTREE_ERROR_NULL)
        return fail("it did not fail");
    return dlclose(library) == 0 ? 0 : fail(dlerror());
}

/* Mappings of this process. */
static int mappings(void)
{
    FILE *const maps = fopen("/proc/self/maps", "r");
    int lines = 0, c;
    while (maps && (c = getc(maps)) != EOF)
        lines += c == '\n';
    if (maps)
        (void)fclose(maps);
    return lines;
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return fail("usage: fault_dlopen LIBRARY [TIMES]");
    const int times = argc > 2 ? (int)strtol(argv[2], NULL, 10) : 100;
    float first[HEADS * WIDTH], o[HEADS * WIDTH];
    int before = 0;
    alarm(60);
    for (int n = 0; n < times; n++) {
        memset(o, 0xff, sizeof o);
        if (live(argv[1], n % 4 == 3 ? 3 : 1, n == 0 ? first : o) != 0)
            return 1;
        if (n > 0 && memcmp(first, o, sizeof o) != 0)
            return fail("other bits");
        if (n == times / 2)
            before = mappings();
    }
    /* A thread that OpenMP kept has a stack; a library that stayed has segments. */
    if (mappings() > before + 8)
        return fail("loading leaves mappings behind");
    return 0;
}
