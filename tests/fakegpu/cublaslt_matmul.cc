// cuBLASLt's stand-in, second part: what a product must be like, and its arithmetic. Sums are in
// float32 in ascending k, cut into as many parts as the algorithm splits k into; these go through
// the workspace or are rounded on the way as the reduction scheme says. TF32 rounds operands to 10
// bits of mantissa. ReLU makes 0 of NaN, as the library does; GELU is the tanh approximation, of
// the sum before that is rounded into an auxiliary matrix.
#include "tests/fakegpu/cublaslt.h"

#include <cmath>
#include <cstring>
#include <vector>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "tests/fakegpu/sums.h"

namespace fakegpu
{
namespace lt
{

size_t size_of(int32_t type)
{
    return type == CUDA_R_8I ? 1 : type == CUDA_R_32F || type == CUDA_R_32I ? 4 : 2;
}

size_t extent(const Layout &l)
{
    const uint64_t outer = l.order == CUBLASLT_ORDER_COL ? l.cols : l.rows;
    const uint64_t inner = l.order == CUBLASLT_ORDER_COL ? l.rows : l.cols;
    return ((outer - 1) * (uint64_t)l.ld + inner) * size_of(l.type);
}

// ---- What a product must be like ----

namespace
{

bool fits(const Layout &l)
{
    const uint64_t inner = l.order == CUBLASLT_ORDER_COL ? l.rows : l.cols;
    return l.rows > 0 && l.cols > 0 && l.rows <= INT32_MAX && l.cols <= INT32_MAX &&
           l.ld >= (int64_t)inner;
}

// The guide's table for 32-bit compute and scale types: A, B -> C, D.
// What the guide asks of integers, int8 into int32 without scales: A transposed and B not, in
// columns; m, k and leading dimensions multiples of 4; no epilogue. Addresses: multiples of 4
// (check).
bool integers_supported(const Product &p)
{
    for (const Layout *l : {&p.a, &p.b, &p.c, &p.d})
        if (l->order != CUBLASLT_ORDER_COL || l->ld % 4 != 0) return false;
    return p.desc.scale == CUDA_R_32I && p.a.type == CUDA_R_8I && p.b.type == CUDA_R_8I &&
           p.c.type == CUDA_R_32I && p.d.type == CUDA_R_32I && p.desc.trans_a == CUBLAS_OP_T &&
           p.desc.trans_b == CUBLAS_OP_N && p.m % 4 == 0 && p.k % 4 == 0 &&
           p.desc.epilogue == CUBLASLT_EPILOGUE_DEFAULT;
}

bool types_supported(const Product &p)
{
    if (p.desc.compute == CUBLAS_COMPUTE_32I) return integers_supported(p);
    const int32_t ab = p.a.type, cd = p.d.type;
    if (p.desc.scale != CUDA_R_32F || p.b.type != ab || p.c.type != cd) return false;
    switch (p.desc.compute) {
    case CUBLAS_COMPUTE_32F:
    case CUBLAS_COMPUTE_32F_PEDANTIC:
        return (ab == CUDA_R_32F && cd == CUDA_R_32F) ||
               (ab == CUDA_R_16BF && (cd == CUDA_R_16BF || cd == CUDA_R_32F)) ||
               (ab == CUDA_R_16F && (cd == CUDA_R_16F || cd == CUDA_R_32F));
    case CUBLAS_COMPUTE_32F_FAST_TF32:
        return ab == CUDA_R_32F && cd == CUDA_R_32F;
    default:
        return false;
    }
}

bool epilogue_supported(uint32_t epilogue)
{
    switch (epilogue) {
    case CUBLASLT_EPILOGUE_DEFAULT:
    case CUBLASLT_EPILOGUE_RELU:
    case CUBLASLT_EPILOGUE_BIAS:
    case CUBLASLT_EPILOGUE_RELU_BIAS:
    case CUBLASLT_EPILOGUE_GELU:
    case CUBLASLT_EPILOGUE_GELU_BIAS:
    case CUBLASLT_EPILOGUE_GELU_AUX:
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
    case CUBLASLT_EPILOGUE_DGELU:
    case CUBLASLT_EPILOGUE_BGRADA:
    case CUBLASLT_EPILOGUE_BGRADB:
        return true;
    default: // ReLU's bit mask, and bias gradients beside another gradient, are not modelled
        return false;
    }
}

bool is_op(int32_t op)
{
    return op == CUBLAS_OP_N || op == CUBLAS_OP_T;
}

uint64_t bias_length(const Product &p)
{
    switch (p.desc.epilogue) {
    case CUBLASLT_EPILOGUE_BIAS:
    case CUBLASLT_EPILOGUE_RELU_BIAS:
    case CUBLASLT_EPILOGUE_GELU_BIAS:
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
    case CUBLASLT_EPILOGUE_BGRADA:
        return p.m;
    case CUBLASLT_EPILOGUE_BGRADB:
        return p.n;
    default:
        return 0;
    }
}

// Of D's size and type, in columns.
Layout aux_of(const Product &p)
{
    Layout l = p.d;
    l.order = CUBLASLT_ORDER_COL;
    l.ld = p.desc.aux_ld;
    return l;
}

} // namespace

cublasStatus_t understand(Product *p)
{
    const Desc &d = p->desc;
    const bool a_turned = d.trans_a != CUBLAS_OP_N, b_turned = d.trans_b != CUBLAS_OP_N;
    if (!is_op(d.trans_a) || !is_op(d.trans_b)) return CUBLAS_STATUS_NOT_SUPPORTED; // complex only
    if (d.trans_c != CUBLAS_OP_N || d.fill != CUBLAS_FILL_MODE_FULL ||
        d.pointer_mode != CUBLASLT_POINTER_MODE_HOST)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    for (const Layout *l : {&p->a, &p->b, &p->c, &p->d}) {
        if (l->order != CUBLASLT_ORDER_COL && l->order != CUBLASLT_ORDER_ROW)
            return CUBLAS_STATUS_NOT_SUPPORTED;
        if (l->batch != 1) return CUBLAS_STATUS_NOT_SUPPORTED; // not modelled
        if (!fits(*l)) return CUBLAS_STATUS_INVALID_VALUE;
    }
    p->m = a_turned ? p->a.cols : p->a.rows;
    p->k = a_turned ? p->a.rows : p->a.cols;
    p->n = b_turned ? p->b.rows : p->b.cols;
    if ((b_turned ? p->b.cols : p->b.rows) != p->k || p->c.rows != p->m || p->c.cols != p->n ||
        p->d.rows != p->m || p->d.cols != p->n)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!types_supported(*p) || !epilogue_supported(d.epilogue)) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (bias_length(*p) && d.bias_type != -1 && d.bias_type != p->d.type)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (!has_aux(d.epilogue)) return CUBLAS_STATUS_SUCCESS;
    if (d.aux_type != -1 && d.aux_type != p->d.type) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (d.aux_ld < (int64_t)p->m || d.aux_ld % 8 != 0) return CUBLAS_STATUS_INVALID_VALUE;
    return CUBLAS_STATUS_SUCCESS;
}

uint64_t digest(const Product &p)
{
    uint64_t h = 0xcbf29ce484222325u; // FNV-1a over whole words
    const auto mix = [&h](uint64_t v) { h = (h ^ v) * 0x100000001b3u; };
    for (const Layout *l : {&p.a, &p.b, &p.c, &p.d}) {
        mix((uint64_t)l->type);
        mix((uint64_t)l->order);
        mix(l->rows);
        mix(l->cols);
        mix((uint64_t)l->ld);
    }
    mix((uint64_t)p.desc.compute);
    mix((uint64_t)p.desc.trans_a);
    mix((uint64_t)p.desc.trans_b);
    mix(p.desc.epilogue);
    if (has_aux(p.desc.epilogue)) mix((uint64_t)p.desc.aux_ld);
    return h;
}

namespace
{

void need_apart(const char *call, const char *what, const void *p, size_t n, const void *q,
                size_t k)
{
    const char *a = static_cast<const char *>(p), *b = static_cast<const char *>(q);
    if (n && k && a < b + k && b < a + n) violation(call, "%s", what);
}

} // namespace

void check(const char *call, const Product &p, const Algo &algo, const Operands &o,
           size_t workspace)
{
    const size_t a = extent(p.a), b = extent(p.b), c = o.beta != 0 ? extent(p.c) : 0,
                 d = extent(p.d);
    const size_t bias = bias_length(p) * size_of(p.d.type);
    const size_t aux = has_aux(p.desc.epilogue) ? extent(aux_of(p)) : 0;
    const bool aux_written = p.desc.epilogue != CUBLASLT_EPILOGUE_DGELU;
    need_device(call, "A", o.a, a);
    need_device(call, "B", o.b, b);
    need_device(call, "D", o.d, d);
    if (c) need_device(call, "C", o.c, c);
    if (bias) need_device(call, "bias", p.desc.bias, bias);
    if (aux) need_device(call, "the auxiliary matrix", p.desc.aux, aux);
    need_aligned(call, "A", o.a, algo.align[0]);
    need_aligned(call, "B", o.b, algo.align[1]);
    if (o.c) need_aligned(call, "C", o.c, algo.align[2]);
    need_aligned(call, "D", o.d, algo.align[3]);
    if (bias) need_aligned(call, "bias", p.desc.bias, algo.bias_align);
    if (aux) need_aligned(call, "the auxiliary matrix", p.desc.aux, algo.aux_align);
    if (workspace) {
        need_device(call, "workspace", o.workspace, workspace);
        need_aligned(call, "workspace", o.workspace, 256);
    }
    need_apart(call, "D overlaps A", o.d, d, o.a, a);
    need_apart(call, "D overlaps B", o.d, d, o.b, b);
    need_apart(call, "D overlaps the bias", o.d, d, p.desc.bias, bias);
    need_apart(call, "D overlaps the auxiliary matrix", o.d, d, p.desc.aux, aux);
    if (aux_written) {
        need_apart(call, "the auxiliary matrix overlaps A", p.desc.aux, aux, o.a, a);
        need_apart(call, "the auxiliary matrix overlaps B", p.desc.aux, aux, o.b, b);
        need_apart(call, "the auxiliary matrix overlaps C", p.desc.aux, aux, o.c, c);
        need_apart(call, "the auxiliary matrix overlaps the bias", p.desc.aux, aux, p.desc.bias,
                   bias);
    }
    if (o.c == o.d) {
        if (p.c.ld != p.d.ld || p.c.order != p.d.order)
            violation(call, "C and D are one matrix with two layouts");
    } else {
        need_apart(call, "D overlaps C in part", o.d, d, o.c, c);
    }
    need_apart(call, "the workspace overlaps A", o.workspace, workspace, o.a, a);
    need_apart(call, "the workspace overlaps B", o.workspace, workspace, o.b, b);
    need_apart(call, "the workspace overlaps C", o.workspace, workspace, o.c, c);
    need_apart(call, "the workspace overlaps D", o.workspace, workspace, o.d, d);
    need_apart(call, "the workspace overlaps the bias", o.workspace, workspace, p.desc.bias, bias);
    need_apart(call, "the workspace overlaps the auxiliary matrix", o.workspace, workspace,
               p.desc.aux, aux);
}

// ---- The arithmetic ----

namespace
{

float load(int32_t type, const void *p, size_t i)
{
    if (type == CUDA_R_16BF) return __bfloat162float(static_cast<const __nv_bfloat16 *>(p)[i]);
    if (type == CUDA_R_16F) return __half2float(static_cast<const __half *>(p)[i]);
    return static_cast<const float *>(p)[i];
}

void store(int32_t type, void *p, size_t i, float v)
{
    if (type == CUDA_R_16BF)
        static_cast<__nv_bfloat16 *>(p)[i] = __float2bfloat16_rn(v);
    else if (type == CUDA_R_16F)
        static_cast<__half *>(p)[i] = __float2half_rn(v);
    else
        static_cast<float *>(p)[i] = v;
}

float rounded(int32_t type, float v)
{
    float out = 0;
    store(type, &out, 0, v);
    return load(type, &out, 0);
}

float to_tf32(float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    if ((bits & 0x7f800000u) == 0x7f800000u) return v;
    bits = (bits + 0x1000u) & ~0x1fffu; // nearest, ties away from zero
    memcpy(&v, &bits, sizeof v);
    return v;
}

size_t place(const Layout &l, uint64_t row, uint64_t col)
{
    return l.order == CUBLASLT_ORDER_COL ? col * (uint64_t)l.ld + row : row * (uint64_t)l.ld + col;
}

// op(M) as plain float32: element (i, j) at j * rows + i.
std::vector<float> plain(const Layout &l, bool turned, const void *p, bool tf32)
{
    const uint64_t rows = turned ? l.cols : l.rows, cols = turned ? l.rows : l.cols;
    std::vector<float> out(rows * cols);
    for (uint64_t j = 0; j < cols; j++)
        for (uint64_t i = 0; i < rows; i++) {
            const float v = load(l.type, p, turned ? place(l, j, i) : place(l, i, j));
            out[j * rows + i] = tf32 ? to_tf32(v) : v;
        }
    return out;
}

float gelu(float x)
{
    const float u = 0.79788456080286535588f * (x + 0.044715f * x * x * x);
    return 0.5f * x * (1.0f + tanhf(u));
}

float gelu_derivative(float x)
{
    const float c = 0.79788456080286535588f, t = tanhf(c * (x + 0.044715f * x * x * x));
    return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * c * (1.0f + 3 * 0.044715f * x * x);
}

// The sums of one column of D, which is column j of op(B).
void column(const Product &p, const Algo &algo, const Operands &o, const std::vector<float> &a,
            const float *b, uint64_t j, std::vector<float> &sums)
{
    std::vector<float> part(p.m);
    const bool output = algo.scheme == CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
    std::fill(sums.begin(), sums.end(), 0.0f);
    for (uint64_t s = 0; s < algo.split; s++) {
        const uint64_t begin = p.k * s / algo.split, end = p.k * (s + 1) / algo.split;
        std::fill(part.begin(), part.end(), 0.0f);
        add_rows(part.data(), &a[begin * p.m], b + begin, (int64_t)(end - begin), (int64_t)p.m);
        for (uint64_t i = 0; i < p.m; i++) {
            float v = part[i];
            if (algo.split > 1 &&
                (output || algo.scheme == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)) {
                const size_t at = (s * p.n + j) * p.m + i;
                const int32_t type = output ? p.d.type : (int32_t)CUDA_R_32F;
                store(type, o.workspace, at, v);
                v = load(type, o.workspace, at);
            }
            sums[i] = s == 0 ? v : sums[i] + v;
            if (algo.scheme == CUBLASLT_REDUCTION_SCHEME_INPLACE)
                sums[i] = rounded(p.d.type, sums[i]);
        }
    }
}

} // namespace

// Exact in any order, so parts of the sum are of no concern.
static void compute_integers(const Product &p, const Algo &algo, const Operands &o)
{
    const int8_t *a = static_cast<const int8_t *>(o.a), *b = static_cast<const int8_t *>(o.b);
    if (algo.workspace) memset(o.workspace, 0xa5, algo.workspace);
    for (uint64_t j = 0; j < p.n; j++)
        for (uint64_t i = 0; i < p.m; i++) {
            const int8_t *u = a + i * (uint64_t)p.a.ld, *v = b + j * (uint64_t)p.b.ld;
            int32_t sum = 0;
            for (uint64_t k = 0; k < p.k; k++) sum += u[k] * v[k];
            sum *= (int32_t)o.alpha;
            if (o.beta != 0)
                sum += (int32_t)o.beta * static_cast<const int32_t *>(o.c)[place(p.c, i, j)];
            static_cast<int32_t *>(o.d)[place(p.d, i, j)] = sum;
        }
}

void compute(const Product &p, const Algo &algo, const Operands &o)
{
    if (p.desc.compute == CUBLAS_COMPUTE_32I) return compute_integers(p, algo, o);
    const bool tf32 = p.desc.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    const std::vector<float> a = plain(p.a, p.desc.trans_a != CUBLAS_OP_N, o.a, tf32);
    const std::vector<float> b = plain(p.b, p.desc.trans_b != CUBLAS_OP_N, o.b, tf32);
    const uint32_t e = p.desc.epilogue;
    const bool bias = (e & CUBLASLT_EPILOGUE_BIAS) != 0, derivative = e == CUBLASLT_EPILOGUE_DGELU;
    const Layout aux = aux_of(p);
    // As cuBLASLt 13.1 does on an H200: sums in parts and algorithms without tiles are rounded to
    // D's type before a bias or GELU, all before a bias beside an auxiliary matrix, and products
    // before they are added to D.
    const bool after = bias || (e & CUBLASLT_EPILOGUE_GELU) || derivative;
    const bool rounds =
        (after && (algo.split > 1 || algo.tile == 0)) || (bias && has_aux(e)) || o.beta != 0;
    // Whatever lies there is lost, as the library may use all that it asked for.
    if (algo.workspace) memset(o.workspace, 0xa5, algo.workspace);
    std::vector<float> sums(p.m);
    for (uint64_t j = 0; j < p.n; j++) {
        column(p, algo, o, a, &b[j * p.k], j, sums);
        for (uint64_t i = 0; i < p.m; i++) {
            float v = o.alpha * sums[i];
            if (rounds) v = rounded(p.d.type, v);
            if (o.beta != 0) v += o.beta * load(p.c.type, o.c, place(p.c, i, j));
            if (bias) v += load(p.d.type, p.desc.bias, i);
            if (e & CUBLASLT_EPILOGUE_RELU) v = v > 0 ? v : 0;
            if (has_aux(e) && !derivative) store(p.d.type, p.desc.aux, place(aux, i, j), v);
            if (e & CUBLASLT_EPILOGUE_GELU) v = gelu(v);
            if (derivative) v *= gelu_derivative(load(p.d.type, p.desc.aux, place(aux, i, j)));
            store(p.d.type, o.d, place(p.d, i, j), v);
        }
    }
    if (e != CUBLASLT_EPILOGUE_BGRADA && e != CUBLASLT_EPILOGUE_BGRADB) return;
    void *gradient = const_cast<void *>(p.desc.bias);
    const bool first = e == CUBLASLT_EPILOGUE_BGRADA;
    for (uint64_t i = 0; i < (first ? p.m : p.n); i++) {
        float sum = 0;
        for (uint64_t k = 0; k < p.k; k++) sum += first ? a[k * p.m + i] : b[i * p.k + k];
        store(p.d.type, gradient, i, sum);
    }
}

} // namespace lt
} // namespace fakegpu
