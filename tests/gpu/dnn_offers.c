/* What the real cuDNN offers for the convolutions and attention of this project on an H100, asked
 * without one. cuDNN 9.8 and later take a device's properties as a text
 * (CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, made for compiling ahead of time), and answer from their
 * heuristics as on that device. So every descriptor of dnn/graph.c meets the library's own checks,
 * and the choice of dnn/choose.c its real engines, notes and workspace sizes; nothing is run.
 *
 * The linker gives this program the calls below in place of the library's (--wrap): they leave out
 * handles, which need a device, and hand over the properties instead. Operation graphs of more than
 * one operation are compiled at run time, which takes NVRTC and a driver's library: of these the
 * graphs of attention are asked for, with driver.c in place of a driver. */
#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "kernels/cuda/dnn/dnn.h"
#include "kernels/cuda/trial.h"

#if CUDNN_VERSION >= 90800

/* The keys are those that the library itself writes (CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION). */
static const char h100[] =
    "{\"deviceVer\":900,\"driverVer\":13000,\"cudaDeviceId\":0,\"deviceName\":\"NVIDIA H100\","
    "\"pciDeviceId\":8960,\"isTccDriver\":0,\"supportCoopLaunch\":1,"
    "\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64],"
    "\"regsPerBlock\":65536,\"multiProcessorCount\":132,\"warpSize\":32,"
    "\"maxSharedMemoryPerBlock\":49152,\"maxSharedMemoryPerBlockOptin\":232448,"
    "\"reservedSharedMemoryPerBlock\":1024,\"maxRegistersPerSM\":65536,\"maxCtasPerSM\":32,"
    "\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":2048,\"totalGlobalMem\":85017493504,"
    "\"smClockRateKHz\":1980000,\"memClockRateKHz\":2619000,\"l2CacheSize\":52428800}";
static cudnnBackendDescriptor_t properties;

#define REAL(name, ...)                                                                            \
    cudnnStatus_t __real_##name(__VA_ARGS__);                                                      \
    cudnnStatus_t __wrap_##name(__VA_ARGS__);                                                      \
    cudnnStatus_t __wrap_##name(__VA_ARGS__)

REAL(cudnnCreate, cudnnHandle_t *out)
{
    *out = NULL;
    return CUDNN_STATUS_SUCCESS;
}

REAL(cudnnSetStream, cudnnHandle_t handle, cudaStream_t stream)
{
    (void)handle;
    (void)stream;
    return CUDNN_STATUS_SUCCESS;
}

REAL(cudnnBackendSetAttribute, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
     cudnnBackendAttributeType_t type, int64_t n, const void *values)
{
    if (name == CUDNN_ATTR_OPERATIONGRAPH_HANDLE) return CUDNN_STATUS_SUCCESS;
    if (name == CUDNN_ATTR_EXECUTION_PLAN_HANDLE)
        return __real_cudnnBackendSetAttribute(d, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP,
                                               CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &properties);
    if (name == CUDNN_ATTR_ENGINEHEUR_MODE) {
        const cudnnStatus_t s = __real_cudnnBackendSetAttribute(
            d, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &properties);
        if (s != CUDNN_STATUS_SUCCESS) return s;
    }
    return __real_cudnnBackendSetAttribute(d, name, type, n, values);
}

/* Nothing can be tried: what is named first is taken. */
tr_status __wrap_tr_cuda_trial_open(tr_cuda_trial *t, tr_cuda *cuda, const char *what,
                                    const size_t nbytes[TR_CUDA_TRIAL_BLOCKS]);
tr_status __wrap_tr_cuda_trial_open(tr_cuda_trial *t, tr_cuda *cuda, const char *what,
                                    const size_t nbytes[TR_CUDA_TRIAL_BLOCKS])
{
    (void)nbytes;
    *t = (tr_cuda_trial){.cuda = cuda, .what = what};
    return TR_OK;
}

typedef struct {
    int64_t in, out, size, kernel, stride, padding, groups, dilation;
} shape;

/* ResNet-50 at 224 x 224: each distinct convolution. */
static const shape resnet50[] = {
    {3, 64, 224, 7, 2, 3, 1, 1},    {64, 64, 56, 1, 1, 0, 1, 1},    {64, 64, 56, 3, 1, 1, 1, 1},
    {64, 256, 56, 1, 1, 0, 1, 1},   {256, 64, 56, 1, 1, 0, 1, 1},   {256, 128, 56, 1, 1, 0, 1, 1},
    {128, 128, 56, 3, 2, 1, 1, 1},  {128, 512, 28, 1, 1, 0, 1, 1},  {256, 512, 56, 1, 2, 0, 1, 1},
    {512, 128, 28, 1, 1, 0, 1, 1},  {128, 128, 28, 3, 1, 1, 1, 1},  {512, 256, 28, 1, 1, 0, 1, 1},
    {256, 256, 28, 3, 2, 1, 1, 1},  {256, 1024, 14, 1, 1, 0, 1, 1}, {512, 1024, 28, 1, 2, 0, 1, 1},
    {1024, 256, 14, 1, 1, 0, 1, 1}, {256, 256, 14, 3, 1, 1, 1, 1},  {1024, 512, 14, 1, 1, 0, 1, 1},
    {512, 512, 14, 3, 2, 1, 1, 1},  {512, 2048, 7, 1, 1, 0, 1, 1},  {1024, 2048, 14, 1, 2, 0, 1, 1},
    {2048, 512, 7, 1, 1, 0, 1, 1},  {512, 512, 7, 3, 1, 1, 1, 1}};

/* Channels that fill no vector, groups, one channel a group, dilation. */
static const shape odd[] = {{1, 1, 5, 3, 1, 1, 1, 1},       {3, 5, 9, 3, 2, 1, 1, 1},
                            {7, 5, 9, 3, 1, 1, 1, 1},       {6, 9, 9, 5, 1, 2, 3, 1},
                            {6, 12, 9, 3, 2, 1, 6, 1},      {16, 16, 9, 3, 1, 2, 1, 2},
                            {128, 128, 28, 3, 1, 1, 32, 1}, {32, 32, 56, 3, 1, 1, 32, 1}};

static tr_dnn_problem problem(const shape *s, int pass, tr_dtype type, int64_t batch, bool exact)
{
    const int64_t result =
        s->stride ? (s->size + 2 * s->padding - s->dilation * (s->kernel - 1) - 1) / s->stride + 1
                  : 0;
    return (tr_dnn_problem){.pass = pass,
                            .type = type,
                            .weight_type = type,
                            .result_type = type,
                            .exact = exact,
                            .batch = batch,
                            .groups = s->groups,
                            .in = s->in,
                            .out = s->out,
                            .size = {s->size, s->size},
                            .result = {result, result},
                            .kernel = {s->kernel, s->kernel},
                            .stride = {s->stride, s->stride},
                            .padding = {s->padding, s->padding},
                            .dilation = {s->dilation, s->dilation}};
}

static tr_cuda machine(void)
{
    return (tr_cuda){
        .o = {.deterministic = true, .workspace = 256000000, .tf32 = true}, .major = 9, .sms = 132};
}

static void expect_engine(tr_cuda_dnn *dnn, const tr_dnn_problem *p, size_t workspace)
{
    const tr_dnn_plan *plan = NULL;
    if (tr_dnn_plan_get(dnn, p, &plan) != TR_OK) fail_msg("%s", tr_last_error()->text);
    if (!plan || strncmp(tr_dnn_plan_name(plan), "cuDNN engine", 12) != 0)
        fail_msg("pass %d of %s, %d to %d channels, window %d: %s", (int)p->pass,
                 tr_dtype_name((tr_dtype)p->type), (int)p->in, (int)p->out, (int)p->kernel[0],
                 plan ? tr_dnn_plan_name(plan) : tr_dnn_refusal(dnn));
    if (tr_dnn_plan_workspace(plan) > workspace)
        fail_msg("%zu bytes of workspace", tr_dnn_plan_workspace(plan));
}

static void each(const shape *s, size_t n, tr_dtype type, int64_t batch, bool exact)
{
    tr_cuda cuda = machine();
    tr_cuda_dnn *dnn = NULL;
    assert_int_equal(tr_cuda_dnn_open(&cuda, &dnn), TR_OK);
    for (size_t i = 0; i < n; i++)
        for (int pass = TR_DNN_FORWARD; pass <= TR_DNN_GRAD_WEIGHT; pass++) {
            const tr_dnn_problem p = problem(&s[i], pass, type, batch, exact);
            expect_engine(dnn, &p, cuda.o.workspace);
        }
    tr_cuda_dnn_close(dnn);
}

static void test_resnet50(void **state)
{
    (void)state;
    each(resnet50, TR_COUNT(resnet50), TR_BF16, 256, false);
    each(resnet50, TR_COUNT(resnet50), TR_F16, 256, false);
    each(resnet50, TR_COUNT(resnet50), TR_F32, 64, false);
    each(resnet50, TR_COUNT(resnet50), TR_F32, 64, true);
}

static void test_odd(void **state)
{
    (void)state;
    each(odd, TR_COUNT(odd), TR_BF16, 8, false);
    each(odd, TR_COUNT(odd), TR_F16, 8, false);
    each(odd, TR_COUNT(odd), TR_F32, 8, false);
    each(odd, TR_COUNT(odd), TR_F32, 8, true);
}

/* Problems all over what a layer may ask for, drawn from these: each has an engine of the graph
 * API, in all passes and types, with little workspace, too. So no other API is needed. */
static void test_any(void **state)
{
    (void)state;
    static const int64_t channels[][3] = {/* in, out, groups */
                                          {1, 1, 1},    {3, 5, 1},   {6, 9, 3},    {6, 12, 6},
                                          {16, 16, 16}, {33, 17, 1}, {24, 36, 12}, {128, 256, 1}};
    static const int64_t kernels[][2] = {{1, 1}, {2, 2}, {3, 3}, {5, 5}, {11, 11}, {1, 7}, {3, 1}};
    static const int64_t strides[][2] = {{1, 1}, {2, 2}, {3, 3}, {1, 2}};
    static const int64_t dilations[][2] = {{1, 1}, {2, 2}, {1, 3}};
    static const int64_t sizes[][2] = {{1, 1}, {5, 5}, {14, 28}, {33, 31}, {1, 57}};
    static const size_t workspaces[] = {256000000, 1000000};
    for (uint32_t i = 0; i < 240; i++) {
        const tr_philox r = tr_philox_at(5, TR_RNG_TEST, 0, i, 0),
                        q = tr_philox_at(6, TR_RNG_TEST, 0, i, 0);
        const int64_t *c = channels[r.v[0] % TR_COUNT(channels)],
                      *k = kernels[r.v[1] % TR_COUNT(kernels)];
        const int64_t *s = strides[r.v[2] % TR_COUNT(strides)],
                      *d = dilations[r.v[3] % TR_COUNT(dilations)];
        const int64_t *z = sizes[q.v[0] % TR_COUNT(sizes)];
        const shape none = {.in = c[0], .out = c[1], .groups = c[2]};
        const tr_dtype type = i % 4 < 2 ? TR_F32 : i % 4 == 2 ? TR_BF16 : TR_F16;
        tr_dnn_problem p = problem(&none, (int)(i / 4 % 3), type, 1 + q.v[1] % 32, i % 4 == 0);
        bool fits = true;
        for (int a = 0; a < 2; a++) {
            const int64_t reach = d[a] * (k[a] - 1);
            p.size[a] = z[a];
            p.kernel[a] = k[a];
            p.stride[a] = s[a];
            p.dilation[a] = d[a];
            p.padding[a] =
                (int64_t)(q.v[2] % 3) * reach / 2; /* none, as much as keeps the size, all */
            fits &= z[a] + 2 * p.padding[a] >= reach + 1;
            p.result[a] = (z[a] + 2 * p.padding[a] - reach - 1) / s[a] + 1;
        }
        if (!fits) continue;
        tr_cuda cuda = machine();
        cuda.o.workspace = workspaces[q.v[3] % TR_COUNT(workspaces)];
        tr_cuda_dnn *dnn = NULL;
        assert_int_equal(tr_cuda_dnn_open(&cuda, &dnn), TR_OK);
        expect_engine(dnn, &p, cuda.o.workspace);
        tr_cuda_dnn_close(dnn);
    }
}

/* ---- Attention ---- */

typedef struct {
    int64_t heads, kv_heads, queries, keys, D;
    bool packed, causal;
} rows;

/* GPT-2; rows that fill no tile; all sizes of heads; across; shared keys. */
static const rows many[] = {
    {12, 12, 1024, 1024, 64, true, true}, {12, 12, 1024, 1024, 64, false, false},
    {3, 3, 201, 201, 64, true, true},     {2, 2, 127, 127, 32, true, false},
    {2, 2, 67, 67, 128, true, true},      {2, 2, 100, 100, 40, true, true},
    {2, 2, 64, 64, 8, false, true},       {2, 2, 65, 263, 64, false, false},
    {2, 2, 190, 64, 64, false, false},    {2, 2, 70, 140, 64, false, true},
    {2, 2, 140, 70, 64, false, true},     {6, 2, 130, 130, 64, true, true},
    {4, 1, 96, 100, 128, false, false}};

static tr_dnn_problem attention(const rows *r, int pass, tr_dtype type, bool lse)
{
    const int64_t all = r->heads + 2 * r->kv_heads;
    return (tr_dnn_problem){.pass = pass,
                            .type = type,
                            .attention = {.samples = 16,
                                          .queries = r->queries,
                                          .keys = r->keys,
                                          .heads = r->heads,
                                          .kv_heads = r->kv_heads,
                                          .D = r->D,
                                          .q_pitch = (r->packed ? all : r->heads) * r->D,
                                          .kv_pitch = (r->packed ? all : r->kv_heads) * r->D,
                                          .k_at = r->packed ? r->heads * r->D : 0,
                                          .v_at = r->packed ? (r->heads + r->kv_heads) * r->D : 0,
                                          .causal = r->causal,
                                          .lse = lse || pass == TR_DNN_ATTENTION_GRAD,
                                          .scale = 0.125}};
}

/* Its kernels are made when a plan is, by NVRTC: with driver.c in place of a driver. */
static bool compiles(void)
{
    char name[32];
    snprintf(name, sizeof name, "libnvrtc.so.%d", CUDART_VERSION / 1000);
    void *nvrtc = dlopen(name, RTLD_LAZY), *driver = dlopen("libcuda.so.1", RTLD_LAZY);
    const bool both = nvrtc && driver && cudnnGetVersion() >= 91600;
    if (driver) dlclose(driver);
    if (nvrtc) dlclose(nvrtc);
    if (!both) print_message("skipped: no NVRTC, no driver.c, or cuDNN older than 9.16\n");
    return both;
}

static void expect_attention(tr_cuda_dnn *dnn, const tr_dnn_problem *p)
{
    const tr_dnn_attention_problem *a = &p->attention;
    const tr_dnn_plan *plan = NULL;
    if (tr_dnn_plan_get(dnn, p, &plan) != TR_OK) fail_msg("%s", tr_last_error()->text);
    if (!plan)
        fail_msg("pass %d of %s, %d x %d, %d to %d heads of %d: %s", (int)p->pass,
                 tr_dtype_name((tr_dtype)p->type), (int)a->queries, (int)a->keys, (int)a->heads,
                 (int)a->kv_heads, (int)a->D, tr_dnn_refusal(dnn));
    const bool shared = p->pass == TR_DNN_ATTENTION_GRAD && a->heads != a->kv_heads;
    const size_t dk = (size_t)(a->samples * a->heads * a->keys * a->D) * 2;
    assert_in_range(tr_dnn_plan_workspace(plan), 0, 4096 + (shared ? 2 * dk : 0));
}

static void test_attention(void **state)
{
    (void)state;
    tr_cuda cuda = machine();
    tr_cuda_dnn *dnn = NULL;
    if (!compiles()) return;
    cuda.o.deterministic = false;
    assert_int_equal(tr_cuda_dnn_open(&cuda, &dnn), TR_OK);
    for (size_t i = 0; i < TR_COUNT(many); i++)
        for (int pass = TR_DNN_ATTENTION; pass <= TR_DNN_ATTENTION_GRAD; pass++)
            for (int lse = i > 0 || pass == TR_DNN_ATTENTION_GRAD; lse < 2; lse++) {
                const tr_dnn_problem p =
                    attention(&many[i], pass, i % 2 ? TR_F16 : TR_BF16, lse != 0);
                expect_attention(dnn, &p);
            }
    tr_cuda_dnn_close(dnn);
}

/* The library calls a wrong descriptor a bad parameter, and that stays an error. */
static void test_wrong(void **state)
{
    (void)state;
    tr_cuda cuda = machine();
    tr_cuda_dnn *dnn = NULL;
    assert_int_equal(tr_cuda_dnn_open(&cuda, &dnn), TR_OK);
    for (int pass = TR_DNN_FORWARD; pass <= TR_DNN_GRAD_WEIGHT; pass++) {
        const tr_dnn_plan *plan = NULL;
        tr_dnn_problem p = problem(&resnet50[2], pass, TR_BF16, 2, false);
        p.result[0]++;
        assert_int_equal(tr_dnn_plan_get(dnn, &p, &plan), TR_KERNEL);
        assert_non_null(strstr(tr_last_error()->text, "BAD_PARAM"));
    }
    tr_cuda_dnn_close(dnn);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_attention),
                                       cmocka_unit_test(test_resnet50), cmocka_unit_test(test_odd),
                                       cmocka_unit_test(test_any), cmocka_unit_test(test_wrong)};
    if (cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &properties) ||
        __real_cudnnBackendSetAttribute(properties, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION,
                                        CUDNN_TYPE_CHAR, (int64_t)strlen(h100), h100) ||
        cudnnBackendFinalize(properties)) {
        printf("skipped: cuDNN %zu does not take a device's properties as text\n",
               cudnnGetVersion());
        return 77;
    }
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    cudnnBackendDestroyDescriptor(properties);
    return failed;
}

#else

int main(void)
{
    printf("skipped: cuDNN older than 9.8 does not take a device's properties as text\n");
    return 77;
}

#endif
