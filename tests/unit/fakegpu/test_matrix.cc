// Matrix instructions of a warp and asynchronous copies, against plain products: who holds what is
// written here once more, element by element, from the figures of the PTX ISA ("Matrix Fragments
// for mma.m16n8k16 with floating point type", "ldmatrix", "cp.async"). Misuse ends the process.
#include "child.h"

#include <cstring>

#include "kernels/cuda/mma.cuh"

// ---- mma ----

// Registers of a and b, and c before and after, all lane after lane.
template <typename T>
static __global__ void multiply(const unsigned *a, const unsigned *b, const float *c, float *out)
{
    const unsigned l = threadIdx.x % 32;
    unsigned of_a[4];
    float of_c[4];
    for (int i = 0; i < 4; i++) of_a[i] = a[4 * l + (unsigned)i], of_c[i] = c[4 * l + (unsigned)i];
    tr_mma<T>(of_c, of_a, b[2 * l], b[2 * l + 1]);
    for (int i = 0; i < 4; i++) out[4 * threadIdx.x + (unsigned)i] = of_c[i];
}

// The figures: a0..a7 of a lane, b0..b3, c0..c3, as row and column.
static void place_a(int lane, int i, int *row, int *column)
{
    const int group = lane >> 2, in = lane % 4;
    *row = (0 <= i && i < 2) || (4 <= i && i < 6) ? group : group + 8;
    *column = i < 4 ? in * 2 + (i & 1) : in * 2 + (i & 1) + 8;
}
static void place_b(int lane, int i, int *row, int *column)
{
    const int group = lane >> 2, in = lane % 4;
    *row = i < 2 ? in * 2 + (i & 1) : in * 2 + (i & 1) + 8;
    *column = group;
}
static void place_c(int lane, int i, int *row, int *column)
{
    const int group = lane >> 2, in = lane % 4;
    *row = i < 2 ? group : group + 8;
    *column = in * 2 + (i & 1);
}

// Small whole numbers: products and sums are exact in all types.
static int number(int i)
{
    return (i * 37 + i / 7 * 11) % 23 - 11;
}

template <typename T> static int check_product()
{
    enum { LANES = 32, WARPS = 2 };
    cudaStream_t s = new_stream();
    T *a = new_pinned<T>(LANES * 8), *b = new_pinned<T>(LANES * 4);
    float *c = new_pinned<float>(LANES * 4), *out = new_pinned<float>(WARPS * LANES * 4);
    int of_a[16][16], of_b[16][8], row, column;
    for (int i = 0; i < 256; i++) of_a[i / 16][i % 16] = number(i);
    for (int i = 0; i < 128; i++) of_b[i / 8][i % 8] = number(300 + i);
    for (int l = 0; l < LANES; l++) {
        for (int i = 0; i < 8; i++) {
            place_a(l, i, &row, &column);
            a[8 * l + i] = (T)(float)of_a[row][column];
        }
        for (int i = 0; i < 4; i++) {
            place_b(l, i, &row, &column);
            b[4 * l + i] = (T)(float)of_b[row][column];
            c[4 * l + i] = (float)(100 * l + i);
        }
    }
    OK(LAUNCH(multiply<T>, 1, WARPS * LANES, 0, s, reinterpret_cast<unsigned *>(a),
              reinterpret_cast<unsigned *>(b), c, out));
    OK(cudaStreamSynchronize(s));
    for (int l = 0; l < WARPS * LANES; l++)
        for (int i = 0; i < 4; i++) {
            int sum = 100 * (l % 32) + i;
            place_c(l % 32, i, &row, &column);
            for (int k = 0; k < 16; k++) sum += of_a[row][k] * of_b[k][column];
            NEED(out[4 * l + i] == (float)sum);
        }
    cudaFreeHost(a), cudaFreeHost(b), cudaFreeHost(c), cudaFreeHost(out), cudaStreamDestroy(s);
    return 0;
}

static void test_products(void **)
{
    for (const char *order : {"lazy", "1", "2", "3"})
        ends_well({{"FAKEGPU_ORDER", order}},
                  [] { return check_product<__nv_bfloat16>() + check_product<__half>(); });
}

// ---- ldmatrix ----

// Row r of matrix m lies at row (5 r + m) % 8 + 8 m of `pitch` values, its values numbered.
static __global__ void load(unsigned *out, int pitch, bool transposed)
{
    TR_SHARED(uint16_t, bytes, 32 * 24);
    TR_SHARED_BYTES(room);
    auto *rows = transposed ? static_cast<uint16_t *>(bytes) : reinterpret_cast<uint16_t *>(room);
    for (int i = (int)threadIdx.x; i < 32 * 8; i += (int)blockDim.x) {
        const int m = i / 64, r = i / 8 % 8;
        rows[((5 * r + m) % 8 + 8 * m) * pitch + i % 8] = (uint16_t)i;
    }
    __syncthreads();
    const int l = (int)threadIdx.x % 32, m = l / 8, r = l % 8;
    const uint16_t *mine = rows + ((5 * r + m) % 8 + 8 * m) * pitch;
    unsigned to[4];
    if (transposed)
        tr_ldmatrix_transposed(to, mine);
    else
        tr_ldmatrix(to, mine);
    for (int i = 0; i < 4; i++) out[4 * threadIdx.x + (unsigned)i] = to[i];
}

static int check_load(bool transposed)
{
    enum { THREADS = 64, PITCH = 24 };
    cudaStream_t s = new_stream();
    unsigned *out = new_pinned<unsigned>(THREADS * 4);
    OK(LAUNCH(load, 2, THREADS, 32 * PITCH * 2, s, out, (int)PITCH, transposed));
    OK(cudaStreamSynchronize(s));
    for (unsigned l = 0; l < THREADS; l++)
        for (unsigned m = 0; m < 4; m++)
            for (unsigned e = 0; e < 2; e++) {
                const unsigned along = l % 32 % 4 * 2 + e, across = l % 32 / 4;
                const unsigned row = transposed ? along : across;
                const unsigned column = transposed ? across : along;
                NEED((out[4 * l + m] >> 16 * e & 0xffff) == 64 * m + 8 * row + column);
            }
    cudaFreeHost(out), cudaStreamDestroy(s);
    return 0;
}

static void test_loads(void **)
{
    for (const char *order : {"lazy", "1", "2", "3"})
        ends_well({{"FAKEGPU_ORDER", order}}, [] { return check_load(false) + check_load(true); });
}

// ---- Copies ----

// 16 bytes a thread, or four words; what is read too early, with no wait, is not what was copied.
static __global__ void copy(const uint4 *from, uint4 *out, int n, bool early, bool words)
{
    TR_SHARED(uint4, rows, 64);
    auto *word = reinterpret_cast<float *>(&rows[threadIdx.x]);
    for (int i = 0; i < 4 && words; i++)
        tr_async_copy_word(word + i, reinterpret_cast<const float *>(from + threadIdx.x) + i,
                           (int)threadIdx.x < n);
    if (!words) tr_async_copy(word, from + threadIdx.x, (int)threadIdx.x < n);
    if (early) {
        __syncthreads();
        out[threadIdx.x] = rows[threadIdx.x ^ 1u];
        __syncthreads();
    }
    tr_async_wait();
    __syncthreads();
    if (!early) out[threadIdx.x] = rows[threadIdx.x ^ 1u];
}

static int check_copy(bool early, bool words)
{
    enum { THREADS = 64, SOME = 41 };
    cudaStream_t s = new_stream();
    uint4 *from = new_pinned<uint4>(SOME), *out = new_pinned<uint4>(THREADS);
    for (unsigned i = 0; i < SOME; i++) from[i] = uint4{i, 1000 + i, 7 * i, 5};
    OK(LAUNCH(copy, 2, THREADS, 0, s, from, out, (int)SOME, early, words));
    OK(cudaStreamSynchronize(s));
    for (unsigned i = 0; i < THREADS; i++) {
        const unsigned j = i ^ 1u;
        const uint4 want = early      ? uint4{~0u, ~0u, ~0u, ~0u}
                           : j < SOME ? from[j]
                                      : uint4{0, 0, 0, 0};
        NEED(memcmp(&out[i], &want, sizeof want) == 0);
    }
    cudaFreeHost(from), cudaFreeHost(out), cudaStreamDestroy(s);
    return 0;
}

static void test_copies(void **)
{
    for (const char *order : {"lazy", "1", "2"})
        for (const bool words : {false, true})
            ends_well({{"FAKEGPU_ORDER", order}},
                      [=] { return check_copy(false, words) + check_copy(true, words); });
}

// ---- Misuse ----

enum Misuse { ONE_LANE_AWAY, ONE_LANE_ENDED, OTHER_BRANCH, UNALIGNED, GLOBAL, BEHIND, NO_WAIT };

static __global__ void misuse(int what, unsigned char *device)
{
    TR_SHARED_BYTES(room);
    float c[4] = {};
    unsigned a[4] = {};
    const unsigned l = threadIdx.x;
    const bool one = l == 9;
    if (what == ONE_LANE_ENDED && one) return;
    if (what == ONE_LANE_AWAY && one)
        __syncthreads();
    else if (what == ONE_LANE_AWAY || what == ONE_LANE_ENDED)
        tr_mma<__half>(c, a, 0, 0);
    if (what == OTHER_BRANCH && one)
        tr_ldmatrix(a, room);
    else if (what == OTHER_BRANCH)
        tr_mma<__half>(c, a, 0, 0);
    if (what == UNALIGNED) tr_ldmatrix(a, room + 16 * l + (one ? 8 : 0));
    if (what == GLOBAL) tr_ldmatrix(a, one ? device : room);
    if (what == BEHIND)
        tr_async_copy(room + 16 * l + (one ? 512 : 0), device, true), tr_async_wait();
    if (what == NO_WAIT) tr_async_copy(room + 16 * l, device, true);
    if (c[0] != 0) device[0] = (unsigned char)a[0];
}

static int misused(int what)
{
    cudaStream_t s = new_stream();
    unsigned char *device = new_pinned<unsigned char>(64);
    OK(LAUNCH(misuse, 1, 32, 512, s, what, device));
    OK(cudaStreamSynchronize(s));
    return 0;
}

static void test_misuse(void **)
{
    static const struct {
        Misuse what;
        std::vector<const char *> said;
    } cases[] = {
        {ONE_LANE_AWAY, {"wait for each other for ever", "lanes fffffdff of warp 0 wait at a mma"}},
        {ONE_LANE_ENDED, {"mma: lanes fffffdff of warp 0 alone"}},
        {OTHER_BRANCH,
         {"lanes fffffdff of warp 0 wait at a mma", "lanes 00000200", "at a ldmatrix"}},
        {UNALIGNED, {"ldmatrix of an address that is not aligned"}},
        {GLOBAL, {"ldmatrix of 16 bytes that are not in the block's shared memory"}},
        {BEHIND, {"cp.async of 16 bytes that are not in the block's shared memory"}},
        {NO_WAIT, {"32 asynchronous copies of a block that ended were never waited for"}},
    };
    for (const char *order : {"lazy", "1", "2", "3"})
        for (const auto &c : cases)
            is_violation({{"FAKEGPU_ORDER", order}}, c.said, [&] { return misused(c.what); });
    is_violation({{"FAKEGPU_CAPABILITY", "7.5"}}, {"mma in code for compute capability 7.5"},
                 [] { return check_product<__half>(); });
}

// ---- Pairs ----

static void test_pairs(void **)
{
    const float first = -1.5f, second = 1.0f + 0x1p-9f; // the second is rounded
    __nv_bfloat16 b[2];
    __half h[2];
    const unsigned of_b = tr_pair<__nv_bfloat16>(first, second);
    const unsigned of_h = tr_pair<__half>(first, second);
    memcpy(static_cast<void *>(b), &of_b, sizeof b);
    memcpy(static_cast<void *>(h), &of_h, sizeof h);
    assert_true((float)b[0] == first && (float)b[1] == 1.0f);
    assert_true((float)h[0] == first && (float)h[1] == second);
}

int main(int, char **)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products), cmocka_unit_test(test_loads),
        cmocka_unit_test(test_copies),   cmocka_unit_test(test_misuse),
        cmocka_unit_test(test_pairs),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
