// cuBLASLt's stand-in, third part: which algorithms there are for a product, and the call, which
// checks, then leaves the arithmetic (cublaslt_matmul.cc) to a task.
//
// FAKEGPU_CUBLASLT_WITHOUT: words out of "bias gelu aux bgrad split int8"; no algorithm is found
// for those epilogues or for int8, as on devices and for types that lack them, none takes a cut of
// the sum that it was not offered with. FAKEGPU_BROKEN: "cublaslt:21", by the number of the
// algorithm.
#include "tests/fakegpu/cublaslt.h"

#include <cstdlib>

using namespace fakegpu;
using namespace fakegpu::lt;

// ---- Algorithms ----

namespace
{

bool is_bias(uint32_t epilogue)
{
    return (epilogue & CUBLASLT_EPILOGUE_BIAS) != 0;
}

bool is_bias_gradient(uint32_t epilogue)
{
    return epilogue == CUBLASLT_EPILOGUE_BGRADA || epilogue == CUBLASLT_EPILOGUE_BGRADB;
}

bool left_out(const Desc &desc)
{
    const char *without = getenv("FAKEGPU_CUBLASLT_WITHOUT");
    const uint32_t epilogue = desc.epilogue;
    if (!without) return false;
    return (desc.compute == CUBLAS_COMPUTE_32I && strstr(without, "int8")) ||
           (is_bias(epilogue) && strstr(without, "bias")) ||
           ((epilogue & CUBLASLT_EPILOGUE_GELU) && strstr(without, "gelu")) ||
           (has_aux(epilogue) && strstr(without, "aux")) ||
           (is_bias_gradient(epilogue) && strstr(without, "bgrad"));
}

bool all_alive(const char *call, const void *desc, const void *a, const void *b, const void *c,
               const void *d)
{
    return alive(call, desc, Kind::desc) && alive(call, a, Kind::layout) &&
           alive(call, b, Kind::layout) && alive(call, c, Kind::layout) &&
           alive(call, d, Kind::layout);
}

Product product_of(const void *desc, const void *a, const void *b, const void *c, const void *d)
{
    return Product{read_from<Desc>(desc),
                   read_from<Layout>(a),
                   read_from<Layout>(b),
                   read_from<Layout>(c),
                   read_from<Layout>(d),
                   0,
                   0,
                   0};
}

constexpr uint16_t AUX_ALIGN = 16;

uint16_t alignment_of(const void *p)
{
    const uintptr_t v = reinterpret_cast<uintptr_t>(p);
    return v == 0 ? 256 : (uint16_t)((v & ~(v - 1)) & 511 ? (v & ~(v - 1)) : 256);
}

// Leading dimension and address allow 16 bytes at a time.
bool vectors(const Layout &l, uint32_t align)
{
    return align >= 16 && (uint64_t)l.ld * size_of(l.type) % 16 == 0;
}

// What the stand-in can choose from, the expected fastest first. They differ in workspace, in the
// order of summation (so in the last bits), and in what they demand.
struct Way {
    uint32_t id, split, scheme, tile;
    bool vectors;
    uint64_t fixed; // bytes of workspace, beside what partial results take
};
const Way ways[] = {
    {21, 3, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, 15, true, 0},
    {6, 1, CUBLASLT_REDUCTION_SCHEME_NONE, 15, true, 4096},
    {5, 2, CUBLASLT_REDUCTION_SCHEME_INPLACE, 15, false, 1024},
    {7, 2, CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE, 15, false, 0},
    {11, 2, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, 15, false, 0},
    {2, 1, CUBLASLT_REDUCTION_SCHEME_NONE, 15, false, 512},
    {16, 1, CUBLASLT_REDUCTION_SCHEME_NONE, 0, false, 0},
    {1, 1, CUBLASLT_REDUCTION_SCHEME_NONE, 15, false, 0},
};

bool fits(const Way &way, const Product &p, const Preference &pref, uint64_t workspace)
{
    const bool gradient = is_bias_gradient(p.desc.epilogue);
    return workspace <= pref.workspace && way.split <= p.k && (way.split == 1 || !gradient) &&
           (way.scheme & ~pref.schemes) == 0 &&
           (!way.vectors || (vectors(p.a, pref.align[0]) && vectors(p.b, pref.align[1]) &&
                             vectors(p.c, pref.align[2]) && vectors(p.d, pref.align[3])));
}

uint64_t workspace_of(const Algo &algo, const Product &p)
{
    const bool partial = algo.split > 1 && algo.scheme != CUBLASLT_REDUCTION_SCHEME_INPLACE;
    const uint64_t parts = partial ? 4 * algo.split * p.m * p.n : 0;
    for (const Way &way : ways)
        if (way.id == algo.id) return way.fixed + parts;
    return parts;
}

} // namespace

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int requested,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int *returned)
{
    const char *call = "cublasLtMatmulAlgoGetHeuristic";
    if (fails(call)) return CUBLAS_STATUS_INTERNAL_ERROR;
    if (!alive(call, handle, Kind::handle)) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (!all_alive(call, desc, a, b, c, d) || !alive(call, preference, Kind::preference) ||
        requested <= 0 || !results || !returned)
        return CUBLAS_STATUS_INVALID_VALUE;
    Product p = product_of(desc, a, b, c, d);
    const Preference pref = read_from<Preference>(preference);
    *returned = 0;
    const cublasStatus_t status = understand(&p);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    if (left_out(p.desc) || (has_aux(p.desc.epilogue) && alignment_of(p.desc.aux) < AUX_ALIGN))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    for (const Way &way : ways) {
        Algo algo{};
        algo.problem = digest(p);
        algo.magic = algo_magic;
        algo.id = way.id;
        algo.split = way.split;
        algo.scheme = way.scheme;
        algo.tile = way.tile;
        algo.workspace = workspace_of(algo, p);
        if (*returned == requested || !fits(way, p, pref, algo.workspace)) continue;
        for (int i = 0; i < 4; i++) algo.align[i] = (uint16_t)pref.align[i];
        algo.bias_align = alignment_of(p.desc.bias);
        algo.aux_align = alignment_of(p.desc.aux);
        cublasLtMatmulHeuristicResult_t *r = &results[(*returned)++];
        memset(r, 0, sizeof *r);
        memcpy(&r->algo, &algo, sizeof algo);
        r->workspaceSize = algo.workspace;
        r->state = CUBLAS_STATUS_SUCCESS;
        r->wavesCount = 1;
    }
    return *returned ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t attr,
                                                    void *buf, size_t size, size_t *written)
{
    const char *call = "cublasLtMatmulAlgoConfigGetAttribute";
    if (fails(call) || !algo) return CUBLAS_STATUS_INVALID_VALUE;
    const Algo v = read_from<Algo>(algo);
    if (v.magic != algo_magic) return CUBLAS_STATUS_INVALID_VALUE;
    switch (attr) {
    case CUBLASLT_ALGO_CONFIG_ID:
        return get(&v, FIELD(Algo, id), buf, size, written);
    case CUBLASLT_ALGO_CONFIG_TILE_ID:
        return get(&v, FIELD(Algo, tile), buf, size, written);
    case CUBLASLT_ALGO_CONFIG_STAGES_ID:
        return get(&v, FIELD(Algo, undefined), buf, size, written);
    case CUBLASLT_ALGO_CONFIG_SPLITK_NUM:
        return get(&v, FIELD(Algo, split), buf, size, written);
    case CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME:
        return get(&v, FIELD(Algo, scheme), buf, size, written);
    default:
        violation(call, "attribute %d is not modelled by the stand-in", (int)attr);
    }
}

// Of what an algorithm may be given, the parts of the sum and how they are added.
cublasStatus_t cublasLtMatmulAlgoConfigSetAttribute(cublasLtMatmulAlgo_t *algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t attr,
                                                    const void *buf, size_t size)
{
    const char *call = "cublasLtMatmulAlgoConfigSetAttribute";
    if (fails(call) || !algo || !buf || size != sizeof(uint32_t))
        return CUBLAS_STATUS_INVALID_VALUE;
    Algo v = read_from<Algo>(algo);
    if (v.magic != algo_magic) return CUBLAS_STATUS_INVALID_VALUE;
    switch (attr) {
    case CUBLASLT_ALGO_CONFIG_SPLITK_NUM:
        v.split = read_from<uint32_t>(buf);
        break;
    case CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME:
        v.scheme = read_from<uint32_t>(buf);
        break;
    default:
        violation(call, "attribute %d is not modelled by the stand-in", (int)attr);
    }
    memcpy(algo, &v, sizeof v);
    return CUBLAS_STATUS_SUCCESS;
}

// Fills in all but the algorithm, as the real one. FAKEGPU_CUBLASLT_WITHOUT "split": none takes
// other parts than those that it was offered with.
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t *algo,
                                       cublasLtMatmulHeuristicResult_t *result)
{
    const char *call = "cublasLtMatmulAlgoCheck", *without = getenv("FAKEGPU_CUBLASLT_WITHOUT");
    if (fails(call)) return CUBLAS_STATUS_INTERNAL_ERROR;
    if (!alive(call, handle, Kind::handle)) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (!all_alive(call, desc, a, b, c, d) || !algo || !result) return CUBLAS_STATUS_INVALID_VALUE;
    Product p = product_of(desc, a, b, c, d);
    const cublasStatus_t status = understand(&p);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    const Algo v = read_from<Algo>(algo);
    if (v.magic != algo_magic || v.problem != digest(p)) return CUBLAS_STATUS_INVALID_VALUE;
    if (v.split < 1 || v.split > p.k || (v.split == 1) != (v.scheme == 0) ||
        (v.split > 1 && is_bias_gradient(p.desc.epilogue)) || (without && strstr(without, "split")))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    result->workspaceSize = workspace_of(v, p);
    result->state = CUBLAS_STATUS_SUCCESS;
    result->wavesCount = 1;
    return CUBLAS_STATUS_SUCCESS;
}

// ---- The call ----

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
                              cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
                              cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo,
                              void *workspace, size_t workspace_size, cudaStream_t stream)
{
    const char *call = "cublasLtMatmul";
    if (fails(call)) return CUBLAS_STATUS_EXECUTION_FAILED;
    if (!alive(call, handle, Kind::handle)) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (!all_alive(call, desc, a_layout, b_layout, c_layout, d_layout) || !alpha || !beta || !a ||
        !b || !d)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!algo) violation(call, "no algorithm: the library would search for one at every call");
    Product p = product_of(desc, a_layout, b_layout, c_layout, d_layout);
    const cublasStatus_t status = understand(&p);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    Algo chosen = read_from<Algo>(algo);
    chosen.workspace = workspace_of(chosen, p);
    if (chosen.magic != algo_magic || chosen.problem != digest(p))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (workspace_size < chosen.workspace || (chosen.workspace && !workspace))
        return CUBLAS_STATUS_INVALID_VALUE;
    const bool whole = p.desc.scale == CUDA_R_32I;
    const auto scalar = [=](const void *v) {
        return whole ? (float)read_from<int32_t>(v) : read_from<float>(v);
    };
    const Operands o{scalar(alpha), scalar(beta), a, b, c, d, workspace};
    if (o.beta != 0 && !c) return CUBLAS_STATUS_INVALID_VALUE;
    if ((is_bias(p.desc.epilogue) || is_bias_gradient(p.desc.epilogue)) && !p.desc.bias)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (has_aux(p.desc.epilogue) && !p.desc.aux) return CUBLAS_STATUS_INVALID_VALUE;
    check(call, p, chosen, o, workspace_size);
    const Broken how = broken("cublaslt", chosen.id);
    if (how == Broken::call) return CUBLAS_STATUS_EXECUTION_FAILED;
    Task task{};
    task.what = call;
    task.step = [=]() {
        check("cublasLtMatmul, running", p, chosen, o, chosen.workspace);
        if (how == Broken::slow) take_longer(SLOW_PIECES);
        if (how == Broken::context)
            spoil(cudaErrorIllegalAddress);
        else
            compute(p, chosen, o);
        return true;
    };
    return enqueue(stream, task) == cudaSuccess ? CUBLAS_STATUS_SUCCESS
                                                : CUBLAS_STATUS_EXECUTION_FAILED;
}
