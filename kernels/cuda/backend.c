/* The CUDA backend's entry: which devices there are, the context (a device, its stream, the
 * libraries' handles), and the way from an op's name to the function that prepares it. One context
 * a device and a rank; all calls come from one thread. */
#include "kernels/cuda/cuda.h"

#include <cublasLt.h>
#include <cuda.h>
#include <cudnn.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/blas/blas.h"
#include "kernels/cuda/core.h"
#include "kernels/cuda/dnn/dnn.h"
#include "kernels/cuda/loops/probe.h"
#include "kernels/cuda/trial.h"

static tr_cuda_prepare_fn *const table[] = {
#define X(op, kernel) tr_cuda_##kernel,
    TR_OPS(X)
#undef X
};

static tr_cuda_prepare_fn *find(const tr_op_def *def)
{
    const size_t i = tr_op_place(def);
    return i < TR_COUNT(table) ? table[i] : NULL;
}

/* ---- Devices ---- */

/* "13.0" of 13000. */
#define VERSION(v) (v) / 1000, (v) % 1000 / 10

static int no_device(cudaError_t e, char *why, size_t size)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    int driver = 0, runtime = 0;
    char advice[200] = "see what nvidia-smi says";
    if (cudaDriverGetVersion(&driver) != cudaSuccess) driver = 0;
    if (cudaRuntimeGetVersion(&runtime) != cudaSuccess) runtime = 0;
    (void)cudaGetLastError();
    if (driver == 0)
        snprintf(advice, sizeof advice,
                 "there is no NVIDIA driver here (in a container: start it with the GPUs)");
    else if (e == cudaErrorInsufficientDriver)
        snprintf(advice, sizeof advice,
                 "the driver is for CUDA %d.%d, this program for %d.%d: update the driver",
                 VERSION(driver), VERSION(runtime));
    else if (visible && (e == cudaErrorNoDevice || e == cudaSuccess))
        snprintf(advice, sizeof advice, "CUDA_VISIBLE_DEVICES is \"%.80s\"", visible);
    snprintf(why, size, "no CUDA device: cudaGetDeviceCount: %s (%s): %s",
             e == cudaSuccess ? "none found" : cudaGetErrorString(e),
             cudaGetErrorName(e == cudaSuccess ? cudaErrorNoDevice : e), advice);
    return 0;
}

static int cuda_devices(char *why, size_t size)
{
    int n = 0;
    const cudaError_t e = cudaGetDeviceCount(&n);
    if (e != cudaSuccess || n <= 0) return no_device(e, why, size);
    return n;
}

/* A function of the driver's as CUDA 11.4 has it, by which instances of a GPU (MIG) have UUIDs of
 * their own. NULL where the driver is older, or, with a warning, does not give it. */
static void *find_function(const char *name)
{
    void *f = NULL;
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
    const char *call = "cudaGetDriverEntryPointByVersion";
    const cudaError_t e =
        cudaGetDriverEntryPointByVersion(name, &f, 11040, cudaEnableDefault, &found);
#else
    const char *call = "cudaGetDriverEntryPoint";
    const cudaError_t e = cudaGetDriverEntryPoint(name, &f, cudaEnableDefault, &found);
#endif
    if (e != cudaSuccess) (void)cudaGetLastError();
    if (e != cudaSuccess && e != cudaErrorSymbolNotFound)
        tr_log(TR_LOG_WARN, "instances of one GPU (MIG) cannot be told apart: %s(%s): %s (%s)",
               call, name, cudaGetErrorString(e), cudaGetErrorName(e));
    return e == cudaSuccess && found == cudaDriverEntryPointSuccess ? f : NULL;
}

static bool find_uuid(int device, CUuuid *uuid)
{
    CUdevice handle;
    void *get = find_function("cuDeviceGet"), *get_uuid = find_function("cuDeviceGetUuid");
    return get && get_uuid && ((__typeof__(&cuDeviceGet))get)(&handle, device) == CUDA_SUCCESS &&
           ((__typeof__(&cuDeviceGetUuid_v2))get_uuid)(uuid, handle) == CUDA_SUCCESS;
}

/* "0000:10:00.0/5f0c...": instances of one GPU differ in the UUID alone, which only they need. */
static tr_status cuda_device_id(int device, char *buf, size_t size)
{
    tr_status st = TR_OK;
    CUuuid uuid;
    TR_CUDA_TRY(cudaDeviceGetPCIBusId(buf, (int)size, device));
    if (!find_uuid(device, &uuid)) goto out;
    size_t n = strlen(buf);
    n += (size_t)snprintf(buf + n, size - n, TR_GPU_ID_APART);
    for (size_t i = 0; i < sizeof uuid.bytes && n < size; i++)
        n += (size_t)snprintf(buf + n, size - n, "%02x", (unsigned char)uuid.bytes[i]);
out:
    return st;
}

/* cuDNN's convolutions and tensor cores know it from Ampere on. */
#define BF16_SINCE 8
#define NO_BF16    "has no bf16 (it needs compute capability 8.0, A100 or later)"

static tr_status cuda_computes(int device, tr_precision precision)
{
    tr_status st = TR_OK;
    struct cudaDeviceProp p;
    if (precision != TR_PRECISION_BF16) return TR_OK;
    TR_CUDA_TRY(cudaGetDeviceProperties(&p, device));
    TR_NEED(p.major >= BF16_SINCE, TR_UNSUPPORTED, "%.127s (sm_%d%d) " NO_BF16, p.name, p.major,
            p.minor);
out:
    return st;
}

/* ---- The context ---- */

/* What cannot be released is not waited for: the process ends soon, and its first error counts. */
static void cuda_close(void *ctx)
{
    tr_cuda *cuda = ctx;
    if (!cuda) return;
    if (!cuda->o.dry) {
        (void)cudaSetDevice(cuda->o.device);
        if (cuda->stream) (void)cudaStreamSynchronize(cuda->stream);
        tr_cuda_monitor_close(cuda);
        tr_cuda_pace_close(cuda);
        tr_cuda_dnn_close(cuda->dnn);
        tr_cuda_blas_close(cuda->blas);
        tr_cuda_sums_close(cuda);
        tr_cuda_pieces_close(cuda);
        tr_cuda_memory_close(cuda);
        if (cuda->stream) (void)cudaStreamDestroy(cuda->stream);
        (void)cudaGetLastError();
    }
    tr_cuda_forget(cuda);
    tr_free(cuda);
}

/* Plans are for an H100: what it can do, other devices of its time and later can. */
static void imagine_device(tr_cuda *cuda)
{
    cuda->major = 9;
    cuda->sms = 132;
    cuda->max_shared = 227 * 1024;
    snprintf(cuda->device_name, sizeof cuda->device_name, "planned for NVIDIA H100");
}

/* "sm_75, sm_90" of "750,900". */
static void format_architectures(char *buf, size_t size)
{
    const char *p = tr_cuda_architectures();
    size_t n = 0;
    buf[0] = 0;
    while (*p && n < size) {
        char *end;
        n += (size_t)snprintf(buf + n, size - n, "%ssm_%ld", n > 0 ? ", " : "",
                              strtol(p, &end, 10) / 10);
        p = *end == ',' ? end + 1 : end;
        if (p == end && *p) break;
    }
}

/* The first launch: finds out whether the build has code that the device runs. */
static tr_status try_kernel(tr_cuda *cuda)
{
    tr_status st = TR_OK;
    char text[TR_ERROR_TEXT], built[128];
    TR_TRY(tr_cuda_probe(cuda->stream));
    TR_TRY(tr_cuda_finish(cuda));
out:
    if (st == TR_OK) return TR_OK;
    memcpy(text, tr_last_error()->text, sizeof text);
    if (!strstr(text, "NoKernelImage") && !strstr(text, "InvalidDeviceFunction") &&
        !strstr(text, "UnsupportedPtx"))
        return st;
    format_architectures(built, sizeof built);
    return TR_FAIL(st,
                   "%s is sm_%d%d, this program was built for %s: build it with "
                   "-DCMAKE_CUDA_ARCHITECTURES=%d%d (%s)",
                   cuda->device_name, cuda->major, cuda->minor, built, cuda->major, cuda->minor,
                   text);
}

static tr_status open_device(tr_cuda *cuda)
{
    tr_status st = TR_OK;
    struct cudaDeviceProp p;
    char why[512];
    const int n = cuda_devices(why, sizeof why);
    TR_NEED(n > 0, TR_KERNEL, "%s", why);
    TR_NEED(cuda->o.device >= 0 && cuda->o.device < n, TR_KERNEL,
            "there is no CUDA device %d, only %d can be seen", cuda->o.device, n);
    TR_CUDA_TRY(cudaSetDevice(cuda->o.device));
    TR_CUDA_TRY(cudaGetDeviceProperties(&p, cuda->o.device));
    cuda->major = p.major;
    cuda->minor = p.minor;
    cuda->sms = p.multiProcessorCount;
    cuda->max_shared = (int)p.sharedMemPerBlockOptin;
    snprintf(cuda->device_name, sizeof cuda->device_name, "%.127s", p.name);
    TR_CUDA_TRY(cudaStreamCreateWithFlags(&cuda->stream, cudaStreamNonBlocking));
    TR_TRY(try_kernel(cuda));
out:
    return st;
}

static tr_status cuda_open(const tr_backend_options *o, void **out)
{
    tr_status st = TR_OK;
    /* Whichever is fastest differs from run to run. */
    if (o->deterministic && o->benchmark)
        return TR_FAIL(TR_INTERNAL, "a deterministic backend cannot time what it chooses from");
    tr_cuda *cuda = TR_NEW(TR_MEM_OTHER, tr_cuda);
    if (!cuda) return tr_last_status();
    cuda->o = *o;
    if (o->dry) {
        imagine_device(cuda);
        goto out;
    }
    TR_TRY(open_device(cuda));
    TR_TRY(tr_cuda_memory_open(cuda));
    TR_TRY(tr_cuda_pieces_open(cuda));
    TR_TRY(tr_cuda_pace_open(cuda));
    TR_TRY(tr_cuda_sums_open(cuda));
    TR_TRY(tr_cuda_blas_open(cuda, &cuda->blas));
    TR_TRY(tr_cuda_dnn_open(cuda, &cuda->dnn));
    tr_cuda_monitor_open(cuda);
out:
    if (st != TR_OK) {
        cuda_close(cuda);
        return st;
    }
    *out = cuda;
    return TR_OK;
}

static void cuda_describe(void *ctx, char *buf, size_t size)
{
    const tr_cuda *cuda = ctx;
    const size_t blas = cublasLtGetVersion(), dnn = cudnnGetVersion();
    int runtime = 0;
    if (cudaRuntimeGetVersion(&runtime) != cudaSuccess) (void)cudaGetLastError();
    snprintf(
        buf, size, "%s (sm_%d%d), CUDA %d.%d, cuBLASLt %zu.%zu.%zu, cuDNN %zu.%zu.%zu%s, graphs %s",
        cuda->device_name, cuda->major, cuda->minor, VERSION(runtime), blas / 10000,
        blas / 100 % 100, blas % 100, dnn / 10000, dnn / 100 % 100, dnn % 100,
        cuda->o.tf32 && cuda->major >= 8 ? ", TF32 for fp32" : "", cuda->o.graphs ? "on" : "off");
}

static void *cuda_stream(void *ctx)
{
    return ((tr_cuda *)ctx)->stream;
}

/* ---- Ops ---- */

static const char *cuda_unsupported(void *ctx, const tr_op_def *def, tr_dtype type)
{
    const tr_cuda *cuda = ctx;
    if (type == TR_BF16 && cuda->major < BF16_SINCE)
        return "this GPU " NO_BF16 ": use precision fp16 or fp32";
    if (tr_op_place(def) == TR_OP_conv2d_int8_groups)
        return "groups of 8-bit convolutions run on CPUs alone";
    return find(def) ? NULL : "no CUDA kernel of this name";
}

static tr_status cuda_prepare(void *ctx, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    const char *why = cuda_unsupported(ctx, op->def, tr_op_dtype(g, op));
    if (why)
        return TR_FAIL(TR_UNSUPPORTED, "layer %s, op %s: %s", op->layer, tr_op_def_name(op->def),
                       why);
    return find(op->def)(ctx, g, op, out);
}

/* ---- The parts ---- */

static const tr_device_memory memory = {
    .alloc = tr_cuda_alloc,
    .borrow = tr_cuda_borrow,
    .free = tr_cuda_free,
    .host_alloc = tr_cuda_host_alloc,
    .host_free = tr_cuda_host_free,
    .zero = tr_cuda_zero,
    .copy = tr_cuda_copy,
    .upload = tr_cuda_upload,
    .download = tr_cuda_download,
};

static const tr_device_kernels kernels = {.unsupported = cuda_unsupported,
                                          .activation_gradient = true,
                                          .row_align = 16,
                                          .prepare = cuda_prepare};

static const tr_device_stream stream = {
    .finish = tr_cuda_finish, .poll = tr_cuda_pace_poll, .handle = cuda_stream};

static const tr_device_sections sections = {.open = tr_cuda_sections_open,
                                            .close = tr_cuda_sections_close,
                                            .begin = tr_cuda_section_begin,
                                            .recording = tr_cuda_section_recording,
                                            .recorded = tr_cuda_section_recorded,
                                            .end = tr_cuda_section_end,
                                            .drop = tr_cuda_sections_drop,
                                            .disable = tr_cuda_sections_disable};

static const tr_device_staging staging = {
    .open = tr_cuda_stage_open,
    .close = tr_cuda_stage_close,
    .begin = tr_cuda_stage_begin,
    .part = tr_cuda_stage_part,
    .poll = tr_cuda_stage_poll,
    .slot = tr_cuda_stage_slot,
};

static const tr_device_marks marks = {.open = tr_cuda_marks_open,
                                      .close = tr_cuda_marks_close,
                                      .set = tr_cuda_mark,
                                      .read = tr_cuda_marks_read};

static const tr_device_training training = {
    .open = tr_cuda_training_open,
    .close = tr_cuda_training_close,
    .set_input = tr_cuda_set_input,
    .lap = tr_cuda_lap,
    .sum_squares = tr_cuda_sum_squares,
    .squares_open = tr_cuda_squares_open,
    .squares_run = tr_cuda_squares_run,
    .squares_close = tr_cuda_squares_close,
    .wire_open = tr_cuda_wire_open,
    .wire_run = tr_cuda_wire_run,
    .wire_close = tr_cuda_wire_close,
    .updater_open = tr_cuda_updater_open,
    .updater_close = tr_cuda_updater_close,
    .updater_decide = tr_cuda_updater_decide,
    .updater_measure = tr_cuda_updater_measure,
    .updater_run = tr_cuda_updater_run,
    .updater_swap_ema = tr_cuda_updater_swap_ema,
    .report_begin = tr_cuda_report_begin,
    .report_poll = tr_cuda_report_poll,
};

const tr_backend tr_cuda_backend = {
    .name = "cuda",
    .host = false,
    .pinned = 2 * TR_CUDA_PIECE,
    .devices = cuda_devices,
    .device_id = cuda_device_id,
    .computes = cuda_computes,
    .open = cuda_open,
    .close = cuda_close,
    .describe = cuda_describe,
    .load = tr_cuda_load,
    .memory = &memory,
    .kernels = &kernels,
    .stream = &stream,
    .sections = &sections,
    .staging = &staging,
    .marks = &marks,
    .training = &training,
};
