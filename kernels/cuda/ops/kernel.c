/* Opening, binding and closing kernels made of our own loops. */
#include "kernels/cuda/internal.h"

static tr_status bind(tr_kernel *base, const tr_binding *b)
{
    ((tr_cuda_kernel *)base)->b = *b;
    return TR_OK;
}

static tr_status rebind(tr_kernel *base, int operand, void *data)
{
    if (operand < 0 || operand >= TR_MAX_IN)
        return TR_FAIL(TR_INTERNAL, "%s has no operand %d", base->impl, operand);
    ((tr_cuda_kernel *)base)->b.in[operand] = data;
    return TR_OK;
}

static void close_kernel(tr_kernel *base)
{
    tr_free(base);
}

static tr_status refuse(const char *impl, tr_dtype type)
{
    return TR_FAIL(TR_UNSUPPORTED, "%s of %s", impl, tr_dtype_name(type));
}

static bool is_float(tr_dtype t)
{
    return t == TR_F32 || t == TR_BF16 || t == TR_F16;
}

tr_status tr_cuda_kernel_open(tr_cuda *cuda, const tr_tensor *like, const char *impl,
                              tr_status (*run)(tr_kernel *, const tr_run *), size_t size, void *out)
{
    if (!is_float(like->dtype)) return refuse(impl, like->dtype);
    return tr_cuda_kernel_open_steps(cuda, like, impl, run, size, out);
}

tr_status tr_cuda_kernel_open_steps(tr_cuda *cuda, const tr_tensor *like, const char *impl,
                                    tr_status (*run)(tr_kernel *, const tr_run *), size_t size,
                                    void *out)
{
    tr_cuda_kernel *k = NULL;
    if (!is_float(like->dtype) && like->dtype != TR_I8 && like->dtype != TR_U8)
        return refuse(impl, like->dtype);
    k = tr_alloc(TR_MEM_OTHER, 1, size);
    if (!k) return tr_last_status();
    k->base = (tr_kernel){
        .impl = impl, .bind = bind, .run = run, .close = close_kernel, .rebind = rebind};
    k->cuda = cuda;
    k->dtype = like->dtype;
    *(void **)out = k;
    return TR_OK;
}

tr_status tr_cuda_check_count(const tr_op *op, size_t count, const char *what)
{
    if (count <= INT32_MAX) return TR_OK;
    (void)TR_FAIL(TR_UNSUPPORTED, "layer %s: %zu elements in one tensor %s, of %d that fit",
                  op->layer, count, what, INT32_MAX);
    return tr_fail_hint(TR_UNSUPPORTED, TR_HINT_BATCH);
}
