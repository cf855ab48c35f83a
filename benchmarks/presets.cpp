/* Shapes of real models. See presets.h. */
#include "presets.h"

#include <set>

#include "machine.h"

namespace bench {

namespace {

struct Heads {
    std::int64_t q_heads, kv_heads, width;
};

constexpr Heads llama_3_8b = {32, 8, 128};
constexpr Heads qwen_2_5_05b = {14, 2, 64};
constexpr Heads gpt_2 = {12, 12, 64};
constexpr Heads whisper_base = {8, 8, 64};
constexpr std::int64_t whisper_frames = 1500; // its encoder sees 30 s of sound at once, without a mask

Shape decode(attree_dtype type, Heads heads, std::int64_t keys)
{
    return {Phase::decode, type, heads.q_heads, heads.kv_heads, heads.width, 1, keys, false, 1, false};
}

Shape prefill(attree_dtype type, Heads heads, std::int64_t tokens, bool causal)
{
    return {Phase::prefill, type, heads.q_heads, heads.kv_heads, heads.width, tokens, tokens, causal, 1, false};
}

std::vector<Shape> on_threads(const std::vector<Shape> &shapes, const std::vector<int> &counts)
{
    std::vector<Shape> all;
    for (Shape shape : shapes)
        for (const int threads : counts) {
            shape.threads = threads;
            all.push_back(shape);
        }
    return all;
}

} // namespace

std::vector<Shape> default_shapes()
{
    std::vector<Shape> shapes;
    for (const attree_dtype type : {ATTREE_F32, ATTREE_F16}) {
        for (const std::int64_t keys : {2048, 8192})
            shapes.push_back(decode(type, llama_3_8b, keys));
        for (const std::int64_t tokens : {512, 1024})
            shapes.push_back(prefill(type, llama_3_8b, tokens, true));
    }
    for (const Heads heads : {qwen_2_5_05b, gpt_2}) {
        shapes.push_back(decode(ATTREE_F32, heads, 8192));
        shapes.push_back(prefill(ATTREE_F32, heads, 1024, true));
    }
    shapes.push_back(prefill(ATTREE_F32, whisper_base, whisper_frames, false));
    return on_threads(shapes, thread_counts());
}

std::vector<Shape> short_shapes()
{
    const std::set<int> counts = {1, processor_count()};
    return on_threads({decode(ATTREE_F32, llama_3_8b, 8192), decode(ATTREE_F16, llama_3_8b, 8192),
                       decode(ATTREE_F32, qwen_2_5_05b, 8192), prefill(ATTREE_F32, llama_3_8b, 512, true),
                       prefill(ATTREE_F32, whisper_base, whisper_frames, false)},
                      std::vector<int>(counts.begin(), counts.end()));
}

} // namespace bench
