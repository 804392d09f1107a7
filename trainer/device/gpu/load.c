/* Finds and loads the module. A program that has it linked in (the tests, for the stand-in of a
 * GPU) takes that one. The module calls back into the program, which exports just what it needs
 * (cmake/module.cmake), so that both share one log, one error record, one count of memory. */
#include "trainer/device/gpu.h"

#include <build_id.h>
#include <dlfcn.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#define MODULE "libtrireme_cuda.so"
#define DRIVER "libcuda.so.1"

typedef __typeof__(&tr_gpu_module) module_entry;
#pragma weak tr_gpu_module

bool tr_gpu_built(void)
{
    return true;
}

static tr_status find_driver(void)
{
    if (dlopen(DRIVER, RTLD_NOW | RTLD_LOCAL)) return TR_OK; /* stays: CUDA loads it next */
    const char *why = dlerror();
    const bool none = strncmp(why, DRIVER ": ", strlen(DRIVER ": ")) == 0 &&
                      strstr(why, "No such file or directory");
    if (!none) return TR_FAIL(TR_KERNEL, "the NVIDIA driver cannot be loaded: %.600s", why);
    return tr_fail_hint(TR_FAIL(TR_KERNEL, "there is no NVIDIA driver here"), TR_HINT_NO_DRIVER);
}

/* Where the module is; path[0] == 0 where it is not. `folder`: the program's. */
static void find_module(char folder[PATH_MAX], char path[PATH_MAX])
{
    static const char *const places[] = {"", "../lib/trireme/"};
    const ssize_t n = readlink("/proc/self/exe", folder, PATH_MAX - 1);
    folder[n > 0 ? n : 0] = 0;
    char *name = strrchr(folder, '/');
    folder[name ? name - folder : 0] = 0;
    for (size_t i = 0; i < TR_COUNT(places); i++) {
        const int len = snprintf(path, PATH_MAX, "%s/%s" MODULE, folder, places[i]);
        if (len < PATH_MAX && access(path, R_OK) == 0) return;
    }
    path[0] = 0;
}

static tr_status open_module(module_entry *out)
{
    char folder[PATH_MAX], path[PATH_MAX];
    find_module(folder, path);
    if (!path[0])
        return TR_FAIL(TR_KERNEL,
                       MODULE ", this program's part for GPUs, is neither in %.300s nor in its "
                              "../lib/trireme: install both (cmake --install)",
                       folder);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return TR_FAIL(TR_KERNEL,
                       "%.600s: CUDA's libraries must be where the loader looks (LD_LIBRARY_PATH), "
                       "and " MODULE " of this program's build",
                       dlerror());
    *out = (module_entry)dlsym(library, "tr_gpu_module");
    return *out ? TR_OK : TR_FAIL(TR_KERNEL, "%.600s", dlerror());
}

tr_status tr_gpu_load(bool if_driver, const tr_gpu **out)
{
    tr_status st = TR_OK;
    module_entry entry = tr_gpu_module;
    *out = NULL;
    if (!entry) {
        if (if_driver) TR_TRY(find_driver());
        TR_TRY(open_module(&entry));
    }
    *out = entry(TR_BUILD_ID);
    TR_NEED(*out, TR_KERNEL,
            MODULE " is of another build than this program (%s): install both of one build "
                   "(cmake --install)",
            TR_BUILD_ID);
out:
    return st;
}
