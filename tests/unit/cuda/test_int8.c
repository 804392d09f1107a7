/* links: trireme_cpu */
/* Values of 8 bits: quantize, dequantize, products with residual and ReLU, what moves them. On
 * random shapes and types the device's bytes are the CPU's. */
#include "core_harness.h"

#include <math.h>

#include "kernels/cpu/cpu.h"
#include "runtime/device/backend.h"

enum { TENSORS = 6 };

/* One op, its tensors (number 0 is the result), their bytes on the host. */
typedef struct {
    const char *name;
    tr_graph g;
    tr_tensor t[TENSORS];
    void *data[TENSORS];
    tr_op op;
    union {
        tr_conv2d_attrs conv;
        tr_linear_attrs linear;
        tr_pool2d_attrs pool;
        tr_dynamic_attrs dynamic;
        tr_concat_attrs concat;
    } attrs;
} problem;

static uint32_t words;

static uint32_t any(uint32_t below)
{
    return tr_philox_at(7, TR_RNG_TEST, 8, words++, 0).v[0] % below;
}

static const tr_op_def *op_named(const char *name)
{
    for (size_t i = 0; i < tr_op_count(); i++)
        if (strcmp(tr_op_def_name(tr_op_at(i)), name) == 0) return tr_op_at(i);
    fail_msg("no op %s", name);
    return NULL;
}

static void *bytes(size_t n)
{
    void *p = aligned_alloc(64, tr_align_up(n + 64, 64));
    assert_non_null(p);
    memset(p, 0x55, n + 64);
    return p;
}

static tr_dtype eight_bits(void)
{
    return any(2) ? TR_I8 : TR_U8;
}

/* Tensor `id`; of 8 bits: any bytes, with a scale. */
static tr_tensor *tensor(problem *p, int id, tr_dtype type, int ndim, const int64_t *dims)
{
    tr_tensor *t = &p->t[id];
    const bool small = tr_dtype_size(type) == 1;
    *t = (tr_tensor){.id = id, .index = id, .dtype = type, .ndim = ndim, .alias = -1, .count = 1};
    if (ndim == 4) t->layout = TR_LAYOUT_CHANNELS_LAST;
    for (int i = 0; i < ndim; i++) {
        t->dims[i] = dims[i];
        t->count *= (size_t)dims[i];
    }
    t->nbytes = t->count * tr_dtype_size(type);
    if (small) t->scale = 0.013f * (float)(1 + any(5));
    p->data[id] = bytes(t->nbytes);
    for (size_t i = 0; i < t->count && small; i++) ((uint8_t *)p->data[id])[i] = (uint8_t)any(256);
    return t;
}

static void finish(problem *p, int nin, const int *in)
{
    p->op.def = op_named(p->name);
    snprintf(p->op.layer, sizeof p->op.layer, "%s", p->name);
    p->op.nin = nin;
    p->op.nout = 1;
    p->op.bucket_ready = -1;
    memcpy(p->op.in, in, (size_t)nin * sizeof *in);
}

static void drop(problem *p)
{
    for (int i = 0; i < TENSORS; i++) free(p->data[i]);
}

/* Weights on the grid of a scale for each output, a bias, a residual, as chance has it. */
static void add_parameters(problem *p, int64_t out, int64_t in, const int64_t kernel[2])
{
    const int64_t dims[] = {out, in, kernel[0], kernel[1]};
    const size_t each = (size_t)(in * kernel[0] * kernel[1]);
    const bool bias = any(4) > 0;
    tensor(p, 2, TR_F32, p->t[1].ndim == 4 ? 4 : 2, dims)->layout = TR_LAYOUT_PLAIN;
    tensor(p, 3, TR_F32, 1, dims);
    tensor(p, 4, TR_F32, 1, dims);
    float *weight = p->data[2], *scale = p->data[3], *shift = p->data[4];
    for (int64_t o = 0; o < out; o++) {
        scale[o] = 0.001f + 0.00001f * (float)any(100);
        shift[o] = 0.01f * (float)any(200) - 1;
    }
    for (size_t i = 0; i < each * (size_t)out; i++)
        weight[i] = (float)((int)any(255) - 127) * scale[i / each];
    if (any(2)) tensor(p, 5, eight_bits(), p->t[0].ndim, p->t[0].dims);
    p->op.act = any(2) ? TR_ACT_RELU : TR_ACT_NONE;
    finish(p, 5, (int[]){1, 2, 3, bias ? 4 : -1, p->data[5] ? 5 : -1});
}

static problem linear(tr_dtype type, int64_t rows, int64_t in, int64_t out)
{
    static const int64_t one[] = {1, 1};
    problem p = {.name = "linear.int8", .attrs.linear = {.out = out, .bias = true}};
    tensor(&p, 0, type, 2, (int64_t[]){rows, out});
    tensor(&p, 1, eight_bits(), 2, (int64_t[]){rows, in});
    add_parameters(&p, out, in, one);
    return p;
}

static int64_t reach(int64_t size, int64_t kernel, int64_t stride, int64_t padding,
                     int64_t dilation)
{
    const int64_t room = size + 2 * padding - dilation * (kernel - 1) - 1;
    return room < 0 ? 0 : room / stride + 1;
}

/* Channels that fill packs of 16 and of 4, odd ones, one; windows of one place, strides, padding,
 * dilation. */
static problem convolution(tr_dtype type)
{
    static const int64_t channels[] = {1, 3, 4, 7, 16, 20, 32, 64};
    problem p = {.name = "conv2d.int8"};
    tr_conv2d_attrs *a = &p.attrs.conv;
    int64_t size[2], result[2];
    do {
        *a = (tr_conv2d_attrs){.out = 1 + any(70), .groups = 1};
        for (int i = 0; i < 2; i++) {
            size[i] = 1 + any(i ? 20 : 9);
            a->kernel[i] = any(3) ? 1 + any(3) : 1;
            a->stride[i] = 1 + any(2);
            a->padding[i] = any(3);
            a->dilation[i] = 1 + any(2);
            result[i] = reach(size[i], a->kernel[i], a->stride[i], a->padding[i], a->dilation[i]);
        }
    } while (result[0] < 1 || result[1] < 1);
    const int64_t batch = 1 + any(3), in = channels[any(TR_COUNT(channels))];
    tensor(&p, 0, type, 4, (int64_t[]){batch, a->out, result[0], result[1]});
    tensor(&p, 1, eight_bits(), 4, (int64_t[]){batch, in, size[0], size[1]});
    add_parameters(&p, a->out, in, a->kernel);
    return p;
}

/* Of all outputs, one behind the other. */
static size_t answer_bytes(const problem *p)
{
    size_t n = 0;
    for (int i = 0; i < p->op.nout; i++) n += p->t[p->op.out[i]].nbytes;
    return n;
}

/* Runs it on a backend: the results' bytes, and which kernel it was. */
static void *answer(const tr_backend *of, void *ctx, problem *p, char impl[128])
{
    void *team = NULL, *y = bytes(answer_bytes(p));
    tr_kernel *k = NULL;
    tr_binding at = {0};
    const tr_run run = {.loss_scale = 1, .last = true};
    assert_ok(tr_team_open(of, ctx, 2, &team));
    assert_ok(of->kernels->prepare(team, &p->g, &p->op, &k));
    snprintf(impl, 128, "%s", k->impl);
    for (int i = 0; i < p->op.nout; i++)
        at.out[i] = of->memory->alloc(ctx, TR_MEM_OTHER, p->t[p->op.out[i]].nbytes);
    for (int i = 0; i < p->op.nin; i++) {
        const int id = p->op.in[i];
        if (id < 0) continue;
        at.in[i] = of->memory->alloc(ctx, TR_MEM_OTHER, p->t[id].nbytes + 64);
        assert_ok(of->memory->upload(ctx, at.in[i], p->data[id], p->t[id].nbytes));
    }
    if (k->workspace) at.workspace = of->memory->alloc(ctx, TR_MEM_WORKSPACE, k->workspace);
    for (int i = 0; i < k->npacked; i++)
        at.packed[i] = of->memory->alloc(ctx, TR_MEM_PACKED, k->packed[i].nbytes);
    assert_ok(k->bind(k, &at));
    for (int i = 0; i < k->npacked; i++) assert_ok(k->pack(k, i));
    assert_ok(k->run(k, &run));
    size_t behind = 0;
    for (int i = 0; i < p->op.nout; i++) {
        const size_t n = p->t[p->op.out[i]].nbytes;
        assert_ok(of->memory->download(ctx, (char *)y + behind, at.out[i], n));
        behind += n;
    }
    k->close(k);
    for (int i = 0; i < p->op.nin; i++) of->memory->free(ctx, at.in[i]);
    for (int i = 0; i < TR_MAX_PACKED; i++) of->memory->free(ctx, at.packed[i]);
    of->memory->free(ctx, at.workspace);
    for (int i = 0; i < p->op.nout; i++) of->memory->free(ctx, at.out[i]);
    tr_team_close(of, team);
    return y;
}

typedef struct {
    void *cpu, *cuda;
} contexts;

static contexts contexts_open(size_t workspace)
{
    contexts c = {NULL, NULL};
    assert_ok(tr_cpu_backend.open(&(tr_backend_options){0}, &c.cpu));
    assert_ok(b->open(&(tr_backend_options){.workspace = workspace}, &c.cuda));
    return c;
}

static void contexts_close(contexts *c)
{
    b->close(c->cuda);
    tr_cpu_backend.close(c->cpu);
}

static void check(const contexts *c, problem *p, const char *impl)
{
    p->g = (tr_graph){
        .batch = p->t[0].dims[0], .ntensors = TENSORS, .tensors = p->t, .ops = &p->op, .nops = 1};
    p->op.attrs = &p->attrs;
    char ours[128], theirs[128];
    uint8_t *want = answer(&tr_cpu_backend, c->cpu, p, theirs), *y = answer(b, c->cuda, p, ours);
    const tr_tensor *t = p->t;
    if (impl && !strstr(ours, impl)) fail_msg("%s: \"%s\", not \"%s\"", p->name, ours, impl);
    for (size_t i = 0; i < answer_bytes(p); i++)
        if (y[i] != want[i])
            fail_msg("%s of %s into %s, %lld of %lld to %lld, act %d, \"%s\": byte %zu of %zu is "
                     "%d, not %d",
                     p->name, tr_dtype_name(t[1].dtype), tr_dtype_name(t->dtype),
                     (long long)t->dims[0], (long long)t[1].dims[1], (long long)t->dims[1],
                     (int)p->op.act, ours, i, t->nbytes, y[i], want[i]);
    free(y);
    free(want);
    drop(p);
}

static const tr_dtype results[] = {TR_U8, TR_I8, TR_F32, TR_BF16};

static void test_products(void **state)
{
    (void)state;
    contexts c = contexts_open(32 << 20);
    for (int i = 0; i < 96; i++) {
        const tr_dtype type = results[i % 4];
        problem p = i % 3 ? convolution(type)
                          : linear(type, 1 + any(40), any(2) ? 16 * (1 + any(8)) : 1 + any(90),
                                   any(2) ? 16 * (1 + any(6)) : 1 + any(70));
        check(&c, &p, "int8: cuBLASLt");
    }
    contexts_close(&c);
}

/* Little workspace: rows in pieces, the last of them shorter. */
static void test_pieces(void **state)
{
    (void)state;
    contexts c = contexts_open(1);
    for (int i = 0; i < 4; i++) {
        problem p = linear(results[i], i % 2 ? 512 : 700, i < 2 ? 32 : 21, 5);
        check(&c, &p, "int8: cuBLASLt");
    }
    contexts_close(&c);
}

/* The library has no product of int8: our own sums. */
static void test_without(void **state)
{
    (void)state;
#ifdef TR_REAL_GPU
    print_message("[  SKIPPED ] the library has it\n");
#else
    setenv("FAKEGPU_CUBLASLT_WITHOUT", "int8", 1);
    contexts c = contexts_open(32 << 20);
    for (int i = 0; i < 8; i++) {
        problem p = i % 2 ? convolution(results[i / 2]) : linear(results[i / 2], 9, 40, 33);
        check(&c, &p, "own sums");
    }
    contexts_close(&c);
    unsetenv("FAKEGPU_CUBLASLT_WITHOUT");
#endif
}

/* Halves, what is clamped, NaN, infinities. */
static float odd_value(size_t i, float scale)
{
    static const float odd[] = {0.0f, -0.0f, 1e30f, -1e30f, INFINITY, -INFINITY, NAN, 1e-30f};
    if (i < TR_COUNT(odd)) return odd[i];
    return (0.5f * (float)any(1200) - 300) * scale;
}

static void test_steps(void **state)
{
    (void)state;
    contexts c = contexts_open(1);
    for (int i = 0; i < 24; i++) {
        const tr_dtype values = i % 2 ? TR_BF16 : TR_F32;
        const int64_t dims[] = {1 + any(i < 12 ? 5 : 300), i % 3 ? 16 * (1 + any(5)) : 1 + any(70)};
        const bool back = i / 2 % 2;
        problem p = {.name = back ? "int8.dequantize" : "int8.quantize"};
        tensor(&p, back ? 0 : 1, values, 2, dims);
        const tr_tensor *steps = tensor(&p, back ? 1 : 0, eight_bits(), 2, dims);
        for (size_t e = 0; e < steps->count && !back; e++) {
            const float v = odd_value(e, steps->scale);
            if (values == TR_F32)
                ((float *)p.data[1])[e] = v;
            else
                ((tr_bf16 *)p.data[1])[e] = tr_f32_to_bf16(v);
        }
        finish(&p, 1, (int[]){1});
        check(&c, &p, "own");
    }
    contexts_close(&c);
}

static void set(problem *p, int id, tr_dtype type, size_t i, float v)
{
    if (type == TR_F32)
        ((float *)p->data[id])[i] = v;
    else
        ((tr_bf16 *)p->data[id])[i] = tr_f32_to_bf16(v);
}

/* Rows and images of a whole number of packs or not, in several pieces, rows of zeros; NaN,
 * infinities. */
static problem rounding(int i)
{
    const tr_dtype type = i % 2 ? TR_BF16 : TR_F32;
    const bool image = any(2), steps = any(2);
    const int64_t wide = any(2) ? 16 * (1 + any(5)) : 1 + any(70);
    const int64_t dims[] = {1 + any(4), wide, i < 4 ? 130 : 1 + any(9), i < 4 ? 140 : 1 + any(9)};
    problem p = {.name = steps ? "int8.dynamic" : "dynamic_quantize",
                 .attrs.dynamic = {.is_signed = any(2)}};
    const tr_tensor *x = tensor(&p, 1, type, image ? 4 : 2, dims);
    tensor(&p, 0, !steps ? type : p.attrs.dynamic.is_signed ? TR_I8 : TR_U8, x->ndim, dims);
    const int64_t rows = (int64_t)tr_dynamic_rows(x);
    for (size_t e = 0; e < x->count; e++) {
        const bool zero = e < x->count / (size_t)rows && i % 5 == 0;
        const float v = steps && i % 7 == 3 ? odd_value(e, 0.01f) : 0.01f * (float)any(2001) - 10;
        set(&p, 1, type, e, zero ? 0 : v);
    }
    if (steps) set(&p, 1, type, x->count - 1, NAN); /* of 8 bits: the least step */
    finish(&p, 1, (int[]){1});
    if (!steps) return p;
    tensor(&p, 5, TR_F32, 1, &rows);
    p.op.nout = 2;
    p.op.out[1] = 5;
    return p;
}

/* Products of such rows: a scale each, a bias, a residual, as chance has it. */
static problem rescaling(int i)
{
    const tr_dtype type = i % 2 ? TR_BF16 : TR_F32;
    const bool image = any(2);
    const int64_t dims[] = {1 + any(9), any(2) ? 4 * (1 + any(20)) : 1 + any(70), 1 + any(9), 7};
    problem p = {.name = "int8.rescale"};
    const tr_tensor *y = tensor(&p, 0, type, image ? 4 : 2, dims);
    tensor(&p, 1, TR_F32, y->ndim, dims);
    tensor(&p, 2, TR_F32, 1, dims);
    tensor(&p, 3, TR_F32, 1, &dims[1]);
    tensor(&p, 4, type, y->ndim, dims);
    for (size_t e = 0; e < y->count; e++) {
        set(&p, 1, TR_F32, e, 0.37f * (float)any(4000) - 700);
        set(&p, 4, type, e, 0.02f * (float)any(400) - 4);
    }
    for (size_t e = 0; e < p.t[2].count; e++) set(&p, 2, TR_F32, e, 1e-4f * (float)(1 + any(99)));
    for (size_t e = 0; e < p.t[3].count; e++) set(&p, 3, TR_F32, e, 0.01f * (float)any(99));
    p.op.act = any(2) ? TR_ACT_RELU : TR_ACT_NONE;
    finish(&p, 4, (int[]){1, 2, any(2) ? 3 : -1, any(2) ? 4 : -1});
    return p;
}

static void test_dynamic(void **state)
{
    (void)state;
    contexts c = contexts_open(1);
    for (int i = 0; i < 48; i++) {
        problem p = i % 3 ? rounding(i) : rescaling(i);
        check(&c, &p, "own");
    }
    contexts_close(&c);
}

static problem pooling(void)
{
    problem p = {.name = "maxpool2d"};
    tr_pool2d_attrs *a = &p.attrs.pool;
    const tr_dtype type = eight_bits();
    const int64_t batch = 1 + any(3), channels = any(2) ? 16 * (1 + any(4)) : 1 + any(40);
    int64_t size[2], result[2];
    for (int i = 0; i < 2; i++) {
        size[i] = 3 + any(10);
        a->kernel[i] = 1 + any(3);
        a->stride[i] = 1 + any(3);
        a->padding[i] = a->kernel[i] > 1 ? any(2) : 0;
        result[i] = reach(size[i], a->kernel[i], a->stride[i], a->padding[i], 1);
    }
    tensor(&p, 0, type, 4, (int64_t[]){batch, channels, result[0], result[1]});
    tensor(&p, 1, type, 4, (int64_t[]){batch, channels, size[0], size[1]});
    finish(&p, 1, (int[]){1});
    return p;
}

/* Averages of windows, or of all places. */
static problem averaging(void)
{
    problem p = pooling();
    const bool whole = any(3) == 0;
    p.name = whole ? "global_avgpool.int8" : "avgpool2d.int8";
    p.attrs.pool.count_include_pad = any(2);
    p.op.def = op_named(p.name);
    const tr_tensor *x = &p.t[1], *was = &p.t[0];
    const int64_t dims[] = {x->dims[0], x->dims[1], whole ? 1 : was->dims[2],
                            whole ? 1 : was->dims[3]};
    free(p.data[0]);
    tensor(&p, 0, eight_bits(), 4, dims);
    return p;
}

/* Pieces of other scales, and of widths of whole packs or not. */
static problem side_by_side(void)
{
    problem p = {.name = "concat.int8", .attrs.concat = {.axis = 1}};
    const int64_t batch = 1 + any(3), h = 1 + any(9), w = 1 + any(9), unit = any(2) ? 16 : 1;
    int64_t all = 0;
    for (int i = 0; i < 3; i++) {
        const int64_t channels = unit * (1 + any(5));
        tensor(&p, 1 + i, eight_bits(), 4, (int64_t[]){batch, channels, h, w});
        p.attrs.concat.width[i] = channels;
        all += channels;
    }
    tensor(&p, 0, eight_bits(), 4, (int64_t[]){batch, all, h, w});
    finish(&p, 3, (int[]){1, 2, 3});
    return p;
}

static void test_carried(void **state)
{
    (void)state;
    contexts c = contexts_open(1);
    for (int i = 0; i < 32; i++) {
        problem p = i % 2 ? averaging() : side_by_side();
        check(&c, &p, "own");
    }
    contexts_close(&c);
}

static problem flattening(void)
{
    problem p = {.name = "flatten"};
    const tr_dtype type = eight_bits();
    const int64_t batch = 1 + any(3), channels = 2 + any(150), h = 1 + any(9), w = 2 + any(9);
    tensor(&p, 0, type, 2, (int64_t[]){batch, channels * h * w});
    tensor(&p, 1, type, 4, (int64_t[]){batch, channels, h, w});
    finish(&p, 1, (int[]){1});
    return p;
}

static void test_moves(void **state)
{
    (void)state;
    contexts c = contexts_open(1);
    for (int i = 0; i < 24; i++) {
        problem p = i % 2 ? pooling() : flattening();
        check(&c, &p, "own");
    }
    contexts_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products), cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_without),  cmocka_unit_test(test_steps),
        cmocka_unit_test(test_moves),    cmocka_unit_test(test_dynamic),
        cmocka_unit_test(test_carried),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
