// Devices, errors and kernel attributes of the runtime. Devices are like an H100 with less memory;
// one is as good as another.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include <cuda.h>

#include "tests/fakegpu/engine.h"

namespace fakegpu
{

namespace
{

constexpr int sms = 132, shared_block = 48 << 10, shared_optin = 227 << 10, shared_sm = 228 << 10;

thread_local cudaError_t thread_error = cudaSuccess;
thread_local int thread_device = 0;

// name, text as the runtime gives it
#define ERRORS(X)                                                                                  \
    X(cudaSuccess, "no error")                                                                     \
    X(cudaErrorInvalidValue, "invalid argument")                                                   \
    X(cudaErrorMemoryAllocation, "out of memory")                                                  \
    X(cudaErrorInitializationError, "initialization error")                                        \
    X(cudaErrorCudartUnloading, "driver shutting down")                                            \
    X(cudaErrorInvalidConfiguration, "invalid configuration argument")                             \
    X(cudaErrorInvalidPitchValue, "invalid pitch argument")                                        \
    X(cudaErrorInvalidSymbol, "invalid device symbol")                                             \
    X(cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy")                        \
    X(cudaErrorInsufficientDriver, "CUDA driver version is insufficient for CUDA runtime version") \
    X(cudaErrorMissingConfiguration, "__global__ function call is not configured")                 \
    X(cudaErrorInvalidDeviceFunction, "invalid device function")                                   \
    X(cudaErrorNoDevice, "no CUDA-capable device is detected")                                     \
    X(cudaErrorInvalidDevice, "invalid device ordinal")                                            \
    X(cudaErrorDevicesUnavailable, "CUDA-capable device(s) is/are busy or unavailable")            \
    X(cudaErrorDeviceUninitialized, "invalid device context")                                      \
    X(cudaErrorECCUncorrectable, "uncorrectable ECC error encountered")                            \
    X(cudaErrorUnsupportedLimit, "limit is not supported on this architecture")                    \
    X(cudaErrorInvalidResourceHandle, "invalid resource handle")                                   \
    X(cudaErrorIllegalState, "the operation cannot be performed in the present state")             \
    X(cudaErrorNotReady, "device not ready")                                                       \
    X(cudaErrorIllegalAddress, "an illegal memory access was encountered")                         \
    X(cudaErrorLaunchOutOfResources, "too many resources requested for launch")                    \
    X(cudaErrorLaunchTimeout, "the launch timed out and was terminated")                           \
    X(cudaErrorContextIsDestroyed, "context is destroyed")                                         \
    X(cudaErrorAssert, "device-side assert triggered")                                             \
    X(cudaErrorHostMemoryAlreadyRegistered,                                                        \
      "part or all of the requested memory range is already mapped")                               \
    X(cudaErrorHostMemoryNotRegistered,                                                            \
      "pointer does not correspond to a registered memory region")                                 \
    X(cudaErrorMisalignedAddress, "misaligned address")                                            \
    X(cudaErrorLaunchFailure, "unspecified launch failure")                                        \
    X(cudaErrorNotPermitted, "operation not permitted")                                            \
    X(cudaErrorNotSupported, "operation not supported")                                            \
    X(cudaErrorSystemDriverMismatch,                                                               \
      "system has unsupported display driver / cuda driver combination")                           \
    X(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing")       \
    X(cudaErrorStreamCaptureInvalidated,                                                           \
      "operation failed due to a previous error during capture")                                   \
    X(cudaErrorStreamCaptureMerge,                                                                 \
      "operation would result in a merge of separate capture sequences")                           \
    X(cudaErrorStreamCaptureUnmatched, "capture was not ended in the same stream as it began")     \
    X(cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work")                        \
    X(cudaErrorStreamCaptureIsolation, "dependency created on uncaptured work in another stream")  \
    X(cudaErrorStreamCaptureImplicit,                                                              \
      "operation would make the legacy stream depend on a capturing blocking stream")              \
    X(cudaErrorCapturedEvent,                                                                      \
      "operation not permitted on an event last recorded in a capturing stream")                   \
    X(cudaErrorStreamCaptureWrongThread,                                                           \
      "attempt to terminate a thread-local capture sequence from another thread")                  \
    X(cudaErrorTimeout, "wait operation timed out")                                                \
    X(cudaErrorGraphExecUpdateFailure,                                                             \
      "the graph update was not performed because it included changes which violated "             \
      "constraints specific to instantiated graph update")                                         \
    X(cudaErrorUnknown, "unknown error")

struct ErrorText {
    cudaError_t code;
    const char *name, *text;
};
constexpr ErrorText errors[] = {
#define X(name, text) {name, #name, text},
    ERRORS(X)
#undef X
};

const ErrorText *find_error(cudaError_t e)
{
    for (const ErrorText &t : errors)
        if (t.code == e) return &t;
    return nullptr;
}

bool good_device(int d)
{
    return d >= 0 && d < engine().devices;
}

int bus_of(int device)
{
    return 0x10 + gpu_of(device);
}

void bus_id(int device, char *buf, int size)
{
    snprintf(buf, (size_t)size, "0000:%02X:00.0", bus_of(device));
}

void fill_uuid(int device, char bytes[16])
{
    memset(bytes, 0, 16);
    bytes[0] = (char)0xa0;
    bytes[15] = (char)engine().visible[(size_t)device];
}

// The driver's, as far as they are asked for by name.
CUresult get_device(CUdevice *device, int ordinal)
{
    if (!good_device(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUresult get_uuid(CUuuid *uuid, CUdevice device)
{
    if (!good_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    fill_uuid(device, uuid->bytes);
    return CUDA_SUCCESS;
}

} // namespace

int gpu_of(int device)
{
    return engine().visible[(size_t)device] / engine().instances;
}

cudaError_t &last_error()
{
    return thread_error;
}
int &current_device()
{
    return thread_device;
}

// By the beginning of the call's name, first match.
cudaError_t plausible(const char *call)
{
    static const struct {
        const char *begins;
        cudaError_t e;
    } table[] = {
        {"cudaMallocHost", cudaErrorMemoryAllocation},
        {"cudaMalloc", cudaErrorMemoryAllocation},
        {"cudaHostAlloc", cudaErrorMemoryAllocation},
        {"cudaHostRegister", cudaErrorMemoryAllocation},
        {"cudaLaunchKernel", cudaErrorLaunchOutOfResources},
        {"cudaGetDeviceCount", cudaErrorInsufficientDriver},
        {"cudaSetDevice", cudaErrorDevicesUnavailable},
        {"cudaStreamCreate", cudaErrorMemoryAllocation},
        {"cudaEventCreate", cudaErrorMemoryAllocation},
        {"cudaGraphInstantiate", cudaErrorMemoryAllocation},
        {"cudaGraphLaunch", cudaErrorLaunchFailure},
        {"cudaStreamSynchronize", cudaErrorLaunchFailure},
        {"cudaStreamQuery", cudaErrorLaunchFailure},
        {"cudaEventSynchronize", cudaErrorLaunchFailure},
        {"cudaEventQuery", cudaErrorLaunchFailure},
        {"cudaDeviceSynchronize", cudaErrorLaunchFailure},
        {"cudaMemcpy", cudaErrorIllegalAddress},
        {"cudaMemset", cudaErrorIllegalAddress},
        {"cudaStreamBeginCapture", cudaErrorIllegalState},
        {"cudaStreamEndCapture", cudaErrorStreamCaptureInvalidated},
        {"cudaStream", cudaErrorInvalidResourceHandle},
        {"cudaEvent", cudaErrorInvalidResourceHandle},
        {"cudaFree", cudaErrorIllegalAddress},
        {"cudaMemGetInfo", cudaErrorInitializationError},
    };
    for (const auto &t : table)
        if (strncmp(call, t.begins, strlen(t.begins)) == 0) return t.e;
    return cudaErrorInvalidValue;
}

} // namespace fakegpu

using namespace fakegpu;

extern "C" {

// ---- Errors ----

cudaError_t cudaGetLastError(void)
{
    const cudaError_t e = last_error();
    last_error() = engine().sticky; // an error that spoiled the context stays
    return e;
}

cudaError_t cudaPeekAtLastError(void)
{
    return last_error();
}

const char *cudaGetErrorName(cudaError_t e)
{
    const ErrorText *t = find_error(e);
    return t != nullptr ? t->name : "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t e)
{
    const ErrorText *t = find_error(e);
    return t != nullptr ? t->text : "unrecognized error code";
}

// ---- Devices ----

cudaError_t cudaGetDeviceCount(int *n)
{
    if (n != nullptr) *n = 0;
    FAKEGPU_ENTER("cudaGetDeviceCount");
    if (n == nullptr) return entry.done(cudaErrorInvalidValue);
    *n = engine().devices;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    FAKEGPU_ENTER("cudaSetDevice");
    if (!good_device(device)) return entry.done(cudaErrorInvalidDevice);
    current_device() = device;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
    FAKEGPU_ENTER("cudaGetDevice");
    if (device == nullptr) return entry.done(cudaErrorInvalidValue);
    *device = current_device();
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device)
{
    FAKEGPU_ENTER("cudaGetDeviceProperties");
    if (p == nullptr) return entry.done(cudaErrorInvalidValue);
    if (!good_device(device)) return entry.done(cudaErrorInvalidDevice);
    memset(static_cast<void *>(p), 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "Stand-in for an H100");
    fill_uuid(device, p->uuid.bytes);
    p->totalGlobalMem = engine().memory;
    p->sharedMemPerBlock = shared_block;
    p->sharedMemPerBlockOptin = shared_optin;
    p->sharedMemPerMultiprocessor = shared_sm;
    p->reservedSharedMemPerBlock = 1024;
    p->regsPerBlock = p->regsPerMultiprocessor = 65536;
    p->warpSize = 32;
    p->maxThreadsPerBlock = 1024;
    p->maxThreadsPerMultiProcessor = 2048;
    p->maxBlocksPerMultiProcessor = 32;
    p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
    p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = 0x7fffffff;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->major = engine().major;
    p->minor = engine().minor;
    p->multiProcessorCount = sms;
    p->l2CacheSize = 50 << 20;
    p->memoryBusWidth = 5120;
    p->asyncEngineCount = 3;
    p->concurrentKernels = p->canMapHostMemory = p->unifiedAddressing = 1;
    p->streamPrioritiesSupported = 1;
    p->pciBusID = bus_of(device);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device)
{
    FAKEGPU_ENTER("cudaDeviceGetAttribute");
    if (value == nullptr) return entry.done(cudaErrorInvalidValue);
    if (!good_device(device)) return entry.done(cudaErrorInvalidDevice);
    static const std::map<int, int> table = {
        {cudaDevAttrMaxThreadsPerBlock, 1024},
        {cudaDevAttrMaxBlockDimX, 1024},
        {cudaDevAttrMaxBlockDimY, 1024},
        {cudaDevAttrMaxBlockDimZ, 64},
        {cudaDevAttrMaxGridDimX, 0x7fffffff},
        {cudaDevAttrMaxGridDimY, 65535},
        {cudaDevAttrMaxGridDimZ, 65535},
        {cudaDevAttrMaxSharedMemoryPerBlock, shared_block},
        {cudaDevAttrMaxSharedMemoryPerBlockOptin, shared_optin},
        {cudaDevAttrMaxSharedMemoryPerMultiprocessor, shared_sm},
        {cudaDevAttrReservedSharedMemoryPerBlock, 1024},
        {cudaDevAttrWarpSize, 32},
        {cudaDevAttrMaxRegistersPerBlock, 65536},
        {cudaDevAttrMultiProcessorCount, sms},
        {cudaDevAttrMaxThreadsPerMultiProcessor, 2048},
        {cudaDevAttrMaxBlocksPerMultiprocessor, 32},
        {cudaDevAttrComputeCapabilityMajor, engine().major},
        {cudaDevAttrComputeCapabilityMinor, engine().minor},
        {cudaDevAttrClockRate, 1980000},
        {cudaDevAttrMemoryClockRate, 2619000},
        {cudaDevAttrGlobalMemoryBusWidth, 5120},
        {cudaDevAttrL2CacheSize, 50 << 20},
        {cudaDevAttrAsyncEngineCount, 3},
        {cudaDevAttrConcurrentKernels, 1},
        {cudaDevAttrUnifiedAddressing, 1},
        {cudaDevAttrCanMapHostMemory, 1},
        {cudaDevAttrStreamPrioritiesSupported, 1},
        {cudaDevAttrEccEnabled, 1},
        {cudaDevAttrComputeMode, cudaComputeModeDefault},
    };
    if (attribute == cudaDevAttrPciBusId) {
        *value = bus_of(device);
        return cudaSuccess;
    }
    const auto found = table.find(attribute);
    if (found == table.end())
        violation("cudaDeviceGetAttribute", "attribute %d is not known to the stand-in",
                  (int)attribute);
    *value = found->second;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *buf, int size, int device)
{
    FAKEGPU_ENTER("cudaDeviceGetPCIBusId");
    if (buf == nullptr || size < 13) return entry.done(cudaErrorInvalidValue);
    if (!good_device(device)) return entry.done(cudaErrorInvalidDevice);
    bus_id(device, buf, size);
    return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult *found)
{
    FAKEGPU_ENTER("cudaGetDriverEntryPointByVersion");
    if (symbol == nullptr || function == nullptr) return entry.done(cudaErrorInvalidValue);
    *function = strcmp(symbol, "cuDeviceGet") == 0 ? reinterpret_cast<void *>(get_device)
                : strcmp(symbol, "cuDeviceGetUuid") == 0 && version >= 11040
                    ? reinterpret_cast<void *>(get_uuid)
                    : nullptr;
    if (found != nullptr)
        *found =
            *function != nullptr ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return entry.done(*function != nullptr ? cudaSuccess : cudaErrorSymbolNotFound);
}

cudaError_t cudaDriverGetVersion(int *version)
{
    if (version == nullptr) return cudaErrorInvalidValue;
    if (fails("cudaDriverGetVersion")) return last_error() = cudaErrorInvalidValue;
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    if (version == nullptr) return cudaErrorInvalidValue;
    if (fails("cudaRuntimeGetVersion")) return last_error() = cudaErrorInvalidValue;
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaDeviceReset(void)
{
    FAKEGPU_ENTER("cudaDeviceReset");
    Engine &e = engine();
    check_guards("cudaDeviceReset");
    e.left_at_reset += leaks();
    for (CUstream_st *s : e.streams)
        for (Item &item : s->items) {
            if (item.kind == Item::task && item.work.abandon) item.work.abandon();
            if (item.kind != Item::graph) continue;
            for (const int i : item.run->ready)
                if (item.run->plan->nodes[(size_t)i].task.abandon)
                    item.run->plan->nodes[(size_t)i].task.abandon();
        }
    for (Capture *c : e.captures) c->broken = c->ended = true;
    e.captures.clear();
    e.graves.insert(e.graves.end(), e.streams.begin(), e.streams.end());
    e.graves.insert(e.graves.end(), e.live_events.begin(), e.live_events.end());
    e.graves.insert(e.graves.end(), e.live_graphs.begin(), e.live_graphs.end());
    e.graves.insert(e.graves.end(), e.live_execs.begin(), e.live_execs.end());
    e.streams.clear();
    e.legacy.clear();
    e.live_streams.clear();
    e.live_events.clear();
    e.live_graphs.clear();
    e.live_execs.clear();
    e.dynamic_shared.clear();
    release_all();
    return cudaSuccess;
}

// ---- Kernels ----

cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute attribute, int value)
{
    FAKEGPU_ENTER("cudaFuncSetAttribute");
    if (kernel == nullptr) return entry.done(cudaErrorInvalidDeviceFunction);
    if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
        if (value < 0 || value > shared_optin) return entry.done(cudaErrorInvalidValue);
        engine().dynamic_shared[kernel] = (size_t)value;
        return cudaSuccess;
    }
    if (attribute == cudaFuncAttributePreferredSharedMemoryCarveout)
        return entry.done(value >= -1 && value <= 100 ? cudaSuccess : cudaErrorInvalidValue);
    return entry.done(cudaErrorInvalidValue);
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *a, const void *kernel)
{
    FAKEGPU_ENTER("cudaFuncGetAttributes");
    if (a == nullptr || kernel == nullptr) return entry.done(cudaErrorInvalidDeviceFunction);
    memset(a, 0, sizeof *a);
    a->maxThreadsPerBlock = 1024;
    a->numRegs = 32;
    a->ptxVersion = a->binaryVersion = engine().code;
    const auto found = engine().dynamic_shared.find(kernel);
    a->maxDynamicSharedSizeBytes =
        found != engine().dynamic_shared.end() ? (int)found->second : shared_block;
    return cudaSuccess;
}

// Registers are taken not to limit it.
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n, const void *kernel, int block,
                                                          size_t shared)
{
    FAKEGPU_ENTER("cudaOccupancyMaxActiveBlocksPerMultiprocessor");
    if (n == nullptr || kernel == nullptr || block < 1 || block > 1024)
        return entry.done(cudaErrorInvalidValue);
    const int by_threads = 2048 / ((block + 31) / 32 * 32);
    const int by_shared = (int)std::min<size_t>(32, (size_t)shared_sm / (shared + 1024));
    *n = std::min({32, by_threads, by_shared});
    return cudaSuccess;
}

} // extern "C"
