/* OpenBLAS, loaded while the program runs: it is not needed to build, and the kernels it takes can be chosen before. */
#ifndef ATTREE_BENCH_OPENBLAS_H
#define ATTREE_BENCH_OPENBLAS_H

#include <memory>
#include <string>

namespace bench {

/* Rows of `columns` adjacent numbers; one row begins `stride` numbers after the one before it. */
template <class Number> struct Matrix {
    Number *data;
    int rows, columns, stride;
};

/* How a product is computed: sgemm, or sgemv for each row of the left factor. */
enum class Product { gemm, gemv };

class OpenBlas {
  public:
    /* NULL when there is no usable libopenblas.so.0. Unless the environment sets OPENBLAS_CORETYPE, sets it for this
     * CPU: a library older than the CPU does not know it and falls back to its oldest kernels. */
    static std::unique_ptr<OpenBlas> load();

    /* Library, version, and the core whose kernels run. */
    std::string description() const;

    /* Threads of each call from now on. With 1, calls may come from several threads at once. */
    void set_threads(int threads) const { set_threads_(threads); }

    /* c = alpha a b^T, and c = a b. c overlaps neither. */
    void multiply_transposed(Product product, float alpha, Matrix<const float> a, Matrix<const float> b,
                             Matrix<float> c) const;
    void multiply(Product product, Matrix<const float> a, Matrix<const float> b, Matrix<float> c) const;

  private:
    using Gemm = void (*)(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha, const float *a,
                          int lda, const float *b, int ldb, float beta, float *c, int ldc);
    using Gemv = void (*)(int order, int transpose_a, int m, int n, float alpha, const float *a, int lda,
                          const float *x, int incx, float beta, float *y, int incy);

    OpenBlas() = default;

    Gemm gemm_ = nullptr;
    Gemv gemv_ = nullptr;
    void (*set_threads_)(int) = nullptr;
    char *(*config_)() = nullptr;
    char *(*core_)() = nullptr;
};

} // namespace bench

#endif // ATTREE_BENCH_OPENBLAS_H
