// cuDNN's handle, versions and error texts; the list of what must be destroyed before the process
// ends.
#include "tests/fakegpu/cudnn_inside.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include <unistd.h>

namespace fakegpu::dnn
{

static std::mutex lock;

static std::string &last_error()
{
    static thread_local std::string text;
    return text;
}

cudnnStatus_t wrong(cudnnStatus_t status, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    last_error() = text;
    return status;
}

cudnnStatus_t injected(const char *call)
{
    return wrong(CUDNN_STATUS_EXECUTION_FAILED, "%s: a fault was asked for (FAKEGPU_FAIL)", call);
}

cudnnStatus_t of_cuda(cudaError_t e, const char *call)
{
    if (e == cudaSuccess) return CUDNN_STATUS_SUCCESS;
    return wrong(CUDNN_STATUS_EXECUTION_FAILED_CUDART, "%s: %s", call, cudaGetErrorString(e));
}

// Never freed: it is read when the process ends.
static std::map<const void *, const char *> &objects()
{
    static auto *all = new std::map<const void *, const char *>;
    return *all;
}

// Called once, when the first object is made. A forked child has nothing to destroy.
static void watch_end()
{
    static const pid_t owner = getpid();
    atexit([] {
        std::string text;
        if (getpid() != owner) return;
        {
            std::lock_guard<std::mutex> guard(lock);
            std::map<std::string, int> count;
            for (const auto &o : objects()) count[o.second]++;
            for (const auto &c : count) text += " " + std::to_string(c.second) + " " + c.first;
        }
        if (!text.empty()) violation("exit", "cuDNN objects were not destroyed:%s", text.c_str());
    });
}

void made(const void *object, const char *what)
{
    static std::once_flag once;
    std::call_once(once, watch_end);
    std::lock_guard<std::mutex> guard(lock);
    objects()[object] = what;
}

bool alive(const void *object, const char *what)
{
    std::lock_guard<std::mutex> guard(lock);
    const auto at = objects().find(object);
    return at != objects().end() && !strcmp(at->second, what);
}

void destroyed(const char *call, const void *object, const char *what)
{
    std::unique_lock<std::mutex> guard(lock);
    const auto at = objects().find(object);
    const bool known = at != objects().end() && !strcmp(at->second, what);
    if (known) objects().erase(at);
    guard.unlock();
    if (!known) violation(call, "%p is no %s (destroyed before?)", object, what);
}

void need_handle(const char *call, cudnnHandle_t handle)
{
    if (!alive(handle, "handle")) violation(call, "%p is no handle (destroyed?)", (void *)handle);
}

} // namespace fakegpu::dnn

using namespace fakegpu::dnn;
using fakegpu::fails;

extern "C" {

size_t cudnnGetVersion(void)
{
    return CUDNN_VERSION;
}

size_t cudnnGetCudartVersion(void)
{
    return CUDART_VERSION;
}

const char *cudnnGetErrorString(cudnnStatus_t status)
{
    switch (status) {
#define S(name)                                                                                    \
    case name:                                                                                     \
        return #name
        S(CUDNN_STATUS_SUCCESS);
        S(CUDNN_STATUS_NOT_INITIALIZED);
        S(CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH);
        S(CUDNN_STATUS_BAD_PARAM);
        S(CUDNN_STATUS_BAD_PARAM_NULL_POINTER);
        S(CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER);
        S(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED);
        S(CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND);
        S(CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT);
        S(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH);
        S(CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES);
        S(CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE);
        S(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE);
        S(CUDNN_STATUS_NOT_SUPPORTED);
        S(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN);
        S(CUDNN_STATUS_NOT_SUPPORTED_SHAPE);
        S(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE);
        S(CUDNN_STATUS_NOT_SUPPORTED_LAYOUT);
        S(CUDNN_STATUS_NOT_SUPPORTED_SHARED_MEMORY_INSUFFICIENT);
        S(CUDNN_STATUS_INTERNAL_ERROR);
        S(CUDNN_STATUS_INTERNAL_ERROR_COMPILATION_FAILED);
        S(CUDNN_STATUS_INTERNAL_ERROR_UNEXPECTED_VALUE);
        S(CUDNN_STATUS_EXECUTION_FAILED);
        S(CUDNN_STATUS_EXECUTION_FAILED_CUDART);
#undef S
    default:
        return "CUDNN_STATUS_UNKNOWN";
    }
}

void cudnnGetLastErrorString(char *message, size_t max_size)
{
    if (!message || !max_size) return;
    snprintf(message, max_size, "%s", last_error().c_str());
    last_error().clear();
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle)
{
    int n = 0;
    DNN_CALL("cudnnCreate");
    if (!handle) return wrong(CUDNN_STATUS_BAD_PARAM, "nullptr == handle");
    if (cudaGetDeviceCount(&n) != cudaSuccess || n < 1)
        return wrong(CUDNN_STATUS_NOT_INITIALIZED, "cudaGetDeviceCount(&count) != cudaSuccess");
    *handle = new cudnnContext{};
    made(*handle, "handle");
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle)
{
    const bool fault = fails("cudnnDestroy");
    if (!handle) return wrong(CUDNN_STATUS_BAD_PARAM, "nullptr == handle");
    destroyed("cudnnDestroy", handle, "handle");
    delete handle;
    return fault ? injected("cudnnDestroy") : CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream)
{
    DNN_CALL("cudnnSetStream");
    if (!handle) return wrong(CUDNN_STATUS_BAD_PARAM, "nullptr == handle");
    need_handle("cudnnSetStream", handle);
    handle->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t *stream)
{
    DNN_CALL("cudnnGetStream");
    if (!handle || !stream) return wrong(CUDNN_STATUS_BAD_PARAM, "nullptr == handle or stream");
    need_handle("cudnnGetStream", handle);
    *stream = handle->stream;
    return CUDNN_STATUS_SUCCESS;
}

} // extern "C"
