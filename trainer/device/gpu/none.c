/* A program that was built without CUDA. */
#include "trainer/device/gpu.h"

bool tr_gpu_built(void)
{
    return false;
}

tr_status tr_gpu_load(bool if_driver, const tr_gpu **out)
{
    (void)if_driver;
    *out = NULL;
    return TR_FAIL(TR_UNSUPPORTED, "this program was built without CUDA");
}
