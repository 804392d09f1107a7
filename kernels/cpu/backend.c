/* The CPU backend's entry: the context (threads, instruction set level, oneDNN's engine and stream)
 * and the way from an op's name to the function that prepares it. */
#include "kernels/cpu/internal.h"
#include "kernels/cpu/onednn/onednn.h"
#include "runtime/device/host.h"

#include <omp.h>
#include <string.h>

static const struct {
    const char *op;
    tr_cpu_prepare_fn *prepare;
} table[] = {
#define X(name, fn) {name, fn},
    TR_CPU_OPS(X)
#undef X
};

static tr_cpu_prepare_fn *find(const tr_op_def *def)
{
    const char *name = tr_op_def_name(def);
    for (size_t i = 0; i < TR_COUNT(table); i++)
        if (strcmp(table[i].op, name) == 0) return table[i].prepare;
    return NULL;
}

int tr_cpu_isa(void)
{
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return TR_ISA_AVX512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return TR_ISA_AVX2;
    return TR_ISA_BASE;
}

static void cpu_close(void *ctx)
{
    tr_cpu *cpu = ctx;
    if (!cpu) return;
    if (cpu->stream) dnnl_stream_destroy(cpu->stream);
    if (cpu->engine) dnnl_engine_destroy(cpu->engine);
    tr_free(cpu->marks);
    tr_free(cpu);
}

static tr_status cpu_open(const tr_backend_options *o, void **out)
{
    tr_status st = TR_OK;
    tr_cpu *cpu = TR_NEW(TR_MEM_OTHER, tr_cpu);
    TR_NEED(cpu, TR_MEMORY, "no memory for the CPU backend");
    cpu->threads = o->threads > 0 ? o->threads : 1;
    cpu->isa = tr_cpu_isa();
    if (o->isa > 0 && o->isa < cpu->isa) {
        cpu->isa = o->isa;
        tr_dnnl_limit_isa(o->isa);
    }
    cpu->loops = tr_cpu_loops_at(cpu->isa);
    omp_set_num_threads(cpu->threads);
    TR_DNNL(dnnl_engine_create(&cpu->engine, dnnl_cpu, 0), "open its CPU engine");
    TR_DNNL(dnnl_stream_create(&cpu->stream, cpu->engine, dnnl_stream_default_flags),
            "open a stream");
    cpu->bf16 = tr_dnnl_has_bf16(cpu);
out:
    if (st != TR_OK) {
        cpu_close(cpu);
        return st;
    }
    *out = cpu;
    return TR_OK;
}

static const char *cpu_unsupported(void *ctx, const tr_op_def *def, tr_precision precision)
{
    const tr_cpu *cpu = ctx;
    if (precision == TR_PRECISION_FP16) return "fp16 has no CPU kernels here: use precision bf16";
    if (precision == TR_PRECISION_BF16 && !cpu->bf16)
        return "this CPU has no bf16 kernels (they need AVX-512): use precision fp32";
    return find(def) ? NULL : "no CPU kernel of this name";
}

static tr_status cpu_prepare(void *ctx, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    const char *why = cpu_unsupported(ctx, op->def, g->precision);
    if (why)
        return TR_FAIL(TR_UNSUPPORTED, "layer %s, op %s: %s", op->layer, tr_op_def_name(op->def),
                       why);
    return find(op->def)(ctx, g, op, out);
}

static void cpu_describe(void *ctx, char *buf, size_t size)
{
    const tr_cpu *cpu = ctx;
    const dnnl_version_t *v = dnnl_version();
    static const char *const levels[] = {"baseline", "baseline", "AVX2", "AVX-512"};
    snprintf(buf, size, "%s%s, oneDNN %d.%d.%d, %d thread%s", levels[cpu->isa],
             tr_dnnl_isa_extras(), v->major, v->minor, v->patch, cpu->threads,
             cpu->threads == 1 ? "" : "s");
}

/* A report is there as soon as it is asked for. */
static tr_status cpu_report_begin(void *ctx, const tr_control *c, int slot)
{
    ((tr_cpu *)ctx)->reports[slot] = *c;
    return TR_OK;
}

static tr_status cpu_report_poll(void *ctx, int slot, tr_control *out, bool *done)
{
    *out = ((tr_cpu *)ctx)->reports[slot];
    *done = true;
    return TR_OK;
}

static tr_status cpu_marks_reserve(void *ctx, size_t n)
{
    tr_cpu *cpu = ctx;
    double *marks = tr_realloc(TR_MEM_OTHER, cpu->marks, n, sizeof *marks);
    if (!marks) return TR_MEMORY;
    cpu->marks = marks;
    cpu->nmarks = n;
    return TR_OK;
}

static tr_status cpu_mark(void *ctx, size_t i)
{
    tr_cpu *cpu = ctx;
    if (i >= cpu->nmarks) return TR_FAIL(TR_INTERNAL, "mark %zu of %zu", i, cpu->nmarks);
    cpu->marks[i] = tr_now();
    return TR_OK;
}

static tr_status cpu_marks_read(void *ctx, double *seconds, size_t n)
{
    const tr_cpu *cpu = ctx;
    if (n + 1 > cpu->nmarks) return TR_FAIL(TR_INTERNAL, "%zu marks of %zu", n + 1, cpu->nmarks);
    for (size_t i = 0; i < n; i++) seconds[i] = cpu->marks[i + 1] - cpu->marks[i];
    return TR_OK;
}

static const tr_device_kernels kernels = {.unsupported = cpu_unsupported, .prepare = cpu_prepare};

static const tr_device_marks marks = {
    .reserve = cpu_marks_reserve, .set = cpu_mark, .read = cpu_marks_read};

static const tr_device_training training = {
    .set_input = tr_host_set_input,
    .lap = tr_host_lap,
    .sum_squares = tr_cpu_sum_squares,
    .updater_open = tr_cpu_updater_open,
    .updater_close = tr_cpu_updater_close,
    .updater_decide = tr_cpu_updater_decide,
    .updater_run = tr_cpu_updater_run,
    .updater_swap_ema = tr_cpu_updater_swap_ema,
    .report_begin = cpu_report_begin,
    .report_poll = cpu_report_poll,
};

const tr_backend tr_cpu_backend = {
    .name = "cpu",
    .host = true,
    .open = cpu_open,
    .close = cpu_close,
    .describe = cpu_describe,
    .memory = &tr_host_memory,
    .kernels = &kernels,
    .marks = &marks,
    .training = &training,
};
