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
    cublasLtMatmulAlgo_t algo;
    size_t workspace;
} tr_blas_choice;

struct tr_cuda_blas {
    tr_cuda *cuda;
    cublasLtHandle_t handle;
    size_t nchoices, cap_choices;
    tr_blas_choice *choices;
    char refusal[TR_ERROR_TEXT]; /* why the problem chosen for last has no algorithm that runs */
    bool broken;                 /* because those that there are failed */
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

/* Local. Fills in algo, workspace and fills from the table, or asks the library, tries (and times) and
 * remembers. *found is false where there is none that runs. */
tr_status tr_blas_choose(tr_cuda_blas *blas, tr_cuda_product *p, bool *found);
/* Local. One call of the library with `algo`, whose own status comes back: not every failure of a
 * candidate is the program's. */
cublasStatus_t tr_blas_call(tr_cuda_product *p, const cublasLtMatmulAlgo_t *algo, size_t workspace,
                            const tr_cuda_product_args *a);

#endif
