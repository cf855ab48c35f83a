/* Loading and calling OpenBLAS. See openblas.h. */
#include "openblas.h"

#include <dlfcn.h>

#include <cstdlib>

namespace bench {

namespace {

/* CBLAS_ORDER and CBLAS_TRANSPOSE of cblas.h, which may not be there. */
constexpr int row_major = 101, as_is = 111, transposed = 112;

/* The name by which OpenBLAS knows the best kernels that this CPU can run; NULL leaves the choice to OpenBLAS. */
#if defined(__x86_64__)
const char *core_of_cpu()
{
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl"))
        return "SKYLAKEX";
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return __builtin_cpu_is("amd") ? "ZEN" : "HASWELL";
    return nullptr;
}
#else
const char *core_of_cpu() { return nullptr; }
#endif

/* Whether the library has the function. */
template <class Function> bool find(void *library, const char *name, Function &function)
{
    function = reinterpret_cast<Function>(dlsym(library, name));
    return function != nullptr;
}

} // namespace

std::unique_ptr<OpenBlas> OpenBlas::load()
{
    const char *const core = core_of_cpu();
    if (core != nullptr)
        (void)setenv("OPENBLAS_CORETYPE", core, 0);                          // 0: what the environment says stays
    void *const library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL); // stays loaded: it has threads
    if (library == nullptr)
        return nullptr;
    std::unique_ptr<OpenBlas> blas(new OpenBlas);
    const bool complete = find(library, "cblas_sgemm", blas->gemm_) && find(library, "cblas_sgemv", blas->gemv_) &&
                          find(library, "openblas_set_num_threads", blas->set_threads_) &&
                          find(library, "openblas_get_config", blas->config_) &&
                          find(library, "openblas_get_corename", blas->core_);
    if (!complete)
        return nullptr;
    blas->set_threads(1);
    return blas;
}

/* The configuration begins with the name and the version. */
std::string OpenBlas::description() const
{
    const std::string config = config_();
    return config.substr(0, config.find(' ', config.find(' ') + 1)) + ", core " + core_();
}

void OpenBlas::multiply_transposed(Product product, float alpha, Matrix<const float> a, Matrix<const float> b,
                                   Matrix<float> c) const
{
    if (product == Product::gemm) {
        gemm_(row_major, as_is, transposed, a.rows, b.rows, a.columns, alpha, a.data, a.stride, b.data, b.stride, 0.0f,
              c.data, c.stride);
        return;
    }
    for (std::ptrdiff_t i = 0; i < a.rows; i++)
        gemv_(row_major, as_is, b.rows, b.columns, alpha, b.data, b.stride, a.data + i * a.stride, 1, 0.0f,
              c.data + i * c.stride, 1);
}

void OpenBlas::multiply(Product product, Matrix<const float> a, Matrix<const float> b, Matrix<float> c) const
{
    if (product == Product::gemm) {
        gemm_(row_major, as_is, as_is, a.rows, b.columns, a.columns, 1.0f, a.data, a.stride, b.data, b.stride, 0.0f,
              c.data, c.stride);
        return;
    }
    for (std::ptrdiff_t i = 0; i < a.rows; i++)
        gemv_(row_major, transposed, b.rows, b.columns, 1.0f, b.data, b.stride, a.data + i * a.stride, 1, 0.0f,
              c.data + i * c.stride, 1);
}

} // namespace bench
