/* attree: what a machine has to do with the library, without writing a program. The manual page is attree.1. */
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>

#include "common.h"

namespace tool {

namespace {

const char help_text[] = R"(usage: attree info [--json]
       attree run [--threads N] [--isa NAME] [--tolerance X] [--output FILE] [--json] FILE
       attree verify [--threads N] [--isa NAME] [--expect HASH] [--json]
       attree bench [--quick] [--list] [--json] [--progress] [ARGUMENT ...]
       attree --help | --version

  info     the library's version, kernels, threads and caches of this machine, and whether its bits are right
  run      computes the attention of an .attncase file: the result, its error, its time
  verify   computes the golden hash with every instruction set and several numbers of threads, in a few seconds,
           and compares it with the one that all machines have
  bench    runs attree_bench, with a line about its progress on a terminal

  --threads N     workers; default: of run, OpenMP's number; of verify, 1, 3 and all
  --isa NAME      just these kernels: scalar, avx2, avx512 or neon
  --tolerance X   the largest absolute error that is in order; default: as the benchmark's
  --output FILE   writes o, raw f32 in the machine's byte order
  --expect HASH   another hash than that of this version, in hexadecimal
  --json          one JSON object on standard output

Exit status: 0, all is well; 1, other bits, an error too large, or a failure; 2, bad usage or a file that cannot be used.
ATTREE_ISA=scalar|avx2|avx512|neon caps the kernels of info, run and bench.
)";

int misuse(const std::string &problem)
{
    (void)std::fprintf(stderr, "attree: %s; see attree --help\n", problem.c_str());
    return misused;
}

bool is_help(const std::string &argument) { return argument == "--help" || argument == "-h"; }

int dispatch(int argc, char **argv)
{
    if (argc < 2) {
        (void)std::fputs(help_text, stderr);
        return misused;
    }
    const std::string command = argv[1];
    if (command == "--version") {
        (void)std::printf("attree %s\n", attree_version());
        return good;
    }
    if (command == "bench")
        return bench(argc - 2, argv + 2);
    if (is_help(command) || command == "help" || (argc > 2 && is_help(argv[2]))) {
        (void)std::fputs(help_text, stdout);
        return good;
    }
    Arguments arguments(argc - 2, argv + 2);
    if (command == "info")
        return info(arguments);
    if (command == "run")
        return run(arguments);
    if (command == "verify")
        return verify(arguments);
    return misuse("there is no command \"" + command + "\"");
}

} // namespace

int main(int argc, char **argv)
{
    try {
        const int status = dispatch(argc, argv);
        if (std::fflush(stdout) != 0)
            throw std::runtime_error("standard output cannot be written");
        return status;
    } catch (const UsageError &error) {
        return misuse(error.what());
    } catch (const std::exception &error) {
        (void)std::fprintf(stderr, "attree: %s\n", error.what());
        return bad;
    }
}

} // namespace tool

int main(int argc, char **argv) { return tool::main(argc, argv); }
