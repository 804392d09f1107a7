/* The little of NVML that the monitor asks, declared as in NVIDIA's API reference (NVML comes with
 * the driver, its header not with every toolkit). The stand-in of the tests is built from the
 * same. */
#ifndef TR_CUDA_NVML_H
#define TR_CUDA_NVML_H

#ifdef __cplusplus
extern "C" {
#endif

typedef struct nvmlDevice_st *nvmlDevice_t;
typedef int nvmlReturn_t; /* an enum there */
enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3, /* utilization of a GPU that is cut into instances */
    NVML_ERROR_NOT_FOUND = 6
};
typedef struct {
    unsigned long long total, free, used; /* bytes; used: by all processes and the driver */
} nvmlMemory_t;
typedef struct {
    unsigned int gpu,
        memory; /* percent of the last sample period in which a kernel ran, memory was used */
} nvmlUtilization_t;

nvmlReturn_t nvmlInit_v2(void);
nvmlReturn_t nvmlShutdown(void);
nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *pciBusId, nvmlDevice_t *device);
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory);
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization);
const char *nvmlErrorString(nvmlReturn_t result);

#ifdef __cplusplus
}
#endif

#endif
