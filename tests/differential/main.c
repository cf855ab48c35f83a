/* Random problems with all features at once, in all forms of a call and with every instruction set, against the bits of
 * src/contract.c.
 *
 *     differential [--seconds N] [--count N] [--seed S] [--isa NAME] [--features] [--no-shrink]
 *     differential --one SEED
 *     differential --fields "name=value ..."
 *
 * Each problem has a seed of its own, from the first one and its number. One that fails is made simpler, each time in a
 * process of its own, and printed as the fields that are left. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "run.h"
#include "shrink.h"

enum { SECONDS_MOST = 120 }; /* for one problem, also under a sanitizer */

typedef struct options {
    int64_t seconds, count, isas;
    uint64_t seed, one;
    const char *fields;
    bool has_seed, has_one, features, no_shrink, crashed;
} options;

/* ---- Crashes ---- */

static struct {
    bool shrink;
    uint64_t seed;
    fields f;
} current;

static void say(const char *text)
{
    if (write(STDERR_FILENO, text, strlen(text)) < 0)
        _exit(2);
}

static void on_signal(int number)
{
    char room[24], text[4096], *digits = room + sizeof room - 1;
    uint64_t left = current.seed;
    *digits = 0;
    do
        *--digits = (char)('0' + left % 10);
    while ((left /= 10) > 0);
    print_fields(&current.f, text, sizeof text);
    say("problem ");
    say(digits);
    say(number == SIGALRM ? " does not end" : number == SIGABRT ? " aborts" : " touches memory that is not there");
    say("\n  --fields \"");
    say(text);
    say("\"\n");
    alarm(0); /* it would go on */
    if (current.shrink)
        execl(program_path, program_path, "--one", digits, "--crashed", (char *)NULL);
    _exit(2);
}

static void catch_signals(void)
{
    const struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_NODEFER};
    const int signals[] = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL, SIGALRM};
    for (size_t n = 0; n < sizeof signals / sizeof *signals; n++)
        sigaction(signals[n], &action, NULL);
}

/* So that what a sanitizer finds is a signal, too. */
const char *__asan_default_options(void);
const char *__asan_default_options(void) { return "abort_on_error=1"; }
const char *__ubsan_default_options(void);
const char *__ubsan_default_options(void) { return "abort_on_error=1:halt_on_error=1:print_stacktrace=1"; }

/* ---- Instruction sets ---- */

static const char *const isa_names[ISAS] = {"", "scalar", "avx2", "avx512", "neon", "", "", ""};

static int64_t find_isas(void)
{
    int64_t isas = 0;
    for (int32_t isa = ATTREE_ISA_SCALAR; isa < ISAS; isa++) {
        const attree_desc desc = {.size = sizeof desc, .q_heads = 1, .kv_heads = 1, .v_width = 1, .isa = isa};
        attree_plan *plan;
        if (attree_plan_create(&plan, &desc) == ATTREE_OK)
            isas |= (int64_t)1 << isa;
        attree_plan_destroy(plan);
    }
    return isas;
}

/* ---- Modes ---- */

static void print_counts(const counts *c, bool features)
{
    static const char *const tensor_names[] = {"q", "k", "v", "o"};
    static const char *const values[VALUES_KINDS] = {"plain", "nan",   "infinite", "subnormal", "largest",
                                                     "huge",  "equal", "integers", "wide"};
    printf("%" PRId64 " problems, %" PRId64 " too large", c->problems, c->too_large);
    for (int n = 0; n < ISAS; n++)
        if (c->isas[n])
            printf("; %s %" PRId64, isa_names[n], c->isas[n]);
    printf("\n");
    for (int n = 0; n < CALL_FORMS; n++)
        printf("%s %" PRId64 "; ", call_names[n], c->calls[n]);
    printf("weights %" PRId64 "; append %" PRId64 "; plans of two phases %" PRId64 "\n", c->weights, c->appended,
           c->two_phases);
    for (int t = 0; t < 4 && features; t++) {
        printf("%s:", tensor_names[t]);
        for (int n = 0; n < ATTREE__DTYPE_COUNT; n++)
            if (c->types[t][n])
                printf(" %s %" PRId64, attree__dtypes[n].name, c->types[t][n]);
        printf("%s", t < 3 ? "; " : "\n");
    }
    for (int n = 0; n < VALUES_KINDS && features; n++)
        printf("%s %" PRId64 "%s", values[n], c->values[n], n < VALUES_KINDS - 1 ? "; " : "\n");
    for (int n = 0; n < FIELDS && features; n++)
        printf("%s %" PRId64 "%s", field_table[n].name, c->with[n], n < FIELDS - 1 ? "; " : "\n");
}

static void print_problem(const char *what, const fields *f)
{
    char text[4096];
    print_fields(f, text, sizeof text);
    printf("%s\n  --fields \"%s\"\n", what, text);
    (void)fflush(stdout);
}

static int run_fields(const fields *f)
{
    char message[MESSAGE];
    counts c = {0};
    current.f = *f;
    const unsigned given = alarm(SECONDS_MOST); /* by the process that makes problems simpler */
    if (given > 0)
        alarm(given);
    if (run_problem(f, &c, message)) {
        printf("no difference\n");
        return 0;
    }
    printf("%s\n", message);
    return 1;
}

static void shrink_and_print(fields f, int64_t isas)
{
    if (!fails_alone(&f)) {
        print_problem("By itself it does not fail:", &f);
        return;
    }
    shrink(&f, isas);
    print_problem("Made simpler:", &f);
}

static int run_one(const options *o)
{
    fields f = draw_problem(o->one, o->isas);
    print_problem("The problem is:", &f);
    if (o->crashed) {
        shrink_and_print(f, o->isas);
        return 1;
    }
    if (!fails_alone(&f)) {
        printf("no difference\n");
        return 0;
    }
    if (!o->no_shrink)
        shrink_and_print(f, o->isas);
    return 1;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int run_many(const options *o)
{
    const char *const variable = getenv("ATTREE_TEST_THIN");
    const int64_t thin = variable && atoi(variable) > 1 ? atoi(variable) : 1;
    counts c = {0};
    char message[MESSAGE];
    const double end = now() + (double)o->seconds;
    printf("first seed %" PRIu64 "\n", o->seed);
    (void)fflush(stdout);
    for (int64_t n = 0; (o->count == 0 || n < o->count) && (o->seconds == 0 || now() < end); n += thin) {
        current.seed = mix(mix(o->seed) + (uint64_t)n);
        current.f = draw_problem(current.seed, o->isas);
        alarm(SECONDS_MOST);
        if (run_problem(&current.f, &c, message))
            continue;
        alarm(0);
        printf("problem %" PRIu64 ": %s\n", current.seed, message);
        print_problem("The problem is:", &current.f);
        if (!o->no_shrink)
            shrink_and_print(current.f, o->isas);
        return 1;
    }
    print_counts(&c, o->features);
    return 0;
}

/* ---- The command line ---- */

static bool read_isa(const char *name, int64_t *isas)
{
    for (int n = 1; n < ISAS; n++)
        if (strcmp(name, isa_names[n]) == 0 && *isas >> n & 1) {
            *isas = (int64_t)1 << n;
            return true;
        }
    return false;
}

/* An option that has a value. */
static bool read_value(options *o, const char *name, const char *value)
{
    if (strcmp(name, "--fields") == 0) {
        o->fields = value;
        return true;
    }
    if (strcmp(name, "--isa") == 0)
        return read_isa(value, &o->isas);
    char *end;
    const uint64_t number = strtoull(value, &end, 10);
    if (*end || end == value)
        return false;
    if (strcmp(name, "--seconds") == 0)
        o->seconds = (int64_t)number;
    else if (strcmp(name, "--count") == 0)
        o->count = (int64_t)number;
    else if (strcmp(name, "--seed") == 0) {
        o->seed = number;
        o->has_seed = true;
    } else if (strcmp(name, "--one") == 0) {
        o->one = number;
        o->has_one = true;
    } else
        return false;
    return true;
}

static bool read_options(options *o, int count, char **arguments)
{
    for (int n = 1; n < count; n++) {
        if (strcmp(arguments[n], "--features") == 0)
            o->features = true;
        else if (strcmp(arguments[n], "--no-shrink") == 0)
            o->no_shrink = true;
        else if (strcmp(arguments[n], "--crashed") == 0)
            o->crashed = true;
        else if (n + 1 == count || !read_value(o, arguments[n], arguments[n + 1])) {
            (void)fprintf(stderr, "differential: %s is not understood, or its value is not\n", arguments[n]);
            return false;
        } else
            n++;
    }
    if (!o->has_seed) {
        struct timespec t;
        clock_gettime(CLOCK_REALTIME, &t);
        o->seed = mix((uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec) >> 32;
    }
    if (o->seconds == 0 && o->count == 0)
        o->seconds = 60;
    return true;
}

int main(int argument_count, char **arguments)
{
    options o = {.isas = find_isas()};
    const int64_t isas = o.isas;
    if (!read_options(&o, argument_count, arguments))
        return 3;
    if (readlink("/proc/self/exe", program_path, sizeof program_path - 1) < 0 || !memory_open()) {
        (void)fprintf(stderr, "differential: no memory\n");
        return 3;
    }
    catch_signals();
    if (o.fields) {
        fields f;
        const char *wrong = "";
        if (!read_fields(&f, o.fields, &wrong)) {
            (void)fprintf(stderr, "differential: the fields are wrong from \"%s\" on\n", wrong);
            return 3;
        }
        mend_fields(&f, isas);
        return run_fields(&f);
    }
    if (o.has_one)
        return run_one(&o);
    current.shrink = !o.no_shrink;
    return run_many(&o);
}
