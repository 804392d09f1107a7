// Kernels: every thread runs once with its own place, barriers and shuffles do what the device
// does, and what the device would do wrong silently ends the process.
#include "child.h"

#include <cstring>

// ---- Places ----

static __global__ void places(unsigned *hits, bool *wrong)
{
    const uint64_t block =
        blockIdx.x + (uint64_t)gridDim.x * (blockIdx.y + (uint64_t)gridDim.y * blockIdx.z);
    const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    const unsigned n = blockDim.x * blockDim.y * blockDim.z;
    if (threadIdx.x >= blockDim.x || threadIdx.y >= blockDim.y || threadIdx.z >= blockDim.z)
        *wrong = true;
    atomicAdd(&hits[block * n + thread], 1u);
    const uint3 before = threadIdx;
    __syncthreads();
    if (before.x != threadIdx.x || before.y != threadIdx.y || before.z != threadIdx.z)
        *wrong = true;
    atomicAdd(&hits[block * n + n - 1 - thread], 1u);
}

static void test_places(void **)
{
    for (const char *order : {"lazy", "5", "6", "7"})
        ends_well({{"FAKEGPU_ORDER", order}}, [] {
            cudaStream_t s = new_stream();
            const dim3 grids[] = {{1}, {7}, {3, 2, 2}},
                       blocks[] = {{1}, {33}, {1024}, {8, 4, 2}, {1, 1, 64}};
            unsigned *h = new_pinned<unsigned>(12 * 1024);
            bool *wrong = new_pinned<bool>(1);
            *wrong = false;
            for (const dim3 &g : grids)
                for (const dim3 &b : blocks) {
                    const size_t n = (size_t)g.x * g.y * g.z * b.x * b.y * b.z;
                    memset(h, 0, n * sizeof *h);
                    OK(LAUNCH(places, g, b, 0, s, h, wrong));
                    OK(cudaStreamSynchronize(s));
                    for (size_t i = 0; i < n; i++) NEED(h[i] == 2);
                    NEED(!*wrong);
                }
            cudaFreeHost(h), cudaFreeHost(wrong), cudaStreamDestroy(s);
            return 0;
        });
}

// ---- Meeting others ----

// Sum by shuffles and shared memory, of 32-bit and 64-bit values, many times over.
static __global__ void sums(const int *in, double *out, int rounds)
{
    TR_SHARED(double, part, 32);
    TR_SHARED_BYTES(bytes);
    auto *copy = reinterpret_cast<int *>(bytes);
    for (int r = 0; r < rounds; r++) {
        copy[threadIdx.x] = in[blockIdx.x * blockDim.x + threadIdx.x] + r;
        __syncthreads();
        double v = copy[(threadIdx.x + 37) % blockDim.x];
        for (int offset = 16; offset > 0; offset /= 2) v += __shfl_xor_sync(0xffffffffu, v, offset);
        if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
        __syncthreads();
        if (threadIdx.x < 32) {
            double w = threadIdx.x < blockDim.x / 32 ? part[threadIdx.x] : 0;
            for (int offset = 16; offset > 0; offset /= 2)
                w += __shfl_down_sync(0xffffffffu, w, (unsigned)offset);
            if (threadIdx.x == 0) out[blockIdx.x * (unsigned)rounds + (unsigned)r] = w;
        }
        __syncthreads();
    }
}

static void test_sums(void **)
{
    for (const char *order : {"lazy", "1", "2", "3", "4"})
        ends_well({{"FAKEGPU_ORDER", order}}, [] {
            cudaStream_t s = new_stream();
            int *in = new_pinned<int>(4096);
            double *out = new_pinned<double>(16 * 32);
            for (int i = 0; i < 4096; i++) in[i] = i * 7 % 1000;
            for (const unsigned threads : {64u, 128u, 1024u}) {
                const unsigned blocks = 4096 / threads < 16 ? 4096 / threads : 16, rounds = 3;
                OK(LAUNCH(sums, blocks, threads, threads * 4, s, in, out, (int)rounds));
                OK(cudaStreamSynchronize(s));
                for (unsigned b = 0; b < blocks; b++)
                    for (unsigned r = 0; r < rounds; r++) {
                        double sum = 0;
                        for (unsigned t = 0; t < threads; t++) sum += in[b * threads + t] + (int)r;
                        NEED(out[b * rounds + r] == sum);
                    }
            }
            cudaFreeHost(in), cudaFreeHost(out), cudaStreamDestroy(s);
            return 0;
        });
}

// Against the programming guide's table of source lanes, by brute force for some widths and
// arguments.
static __global__ void lanes(int *wrong)
{
    const int lane = (int)threadIdx.x % 32;
    for (int width = 1; width <= 32; width *= 2)
        for (int a = 0; a < 32; a++) {
            const int group = lane / width * width, last = group + width - 1;
            const int idx = __shfl_sync(0xffffffffu, lane, a, width);
            const int up = __shfl_up_sync(0xffffffffu, lane, (unsigned)a, width);
            const float down = __shfl_down_sync(0xffffffffu, (float)lane, (unsigned)a, width);
            const long long x = __shfl_xor_sync(0xffffffffu, (long long)lane << 40, a, width);
            if (idx != group + a % width) atomicAdd(wrong, 1);
            if (up != (lane - a < group ? lane : lane - a)) atomicAdd(wrong, 1);
            if (down != (float)(lane + a > last ? lane : lane + a)) atomicAdd(wrong, 1);
            if (x >> 40 != ((lane ^ a) > last ? lane : lane ^ a)) atomicAdd(wrong, 1);
        }
    if (__ballot_sync(0xffffffffu, lane % 3 == 0) != 0x49249249u) atomicAdd(wrong, 1);
    if (lane < 8 && __ballot_sync(0xffu, lane == 2) != 4u) atomicAdd(wrong, 1);
    if (lane >= 8 && __any_sync(0xffffff00u, lane == 2)) atomicAdd(wrong, 1);
    if (!__all_sync(0xffffffffu, lane < 32) || __all_sync(0xffffffffu, lane < 31))
        atomicAdd(wrong, 1);
    if (__syncthreads_count(lane == 1) != 2 || !__syncthreads_or(threadIdx.x == 40))
        atomicAdd(wrong, 1);
    if (__syncthreads_and(threadIdx.x != 40) || !__syncthreads_and(1)) atomicAdd(wrong, 1);
    __syncwarp();
    if (__shfl_sync(0xffffffffu, 5, lane) != 5) atomicAdd(wrong, 1);
}

static void test_lanes(void **)
{
    for (const char *order : {"lazy", "8", "9"})
        ends_well({{"FAKEGPU_ORDER", order}}, [] {
            cudaStream_t s = new_stream();
            int *wrong = new_pinned<int>(1);
            *wrong = 0;
            OK(LAUNCH(lanes, 5, 64, 0, s, wrong));
            OK(cudaStreamSynchronize(s));
            NEED(*wrong == 0);
            cudaFreeHost(wrong), cudaStreamDestroy(s);
            return 0;
        });
}

// A lane that ended has no value: what comes back is nothing to rely on.
static __global__ void ended_lane(int *out)
{
    if (threadIdx.x == 3) return;
    const int v = __shfl_sync(0xffffffffu, 9, 3);
    if (threadIdx.x == 0) *out = v;
}

static void test_ended_lane(void **)
{
    ends_well({}, [] {
        cudaStream_t s = new_stream();
        int *out = new_pinned<int>(1);
        OK(LAUNCH(ended_lane, 1, 32, 0, s, out));
        OK(cudaStreamSynchronize(s));
        NEED(*out == -1);
        cudaFreeHost(out), cudaStreamDestroy(s);
        return 0;
    });
}

static __global__ void divergent(int last)
{
    if ((int)threadIdx.x <= last) __syncthreads();
}
static __global__ void lacking_lanes()
{
    if (threadIdx.x < 16)
        __shfl_xor_sync(0xffffffffu, 1, 1);
    else
        __syncthreads();
}
static __global__ void not_in_mask()
{
    __shfl_xor_sync(1u, 1, 1);
}

template <typename... P>
static int run_one(unsigned threads, size_t shared, void (*kernel)(P...), P... args)
{
    cudaStream_t s = new_stream();
    OK(::fakegpu::launch("kernel", kernel, dim3(2), dim3(threads), shared, s, args...));
    OK(cudaStreamSynchronize(s));
    OK(cudaStreamDestroy(s));
    return 0;
}

static void test_divergence(void **)
{
    ends_well({}, [] { return run_one(64, 0, divergent, 63); });
    ends_well({}, [] { return run_one(64, 0, divergent, -1); });
    is_violation({}, {"63 of 64 threads wait at __syncthreads", "1 ended"},
                 [] { return run_one(64, 0, divergent, 62); });
    is_violation({}, {"1 of 64 threads wait", "63 ended"},
                 [] { return run_one(64, 0, divergent, 0); });
    is_violation(
        {}, {"lanes 0000ffff of warp 0 wait at a shuffle with mask ffffffff", "16 of 32 threads"},
        [] { return run_one(32, 0, lacking_lanes); });
    is_violation({}, {"mask 00000001 lacks it"}, [] { return run_one(32, 0, not_in_mask); });
}

// ---- Shared memory ----

static __global__ void unset(int *out)
{
    TR_SHARED(float, part, 8);
    TR_SHARED_BYTES(bytes);
    if (part[3] == part[3] || bytes[5] != 0xff) atomicAdd(out, 1); // not NaN
    __syncthreads();
    part[threadIdx.x] = 1.0f;
    bytes[threadIdx.x] = 1;
}
static __global__ void beyond(int at, bool dynamic)
{
    TR_SHARED(int, part, 8);
    TR_SHARED_BYTES(bytes);
    if (dynamic)
        bytes[at] = 1;
    else
        *(static_cast<int *>(part) + at) = 1;
}

// 16 bytes at once, from element `at` on.
static __global__ void wide(float *to, int at)
{
    __stwb(reinterpret_cast<uint4 *>(to + at), uint4{0, 1, 2, 3});
}

static int store_wide(int at)
{
    cudaStream_t s = new_stream();
    float *to = new_pinned<float>(8);
    OK(LAUNCH(wide, 1, 1, 0, s, to, at));
    OK(cudaStreamSynchronize(s));
    cudaFreeHost(to), cudaStreamDestroy(s);
    return 0;
}

static void test_alignment(void **)
{
    ends_well({}, [] { return store_wide(4); });
    is_violation({}, {"wide: __stwb", "not aligned"}, [] { return store_wide(2); });
}

static void test_shared(void **)
{
    ends_well({}, [] {
        int *out = new_pinned<int>(1);
        *out = 0;
        for (int i = 0; i < 3; i++) NEED(run_one(8, 16, unset, out) == 0);
        NEED(*out == 0);
        cudaFreeHost(out);
        return 0;
    });
    ends_well({}, [] { return run_one(1, 8, beyond, 7, false); });
    is_violation({}, {"shared array part (32 bytes)", "behind"},
                 [] { return run_one(1, 8, beyond, 8, false); });
    is_violation({}, {"shared array part (32 bytes)", "before"},
                 [] { return run_one(1, 8, beyond, -1, false); });
    is_violation({}, {"behind its 8 bytes of dynamic shared memory"},
                 [] { return run_one(1, 8, beyond, 9, true); });
    is_violation({}, {"touched address"}, [] { return run_one(1, 8, beyond, 16, true); });
}

// ---- Limits ----

static void test_limits(void **)
{
    ends_well({}, [] {
        cudaStream_t s = new_stream();
        int *out = new_pinned<int>(1);
        *out = 0;
        const auto attempt = [&](dim3 g, dim3 b, size_t shared) {
            return LAUNCH(unset, g, b, shared, s, out);
        };
        GIVES(cudaErrorInvalidConfiguration, attempt(0, 1, 16));
        GIVES(cudaErrorInvalidConfiguration, attempt(1, 0, 16));
        GIVES(cudaErrorInvalidConfiguration, attempt(1, 1025, 16));
        GIVES(cudaErrorInvalidConfiguration, attempt(1, dim3(32, 33), 16));
        GIVES(cudaErrorInvalidConfiguration, attempt(1, dim3(1, 1, 65), 16));
        GIVES(cudaErrorInvalidConfiguration, attempt(dim3(1, 65536), 1, 16));
        GIVES(cudaErrorInvalidConfiguration, attempt(0x80000000u, 1, 16));
        GIVES(cudaErrorInvalidValue, attempt(1, 8, (48 << 10) + 1));
        GIVES(cudaErrorInvalidValue,
              cudaFuncSetAttribute(unset, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   (227 << 10) + 1));
        GIVES(cudaErrorInvalidValue, cudaGetLastError());
        OK(cudaFuncSetAttribute(unset, cudaFuncAttributeMaxDynamicSharedMemorySize, 227 << 10));
        OK(attempt(1, 8, 227 << 10));
        OK(cudaStreamSynchronize(s));
        NEED(*out == 0);
        OK(cudaSetDevice(1)); // the stream is of device 0
        GIVES(cudaErrorInvalidResourceHandle, attempt(1, 8, 16));
        OK(cudaSetDevice(0));
        OK(cudaStreamDestroy(s));
        GIVES(cudaErrorInvalidResourceHandle, attempt(1, 8, 16));
        cudaFreeHost(out);
        return 0;
    });
}

// Arguments are copied when the launch is made, converted to the parameters' types.
static __global__ void typed(double d, size_t n, float *out)
{
    *out = (float)(d * 2 + (double)n);
}

static void test_arguments(void **)
{
    ends_well({}, [] {
        cudaStream_t s = new_stream();
        float *out = new_pinned<float>(1);
        int i = 3;
        float f = 1.5f;
        OK(LAUNCH(typed, 1, 1, 0, s, f, i, out));
        i = 100;
        f = 100;
        OK(cudaStreamSynchronize(s));
        NEED(*out == 6);
        cudaFreeHost(out), cudaStreamDestroy(s);
        return 0;
    });
}

int main(int, char **)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_places),     cmocka_unit_test(test_sums),
        cmocka_unit_test(test_lanes),      cmocka_unit_test(test_ended_lane),
        cmocka_unit_test(test_divergence), cmocka_unit_test(test_shared),
        cmocka_unit_test(test_alignment),  cmocka_unit_test(test_limits),
        cmocka_unit_test(test_arguments),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
