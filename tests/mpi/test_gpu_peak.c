/* ranks: 1 */
/* standin */
/* The rate of products of 8 bits on a GPU: one of a model's own products is timed, by cuBLASLt, or where that has
 * none by the backend's kernel. How high it is only a GPU can say. */
#include "modes.h"

#include <math.h>

#include "kernels/cuda/cuda.h"
#include "optimize/profile/profile.h"

static void test_rate(void **state)
{
    (void)state;
    void *ctx = NULL;
    double rate = -1;
    const tr_backend_options o = {.workspace = 1 << 20};
    assert_int_equal(tr_cuda_backend.open(&o, &ctx), TR_OK);
    assert_int_equal(tr_machine_int8(&tr_cuda_backend, ctx, 1, 32, &rate), TR_OK);
    tr_cuda_backend.close(ctx);
    assert_true(rate > 0 && isfinite(rate));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_rate),
};

RUN_MPI_TESTS(tests)
