// Matrix products of a warp and asynchronous copies (matrix.h). The last lane of a warp to come
// computes for all: the others wait, and their operands with them.
#include "tests/fakegpu/matrix.h"

#include <cstring>
#include <vector>

#include "tests/fakegpu/device.h"
#include "tests/fakegpu/engine.h"
#include "tests/fakegpu/races.h"

namespace fakegpu
{

namespace
{

// ---- Products ----

struct Mma {
    float *c;
    const unsigned *a;
    unsigned b[2];
};

template <typename T> void values(unsigned word, float *first, float *second)
{
    T two[2];
    static_assert(sizeof two == sizeof word, "two values a register");
    memcpy(static_cast<void *>(two), &word, sizeof two);
    *first = (float)two[0];
    *second = (float)two[1];
}

// Where lane l has what: its group is l / 4, its place there l % 4. Of a: rows group and, in odd
// registers, group + 8; columns 2 place and the next one, in registers 2 and 3 further 8. Of b:
// rows as a's columns, column group. Of c: rows as a's, columns 2 place and the next one.
template <typename T> void multiply(const uint64_t (&lanes)[32])
{
    float a[16][16], b[8][16];
    for (int l = 0; l < 32; l++) {
        const auto *of = reinterpret_cast<const Mma *>(lanes[l]);
        const int group = l / 4, at = l % 4 * 2;
        for (int r = 0; r < 4; r++) {
            float *to = &a[group + r % 2 * 8][at + r / 2 * 8];
            values<T>(of->a[r], to, to + 1);
        }
        for (int r = 0; r < 2; r++) {
            float *to = &b[group][at + r * 8];
            values<T>(of->b[r], to, to + 1);
        }
    }
    for (int l = 0; l < 32; l++) {
        const auto *of = reinterpret_cast<const Mma *>(lanes[l]);
        for (int r = 0; r < 4; r++) {
            const float *row = a[l / 4 + r / 2 * 8], *column = b[l % 4 * 2 + r % 2];
            float sum = 0.0f;
            for (int k = 0; k < 16; k++) sum += row[k] * column[k];
            of->c[r] += sum;
        }
    }
}

// ---- Rows ----

struct Rows {
    const unsigned char **all;
    const void *mine;
};

void share_rows(const uint64_t (&lanes)[32])
{
    const unsigned char *rows[32];
    for (int l = 0; l < 32; l++)
        rows[l] =
            static_cast<const unsigned char *>(reinterpret_cast<const Rows *>(lanes[l])->mine);
    for (const uint64_t of : lanes)
        memcpy(reinterpret_cast<const Rows *>(of)->all, rows, sizeof rows);
}

// So many bytes, aligned, in the block's shared memory.
void check_place(const char *what, const void *p, size_t nbytes)
{
    if (reinterpret_cast<uintptr_t>(p) % nbytes != 0) misaligned(what, p);
    if (!in_shared(p, nbytes))
        violation(running_kernel(), "%s of %zu bytes that are not in the block's shared memory: %p",
                  what, nbytes, p);
}

// ---- Copies ----

// Of each thread, as they began; `first` of them are done.
struct Copies {
    std::vector<AsyncCopy> all;
    size_t first;
};
Copies copies[max_threads];
size_t under_way;

} // namespace

void mma(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, bool bf16)
{
    Mma mine = {c, a, {b0, b1}};
    meet_all(Meeting::mma, &mine, bf16 ? multiply<__nv_bfloat16> : multiply<__half>);
}

void exchange_rows(const unsigned char *(&rows)[32], const void *mine)
{
    check_place("ldmatrix", mine, 16);
    Rows r = {rows, mine};
    meet_all(Meeting::ldmatrix, &r, share_rows);
}

void begin_copy(void *to, const void *from, size_t nbytes, bool some)
{
    check_place("cp.async", to, nbytes);
    if (reinterpret_cast<uintptr_t>(from) % nbytes != 0) misaligned("cp.async", from);
    copies[running_thread()].all.push_back({to, some ? from : nullptr, nbytes});
    under_way++;
}

bool next_copy(AsyncCopy *out)
{
    Copies &mine = copies[running_thread()];
    if (mine.first == mine.all.size()) {
        mine.all.clear();
        mine.first = 0;
        return false;
    }
    *out = mine.all[mine.first++];
    under_way--;
    return true;
}

size_t copies_under_way()
{
    return under_way;
}

} // namespace fakegpu
