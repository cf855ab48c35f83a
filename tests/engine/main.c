/* The command line of the engine. */
#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attree/attree.h"
#include "engine.h"

typedef struct option {
    const char *name;
    size_t field;
    int64_t usual, least, most; /* least > most: a switch */
    const char *help;
} option;

#define FIELD(name) #name, offsetof(options, name)
static const option option_list[] = {
    {FIELD(layers), 4, 1, 1000, "of the model"},
    {FIELD(heads), 8, 1, 1000, "query heads"},
    {FIELD(groups), 2, 1, 1000, "key/value heads; divides the heads"},
    {FIELD(width), 512, 2, 1 << 20, "of the model; a multiple of twice the heads"},
    {FIELD(hidden), 1024, 1, 1 << 20, "width of the MLP"},
    {FIELD(vocabulary), 512, 1, 1 << 20, "tokens that there are"},
    {FIELD(tied), 0, 1, 0, "the output head is the embedding"},
    {FIELD(seed), 1, 0, 1 << 30, "of weights and prompts"},
    {FIELD(requests), 6, 1, 1 << 20, "how many there are; one comes every third step"},
    {FIELD(only), -1, 0, 1 << 20, "only this one of them, alone"},
    {FIELD(prompt), 100, 1, 1 << 24, "tokens of the longest prompt"},
    {FIELD(tokens), 16, 1, 1 << 24, "to generate for each request"},
    {FIELD(batch), 4, 1, 1 << 16, "requests that are served at once"},
    {FIELD(chunk), 32, 0, 1 << 24, "prompt tokens of a request in a step; 0: all"},
    {FIELD(threads), 2, 1, 1024, "of matrix products and attention"},
    {FIELD(page), 16, 1, 1 << 24, "tokens of a page of the cache"},
    {FIELD(panels), 0, 1, 0, "keys in panels of 16"},
    {FIELD(naive), 0, 1, 0, "attention by straight loops instead of attree"},
    {FIELD(compare), 0, 1, 0, "attree and the straight loops, and how far apart they are"},
    {FIELD(bench), 0, 1, 0, "decode after 1024, 8192 and 32768 random keys"},
};
enum { OPTIONS = sizeof option_list / sizeof *option_list };

static int64_t *option_field(options *o, const option *of) { return (int64_t *)(void *)((char *)o + of->field); }

static void print_help(void)
{
    printf("Usage: engine [option ...]\n\nA small transformer with random weights answers requests with random "
           "prompts. Prints the tokens of each and a hash\nof the logits at all its positions.\n\n");
    for (int i = 0; i < OPTIONS; i++)
        if (option_list[i].least > option_list[i].most)
            printf("  --%-13s %s\n", option_list[i].name, option_list[i].help);
        else
            printf("  --%-11s n %s (%" PRId64 ")\n", option_list[i].name, option_list[i].help, option_list[i].usual);
    printf("  --type        t of cached keys and values (f32):");
    for (int i = 0; i < TYPES; i++)
        printf(" %s", type_names[i]);
    printf("\n\nATTREE_ISA=scalar|avx2|avx512|neon caps attree's kernels.\n");
}

static int32_t type_of(const char *name)
{
    for (int32_t i = 0; i < TYPES; i++)
        if (strcmp(name, type_names[i]) == 0)
            return i;
    die("unknown type", name);
}

static options usual_options(void)
{
    options o = {.type = ATTREE_F32};
    for (int i = 0; i < OPTIONS; i++)
        *option_field(&o, &option_list[i]) = option_list[i].usual;
    return o;
}

/* Returns how many arguments it was. */
static int parse_option(options *o, const char *name, const char *value)
{
    const bool has_name = strncmp(name, "--", 2) == 0;
    if (has_name && value && strcmp(name + 2, "type") == 0) {
        o->type = type_of(value);
        return 2;
    }
    for (int i = 0; i < OPTIONS && has_name; i++) {
        const option *const of = &option_list[i];
        if (strcmp(name + 2, of->name) != 0)
            continue;
        if (of->least > of->most) {
            *option_field(o, of) = 1;
            return 1;
        }
        char *end = NULL;
        const long long number = value ? strtoll(value, &end, 10) : 0;
        if (!value || end == value || *end != '\0' || number < of->least || number > of->most)
            die("not a possible value", name);
        *option_field(o, of) = number;
        return 2;
    }
    die("unknown argument, or one without its value; see --help", name);
}

static void check_options(const options *o)
{
    if (o->heads % o->groups != 0)
        die("heads must be a multiple of groups", "");
    if (o->width % (2 * o->heads) != 0)
        die("width must be a multiple of twice the heads", "");
    if (o->panels && o->page % 16 != 0)
        die("panels need a page that is a multiple of 16", "");
}

static void print_answers(const answers *all)
{
    uint64_t hash = 0;
    for (int64_t i = 0; i < all->count; i++) {
        const request *const r = &all->requests[i];
        printf("request %" PRId64 ": prompt %" PRId64 ", logits %016" PRIx64 ", tokens", r->id, r->prompt, r->hash);
        for (int64_t n = r->prompt; n < r->goal; n++)
            printf(" %" PRId32, r->tokens[n]);
        printf("\n");
        hash = hash_words(hash, &r->hash, 2);
    }
    printf("all logits: %016" PRIx64 "\n", hash);
    (void)fprintf(stderr, "%" PRId64 " steps in %.2f s, %.0f %% of it in attention\n", all->steps, all->seconds,
                  100 * all->attention_seconds / all->seconds);
}

int main(int argc, char **argv)
{
    options o = usual_options();
    for (int i = 1; i < argc;) {
        if (strcmp(argv[i], "--help") == 0) {
            print_help();
            return 0;
        }
        i += parse_option(&o, argv[i], argv[i + 1]);
    }
    check_options(&o);
    if (o.bench) {
        bench(&o);
        return 0;
    }
    if (o.compare) {
        const comparison c = compare_paths(&o);
        printf("%" PRId64 " positions, the same token at %" PRId64 "; logits differ by at most %.3g\n", c.positions,
               c.same_tokens, c.difference);
        return 0;
    }
    answers all = answer(&o);
    print_answers(&all);
    free_arena(&all.memory);
    return 0;
}
