/* Makes a problem that fails simpler. See shrink.h. */
#define _GNU_SOURCE
#include "shrink.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* What threads do differs from time to time. */
enum { TRIES = 600, THREAD_TRIES = 4, SECONDS = 15 };

char program_path[4096];

static bool fails_once(const fields *f)
{
    char text[4096];
    print_fields(f, text, sizeof text);
    const pid_t child = fork(); /* which runs this program anew: OpenMP does not survive a fork */
    if (child == 0) {
        const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
        dup2(nowhere, STDOUT_FILENO);
        dup2(nowhere, STDERR_FILENO);
        alarm(SECONDS);
        execl(program_path, program_path, "--fields", text, (char *)NULL);
        _exit(0);
    }
    int status = 0;
    return child > 0 && waitpid(child, &status, 0) == child && status != 0;
}

bool fails_alone(const fields *f)
{
    for (int n = f->threads > 1 ? THREAD_TRIES : 1; n > 0; n--)
        if (fails_once(f))
            return true;
    return false;
}

typedef struct shrinker {
    fields best;
    int64_t isas;
    int tries;
} shrinker;

/* Takes the value for field n when the problem still fails. */
static bool try_value(shrinker *s, int n, int64_t value)
{
    fields f = s->best;
    *field_of(&f, n) = value;
    mend_fields(&f, s->isas);
    if (field_value(&f, n) != value || memcmp(&f, &s->best, sizeof f) == 0 || s->tries >= TRIES)
        return false;
    s->tries++;
    if (!fails_alone(&f))
        return false;
    s->best = f;
    return true;
}

static bool try_bits(shrinker *s, int n)
{
    const int64_t value = field_value(&s->best, n);
    bool better = false;
    for (int bit = 0; bit < 40; bit++)
        if (value >> bit & 1 && value != (int64_t)1 << bit && try_value(s, n, (int64_t)1 << bit))
            return true;
    for (int bit = 0; bit < 40; bit++)
        if (field_value(&s->best, n) >> bit & 1)
            better = try_value(s, n, field_value(&s->best, n) & ~((int64_t)1 << bit)) || better;
    return better;
}

static bool try_field(shrinker *s, int n)
{
    const field_info *info = &field_table[n];
    const int64_t value = field_value(&s->best, n);
    if (value == info->simplest)
        return false;
    if (try_value(s, n, info->simplest))
        return true;
    switch (info->kind) {
    case FIELD_SIZE:
        for (int64_t less = (value - info->simplest) / 2; less != 0; less /= 2)
            if (try_value(s, n, value - less))
                return true;
        return try_value(s, n, value > info->simplest ? value - 1 : value + 1);
    case FIELD_BITS: return (value & (value - 1)) != 0 && try_bits(s, n);
    case FIELD_CHOICE: return value == 2 && try_value(s, n, 1);
    default:
        for (int64_t seed = 1; seed < 5; seed++)
            if (value >= 5 && try_value(s, n, seed))
                return true;
        return false;
    }
}

void shrink(fields *f, int64_t isas)
{
    shrinker s = {*f, isas, 0};
    for (bool better = true; better && s.tries < TRIES;) {
        better = false;
        for (int n = 0; n < FIELDS; n++)
            better = try_field(&s, n) || better;
    }
    *f = s.best;
}
