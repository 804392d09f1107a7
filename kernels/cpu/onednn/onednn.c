/* What oneDNN is and can do here: its errors as ours, its instruction sets. */
#include "kernels/cpu/onednn/onednn.h"

#include <malloc.h>
#include <omp.h>

tr_status tr_dnnl_fail(const char *file, int line, dnnl_status_t status, const char *what)
{
    static const char *const text[] = {
        [dnnl_success] = "success",
        [dnnl_out_of_memory] = "out of memory",
        [dnnl_invalid_arguments] = "invalid arguments",
        [dnnl_unimplemented] = "not implemented",
        [dnnl_runtime_error] = "run-time error",
        [dnnl_not_required] = "not required",
    };
    const char *why = (size_t)status < TR_COUNT(text) && text[status] ? text[status] : "error";
    return tr_fail_at(file, line, status == dnnl_out_of_memory ? TR_MEMORY : TR_KERNEL,
                      "oneDNN could not %s: %s (status %d)", what, why, (int)status);
}

/* oneDNN's levels above AVX-512 are nested: each has the bits of those below it. */
static bool has_level(dnnl_cpu_isa_t level)
{
    return ((unsigned)dnnl_get_effective_cpu_isa() & (unsigned)level) == (unsigned)level;
}

bool tr_dnnl_has_amx(void)
{
    return has_level(dnnl_cpu_isa_avx512_core_amx);
}

static bool is_amd(void)
{
#ifdef __x86_64__
    __builtin_cpu_init();
    return __builtin_cpu_is("amd"); /* CPUID's vendor: AuthenticAMD */
#else
    return false;
#endif
}

/* AMX is. AVX512_BF16 (VDPBF16PS) alone is not on Intel's processors, as measured: half as many of
 * them go in a cycle as of float32's. On AMD's, from Zen 4 on, as many do, each of twice the
 * products: by the instruction rates as published, not measured here. AVX-512 without it makes up
 * bfloat16's products of float32's in oneDNN, which takes longer. */
bool tr_dnnl_bf16_faster(void)
{
    return tr_dnnl_has_amx() || (is_amd() && has_level(dnnl_cpu_isa_avx512_core_bf16));
}

const char *tr_dnnl_isa_extras(void)
{
    if (tr_dnnl_has_amx()) return " BF16 AMX";
    if (has_level(dnnl_cpu_isa_avx512_core_bf16)) return " BF16";
    return "";
}

/* oneDNN asks OpenMP, which keeps the number for each thread that calls it, when a primitive is
 * made and when it runs. */
void tr_dnnl_use(const tr_cpu *cpu)
{
    if (omp_get_max_threads() != cpu->threads) omp_set_num_threads(cpu->threads);
}

void tr_dnnl_forget(void)
{
    int capacity = 0;
    if (dnnl_get_primitive_cache_capacity(&capacity) != dnnl_success) return;
    (void)dnnl_set_primitive_cache_capacity(0);
    (void)dnnl_set_primitive_cache_capacity(capacity);
#ifdef __GLIBC__
    malloc_trim(0); /* what lies between others' memory stays resident otherwise */
#endif
}

/* Refused once a primitive exists; then the process has its level already, and a second context in
 * one process (a test) goes on with that. */
void tr_dnnl_limit_isa(int isa)
{
    (void)dnnl_set_max_cpu_isa(isa >= TR_ISA_AVX512 ? dnnl_cpu_isa_avx512_core
                               : isa >= TR_ISA_AVX2 ? dnnl_cpu_isa_avx2
                                                    : dnnl_cpu_isa_sse41);
}

bool tr_dnnl_has_bf16(tr_cpu *cpu)
{
    const int64_t image[] = {1, 16, 4, 4}, weights[] = {16, 16, 1, 1};
    tr_dnnl_array a = tr_dnnl_matrix(16, 16, 16, 1, TR_BF16);
    tr_dnnl_conv conv = {.src = tr_dnnl_channels_last(image, TR_BF16),
                         .weights = tr_dnnl_any(tr_dnnl_dense(4, weights, TR_F32), TR_BF16),
                         .dst = tr_dnnl_channels_last(image, TR_BF16),
                         .stride = {1, 1}};
    dnnl_primitive_desc_t pd = NULL;
    bool ok = tr_dnnl_matmul(cpu, &a, &a, NULL, &a, NULL, &pd) == TR_OK;
    if (ok) dnnl_primitive_desc_destroy(pd);
    if (!ok || tr_dnnl_convolution(cpu, TR_CONV_TRAIN, &conv, NULL, NULL, &pd) != TR_OK)
        return false;
    dnnl_primitive_desc_destroy(pd);
    return true;
}
