/* ranks: 1 */
/* standin */
/* What a GPU is probed for: of each type that it has a peak, and what reached it, in sizes that
 * suit the device: those that keep a GPU busy would keep the stand-in for hours. How high peaks are
 * only a GPU can say. */
#include "modes.h"

#include <math.h>

#include "kernels/cuda/cuda.h"
#include "optimize/profile/profile.h"

static void test_peaks(void **state)
{
    (void)state;
    void *ctx = NULL;
    tr_machine m;
    const tr_backend_options o = {.workspace = 1 << 20};
    assert_int_equal(tr_cuda_backend.open(&o, &ctx), TR_OK);
    assert_int_equal(tr_machine_measure(&tr_cuda_backend, ctx, 1, &m), TR_OK);
    tr_cuda_backend.close(ctx);
    for (int k = 0; k < TR_PEAKS; k++)
        assert_true(m.peak[k] > 0 && isfinite(m.peak[k]) && m.by[k][0] == 'a');
    assert_true(m.cache >= m.memory && m.memory > 0);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_peaks),
};

RUN_MPI_TESTS(tests)
