// cuBLASLt's stand-in: what descriptors hold (cublaslt.cc), which algorithms there are and the
// call (cublaslt_call.cc), and what a product is (cublaslt_matmul.cc). Descriptors lie in the
// opaque structs of the real header.
#pragma once

#include <cstring>

#include <cublasLt.h>

#include "tests/fakegpu/fakegpu.h"

namespace fakegpu
{
namespace lt
{

enum class Kind { handle, desc, layout, preference };

struct Layout {
    int32_t type, order, batch, mode;
    uint64_t rows, cols;
    int64_t ld, stride;
};

struct Desc {
    int32_t compute, scale, pointer_mode, trans_a, trans_b, trans_c, fill;
    uint32_t epilogue;
    const void *bias; // or where the bias gradient goes
    int32_t bias_type, aux_type;
    void *aux; // what GELU is applied to: written, or read by its gradient
    int64_t aux_ld, aux_stride;
};

struct Preference {
    uint64_t workspace, impl;
    uint32_t search, schemes, align[4]; // A, B, C, D
    float waves;
};

struct Algo {
    uint64_t problem; // a digest of what it was made for
    uint64_t workspace;
    uint32_t magic, id, split, scheme;
    uint16_t align[4]; // that the caller promised
    uint16_t bias_align, aux_align;
    uint32_t tile;      // 0: has none, and applies the epilogue in a kernel of its own
    uint32_t undefined; // 0: has no stages
};
constexpr uint32_t algo_magic = 0x6c746d6d;

static_assert(sizeof(Layout) <= sizeof(cublasLtMatrixLayoutOpaque_t));
static_assert(sizeof(Desc) <= sizeof(cublasLtMatmulDescOpaque_t));
static_assert(sizeof(Preference) <= sizeof(cublasLtMatmulPreferenceOpaque_t));
static_assert(sizeof(Algo) <= sizeof(cublasLtMatmulAlgo_t));

// `p` is a live object of that kind; false: NULL; a violation: destroyed, or never made.
bool alive(const char *call, const void *p, Kind kind);

template <typename T> T read_from(const void *p)
{
    T v;
    memcpy(&v, p, sizeof v);
    return v;
}

// ---- Attributes: a place in one of the structs above ----

struct Attribute {
    size_t at, size;
};

#define FIELD(type, name)                                                                          \
    Attribute                                                                                      \
    {                                                                                              \
        offsetof(type, name), sizeof(type::name)                                                   \
    }

// As every ...GetAttribute of the library.
cublasStatus_t get(const void *object, Attribute a, void *buf, size_t size, size_t *written);

// The product as asked for, everything copied.
struct Product {
    Desc desc;
    Layout a, b, c, d;
    uint64_t m, n, k; // D is m x n
};
// The epilogue writes or reads an auxiliary matrix.
inline bool has_aux(uint32_t epilogue)
{
    return (epilogue & 128) != 0;
}
// Checks that the parts fit and are supported; fills in m, n, k.
cublasStatus_t understand(Product *p);
uint64_t digest(const Product &p);

size_t size_of(int32_t type);
// Bytes from the first to behind the last element.
size_t extent(const Layout &l);

// Where a call's data lie.
struct Operands {
    float alpha, beta;
    const void *a, *b, *c;
    void *d, *workspace;
};
// Violations where the operands are not what the real library may be given.
void check(const char *call, const Product &p, const Algo &algo, const Operands &o,
           size_t workspace);
// Computes it, in device memory: to be called by a task.
void compute(const Product &p, const Algo &algo, const Operands &o);

} // namespace lt
} // namespace fakegpu
