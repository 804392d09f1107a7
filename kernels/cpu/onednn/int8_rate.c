/* How fast int8 products are here: one product of u8 and s8 at the formats that oneDNN likes
 * best. */
#include "kernels/cpu/onednn/onednn.h"

#include <math.h>
#include <string.h>

enum { SIDE = 512, OPERANDS = 3 };

static tr_dnnl_array square(dnnl_data_type_t type, bool any)
{
    tr_dnnl_array a = tr_dnnl_matrix(SIDE, SIDE, SIDE, 1, TR_F32);
    a.type = type;
    a.any = any;
    return a;
}

static tr_status prepare(tr_cpu *cpu, tr_kernel **out, size_t nbytes[OPERANDS])
{
    static const int args[OPERANDS] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST};
    const tr_dnnl_array a = square(dnnl_u8, false), b = square(dnnl_s8, true),
                        c = square(dnnl_s32, false);
    tr_status st;
    tr_dnnl_kernel *k = NULL;
    tr_dnnl_call *call;
    dnnl_primitive_desc_t pd = NULL;
    TR_TRY(tr_dnnl_open(cpu, &k));
    TR_TRY(tr_dnnl_matmul(cpu, &a, &b, NULL, &c, NULL, &pd));
    for (int i = 0; i < OPERANDS; i++) nbytes[i] = tr_dnnl_arg_size(pd, args[i]);
    if (tr_dnnl_is_reference(pd)) {
        dnnl_primitive_desc_destroy(pd);
        st = TR_FAIL(TR_UNSUPPORTED, "int8 products are plain loops here");
        goto out;
    }
    TR_TRY(tr_dnnl_call_add(k, TR_CALL_ALWAYS, pd, &call));
    TR_TRY(tr_dnnl_arg(k, call, DNNL_ARG_SRC, TR_AT_IN, 0));
    TR_TRY(tr_dnnl_arg(k, call, DNNL_ARG_WEIGHTS, TR_AT_IN, 1));
    TR_TRY(tr_dnnl_arg(k, call, DNNL_ARG_DST, TR_AT_OUT, 0));
    tr_dnnl_finish(k, "int8");
out:
    return tr_dnnl_hand_over(k, st, out);
}

static tr_status measure(tr_kernel *k, double *rate)
{
    enum { RUNS = 30 };
    tr_status st = TR_OK;
    const tr_run run = {0};
    for (int i = 0; i < RUNS; i++) {
        const double begin = tr_now();
        TR_TRY(k->run(k, &run));
        const double seconds = tr_now() - begin;
        if (i > 0) *rate = fmax(*rate, 2.0 * SIDE * SIDE * SIDE / seconds);
    }
out:
    return st;
}

tr_status tr_cpu_int8_rate(void *ctx, int threads, double *rate)
{
    tr_status st;
    void *team = NULL, *data[OPERANDS] = {0}, *workspace = NULL;
    tr_kernel *k = NULL;
    size_t nbytes[OPERANDS];
    *rate = 0;
    TR_TRY(tr_team_open(&tr_cpu_backend, ctx, threads, &team));
    tr_dnnl_use(team);
    st = prepare(team, &k, nbytes);
    if (st == TR_UNSUPPORTED) {
        st = TR_OK;
        goto out;
    }
    TR_TRY(st);
    for (int i = 0; i < OPERANDS; i++) {
        TR_HAVE(data[i] = tr_alloc(TR_MEM_OTHER, nbytes[i], 1));
        memset(data[i], 1 + i, nbytes[i]);
    }
    TR_HAVE(workspace = tr_alloc(TR_MEM_WORKSPACE, k->workspace, 1));
    TR_TRY(k->bind(
        k, &(tr_binding){.in = {data[0], data[1]}, .out = {data[2]}, .workspace = workspace}));
    TR_TRY(measure(k, rate));
out:
    if (k) k->close(k);
    for (int i = 0; i < OPERANDS; i++) tr_free(data[i]);
    tr_free(workspace);
    tr_team_close(&tr_cpu_backend, team);
    return st;
}
