// Races in shared memory end the process, with the array, both threads and their lines; what
// barriers, __syncwarp of a whole warp, and registers order does not.
#include "child.h"

enum { THREADS = 64 };

// Thread t writes element t and reads that of its neighbour `away`: with a barrier between, if
// `meet`.
static __global__ void neighbours(int *out, int away, bool meet)
{
    TR_SHARED(int, row, THREADS);
    const unsigned t = threadIdx.x;
    row[t] = (int)t;
    if (meet) __syncthreads();
    out[t] = row[(t + (unsigned)away) % THREADS];
}

// The same in dynamic shared memory.
static __global__ void in_dynamic(int *out, bool meet)
{
    TR_SHARED_BYTES(bytes);
    int *row = reinterpret_cast<int *>(bytes);
    const unsigned t = threadIdx.x;
    row[t] = (int)t;
    if (meet) __syncthreads();
    out[t] = row[THREADS - 1 - t];
}

// All read element 0, then one writes it: a barrier must come before, too.
static __global__ void overwrite(int *out, bool meet)
{
    TR_SHARED(int, one, 1);
    const unsigned t = threadIdx.x;
    if (t == 0) one[0] = 5;
    __syncthreads();
    out[t] = one[0];
    if (meet) __syncthreads();
    if (t == 9) one[0] = 7;
}

// Threads write neighbouring bytes of a word, then all write the same value to one byte, if
// `same`.
static __global__ void bytes(int *out, bool same)
{
    TR_SHARED(unsigned char, all, THREADS);
    all[threadIdx.x] = 1;
    if (same) all[0] = 1;
    __syncthreads();
    out[threadIdx.x] = all[THREADS - 1 - threadIdx.x];
}

// A value goes through registers, or from lane to lane by shared memory in the order that
// __syncwarp gives; threads of the other warp are not part of that.
static __global__ void in_warp(int *out, int away)
{
    TR_SHARED(int, row, THREADS);
    const unsigned t = threadIdx.x;
    row[t] = __shfl_xor_sync(0xffffffffu, (int)t, 1);
    __syncwarp();
    out[t] = row[t ^ (unsigned)away];
    __syncwarp();
    row[t ^ 1u] = 0;
}

// A row is copied beside the thread; another warp's matrix of it: `meet` before, `then` after the
// wait.
static __global__ void copied(int *out, int away, bool meet, bool then)
{
    TR_SHARED(uint4, rows, THREADS);
    const unsigned t = threadIdx.x, other = (t + (unsigned)away) % THREADS;
    unsigned words[4];
    rows[t] = uint4{t, t, t, t};
    __syncthreads();
    out[t] = (int)rows[other].x;
    if (meet) __syncthreads();
    tr_async_copy(&rows[t], out, false);
    tr_async_wait();
    if (then) __syncthreads();
    tr_ldmatrix(words, &rows[other]);
    out[t] = (int)words[0];
}

// A counter of the block.
static __global__ void counter(int *out)
{
    TR_SHARED(int, hits, 1);
    if (threadIdx.x == 0) hits[0] = 0;
    __syncthreads();
    atomicAdd(hits, 1);
    __syncthreads();
    out[threadIdx.x] = hits[0];
}

template <typename... A> static int run(void (*kernel)(int *, A...), size_t shared, A... a)
{
    cudaStream_t s = new_stream();
    int *out = new_pinned<int>(THREADS);
    OK(::fakegpu::launch("a kernel", kernel, dim3(3), dim3(THREADS), shared, s, out, a...));
    OK(cudaStreamSynchronize(s));
    cudaFreeHost(out), cudaStreamDestroy(s);
    return 0;
}

static void test_ordered(void **)
{
    for (const char *order : {"lazy", "1", "2"})
        ends_well({{"FAKEGPU_ORDER", order}}, [] {
            return run(neighbours, 0, 1, true) + run(neighbours, 0, 0, false) +
                   run(in_dynamic, THREADS * 4, true) + run(overwrite, 0, true) +
                   run(bytes, 0, false) + run(in_warp, 0, 1) + run(counter, 0) +
                   run(copied, 0, 32, true, true);
        });
}

#ifdef FAKEGPU_RACES
static void test_races(void **)
{
    for (const char *order : {"lazy", "1", "2", "3"}) {
        const Environment env = {{"FAKEGPU_ORDER", order}};
        is_violation(
            env, {"a kernel", "shared row", "thread", "no barrier is between", "test_races.cc:"},
            [] { return run(neighbours, 0, 1, false); });
        is_violation(env, {"shared memory (dynamic)", "no barrier"},
                     [] { return run(in_dynamic, THREADS * 4, false); });
        is_violation(env, {"shared one", "thread 9"}, [] { return run(overwrite, 0, false); });
        is_violation(env, {"byte 0 of shared all"}, [] { return run(bytes, 0, true); });
        is_violation(env, {"shared row"}, [] { return run(in_warp, 0, 32); });
        is_violation(env, {"shared rows"}, [] { return run(copied, 0, 32, false, true); });
        is_violation(env, {"shared rows"}, [] { return run(copied, 0, 32, true, false); });
    }
}
#else
static void test_races(void **)
{
    print_message("kernels of a sanitizer's build are not watched for races\n");
    skip();
}
#endif

int main(int, char **)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ordered),
                                       cmocka_unit_test(test_races)};
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
