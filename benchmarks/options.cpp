/* Taking our options out of the command line. See options.h. */
#include "options.h"

#include <charconv>
#include <stdexcept>

namespace bench {

const char help_text[] =
    R"(attree_bench: speed and accuracy of attree, as fractions of what this machine can do

attree_bench [[--serving] [--short] | --masks | --shape NAME ... --case FILE ...] [--tolerance X] [--no-unfused]
             [Google Benchmark's options]

  (none)         cases of real models on 1, 2, 4, ... threads, and the machine's limits
  --short        a few of them, in well under a minute
  --serving      caches as servers keep them instead: in pages, panels, tokens, quantised, ragged batches
  --masks        masks and biases as tensors beside the same visibility by a flag or none: a table of ratios
  --shape NAME   just this case; may be repeated. NAME is
                 <decode|prefill>/<K,V type>/H<h>/G<g>/D<d>/Q<q>/K<k>/<full|causal>/T<threads>[layout]
                 ragged/<K,V type>/H<h>/G<g>/D<d>/<mix>/T<threads>[layout]
                 H query heads, G key/value heads, D width, Q queries, K keys; types: f32, f16,
                 bf16, i8, q8_0, q4_0, f8, f8_e5m2 (Q and O are f32). For example
                 decode/f16/H32/G8/D128/Q1/K8192/full/T2
                 Decode and ragged go through copies of K and V that exceed the caches.
                 mix: <count>x<keys> or <count>x<queries>q<keys>, joined by +; causal. For example
                 ragged/q8_0/H8/G8/D128/1x100000+30x100/T2/page16
                 layout: [/page<n>][/panels|/tokens][/hot]; pages of n tokens, K in panels of 16
                 keys, or the heads of a token beside each other; hot stays on one copy
  --case FILE    the tensors of an .attncase file, on 1, 2, 4, ... threads; may be repeated
  --tolerance X  the largest absolute error that is in order. By default 2e-6, or 2e-3 for files in f16, times
                 the largest output if that is more than 1
  --no-unfused   without the comparison with OpenBLAS: sgemm, softmax, sgemm, in f32
  --help         this

Counters: GFLOPs of the pairs of query and key that are visible, GBs of K and V read once, of_peak and of_bandwidth
(fractions of the FMA peak and of the read bandwidth on the same number of threads, measured in turn with the case),
max_error (absolute: against double precision on some rows, or against a file's expected output). Of shapes, when
libopenblas.so.0 is found and scores fit 2 GiB: vs_unfused (the time that OpenBLAS takes over the time of attree, measured
in turn on the same number of threads), memory_mb (attree's workspace) and unfused_mb (the scores), in 10^6 bytes.
Of caches in pages, panels or tokens, quantised or ragged instead, all measured in turn: vs_dense and vs_f16 (the time
of the same case dense and head by head, or with f16, over its own: more than 1 is faster), of_pages (the fraction of what
merely reading pages of this size in random order gives), error_vs_f32 (absolute, against attention over the f32 numbers
that the cache was made of). Of ragged ones on several threads: balance_raw (threads * time over the time on one thread; 1
is perfect), balance (1 is as good as the machine's bandwidth or FMA peak, whichever is nearer, scales from one thread),
scaling_read and scaling_fma (how these scale).
The exit status is not 0 when anything fails or an error is too large.
ATTREE_ISA=scalar|avx2|avx512|neon caps the instruction set of attree and of the peak, but not of OpenBLAS.

)";

namespace {

/* "--name VALUE" or "--name=VALUE", at argv[*n]; steps over the value. */
bool take_value(int argc, char **argv, int *n, const std::string &name, std::string *value)
{
    const std::string argument = argv[*n];
    if (argument == name) {
        if (*n + 1 >= argc)
            throw std::invalid_argument(name + " needs a value");
        *value = argv[++*n];
        return true;
    }
    if (argument.compare(0, name.size() + 1, name + "=") != 0)
        return false;
    *value = argument.substr(name.size() + 1);
    return true;
}

double parse_tolerance(const std::string &text)
{
    double value = 0.0;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || stop != text.data() + text.size() || !(value >= 0.0))
        throw std::invalid_argument("--tolerance is \"" + text + "\"; it must be a number, at least 0");
    return value;
}

} // namespace

Options parse_options(int argc, char **argv)
{
    Options options;
    options.rest.push_back(argc > 0 ? argv[0] : "attree_bench");
    for (int n = 1; n < argc; n++) {
        const std::string argument = argv[n];
        std::string value;
        if (take_value(argc, argv, &n, "--shape", &value))
            options.shapes.push_back(parse_shape(value));
        else if (take_value(argc, argv, &n, "--case", &value))
            options.cases.push_back(value);
        else if (take_value(argc, argv, &n, "--tolerance", &value))
            options.tolerance = parse_tolerance(value);
        else if (argument == "--short")
            options.short_set = true;
        else if (argument == "--serving")
            options.serving = true;
        else if (argument == "--masks")
            options.masks = true;
        else if (argument == "--no-unfused")
            options.unfused = false;
        else if (argument == "--help" || argument == "-h")
            options.help = true;
        else
            options.rest.push_back(argument);
    }
    if ((options.short_set || options.serving) && !(options.shapes.empty() && options.cases.empty()))
        throw std::invalid_argument("--short and --serving are sets of their own; leave out --shape and --case");
    return options;
}

} // namespace bench
