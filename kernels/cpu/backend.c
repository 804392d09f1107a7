/* The CPU backend's entry: the context (instruction set level, oneDNN's engine), a session's share
 * of it (threads, oneDNN's stream), and the way from an op to the function that prepares it. */
#ifdef __x86_64__
#include <cpuid.h>
#endif

#include "kernels/cpu/internal.h"
#include "kernels/cpu/loops/loops.h"
#include "kernels/cpu/onednn/onednn.h"
#include "runtime/device/host.h"

static tr_cpu_prepare_fn *const table[] = {
#define X(op, kernel) tr_cpu_##kernel,
    TR_OPS(X)
#undef X
};

_Static_assert((int)TR_CPU_COLUMNS == (int)TR_CPU_PRODUCT_COLUMNS, "a product's columns");

void tr_cpu_multiply(size_t m, size_t n, size_t depth, const float *a, size_t a_pitch,
                     const float *b, size_t b_pitch, float *c, size_t c_pitch)
{
    const tr_cpu_product p = {.m = m,
                              .n = n,
                              .depth = depth,
                              .a_row = a_pitch,
                              .a_column = 1,
                              .b_pitch = b_pitch,
                              .c_pitch = c_pitch};
    tr_cpu_loops_at(tr_cpu_isa())->product(&p, a, b, c);
}

static tr_cpu_prepare_fn *find(const tr_op_def *def)
{
    const size_t i = tr_op_place(def);
    return i < TR_COUNT(table) ? table[i] : NULL;
}

int tr_cpu_isa(void)
{
#ifdef __x86_64__
    __builtin_cpu_init();
    /* All of x86-64-v3, then v4, for which the loops are compiled (loops.cmake): virtual machines
     * may hide any of it. What __builtin_cpu_supports of gcc 11 has no names for is looked up. */
    unsigned a, b, c, d, extended = 0;
    if (__get_cpuid(1, &a, &b, &c, &d) == 0 || !(c & bit_MOVBE) || !(c & bit_F16C) ||
        __get_cpuid(0x80000001, &a, &b, &extended, &d) == 0 || !(extended & bit_LZCNT) ||
        !__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
        !__builtin_cpu_supports("bmi") || !__builtin_cpu_supports("bmi2"))
        return TR_ISA_BASE;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        return TR_ISA_AVX512;
    return TR_ISA_AVX2;
#else
    return TR_ISA_BASE;
#endif
}

static void cpu_close(void *ctx)
{
    tr_cpu *cpu = ctx;
    if (!cpu) return;
    if (cpu->engine) dnnl_engine_destroy(cpu->engine);
    tr_dnnl_forget();
    tr_free(cpu);
}

static tr_status cpu_open(const tr_backend_options *o, void **out)
{
    tr_status st = TR_OK;
    tr_cpu *cpu = TR_NEW(TR_MEM_OTHER, tr_cpu);
    TR_HAVE(cpu);
    cpu->threads = 1;
    cpu->isa = tr_cpu_isa();
    if (o->isa > 0 && o->isa < cpu->isa) {
        cpu->isa = o->isa;
        tr_dnnl_limit_isa(o->isa);
    }
    cpu->loops = tr_cpu_loops_at(cpu->isa);
    TR_DNNL(dnnl_engine_create(&cpu->engine, dnnl_cpu, 0), "open its CPU engine");
    cpu->bf16 = tr_dnnl_has_bf16(cpu);
    cpu->bf16_faster = cpu->bf16 && tr_dnnl_bf16_faster();
    cpu->bf16_pairs = cpu->bf16_faster && !tr_dnnl_has_amx();
out:
    if (st != TR_OK) {
        cpu_close(cpu);
        return st;
    }
    *out = cpu;
    return TR_OK;
}

static void team_close(void *opened)
{
    tr_cpu *team = opened;
    if (!team) return;
    if (team->stream) dnnl_stream_destroy(team->stream);
    tr_free(team);
}

static tr_status team_open(void *ctx, int threads, void **out)
{
    tr_status st = TR_OK;
    tr_cpu *team = TR_NEW(TR_MEM_OTHER, tr_cpu);
    if (!team) return tr_last_status();
    *team = *(const tr_cpu *)ctx;
    team->threads = threads > 0 ? threads : 1;
    TR_DNNL(dnnl_stream_create(&team->stream, team->engine, dnnl_stream_default_flags),
            "open a stream");
out:
    if (st != TR_OK) {
        team_close(team);
        return st;
    }
    *out = team;
    return TR_OK;
}

static const char *cpu_unsupported(void *ctx, const tr_op_def *def, tr_dtype type)
{
    const tr_cpu *cpu = ctx;
    if (type == TR_F16) return "fp16 has no CPU kernels here: use precision bf16";
    if (type == TR_BF16 && !cpu->bf16)
        return "this CPU has no bf16 kernels (they need AVX-512): use precision fp32";
    return find(def) ? NULL : "no CPU kernel of this name";
}

static tr_status cpu_prepare(void *team, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    const char *why = cpu_unsupported(team, op->def, tr_op_dtype(g, op));
    if (why)
        return TR_FAIL(TR_UNSUPPORTED, "layer %s, op %s: %s", op->layer, tr_op_def_name(op->def),
                       why);
    tr_dnnl_use(team);
    return find(op->def)(team, g, op, out);
}

static void cpu_describe(void *ctx, char *buf, size_t size)
{
    const tr_cpu *cpu = ctx;
    const dnnl_version_t *v = dnnl_version();
    static const char *const levels[] = {"baseline", "baseline", "AVX2", "AVX-512"};
    snprintf(buf, size, "%s%s, oneDNN %d.%d.%d", levels[cpu->isa], tr_dnnl_isa_extras(), v->major,
             v->minor, v->patch);
}

static const tr_device_kernels kernels = {.open = team_open,
                                          .close = team_close,
                                          .unsupported = cpu_unsupported,
                                          .residual_in_place = true,
                                          .parts = true,
                                          .prepare = cpu_prepare};

static const tr_device_training training = {
    .open = tr_cpu_training_open,
    .close = tr_cpu_training_close,
    .set_input = tr_host_set_input,
    .lap = tr_host_lap,
    .updater_open = tr_cpu_updater_open,
    .updater_close = tr_cpu_updater_close,
    .updater_decide = tr_cpu_updater_decide,
    .updater_measure = tr_cpu_updater_measure,
    .updater_run = tr_cpu_updater_run,
    .updater_swap_ema = tr_cpu_updater_swap_ema,
    .report_begin = tr_host_report_begin,
    .report_poll = tr_host_report_poll,
};

const tr_backend tr_cpu_backend = {
    .name = "cpu",
    .host = true,
    .open = cpu_open,
    .close = cpu_close,
    .describe = cpu_describe,
    .memory = &tr_host_memory,
    .kernels = &kernels,
    .marks = &tr_host_marks,
    .training = &training,
};
