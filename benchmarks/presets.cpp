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
constexpr Heads llama_2_quarter = {8, 8, 128}; // a query head for each key/value head
constexpr Heads small = {4, 2, 64};

constexpr attree_dtype quantised[] = {ATTREE_I8, ATTREE_Q8_0, ATTREE_Q4_0, ATTREE_F8_E4M3, ATTREE_F8_E5M2};
constexpr std::int64_t page_sizes[] = {1, 16, 256};

constexpr std::int64_t whisper_frames = 1500; // its encoder sees 30 s of sound at once, without a mask

Shape decode(attree_dtype type, Heads heads, std::int64_t keys)
{
    return {Phase::decode, type, heads.q_heads, heads.kv_heads, heads.width, 1, keys, false, 1, false};
}

Shape prefill(attree_dtype type, Heads heads, std::int64_t tokens, bool causal)
{
    return {Phase::prefill, type, heads.q_heads, heads.kv_heads, heads.width, tokens, tokens, causal, 1, false};
}

Shape ragged(attree_dtype type, Heads heads, const std::vector<Alike> &mix)
{
    Shape shape{Phase::ragged, type, heads.q_heads, heads.kv_heads, heads.width, 1, 1, true, 1, false};
    shape.mix = mix;
    return shape;
}

Shape paged(Shape shape, std::int64_t page)
{
    shape.page = page;
    return shape;
}

Shape panelled(Shape shape)
{
    shape.panels = true;
    return shape;
}

Shape by_tokens(Shape shape)
{
    shape.tokens = true;
    return shape;
}

Shape hot(Shape shape)
{
    shape.hot = true;
    return shape;
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

std::vector<Shape> serving_shapes()
{
    const std::vector<Alike> uneven = {{1, 1, 100000}, {30, 1, 100}};
    const std::vector<Alike> continuous = {{16, 1, 2048}, {2, 256, 2048}, {1, 512, 512}};
    std::vector<Shape> shapes;
    for (const attree_dtype type : {ATTREE_F32, ATTREE_F16}) {
        for (const std::int64_t page : page_sizes)
            shapes.push_back(paged(decode(type, llama_3_8b, 8192), page));
        shapes.push_back(panelled(decode(type, llama_3_8b, 8192)));
        shapes.push_back(panelled(paged(decode(type, llama_3_8b, 8192), 16)));
        shapes.push_back(panelled(prefill(type, llama_3_8b, 512, true)));
        shapes.push_back(by_tokens(decode(type, llama_3_8b, 8192)));
    }
    for (const attree_dtype type : quantised)
        shapes.push_back(decode(type, llama_2_quarter, 65536));
    shapes.push_back(paged(decode(ATTREE_Q8_0, llama_3_8b, 8192), 16));
    shapes.push_back(ragged(ATTREE_F16, llama_2_quarter, uneven));
    shapes.push_back(paged(ragged(ATTREE_F16, llama_2_quarter, uneven), 16));
    shapes.push_back(ragged(ATTREE_F16, llama_3_8b, continuous));
    shapes.push_back(paged(ragged(ATTREE_Q8_0, llama_3_8b, continuous), 16));
    return on_threads(shapes, thread_counts());
}

std::vector<Shape> short_serving_shapes()
{
    const std::vector<Alike> uneven = {{1, 1, 3000}, {30, 1, 100}};
    const std::vector<Alike> continuous = {{5, 1, 700}, {2, 40, 300}, {1, 50, 50}};
    std::vector<Shape> shapes;
    for (const attree_dtype type : quantised)
        shapes.push_back(hot(decode(type, small, 2000)));
    for (const std::int64_t page : page_sizes)
        shapes.push_back(hot(paged(decode(ATTREE_F16, small, 2000), page)));
    shapes.push_back(hot(panelled(paged(decode(ATTREE_I8, small, 2000), 16))));
    shapes.push_back(panelled(prefill(ATTREE_BF16, small, 100, true)));
    shapes.push_back(hot(by_tokens(decode(ATTREE_I8, small, 2000))));
    shapes.push_back(hot(by_tokens(paged(decode(ATTREE_Q8_0, small, 2000), 16))));
    shapes.push_back(ragged(ATTREE_F32, small, uneven));
    shapes.push_back(hot(paged(ragged(ATTREE_Q8_0, small, continuous), 16)));
    return on_threads(shapes, {2});
}

} // namespace bench
