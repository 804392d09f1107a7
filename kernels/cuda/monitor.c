/* What the device's own counters say, by NVML, which the driver brings: loaded at run time, because
 * a program that links it does not start without a driver. Without it memory comes from the CUDA
 * runtime, and utilization is not known (NaN). No synchronization. Opened at the first look:
 * nvmlInit took some 0.2 s on an H200's host, which programs that never look need not wait for.
 *
 * On a GPU cut into instances (MIG) NVML refuses utilization and may give the whole GPU's
 * memory. */
#include "kernels/cuda/core.h"
#include "kernels/cuda/nvml.h"

#include <dlfcn.h>
#include <math.h>

struct tr_cuda_monitor {
    void *library;
    nvmlDevice_t device; /* NULL: NVML has nothing to say */
    __typeof__(&nvmlInit_v2) init;
    __typeof__(&nvmlShutdown) shutdown;
    __typeof__(&nvmlDeviceGetHandleByPciBusId_v2) by_bus;
    __typeof__(&nvmlDeviceGetMemoryInfo) memory;
    __typeof__(&nvmlDeviceGetUtilizationRates) utilization;
    __typeof__(&nvmlErrorString) text;
    bool looked, initialized;
};

static bool load_functions(tr_cuda_monitor *m)
{
    m->library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!m->library) {
        tr_log(TR_LOG_DEBUG, "GPU utilization is not known: %s", dlerror());
        return false;
    }
#define FIND(member, name)                                                                         \
    if (!(m->member = (__typeof__(m->member))dlsym(m->library, name))) {                           \
        tr_log(TR_LOG_DEBUG, "GPU utilization is not known: %s", dlerror());                       \
        return false;                                                                              \
    }
    FIND(init, "nvmlInit_v2")
    FIND(shutdown, "nvmlShutdown")
    FIND(by_bus, "nvmlDeviceGetHandleByPciBusId_v2")
    FIND(memory, "nvmlDeviceGetMemoryInfo")
    FIND(utilization, "nvmlDeviceGetUtilizationRates")
    FIND(text, "nvmlErrorString")
#undef FIND
    return true;
}

/* The CUDA runtime and NVML number devices differently: the place on the bus tells which is
 * which. */
static void find_device(const tr_cuda *cuda)
{
    tr_cuda_monitor *m = cuda->monitor;
    char bus[32];
    if (cudaDeviceGetPCIBusId(bus, sizeof bus, cuda->o.device) != cudaSuccess) {
        (void)cudaGetLastError();
        return;
    }
    nvmlReturn_t r = m->init();
    m->initialized = r == NVML_SUCCESS;
    if (m->initialized) r = m->by_bus(bus, &m->device);
    if (r != NVML_SUCCESS) {
        m->device = NULL;
        tr_log(TR_LOG_DEBUG, "GPU utilization is not known: %s", m->text(r));
    }
}

void tr_cuda_monitor_open(tr_cuda *cuda)
{
    cuda->monitor = TR_NEW(TR_MEM_OTHER, tr_cuda_monitor);
}

void tr_cuda_monitor_close(tr_cuda *cuda)
{
    tr_cuda_monitor *m = cuda->monitor;
    if (!m) return;
    if (m->initialized) (void)m->shutdown();
    if (m->library) dlclose(m->library);
    tr_free(m);
    cuda->monitor = NULL;
}

bool tr_cuda_load(void *ctx, tr_device_load *out)
{
    const tr_cuda *cuda = ctx;
    tr_cuda_monitor *m = cuda->monitor;
    nvmlMemory_t memory;
    nvmlUtilization_t now;
    size_t available, total;
    if (cuda->o.dry) return false;
    if (m && !m->looked) {
        m->looked = true;
        if (load_functions(m)) find_device(cuda);
    }
    const bool there = m && m->device;
    out->held = tr_cuda_memory_held(cuda);
    out->utilization =
        there && m->utilization(m->device, &now) == NVML_SUCCESS ? (double)now.gpu : (double)NAN;
    if (there && m->memory(m->device, &memory) == NVML_SUCCESS) {
        out->used = (size_t)memory.used;
        out->total = (size_t)memory.total;
        return true;
    }
    if (cudaMemGetInfo(&available, &total) != cudaSuccess) {
        (void)cudaGetLastError();
        return false;
    }
    out->used = total - available;
    out->total = total;
    return true;
}
