/* The reader of .attncase files: any bytes are a case, or an error with a sentence. A case is what the library takes.
 */
#include <sys/mman.h>
#include <unistd.h>

#include <stdexcept>
#include <string>

#include "attncase.h"
#include "attree/attree.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const int file = memfd_create("case", 0);
    static const std::string path = "/proc/self/fd/" + std::to_string(file);
    FUZZ_REQUIRE(file >= 0 && ftruncate(file, 0) == 0);
    FUZZ_REQUIRE(pwrite(file, data, size, 0) == static_cast<ssize_t>(size));
    try {
        const bench::AttnCase result = bench::load_attncase(path);
        attree_plan *plan = nullptr;
        if (attree_plan_create(&plan, &result.desc) != ATTREE_OK)
            FUZZ_REQUIRE(attree_last_error()[0] != 0);
        attree_plan_destroy(plan);
    } catch (const std::runtime_error &error) {
        FUZZ_REQUIRE(error.what()[0] != 0);
    }
    return 0;
}
