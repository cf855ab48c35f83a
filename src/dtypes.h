/* Every element type, once. What else a new one needs is in CONTRIBUTING.md, "A new element type". */
#ifndef ATTREE_DTYPES_H
#define ATTREE_DTYPES_H

/* X(enumerator after ATTREE_, name, bytes of a unit, numbers of a unit, scales), in the order of attree_dtype. A unit
 * is a number, or a block of them. */

/* Types of any tensor. */
#define ATTREE__FLOAT_DTYPES(X)                                                                                        \
    X(F32, f32, 4, 1, ATTREE__NO_SCALE)                                                                                \
    X(F16, f16, 2, 1, ATTREE__NO_SCALE)                                                                                \
    X(BF16, bf16, 2, 1, ATTREE__NO_SCALE)

/* Types of K and V alone. */
#define ATTREE__CACHE_DTYPES(X)                                                                                        \
    X(I8, i8, 1, 1, ATTREE__ROW_SCALE)                                                                                 \
    X(Q8_0, q8_0, 34, 32, ATTREE__BLOCK_SCALE)                                                                         \
    X(Q4_0, q4_0, 18, 32, ATTREE__BLOCK_SCALE)                                                                         \
    X(F8_E4M3, f8, 1, 1, ATTREE__NO_SCALE)                                                                             \
    X(F8_E5M2, f8_e5m2, 1, 1, ATTREE__NO_SCALE)

#define ATTREE__DTYPES(X) ATTREE__FLOAT_DTYPES(X) ATTREE__CACHE_DTYPES(X)

/* Whether numbers are integers times a scale: of the row, which lies beside it, or of the block. */
typedef enum attree__scales { ATTREE__NO_SCALE, ATTREE__ROW_SCALE, ATTREE__BLOCK_SCALE } attree__scales;

#endif /* ATTREE_DTYPES_H */
