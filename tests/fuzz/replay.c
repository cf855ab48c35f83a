/* Runs a fuzz target on the files given, and on all files of the directories given: the corpus as a test. */
#define _POSIX_C_SOURCE 200809L
#include <dirent.h>
#include <sys/stat.h>

#include "fuzz.h"

static int fail(const char *path, const char *what)
{
    fprintf(stderr, "%s: %s\n", path, what);
    return -1;
}

/* Returns how many inputs ran, or -1. */
static int run_file(const char *path, off_t bytes)
{
    uint8_t *const data = malloc((size_t)bytes + 1);
    FILE *const file = fopen(path, "rb");
    const size_t got = file && data ? fread(data, 1, (size_t)bytes, file) : 0;
    if (file)
        (void)fclose(file);
    const bool right = file && got == (size_t)bytes;
    if (right) { /* in memory of its size, for sanitizers */
        uint8_t *const exact = malloc(got);
        memcpy(exact, data, got);
        (void)LLVMFuzzerTestOneInput(exact, got);
        free(exact);
    }
    free(data);
    return right ? 1 : fail(path, "cannot be read");
}

static int run_path(const char *path)
{
    struct stat found;
    if (stat(path, &found) != 0)
        return fail(path, "is not there");
    if (!S_ISDIR(found.st_mode))
        return run_file(path, found.st_size);
    DIR *const directory = opendir(path);
    if (!directory)
        return fail(path, "cannot be read");
    int count = 0;
    for (const struct dirent *entry; count >= 0 && (entry = readdir(directory));) {
        char inside[4096];
        if (entry->d_name[0] == '.')
            continue;
        (void)snprintf(inside, sizeof inside, "%s/%s", path, entry->d_name);
        const int ran = stat(inside, &found) == 0 ? run_file(inside, found.st_size) : fail(inside, "is not there");
        count = ran < 0 ? -1 : count + ran;
    }
    (void)closedir(directory);
    return count;
}

int main(int argc, char **argv)
{
    int count = 0;
    for (int n = 1; n < argc; n++) {
        const int ran = run_path(argv[n]);
        if (ran < 0)
            return 1;
        count += ran;
    }
    printf("%d inputs\n", count);
    return count > 0 ? 0 : 1;
}
