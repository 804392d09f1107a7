// NVML's stand-in: a library of the same name that the monitor finds by LD_LIBRARY_PATH and dlopen,
// as it finds the driver's. It answers with numbers from the environment, read at each call:
//   FAKENVML_UTILIZATION  percent (default 37); "none": not supported, as on a GPU cut into
//   instances FAKENVML_USED, FAKENVML_TOTAL  bytes (default 3 GB of 80 GB) FAKENVML_FAIL  the name
//   of a function that fails with NVML_ERROR_UNKNOWN
// and checks the calling order, as NVML does.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "kernels/cuda/nvml.h"

namespace
{

enum { UNKNOWN = 999 };
struct Handle {
    char bus[32];
};
Handle the_device;
int initialized;

unsigned long long number(const char *name, unsigned long long otherwise)
{
    const char *text = std::getenv(name);
    return text && *text ? std::strtoull(text, nullptr, 10) : otherwise;
}

bool told_to_fail(const char *call)
{
    const char *text = std::getenv("FAKENVML_FAIL");
    return text && std::strcmp(text, call) == 0;
}

// What stands in the way of a call on `device`.
nvmlReturn_t refusal(const char *call, nvmlDevice_t device, const void *result)
{
    if (initialized == 0) return NVML_ERROR_UNINITIALIZED;
    if (told_to_fail(call)) return UNKNOWN;
    if (reinterpret_cast<Handle *>(device) != &the_device || !result)
        return NVML_ERROR_INVALID_ARGUMENT;
    return NVML_SUCCESS;
}

} // namespace

nvmlReturn_t nvmlInit_v2(void)
{
    if (told_to_fail("nvmlInit_v2")) return UNKNOWN;
    initialized++;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlShutdown(void)
{
    if (initialized == 0) return NVML_ERROR_UNINITIALIZED;
    initialized--;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *pciBusId, nvmlDevice_t *device)
{
    unsigned domain, bus, place, function;
    char behind;
    if (initialized == 0) return NVML_ERROR_UNINITIALIZED;
    if (told_to_fail("nvmlDeviceGetHandleByPciBusId_v2")) return UNKNOWN;
    if (!pciBusId || !device) return NVML_ERROR_INVALID_ARGUMENT;
    if (std::sscanf(pciBusId, "%x:%x:%x.%x%c", &domain, &bus, &place, &function, &behind) != 4)
        return NVML_ERROR_NOT_FOUND;
    std::snprintf(the_device.bus, sizeof the_device.bus, "%s", pciBusId);
    *device = reinterpret_cast<nvmlDevice_t>(&the_device);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    const nvmlReturn_t r = refusal("nvmlDeviceGetMemoryInfo", device, memory);
    if (r != NVML_SUCCESS) return r;
    memory->total = number("FAKENVML_TOTAL", 80000000000ull);
    memory->used = number("FAKENVML_USED", 3000000000ull);
    memory->free = memory->total - memory->used;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization)
{
    const nvmlReturn_t r = refusal("nvmlDeviceGetUtilizationRates", device, utilization);
    const char *text = std::getenv("FAKENVML_UTILIZATION");
    if (r != NVML_SUCCESS) return r;
    if (text && std::strcmp(text, "none") == 0) return NVML_ERROR_NOT_SUPPORTED;
    utilization->gpu = static_cast<unsigned>(number("FAKENVML_UTILIZATION", 37));
    utilization->memory = utilization->gpu / 2;
    return NVML_SUCCESS;
}

const char *nvmlErrorString(nvmlReturn_t result)
{
    switch (result) {
    case NVML_SUCCESS:
        return "The operation was successful";
    case NVML_ERROR_UNINITIALIZED:
        return "NVML was not first initialized with nvmlInit()";
    case NVML_ERROR_INVALID_ARGUMENT:
        return "A supplied argument is invalid";
    case NVML_ERROR_NOT_SUPPORTED:
        return "The requested operation is not available on target device";
    case NVML_ERROR_NOT_FOUND:
        return "A query to find an object was unsuccessful";
    default:
        return "An internal driver error occurred";
    }
}
