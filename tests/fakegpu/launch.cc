// Launching a kernel: what a device refuses, and a note of what is launched where one is asked for.
// kernel.cc runs it.
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>

#include "tests/fakegpu/device.h"
#include "tests/fakegpu/engine.h"

namespace fakegpu
{

static void note_line(const char *variable, const char *path, const std::string &line)
{
    FILE *out = fopen(path, "a");
    if (out == nullptr) violation(variable, "%s cannot be written", path);
    fprintf(out, "%s\n", line.c_str());
    fclose(out);
}

// FAKEGPU_KERNELS=PATH: each kernel's name goes there at its first launch. FAKEGPU_LAUNCHES=PATH:
// every launch, `NAME grid block dynamic-shared-bytes`, grid and block as XxYxZ.
static void note_kernel(const Launch &l)
{
    static const char *const names = getenv("FAKEGPU_KERNELS");
    static const char *const launches = getenv("FAKEGPU_LAUNCHES");
    static std::set<std::string> seen;
    const bool of_names = names != nullptr && *names != '\0';
    const bool of_launches = launches != nullptr && *launches != '\0';
    if (!of_names && !of_launches) return;
    // `what` is as the launch has it: NAME, TR_KERNEL(NAME<...>)
    const char *bracket = strchr(l.what, '(');
    const char *name = bracket != nullptr ? bracket + 1 : l.what;
    const std::string plain(name, strcspn(name, "<>(), "));
    if (of_names && seen.insert(plain).second) note_line("FAKEGPU_KERNELS", names, plain);
    if (!of_launches) return;
    const auto text = [](const dim3 &d) {
        return std::to_string(d.x) + "x" + std::to_string(d.y) + "x" + std::to_string(d.z);
    };
    note_line("FAKEGPU_LAUNCHES", launches,
              plain + " " + text(l.grid) + " " + text(l.block) + " " + std::to_string(l.shared));
}

static cudaError_t check_launch(const Launch &l)
{
    const dim3 &g = l.grid, &b = l.block;
    if (g.x == 0 || g.y == 0 || g.z == 0 || b.x == 0 || b.y == 0 || b.z == 0)
        return cudaErrorInvalidConfiguration;
    if (g.x > INT_MAX || g.y > 65535 || g.z > 65535) return cudaErrorInvalidConfiguration;
    if (b.x > 1024 || b.y > 1024 || b.z > 64 || (uint64_t)b.x * b.y * b.z > max_threads)
        return cudaErrorInvalidConfiguration;
    Engine &e = engine();
    const auto allowed = e.dynamic_shared.find(l.kernel);
    if (l.shared > max_static && (allowed == e.dynamic_shared.end() || l.shared > allowed->second))
        return cudaErrorInvalidValue;
    return cudaSuccess;
}

cudaError_t launch(Launch l, cudaStream_t stream)
{
    const auto attempt = [&]() -> cudaError_t {
        FAKEGPU_ENTER("cudaLaunchKernel");
        cudaError_t st = check_launch(l);
        if (st != cudaSuccess) return entry.done(st);
        const char *what = l.what;
        note_kernel(l);
        Task task{what, {}, [l = std::move(l)] { return run_grid(l), true; }, {}};
        return entry.done(enqueue(stream, std::move(task)));
    };
    attempt();
    // What an earlier call left behind is found here too, as on the device.
    const cudaError_t e = last_error();
    last_error() = cudaSuccess;
    return e;
}

} // namespace fakegpu
