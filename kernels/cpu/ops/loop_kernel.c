/* Opening, binding and closing kernels made of our own loops. */
#include "kernels/cpu/ops/loop_kernel.h"

static tr_status bind(tr_kernel *base, const tr_binding *b)
{
    ((tr_loop_kernel *)base)->b = *b;
    return TR_OK;
}

static tr_status rebind(tr_kernel *base, int operand, void *data)
{
    if (operand < 0 || operand >= TR_MAX_IN)
        return TR_FAIL(TR_INTERNAL, "%s has no operand %d", base->impl, operand);
    ((tr_loop_kernel *)base)->b.in[operand] = data;
    return TR_OK;
}

static void close_kernel(tr_kernel *base)
{
    tr_free(base);
}

tr_status tr_loop_kernel_open_steps(tr_cpu *cpu, const tr_tensor *like, const char *impl,
                                    tr_status (*run)(tr_kernel *, const tr_run *), size_t size,
                                    void *out)
{
    tr_loop_kernel *k = tr_alloc(TR_MEM_OTHER, 1, size);
    if (!k) return tr_last_status();
    k->base = (tr_kernel){
        .impl = impl, .bind = bind, .run = run, .close = close_kernel, .rebind = rebind};
    k->loops = cpu->loops;
    k->threads = cpu->threads;
    k->dtype = like->dtype;
    *(void **)out = k;
    return TR_OK;
}

tr_status tr_loop_kernel_open(tr_cpu *cpu, const tr_tensor *like, const char *impl,
                              tr_status (*run)(tr_kernel *, const tr_run *), size_t size, void *out)
{
    if (like->dtype != TR_F32 && like->dtype != TR_BF16)
        return TR_FAIL(TR_UNSUPPORTED, "%s of %s", impl, tr_dtype_name(like->dtype));
    return tr_loop_kernel_open_steps(cpu, like, impl, run, size, out);
}
