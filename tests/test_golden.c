/* The golden hash: the same on every machine, compiler and instruction set. */
#include "../tools/golden.h"
#include "support.h"

static void every_instruction_set_gives_the_golden_hash(void **state)
{
    (void)state;
    attree_isa isas[8];
    const int count = available_isas(isas);
    for (int i = 0; i < count; i++) {
        uint64_t hash;
        assert_int_equal(attree_golden_hash(isas[i], 0, &hash), ATTREE_OK);
        if (hash != ATTREE_GOLDEN)
            fail_msg("instruction set %d: hash 0x%016llx is not the golden one", (int)isas[i],
                     (unsigned long long)hash);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_instruction_set_gives_the_golden_hash)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
