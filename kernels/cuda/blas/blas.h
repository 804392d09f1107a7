/* Matrix products through cuBLASLt: prepared once, then run any number of times. All Local.
 *
 * Matrices are row-major, as everything in Trireme: D(m,n) = alpha * op(A)(m,k) op(B)(k,n) + beta *
 * D, then an epilogue, in float32, or of int8 in int32 (NVIDIA, "cuBLAS Library": cublasLtMatmul).
 * cuBLASLt thinks in columns: a row-major matrix is its transpose there, so that it is given D^T =
 * op(B)^T op(A)^T, with B first and no copy of anything.
 *
 * Products of int8 are exact. As the library documents of its kernels for them, with compute type
 * 32I: A as it is and B transposed ("TN"), n, k and the rows' steps multiples of 4, no epilogue;
 * alpha and beta are whole.
 *
 * The algorithm is chosen once for each distinct problem (heuristic; timed where the backend's
 * options say benchmark), run once on scratch memory, and remembered by the context.
 *
 * GELU's gradient multiplies the sum by the derivative at an auxiliary matrix. The library wants
 * the matrix's rows a multiple of 8 elements apart and its address of 16 bytes
 * ("cublasLtMatmulDescAttributes_t"): else there is no product.
 *
 * ReLU is not among the epilogues: CUBLASLT_EPILOGUE_RELU is max(x, 0) and gives 0 for NaN (NVIDIA
 * developer forum, topic 329783), which would hide from the overflow check what it looks for. */
#ifndef TR_CUDA_BLAS_H
#define TR_CUDA_BLAS_H

#include "kernels/cuda/internal.h"

/* The library's handle and what was chosen so far. Not to be called in a dry context, which has
 * none. */
TR_CUDA_C tr_status tr_cuda_blas_open(tr_cuda *cuda, tr_cuda_blas **out);
TR_CUDA_C void tr_cuda_blas_close(tr_cuda_blas *blas); /* NULL is fine; after all its products */

typedef enum {
    TR_EPILOGUE_NONE,
    TR_EPILOGUE_BIAS,          /* + vector(n), of D's type */
    TR_EPILOGUE_GELU,          /* the tanh approximation, which is the only one that cuBLASLt has */
    TR_EPILOGUE_GELU_BIAS,     /* of D + vector(n) */
    TR_EPILOGUE_GELU_GRADIENT, /* D, perhaps rounded, times the GELU's derivative at aux(m,n), of
                                  D's type */
    TR_EPILOGUE_BIAS_GRADIENT, /* vector(m) = sum over k of op(A), of D's type; never accumulates */
    TR_EPILOGUES
} tr_product_epilogue;
TR_CUDA_C bool tr_epilogue_has_vector(tr_product_epilogue e);
TR_CUDA_C bool tr_epilogue_has_aux(tr_product_epilogue e);

typedef struct {
    int64_t m, n, k;       /* each at least 1 */
    int64_t lda, ldb, ldd; /* elements from one stored row to the next */
    int64_t ld_aux;        /* of the epilogue's matrix, else 0 */
    bool ta, tb;           /* op transposes: A is stored (k,m), B is stored (n,k) */
    tr_dtype type;         /* of A and B: float32, bfloat16, float16, int8 */
    tr_dtype out;          /* of D: the same, or float32; of int8: int32 */
    tr_product_epilogue epilogue;
    /* Bytes that every address given to run is a multiple of; powers of two, at least an
     * element's. */
    uint32_t align_a, align_b, align_d, align_vector, align_aux;
} tr_cuda_problem;

typedef struct tr_cuda_product tr_cuda_product;

/* *out is NULL where the library has no algorithm that runs for the problem with its epilogue, or
 * of int8; else that is an error (TR_UNSUPPORTED; TR_KERNEL where those that there are fail). In a
 * dry context all is taken to be there that the library may have. */
TR_CUDA_C tr_status tr_cuda_product_open(tr_cuda *cuda, const tr_cuda_problem *q,
                                         tr_cuda_product **out);
TR_CUDA_C void tr_cuda_product_close(tr_cuda_product *p); /* NULL is fine */
/* Bytes of scratch that the chosen algorithm asks for (dry: the most it may); to be 256-byte
 * aligned. */
TR_CUDA_C size_t tr_cuda_product_workspace(const tr_cuda_product *p);
/* Whether the product keeps the device busy, as far as shapes tell (choose.c). In a dry context all
 * do. */
TR_CUDA_C bool tr_cuda_product_fills(const tr_cuda_product *p);
/* "cuBLASLt bias+gelu"; dry: "cuBLASLt (chosen on the device)". Static. */
TR_CUDA_C const char *tr_cuda_product_impl(const tr_cuda_product *p);
/* "algorithm 21, tile 20, stages 17, split 1": cuBLASLt's numbers of what was chosen; NULL in a dry
 * context. The product's. */
TR_CUDA_C const char *tr_cuda_product_choice(const tr_cuda_product *p);

typedef struct {
    const void *a, *b;
    void *d;
    void *vector; /* of the epilogue, else NULL */
    void *aux;    /* likewise */
    float alpha, beta;
    void *workspace;
} tr_cuda_product_args;

/* Into the context's stream. D must not overlap A, B, the vector or aux. beta 0: D is not read;
 * else, where D is of 16 bits, the library may round the product once before it adds (cuBLASLt
 * 13.1's kernels for Hopper do). */
TR_CUDA_C tr_status tr_cuda_product_run(tr_cuda_product *p, const tr_cuda_product_args *a);

#endif
