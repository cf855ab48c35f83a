/* See model.h. */
#include "model.h"

#include <math.h>

#include "tools.h"

float *matrix_at(const matrix *w, int64_t input, int64_t output)
{
    return &w->panels[(output / PANEL * w->inputs + input) * PANEL + output % PANEL];
}

/* Weights that keep the variance of what they multiply. */
static matrix random_matrix(arena *a, int64_t inputs, int64_t outputs, uint64_t *random)
{
    const matrix w = {inputs, outputs, floats(a, pieces(outputs, PANEL) * inputs * PANEL)};
    const float size = sqrtf(3.0f / (float)inputs);
    for (int64_t n = 0; n < outputs; n++)
        for (int64_t c = 0; c < inputs; c++)
            *matrix_at(&w, c, n) = size * next_random(random);
    return w;
}

static float *random_norm(arena *a, int64_t width, uint64_t *random)
{
    float *const weights = floats(a, width);
    for (int64_t c = 0; c < width; c++)
        weights[c] = 1.0f + 0.25f * next_random(random);
    return weights;
}

model make_model(arena *a, const options *o)
{
    uint64_t random = 0x9E3779B97F4A7C15U * (uint64_t)(o->seed + 1);
    const int64_t head_width = o->width / o->heads;
    model m = {.layers = allocate(a, o->layers, sizeof(layer_weights))};
    for (int64_t i = 0; i < o->layers; i++) {
        layer_weights *const l = &m.layers[i];
        l->attention_norm = random_norm(a, o->width, &random);
        l->qkv = random_matrix(a, o->width, (o->heads + 2 * o->groups) * head_width, &random);
        l->attention_out = random_matrix(a, o->width, o->width, &random);
        l->mlp_norm = random_norm(a, o->width, &random);
        l->gate_up = random_matrix(a, o->width, 2 * o->hidden, &random);
        l->down = random_matrix(a, o->hidden, o->width, &random);
    }
    m.final_norm = random_norm(a, o->width, &random);
    m.head = random_matrix(a, o->width, o->vocabulary, &random);
    m.embedding = o->tied ? m.head : random_matrix(a, o->width, o->vocabulary, &random);
    return m;
}
