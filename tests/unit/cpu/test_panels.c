/* links: trireme_cpu trireme_plan
 * Linear layers that answer some rows, by panels: against double arithmetic, odd depths, rows that
 * are no whole blocks, types, activations, threads; that a row has the same bits whichever rows are
 * beside it; which layers are computed so; the way to packed copies and back. */
#include "runtime/graph/model.h"
#include "tests/unit/cpu/loop_levels.h"

/* ---- The loop -------------------------------------------------------------------------------- */

/* Where output `o` of a row of a panel is. */
static size_t place(tr_dtype type, size_t o)
{
    return type == TR_F32 ? o : o < TR_CPU_PANEL / 2 ? 2 * o : 2 * o - TR_CPU_PANEL + 1;
}

static void fill_panel(tr_dtype type, size_t depth, void *w)
{
    for (size_t i = 0; i < depth * TR_CPU_PANEL; i++) {
        const float v = (float)uniform(2, i, -1, 1);
        if (type == TR_F32)
            ((float *)w)[i] = v;
        else
            ((tr_bf16 *)w)[i] = tr_f32_to_bf16(v);
    }
}

static double of_panel(tr_dtype type, const void *w, size_t k, size_t o)
{
    const size_t i = k * TR_CPU_PANEL + place(type, o);
    return type == TR_F32 ? (double)((const float *)w)[i]
                          : (double)tr_bf16_to_f32(((const tr_bf16 *)w)[i]);
}

enum { MOST = 21, DEPTH = 37, X_PITCH = DEPTH + 2, Y_PITCH = TR_CPU_PANEL + 3 };

static void check_loop(int isa, tr_dtype type, size_t rows, size_t depth, bool relu, bool biased)
{
    float x[MOST * X_PITCH], y[MOST * Y_PITCH], alone[TR_CPU_PANEL], bias[TR_CPU_PANEL];
    float w[DEPTH * TR_CPU_PANEL];
    tr_cpu_panel p = {.rows = rows,
                      .depth = depth,
                      .x_pitch = X_PITCH,
                      .y_pitch = Y_PITCH,
                      .type = type,
                      .relu = relu};
    for (size_t i = 0; i < TR_COUNT(x); i++) x[i] = (float)uniform(1, i, -1, 1);
    for (size_t i = 0; i < TR_COUNT(y); i++) y[i] = 7;
    for (size_t i = 0; i < TR_COUNT(bias); i++) bias[i] = (float)uniform(3, i, -1, 1);
    fill_panel(type, depth, w);
    tr_cpu_loops_at(isa)->panel(&p, x, w, biased ? bias : NULL, y);
    p.rows = 1;
    for (size_t i = 0; i < TR_COUNT(y); i++) {
        const size_t r = i / Y_PITCH, o = i % Y_PITCH;
        if (r >= rows || o >= TR_CPU_PANEL) {
            assert_true(y[i] == 7);
            continue;
        }
        double want = biased ? (double)bias[o] : 0, size = fabs(want);
        for (size_t k = 0; k < depth; k++) {
            const double term = (double)x[r * X_PITCH + k] * of_panel(type, w, k, o);
            want += term;
            size += fabs(term);
        }
        want = relu && want < 0 ? 0 : want;
        if (fabs((double)y[i] - want) > (double)(depth + 1) * 0x1p-24 * size)
            fail_msg("level %d, %zu x %zu: row %zu, output %zu is %.9g, not %.9g", isa, rows, depth,
                     r, o, (double)y[i], want);
        if (o > 0) continue;
        tr_cpu_loops_at(isa)->panel(&p, x + r * X_PITCH, w, biased ? bias : NULL, alone);
        assert_memory_equal(alone, y + i, sizeof alone);
    }
}

static void test_loop(void **state)
{
    (void)state;
    FOR_LEVELS(isa)
    for (size_t rows = 1; rows <= MOST; rows++)
        for (int how = 0; how < 8; how++)
            check_loop(isa, how & 1 ? TR_BF16 : TR_F32, rows, rows % 5 ? DEPTH : rows / 5 - 1,
                       how & 2, how & 4);
}

/* In two parts, the second added to the first, as in one. */
static void test_parts(void **state)
{
    (void)state;
    enum { ROWS = 13, FIRST = 16 };
    float x[ROWS * DEPTH], w[DEPTH * TR_CPU_PANEL], whole[ROWS * TR_CPU_PANEL],
        parts[ROWS * TR_CPU_PANEL];
    for (size_t i = 0; i < TR_COUNT(x); i++) x[i] = (float)uniform(1, i, -1, 1);
    fill_panel(TR_F32, DEPTH, w);
    FOR_LEVELS(isa)
    {
        const tr_cpu_loops *loops = tr_cpu_loops_at(isa);
        tr_cpu_panel p = {.rows = ROWS, .x_pitch = DEPTH, .y_pitch = TR_CPU_PANEL};
        p.depth = DEPTH;
        loops->panel(&p, x, w, NULL, whole);
        p.depth = FIRST;
        loops->panel(&p, x, w, NULL, parts);
        p.depth = DEPTH - FIRST;
        p.add = true;
        loops->panel(&p, x + FIRST, w + FIRST * TR_CPU_PANEL, NULL, parts);
        assert_memory_equal(whole, parts, sizeof whole);
    }
}

/* ---- The layer ------------------------------------------------------------------------------- */

typedef struct {
    int64_t rows, in, out;
    bool panels;
} layer;

static const layer layers[] = {{8, 70, 64, true},   {13, 300, 32, true}, {33, 257, 96, true},
                               {512, 3, 32, true},  {40, 1, 160, true},  {7, 70, 64, false},
                               {16, 70, 48, false}, {513, 5, 32, false}};

/* The weight from its copies again, rounded to the type: packed anew they are the same. */
static void check_way_back(harness *h, int w)
{
    const size_t count = h->graph.tensors[w].count;
    float *weight = h->data[w], *was = tr_alloc(TR_MEM_OTHER, count, sizeof *was);
    assert_non_null(was);
    memcpy(was, weight, count * sizeof *was);
    memset(weight, 0, count * sizeof *was);
    assert_int_equal(h->kernel->unpack(h->kernel, 0), TR_OK);
    for (size_t i = 0; i < count; i++)
        assert_true(weight[i] == (h->graph.precision == TR_PRECISION_BF16
                                      ? tr_bf16_to_f32(tr_f32_to_bf16(was[i]))
                                      : was[i]));
    memcpy(weight, was, count * sizeof *was);
    tr_free(was);
}

static void check_layer(const layer *l, tr_precision precision, tr_act act, int isa, int threads,
                        tr_mode mode)
{
    const tr_linear_attrs attrs = {.out = l->out, .bias = l->in % 2};
    harness h = open_level("linear", precision, isa, threads);
    ((tr_cpu *)h.team)->isa = isa;
    ((tr_cpu *)h.team)->bf16_faster = false;
    h.graph.mode = mode;
    const int x = h_in(&h, h_activation(&h), 2, (int64_t[]){l->rows, l->in});
    const int w = h_param(&h, 2, (int64_t[]){l->out, l->in});
    int b = -1;
    if (attrs.bias)
        b = h_param(&h, 1, (int64_t[]){l->out});
    else
        h_absent_in(&h);
    const int y = h_out(&h, h_activation(&h), 2, (int64_t[]){l->rows, l->out});
    h_fill(&h, x, 1);
    h_fill(&h, w, 2);
    if (b >= 0) h_fill(&h, b, 3);
    h_prepare(&h, &attrs, act);
    const bool panels = l->panels && mode == TR_MODE_INFER && isa >= TR_ISA_AVX512;
    assert_int_equal(strcmp(h.kernel->impl, "own: panels") == 0, panels);
    h_run(&h, false);
    double *xs = h_values(&h, x), *want = h_values(&h, y), *size = h_values(&h, y);
    for (int64_t i = 0; i < l->rows * l->out; i++) {
        double sum = b < 0 ? 0 : h_get(&h, b, (size_t)(i % l->out)), all = fabs(sum);
        for (int64_t c = 0; c < l->in; c++) {
            const float v = ((const float *)h.data[w])[i % l->out * l->in + c];
            const double p =
                xs[i / l->out * l->in + c] *
                (double)(precision == TR_PRECISION_BF16 ? tr_bf16_to_f32(tr_f32_to_bf16(v)) : v);
            sum += p;
            all += fabs(p);
        }
        want[i] = activate(act, sum);
        size[i] = all;
    }
    h_check_sums(&h, y, want, size, (double)l->in + 1, act == TR_ACT_NONE ? 0 : 2e-6, "y");
    if (panels) check_way_back(&h, w);
    tr_free(xs);
    tr_free(want);
    tr_free(size);
    h_close(&h);
}

static void test_layer(void **state)
{
    (void)state;
    static const tr_act acts[] = {TR_ACT_NONE, TR_ACT_RELU, TR_ACT_GELU_TANH};
    FOR_LEVELS(isa)
    FOR_PRECISIONS(p)
    for (size_t i = 0; i < TR_COUNT(layers); i++) {
        if (p == TR_PRECISION_BF16 && isa < TR_ISA_AVX512) continue; /* oneDNN's need it */
        check_layer(&layers[i], p, acts[i % 3], isa, 1 + (int)i % 2, TR_MODE_INFER);
        check_layer(&layers[i], p, acts[(i + 1) % 3], isa, 2 - (int)i % 2, TR_MODE_INFER);
    }
    check_layer(&layers[0], TR_PRECISION_FP32, TR_ACT_NONE, tr_cpu_isa(), 1, TR_MODE_EVALUATE);
}

/* ---- The convolution ------------------------------------------------------------------------- */

typedef struct {
    int64_t images, C, H, W, out, kernel[2], stride[2], padding[2], extra[2];
    bool residual, floats; /* floats: by panels in float32, too */
} image;

static const image images[] = {
    {2, 64, 5, 7, 512, {3, 3}, {1, 1}, {1, 1}, {0, 0}, true, true},
    {1, 96, 9, 11, 320, {3, 3}, {2, 2}, {1, 0}, {0, 1}, false, true},
    {1, 1100, 3, 5, 256, {1, 1}, {1, 1}, {0, 0}, {0, 0}, true, true},
    {2, 17, 13, 9, 32, {3, 2}, {1, 2}, {1, 1}, {1, 0}, true, false},
    {1, 16, 12, 12, 64, {1, 1}, {2, 2}, {0, 0}, {0, 0}, false, false},
};

static tr_conv2d_attrs attrs_of(const image *m)
{
    tr_conv2d_attrs a = {.out = m->out, .groups = 1, .bias = true, .dilation = {1, 1}};
    memcpy(a.kernel, m->kernel, sizeof a.kernel);
    memcpy(a.stride, m->stride, sizeof a.stride);
    memcpy(a.padding, m->padding, sizeof a.padding);
    memcpy(a.extra, m->extra, sizeof a.extra);
    return a;
}

/* Output `o` at a position of an image; *all: of magnitudes. */
static double of_image(const image *m, const float *w, const double *x, int64_t n, int64_t oy,
                       int64_t ox, int64_t o, bool rounded, double *all)
{
    double sum = 0;
    for (int64_t ky = 0; ky < m->kernel[0]; ky++)
        for (int64_t kx = 0; kx < m->kernel[1]; kx++) {
            const int64_t h = oy * m->stride[0] + ky - m->padding[0],
                          v = ox * m->stride[1] + kx - m->padding[1];
            if (h < 0 || h >= m->H || v < 0 || v >= m->W) continue;
            for (int64_t c = 0; c < m->C; c++) {
                const float f = w[((o * m->C + c) * m->kernel[0] + ky) * m->kernel[1] + kx];
                const double p = x[((n * m->C + c) * m->H + h) * m->W + v] *
                                 (double)(rounded ? tr_bf16_to_f32(tr_f32_to_bf16(f)) : f);
                sum += p;
                *all += fabs(p);
            }
        }
    return sum;
}

static void check_image(const image *m, tr_precision precision, int isa, int threads)
{
    const tr_conv2d_attrs attrs = attrs_of(m);
    const int64_t OH = (m->H + 2 * m->padding[0] + m->extra[0] - m->kernel[0]) / m->stride[0] + 1,
                  OW = (m->W + 2 * m->padding[1] + m->extra[1] - m->kernel[1]) / m->stride[1] + 1;
    const bool rounded = precision == TR_PRECISION_BF16;
    harness h = open_level("conv2d", precision, isa, threads);
    ((tr_cpu *)h.team)->isa = isa;
    ((tr_cpu *)h.team)->bf16_faster = false;
    h.graph.mode = TR_MODE_INFER;
    const int x = h_in(&h, h_activation(&h), 4, (int64_t[]){m->images, m->C, m->H, m->W});
    const int w = h_param(&h, 4, (int64_t[]){m->out, m->C, m->kernel[0], m->kernel[1]});
    const int b = h_param(&h, 1, (int64_t[]){m->out});
    const int64_t dims[] = {m->images, m->out, OH, OW};
    const int r = m->residual ? h_in(&h, h_activation(&h), 4, dims) : -1;
    const int y = h_out(&h, h_activation(&h), 4, dims);
    h_fill(&h, x, 1);
    h_fill(&h, w, 2);
    h_fill(&h, b, 3);
    if (r >= 0) h_fill(&h, r, 4);
    h_prepare(&h, &attrs, TR_ACT_RELU);
    const bool panels = isa >= TR_ISA_AVX512 && (rounded || m->floats);
    assert_int_equal(strcmp(h.kernel->impl, "own: panels") == 0, panels);
    h_run(&h, false);
    double *xs = h_values(&h, x), *want = h_values(&h, y), *size = h_values(&h, y);
    for (int64_t i = 0; i < m->images * OH * OW * m->out; i++) {
        const int64_t place = i % (OH * OW), o = i / (OH * OW) % m->out, n = i / (OH * OW * m->out);
        const double bias = h_get(&h, b, (size_t)o);
        double all = fabs(bias);
        double sum = bias + of_image(m, h.data[w], xs, n, place / OW, place % OW, o, rounded, &all);
        if (r >= 0) sum += h_get(&h, r, (size_t)i), all += fabs(h_get(&h, r, (size_t)i));
        want[i] = activate(TR_ACT_RELU, sum);
        size[i] = all;
    }
    h_check_sums(&h, y, want, size, (double)(m->C * m->kernel[0] * m->kernel[1]) + 2, 0, "y");
    if (panels) check_way_back(&h, w);
    tr_free(xs);
    tr_free(want);
    tr_free(size);
    h_close(&h);
}

static void test_image(void **state)
{
    (void)state;
    FOR_PRECISIONS(p)
    for (size_t i = 0; i < TR_COUNT(images); i++) {
        if (p == TR_PRECISION_BF16 && tr_cpu_isa() < TR_ISA_AVX512) continue;
        check_image(&images[i], p, tr_cpu_isa(), 1 + (int)i % 2);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_loop), cmocka_unit_test(test_parts),
                                       cmocka_unit_test(test_layer), cmocka_unit_test(test_image)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
