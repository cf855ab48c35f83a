/* The model of the engine: weights. */
#ifndef ATTREE_TESTS_MODEL_H
#define ATTREE_TESTS_MODEL_H

#include <stdint.h>

#include "engine.h"

/* A matrix that multiplies rows from the right: inputs x outputs, in panels of 64 outputs, [panel][input][64]. Outputs
 * beyond the last are zeros. */
enum { PANEL = 64 };
typedef struct matrix {
    int64_t inputs, outputs;
    float *panels;
} matrix;

typedef struct layer_weights {
    float *attention_norm, *mlp_norm; /* [width] */
    matrix qkv;                       /* width -> H queries, G keys, G values, each of the head's width */
    matrix attention_out;             /* H * head width -> width */
    matrix gate_up, down;             /* width -> 2 * hidden; hidden -> width */
} layer_weights;

typedef struct model {
    layer_weights *layers;
    float *final_norm;
    matrix embedding, head; /* width -> vocabulary; the same memory when tied */
} model;

float *matrix_at(const matrix *w, int64_t input, int64_t output);

/* Random weights, from the seed. */
model make_model(arena *a, const options *o);

#endif /* ATTREE_TESTS_MODEL_H */
