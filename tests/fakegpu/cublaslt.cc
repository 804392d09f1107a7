// cuBLASLt's stand-in, first part: handles, descriptors, attributes, status texts, heuristics, the
// call. Errors are those that the header and the guide document; what they leave undefined (a
// destroyed descriptor, an attribute that is not modelled here) is a violation.
#include "tests/fakegpu/cublaslt.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>

#include <unistd.h>

using namespace fakegpu;
using namespace fakegpu::lt;

// ---- What is alive ----

namespace
{

const char *const kinds[] = {"handle", "operation descriptor", "matrix layout", "preference"};

struct Object {
    Kind kind;
    bool placed; // in the caller's own memory: nothing to destroy
};

// What is alive, of this process; as with the engine's own, what was never destroyed counts where
// the process says that it ended well (FAKEGPU_LEAKS=strict: always).
struct Registry {
    std::mutex lock;
    std::map<const void *, Object> objects;
    pid_t process = getpid();
};

void tell_leaks(int status, void *arg)
{
    Registry &r = *static_cast<Registry *>(arg);
    const char *leaks = getenv("FAKEGPU_LEAKS");
    const bool strict = leaks && strcmp(leaks, "strict") == 0;
    if (getpid() != r.process || (status != 0 && status != 75 && !strict)) return;
    std::lock_guard<std::mutex> hold(r.lock);
    for (const auto &o : r.objects)
        if (!o.second.placed)
            violation("exit", "a cuBLASLt %s was never destroyed", kinds[(int)o.second.kind]);
}

Registry &registry()
{
    static Registry *const r = [] {
        auto *made = new Registry;
        on_exit(tell_leaks, made);
        return made;
    }();
    return *r;
}

void enter(const void *p, Kind kind, bool placed)
{
    Registry &r = registry();
    std::lock_guard<std::mutex> hold(r.lock);
    r.objects[p] = Object{kind, placed};
}

void leave(const void *p)
{
    Registry &r = registry();
    std::lock_guard<std::mutex> hold(r.lock);
    r.objects.erase(p);
}

template <typename Opaque, typename T> cublasStatus_t create(Opaque **out, Kind kind, const T &v)
{
    if (!out) return CUBLAS_STATUS_INVALID_VALUE;
    Opaque *p = new (std::nothrow) Opaque();
    if (!p) return CUBLAS_STATUS_ALLOC_FAILED;
    memcpy(p, &v, sizeof v);
    enter(p, kind, false);
    *out = p;
    return CUBLAS_STATUS_SUCCESS;
}

// A failure that was asked for must not leave the object behind.
template <typename Opaque> cublasStatus_t destroy(const char *call, Opaque *p, Kind kind)
{
    const bool failing = fails(call);
    if (!alive(call, p, kind)) return CUBLAS_STATUS_INVALID_VALUE;
    leave(p);
    delete p;
    return failing ? CUBLAS_STATUS_INTERNAL_ERROR : CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t set(void *object, Attribute a, const void *buf, size_t size)
{
    if (!buf || size != a.size) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(static_cast<char *>(object) + a.at, buf, size);
    return CUBLAS_STATUS_SUCCESS;
}

Attribute attribute(const char *call, cublasLtMatrixLayoutAttribute_t a)
{
    switch (a) {
    case CUBLASLT_MATRIX_LAYOUT_TYPE:
        return FIELD(Layout, type);
    case CUBLASLT_MATRIX_LAYOUT_ORDER:
        return FIELD(Layout, order);
    case CUBLASLT_MATRIX_LAYOUT_ROWS:
        return FIELD(Layout, rows);
    case CUBLASLT_MATRIX_LAYOUT_COLS:
        return FIELD(Layout, cols);
    case CUBLASLT_MATRIX_LAYOUT_LD:
        return FIELD(Layout, ld);
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
        return FIELD(Layout, batch);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
        return FIELD(Layout, stride);
    default:
        violation(call, "layout attribute %d is not modelled by the stand-in", (int)a);
    }
}

Attribute attribute(const char *call, cublasLtMatmulDescAttributes_t a)
{
    switch (a) {
    case CUBLASLT_MATMUL_DESC_COMPUTE_TYPE:
        return FIELD(Desc, compute);
    case CUBLASLT_MATMUL_DESC_SCALE_TYPE:
        return FIELD(Desc, scale);
    case CUBLASLT_MATMUL_DESC_POINTER_MODE:
        return FIELD(Desc, pointer_mode);
    case CUBLASLT_MATMUL_DESC_TRANSA:
        return FIELD(Desc, trans_a);
    case CUBLASLT_MATMUL_DESC_TRANSB:
        return FIELD(Desc, trans_b);
    case CUBLASLT_MATMUL_DESC_TRANSC:
        return FIELD(Desc, trans_c);
    case CUBLASLT_MATMUL_DESC_FILL_MODE:
        return FIELD(Desc, fill);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        return FIELD(Desc, epilogue);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        return FIELD(Desc, bias);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
        return FIELD(Desc, bias_type);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
        return FIELD(Desc, aux);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
        return FIELD(Desc, aux_ld);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE:
        return FIELD(Desc, aux_stride);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE:
        return FIELD(Desc, aux_type);
    default:
        violation(call, "descriptor attribute %d is not modelled by the stand-in", (int)a);
    }
}

Attribute attribute(const char *call, cublasLtMatmulPreferenceAttributes_t a)
{
    const size_t align = offsetof(Preference, align), one = sizeof(uint32_t);
    switch (a) {
    case CUBLASLT_MATMUL_PREF_SEARCH_MODE:
        return FIELD(Preference, search);
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
        return FIELD(Preference, workspace);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
        return FIELD(Preference, schemes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
        return Attribute{align, one};
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
        return Attribute{align + one, one};
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
        return Attribute{align + 2 * one, one};
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
        return Attribute{align + 3 * one, one};
    case CUBLASLT_MATMUL_PREF_MAX_WAVES_COUNT:
        return FIELD(Preference, waves);
    case CUBLASLT_MATMUL_PREF_IMPL_MASK:
        return FIELD(Preference, impl);
    default:
        violation(call, "preference attribute %d is not modelled by the stand-in", (int)a);
    }
}

Layout new_layout(cudaDataType type, uint64_t rows, uint64_t cols, int64_t ld)
{
    Layout l{};
    l.type = type;
    l.order = CUBLASLT_ORDER_COL;
    l.batch = 1;
    l.rows = rows;
    l.cols = cols;
    l.ld = ld;
    return l;
}

Desc new_desc(cublasComputeType_t compute, cudaDataType_t scale)
{
    Desc d{};
    d.compute = compute;
    d.scale = scale;
    d.pointer_mode = CUBLASLT_POINTER_MODE_HOST;
    d.trans_a = d.trans_b = d.trans_c = CUBLAS_OP_N;
    d.fill = CUBLAS_FILL_MODE_FULL;
    d.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    d.bias_type = d.aux_type = -1;
    return d;
}

Preference new_preference()
{
    Preference p{};
    p.search = CUBLASLT_SEARCH_BEST_FIT;
    p.schemes = CUBLASLT_REDUCTION_SCHEME_MASK;
    for (uint32_t &align : p.align) align = 256;
    p.impl = ~uint64_t{0};
    return p;
}

} // namespace

cublasStatus_t fakegpu::lt::get(const void *object, Attribute a, void *buf, size_t size,
                                size_t *written)
{
    if (size == 0 && !written) return CUBLAS_STATUS_INVALID_VALUE;
    if (size != 0 && (!buf || size != a.size)) return CUBLAS_STATUS_INVALID_VALUE;
    if (size != 0) memcpy(buf, static_cast<const char *>(object) + a.at, size);
    if (written) *written = a.size;
    return CUBLAS_STATUS_SUCCESS;
}

bool fakegpu::lt::alive(const char *call, const void *p, Kind kind)
{
    if (!p) return false;
    Registry &r = registry();
    std::lock_guard<std::mutex> hold(r.lock);
    const auto found = r.objects.find(p);
    if (found == r.objects.end() || found->second.kind != kind)
        violation(call, "%p is no live cuBLASLt %s", p, kinds[(int)kind]);
    return true;
}

// ---- The library ----

struct cublasLtContext {
    int nothing;
};

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    if (fails("cublasLtCreate")) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (!handle) return CUBLAS_STATUS_INVALID_VALUE;
    *handle = new (std::nothrow) cublasLtContext();
    if (!*handle) return CUBLAS_STATUS_ALLOC_FAILED;
    enter(*handle, Kind::handle, false);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    return destroy("cublasLtDestroy", handle, Kind::handle);
}

size_t cublasLtGetVersion(void)
{
    return CUBLAS_VERSION;
}

size_t cublasLtGetCudartVersion(void)
{
    return CUDART_VERSION;
}

// name, text
#define STATUS_TABLE(X)                                                                            \
    X(SUCCESS, "success")                                                                          \
    X(NOT_INITIALIZED, "the library was not initialized")                                          \
    X(ALLOC_FAILED, "the resource allocation failed")                                              \
    X(INVALID_VALUE, "an invalid value was used as an argument")                                   \
    X(ARCH_MISMATCH, "an absent device architectural feature is required")                         \
    X(MAPPING_ERROR, "an access to GPU memory space failed")                                       \
    X(EXECUTION_FAILED, "the function failed to launch on the GPU")                                \
    X(INTERNAL_ERROR, "an internal operation failed")                                              \
    X(NOT_SUPPORTED, "the functionality is not supported")                                         \
    X(LICENSE_ERROR, "an error was detected when checking the current licensing")

const char *cublasLtGetStatusName(cublasStatus_t status)
{
    switch (status) {
#define X(name, text)                                                                              \
    case CUBLAS_STATUS_##name:                                                                     \
        return "CUBLAS_STATUS_" #name;
        STATUS_TABLE(X)
#undef X
    }
    return "unknown";
}

const char *cublasLtGetStatusString(cublasStatus_t status)
{
    switch (status) {
#define X(name, text)                                                                              \
    case CUBLAS_STATUS_##name:                                                                     \
        return text;
        STATUS_TABLE(X)
#undef X
    }
    return "unknown";
}

// ---- Layouts ----

cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t l, size_t size,
                                                 cudaDataType type, uint64_t rows, uint64_t cols,
                                                 int64_t ld)
{
    if (fails("cublasLtMatrixLayoutInit") || !l || size < sizeof *l)
        return CUBLAS_STATUS_ALLOC_FAILED;
    const Layout v = new_layout(type, rows, cols, ld);
    memcpy(l, &v, sizeof v);
    enter(l, Kind::layout, true);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t ld)
{
    if (fails("cublasLtMatrixLayoutCreate")) return CUBLAS_STATUS_ALLOC_FAILED;
    return create(out, Kind::layout, new_layout(type, rows, cols, ld));
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l)
{
    return destroy("cublasLtMatrixLayoutDestroy", l, Kind::layout);
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t l,
                                                cublasLtMatrixLayoutAttribute_t attr,
                                                const void *buf, size_t size)
{
    const char *call = "cublasLtMatrixLayoutSetAttribute";
    if (fails(call)) return CUBLAS_STATUS_INVALID_VALUE;
    if (!alive(call, l, Kind::layout)) return CUBLAS_STATUS_INVALID_VALUE;
    return set(l, attribute(call, attr), buf, size);
}

cublasStatus_t cublasLtMatrixLayoutGetAttribute(cublasLtMatrixLayout_t l,
                                                cublasLtMatrixLayoutAttribute_t attr, void *buf,
                                                size_t size, size_t *written)
{
    const char *call = "cublasLtMatrixLayoutGetAttribute";
    if (fails(call)) return CUBLAS_STATUS_INVALID_VALUE;
    if (!alive(call, l, Kind::layout)) return CUBLAS_STATUS_INVALID_VALUE;
    return get(l, attribute(call, attr), buf, size, written);
}

// ---- Operation descriptors ----

cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t d, size_t size,
                                               cublasComputeType_t compute, cudaDataType_t scale)
{
    if (fails("cublasLtMatmulDescInit") || !d || size < sizeof *d)
        return CUBLAS_STATUS_ALLOC_FAILED;
    const Desc v = new_desc(compute, scale);
    memcpy(d, &v, sizeof v);
    enter(d, Kind::desc, true);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute,
                                        cudaDataType_t scale)
{
    if (fails("cublasLtMatmulDescCreate")) return CUBLAS_STATUS_ALLOC_FAILED;
    return create(out, Kind::desc, new_desc(compute, scale));
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d)
{
    return destroy("cublasLtMatmulDescDestroy", d, Kind::desc);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d,
                                              cublasLtMatmulDescAttributes_t attr, const void *buf,
                                              size_t size)
{
    const char *call = "cublasLtMatmulDescSetAttribute";
    if (fails(call)) return CUBLAS_STATUS_INVALID_VALUE;
    if (!alive(call, d, Kind::desc)) return CUBLAS_STATUS_INVALID_VALUE;
    return set(d, attribute(call, attr), buf, size);
}

cublasStatus_t cublasLtMatmulDescGetAttribute(cublasLtMatmulDesc_t d,
                                              cublasLtMatmulDescAttributes_t attr, void *buf,
                                              size_t size, size_t *written)
{
    const char *call = "cublasLtMatmulDescGetAttribute";
    if (fails(call)) return CUBLAS_STATUS_INVALID_VALUE;
    if (!alive(call, d, Kind::desc)) return CUBLAS_STATUS_INVALID_VALUE;
    return get(d, attribute(call, attr), buf, size, written);
}

// ---- Preferences ----

cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t p, size_t size)
{
    if (fails("cublasLtMatmulPreferenceInit") || !p || size < sizeof *p)
        return CUBLAS_STATUS_ALLOC_FAILED;
    const Preference v = new_preference();
    memcpy(p, &v, sizeof v);
    enter(p, Kind::preference, true);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out)
{
    if (fails("cublasLtMatmulPreferenceCreate")) return CUBLAS_STATUS_ALLOC_FAILED;
    return create(out, Kind::preference, new_preference());
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p)
{
    return destroy("cublasLtMatmulPreferenceDestroy", p, Kind::preference);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t attr,
                                                    const void *buf, size_t size)
{
    const char *call = "cublasLtMatmulPreferenceSetAttribute";
    if (fails(call)) return CUBLAS_STATUS_INVALID_VALUE;
    if (!alive(call, p, Kind::preference)) return CUBLAS_STATUS_INVALID_VALUE;
    return set(p, attribute(call, attr), buf, size);
}

cublasStatus_t cublasLtMatmulPreferenceGetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t attr,
                                                    void *buf, size_t size, size_t *written)
{
    const char *call = "cublasLtMatmulPreferenceGetAttribute";
    if (fails(call)) return CUBLAS_STATUS_INVALID_VALUE;
    if (!alive(call, p, Kind::preference)) return CUBLAS_STATUS_INVALID_VALUE;
    return get(p, attribute(call, attr), buf, size, written);
}
