/* A driver that has no device and takes any kernel: with it as libcuda.so.1 the real cuDNN compiles
 * what it compiles at run time for a device that is only described (dnn_offers.c), and stops where
 * something would have to run. These are the calls that cuDNN 9.19 looks up. */

enum { NO_DEVICE = 100, VERSION = 13000 };

int cuInit(unsigned flags);
int cuDriverGetVersion(int *version);
int cuGetErrorName(int error, const char **name);
int cuGetErrorString(int error, const char **text);

int cuInit(unsigned flags)
{
    (void)flags;
    return NO_DEVICE;
}

int cuDriverGetVersion(int *version)
{
    *version = VERSION;
    return 0;
}

int cuGetErrorName(int error, const char **name)
{
    (void)error;
    *name = "no driver";
    return 0;
}

int cuGetErrorString(int error, const char **text)
{
    return cuGetErrorName(error, text);
}

/* Written to the first argument: something that is not NULL. */
#define GIVES(name)                                                                                \
    int name(void **out);                                                                          \
    int name(void **out)                                                                           \
    {                                                                                              \
        static int thing;                                                                          \
        *out = &thing;                                                                             \
        return 0;                                                                                  \
    }
GIVES(cuLibraryLoadData)
GIVES(cuLibraryLoadFromFile)
GIVES(cuLibraryGetKernel)
GIVES(cuModuleLoadData)
GIVES(cuModuleLoadFatBinary)
GIVES(cuModuleGetFunction)

/* Written to the first argument: 0, or NULL. */
#define GIVES_NONE(type, name)                                                                     \
    int name(type *out);                                                                           \
    int name(type *out)                                                                            \
    {                                                                                              \
        if (out) *out = 0;                                                                         \
        return 0;                                                                                  \
    }
GIVES_NONE(int, cuKernelGetAttribute)
GIVES_NONE(int, cuFuncGetAttribute)
GIVES_NONE(int, cuOccupancyMaxPotentialClusterSize)
GIVES_NONE(int, cuDeviceGet)
GIVES_NONE(int, cuDeviceGetCount)
GIVES_NONE(int, cuDeviceGetAttribute)
GIVES_NONE(int, cuCtxGetDevice)
GIVES_NONE(void *, cuDevicePrimaryCtxRetain)
GIVES_NONE(void *, cuCtxGetCurrent)
GIVES_NONE(void *, cuCtxPopCurrent)

#define DOES_NOTHING(name)                                                                         \
    int name(void);                                                                                \
    int name(void)                                                                                 \
    {                                                                                              \
        return 0;                                                                                  \
    }
DOES_NOTHING(cuLibraryUnload)
DOES_NOTHING(cuModuleUnload)
DOES_NOTHING(cuKernelSetAttribute)
DOES_NOTHING(cuFuncSetAttribute)
DOES_NOTHING(cuLinkAddData)
DOES_NOTHING(cuLinkDestroy)
DOES_NOTHING(cuLaunchKernel)
DOES_NOTHING(cuLaunchKernelEx)
DOES_NOTHING(cuLaunchCooperativeKernel)
DOES_NOTHING(cuDevicePrimaryCtxRelease)
DOES_NOTHING(cuDevicePrimaryCtxReset)
DOES_NOTHING(cuCtxPushCurrent)
DOES_NOTHING(cuStreamSynchronize)

/* What would have to be read off a device, or made for one. */
#define REFUSES(name)                                                                              \
    int name(void);                                                                                \
    int name(void)                                                                                 \
    {                                                                                              \
        return NO_DEVICE;                                                                          \
    }
REFUSES(cuModuleGetGlobal_v2)
REFUSES(cuLinkCreate)
REFUSES(cuLinkComplete)
REFUSES(cuCtxGetLimit)
REFUSES(cuStreamGetCtx)
REFUSES(cuMemcpyDtoH_v2)
