/* What blas.c and choose.c share: descriptors of one problem, and the table of choices. */
#ifndef TR_CUDA_BLAS_PRIVATE_H
#define TR_CUDA_BLAS_PRIVATE_H

#include <cublasLt.h>

#include "kernels/cuda/blas/blas.h"

/* As tr_cuda_check, for cuBLASLt: "cublasLtMatmul(...): text (name)". */
tr_status tr_cuda_blas_check(cublasStatus_t s, const char *call);
#define TR_BLAS_TRY(call) TR_TRY(tr_cuda_blas_check((call), #call))

/* What was chosen for a problem. */
typedef struct {
    tr_cuda_problem problem;
    bool found, fills;
    bool broken;   /* not found, and there were algorithms, which failed */
    char *refusal; /* why none was found; NULL: one was */
    cublasLtMatmulAlgo_t algo;
    size_t workspace;
} tr_blas_choice;

struct tr_cuda_blas {
    tr_cuda *cuda;
    cublasLtHandle_t handle;
    size_t nchoices, cap_choices;
    tr_blas_choice *choices;
};

struct tr_cuda_product {
    tr_cuda *cuda;
    tr_cuda_problem problem;
    cublasLtMatmulDesc_t desc;
    /* In cuBLASLt's order: `first` is our B, `second` our A. */
    cublasLtMatrixLayout_t first, second, result;
    cublasLtMatmulAlgo_t algo;
    size_t workspace;
    bool fills;
    char choice[64]; /* the algorithm in words */
};

/* Local. Fills in algo, workspace and fills from the table, or asks the library, tries (and times)
 * and remembers. *out: the table's, until the next call; not `found` where there is none that
 * runs. */
tr_status tr_blas_choose(tr_cuda_blas *blas, tr_cuda_product *p, const tr_blas_choice **out);
/* Local. An algorithm's attribute; `unknown` where the library does not say. */
int32_t tr_blas_ask(const cublasLtMatmulAlgo_t *algo, cublasLtMatmulAlgoConfigAttributes_t what,
                    int32_t unknown);
/* Local. Where the epilogue's operands lie; NULL: it has none, or its place stays. */
cublasStatus_t tr_blas_set_pointers(tr_cuda_product *p, const void *vector, const void *aux);
/* Local. One call of the library with `algo`, whose own status comes back: not every failure of a
 * candidate is the program's. */
cublasStatus_t tr_blas_call(tr_cuda_product *p, const cublasLtMatmulAlgo_t *algo, size_t workspace,
                            const tr_cuda_product_args *a);

#endif
