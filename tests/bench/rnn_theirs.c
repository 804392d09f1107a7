/* oneDNN's LSTM and GRU, forward in training and backward, a primitive a layer. */
#include <mpi.h>
#include <string.h>

#include "tests/bench/rnn.h"

#define V3 (DNNL_VERSION_MAJOR >= 3)

/* Arrays of a layer; a gradient stands GRADIENT behind what it is of. */
enum { X, W_IH, W_HH, BIAS, Y, GRADIENT, ARRAYS = 2 * GRADIENT };
static const int arguments[ARRAYS] = {DNNL_ARG_SRC_LAYER,          DNNL_ARG_WEIGHTS_LAYER,
                                      DNNL_ARG_WEIGHTS_ITER,       DNNL_ARG_BIAS,
                                      DNNL_ARG_DST_LAYER,          DNNL_ARG_DIFF_SRC_LAYER,
                                      DNNL_ARG_DIFF_WEIGHTS_LAYER, DNNL_ARG_DIFF_WEIGHTS_ITER,
                                      DNNL_ARG_DIFF_BIAS,          DNNL_ARG_DIFF_DST_LAYER};

static tr_dnnl_array with_tag(int n, const int64_t *dims, tr_dtype type, bool any)
{
    const tr_dnnl_array a = tr_dnnl_dense(n, dims, type);
    return any ? tr_dnnl_any(a, type) : a;
}

/* As the primitive sees array `i` of a layer of `in` features. */
static tr_dnnl_array array_of(const rnn_form *f, int64_t in, int i)
{
    const int what = i % GRADIENT;
    const tr_dtype type = i >= GRADIENT || what == BIAS ? TR_F32 : f->type;
    const int64_t rows[] = {f->T, f->N, what == X ? in : f->H};
    const int64_t weights[] = {1, 1, what == W_IH ? in : f->H, f->gates, f->H};
    const int64_t bias[] = {1, 1, f->gates + (f->kind == RNN_LBR_GRU), f->H};
    if (what == BIAS) return with_tag(4, bias, type, false);
    if (what == X || what == Y) return with_tag(3, rows, type, false);
    return with_tag(5, weights, type, true);
}

/* The same weight as the parameter is stored: (gates, hidden, in). */
static tr_dnnl_array stored(const rnn_form *f, int64_t in)
{
    const int64_t dims[] = {1, 1, in, f->gates, f->H};
    tr_dnnl_array a = tr_dnnl_dense(5, dims, TR_F32);
    a.strides[2] = 1;
    a.strides[3] = f->H * in;
    a.strides[4] = in;
    return a;
}

#if V3
#define P(i) m[i]
static dnnl_status_t describe(dnnl_memory_desc_t *m, const tr_dnnl_array *a)
{
    return a->any ? dnnl_memory_desc_create_with_tag(m, a->ndims, a->dims, a->type,
                                                     dnnl_format_tag_any)
                  : dnnl_memory_desc_create_with_strides(m, a->ndims, a->dims, a->type, a->strides);
}

static dnnl_status_t describe_rnn(const rnn_form *f, dnnl_engine_t e, const dnnl_memory_desc_t *m,
                                  dnnl_primitive_attr_t attr, dnnl_primitive_desc_t hint,
                                  dnnl_primitive_desc_t *pd)
{
    const dnnl_rnn_direction_t to = dnnl_unidirectional_left2right;
#define FORWARD_OF(name, C, MORE)                                                                  \
    dnnl_##name##_forward_primitive_desc_create(pd, e, dnnl_forward_training, to, P(X), NULL,      \
                                                C P(W_IH), P(W_HH), MORE P(BIAS), P(Y), NULL, C 0, \
                                                attr)
#define BACKWARD_OF(name, C, MORE)                                                                 \
    dnnl_##name##_backward_primitive_desc_create(                                                  \
        pd, e, dnnl_backward, to, P(X), NULL, C P(W_IH), P(W_HH), MORE P(BIAS), P(Y), NULL,        \
        C P(GRADIENT + X), NULL, C P(GRADIENT + W_IH), P(GRADIENT + W_HH),                         \
        MORE P(GRADIENT + BIAS), P(GRADIENT + Y), NULL, C 0, hint, attr)
#define NONE
    switch (f->kind) {
    case RNN_LSTM:
#define CELL NULL,
#define TWO  NULL, NULL,
        return hint ? BACKWARD_OF(lstm, CELL, TWO) : FORWARD_OF(lstm, CELL, TWO);
    case RNN_GRU:
        return hint ? BACKWARD_OF(gru, NONE, NONE) : FORWARD_OF(gru, NONE, NONE);
    default:
        return hint ? BACKWARD_OF(lbr_gru, NONE, NONE) : FORWARD_OF(lbr_gru, NONE, NONE);
    }
}
#else
#define P(i) &m[i]
static dnnl_status_t describe(dnnl_memory_desc_t *m, const tr_dnnl_array *a)
{
    return a->any ? dnnl_memory_desc_init_by_tag(m, a->ndims, a->dims, a->type, dnnl_format_tag_any)
                  : dnnl_memory_desc_init_by_strides(m, a->ndims, a->dims, a->type, a->strides);
}

static dnnl_status_t describe_rnn(const rnn_form *f, dnnl_engine_t e, const dnnl_memory_desc_t *m,
                                  dnnl_primitive_attr_t attr, dnnl_primitive_desc_t hint,
                                  dnnl_primitive_desc_t *pd)
{
    const dnnl_rnn_direction_t to = dnnl_unidirectional_left2right;
    dnnl_rnn_desc_t d;
    dnnl_status_t s;
#define FORWARD_OF(name, ...)                                                                      \
    dnnl_##name##_forward_desc_init(&d, dnnl_forward_training, to, P(X), NULL, __VA_ARGS__)
#define BACKWARD_OF(name, ...)                                                                     \
    dnnl_##name##_backward_desc_init(&d, dnnl_backward, to, P(X), NULL, __VA_ARGS__)
#define OPERANDS  P(W_IH), P(W_HH), P(BIAS), P(Y), NULL
#define GRADIENTS P(GRADIENT + W_IH), P(GRADIENT + W_HH), P(GRADIENT + BIAS), P(GRADIENT + Y), NULL
    if (f->kind == RNN_LSTM)
        s = hint ? BACKWARD_OF(lstm, NULL, OPERANDS, NULL, P(GRADIENT + X), NULL, NULL, GRADIENTS,
                               NULL, 0)
                 : FORWARD_OF(lstm, NULL, OPERANDS, NULL, 0);
    else if (f->kind == RNN_GRU)
        s = hint ? BACKWARD_OF(gru, OPERANDS, P(GRADIENT + X), NULL, GRADIENTS, 0)
                 : FORWARD_OF(gru, OPERANDS, 0);
    else
        s = hint ? BACKWARD_OF(lbr_gru, OPERANDS, P(GRADIENT + X), NULL, GRADIENTS, 0)
                 : FORWARD_OF(lbr_gru, OPERANDS, 0);
    return s == dnnl_success ? dnnl_primitive_desc_create(pd, &d, attr, e, hint) : s;
}
#endif

static tr_status open_rnn_pd(tr_cpu *team, const rnn_form *f, int64_t in,
                             dnnl_primitive_desc_t hint, dnnl_primitive_desc_t *pd)
{
    tr_status st = TR_OK;
    dnnl_memory_desc_t m[ARRAYS];
    int n = 0;
    dnnl_primitive_attr_t attr = NULL;
    TR_DNNL(dnnl_primitive_attr_create(&attr), "create attributes");
    TR_DNNL(dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user),
            "leave the scratchpad to its caller");
    for (; n < ARRAYS; n++) {
        const tr_dnnl_array a = array_of(f, in, n);
        TR_DNNL(describe(&m[n], &a), "describe an array");
    }
    TR_DNNL(describe_rnn(f, team->engine, m, attr, hint, pd), "make this recurrent layer");
out:
#if V3
    while (n > 0) dnnl_memory_desc_destroy(m[--n]);
#endif
    if (attr) dnnl_primitive_attr_destroy(attr);
    return st;
}

static tr_status add(tr_cpu *team, rnn_call *c, int arg, void *data)
{
    tr_status st = TR_OK;
    dnnl_memory_t m;
    TR_NEED(c->nargs < RNN_ARGS, TR_INTERNAL, "more than %d arguments", RNN_ARGS);
    TR_DNNL(dnnl_memory_create(&m, dnnl_primitive_desc_query_md(c->pd, dnnl_query_exec_arg_md, arg),
                               team->engine, data),
            "describe an argument");
    c->args[c->nargs++] = (dnnl_exec_arg_t){.arg = arg, .memory = m};
out:
    return st;
}

static tr_status zeros(size_t nbytes, void *to)
{
    tr_status st = TR_OK;
    void *p;
    TR_HAVE(p = tr_alloc(TR_MEM_OTHER, nbytes ? nbytes : 1, 1));
    memset(p, 0, nbytes);
    memcpy(to, &p, sizeof p);
out:
    return st;
}

static void close_call(rnn_call *c)
{
    for (int i = 0; i < c->nargs; i++) dnnl_memory_destroy(c->args[i].memory);
    if (c->primitive) dnnl_primitive_destroy(c->primitive);
    if (c->pd) dnnl_primitive_desc_destroy(c->pd);
}

static tr_status run_call(tr_cpu *team, const rnn_call *c)
{
    tr_status st = TR_OK;
    TR_DNNL(dnnl_primitive_execute(c->primitive, team->stream, c->nargs, c->args),
            "run a primitive");
out:
    return st;
}

/* The copy between `data`, plain, and `other` in the layout of argument `arg` of `pd`. */
static tr_status open_reorder(tr_cpu *team, const tr_dnnl_array *plain, dnnl_primitive_desc_t pd,
                              int arg, bool to_plain, void *data, void *other, rnn_call *c)
{
    tr_status st;
    TR_TRY(tr_dnnl_reorder(team, plain, pd, arg, to_plain, false, &c->pd));
    TR_DNNL(dnnl_primitive_create(&c->primitive, c->pd), "generate code for a primitive");
    TR_NEED(!tr_dnnl_arg_size(c->pd, DNNL_ARG_SCRATCHPAD), TR_INTERNAL,
            "a reorder wants scratch memory");
    TR_TRY(add(team, c, DNNL_ARG_FROM, to_plain ? other : data));
    TR_TRY(add(team, c, DNNL_ARG_TO, to_plain ? data : other));
out:
    return st;
}

/* Arrays that `backward` has beside those of forward are the gradients. */
static tr_status open_call(tr_cpu *team, rnn_form *f, rnn_layer *l, bool backward)
{
    tr_status st = TR_OK;
    rnn_call *c = backward ? &l->backward : &l->forward;
    void **const packed = &l->packed[backward ? 2 : 0];
    void *const data[ARRAYS] = {l->x,
                                packed[0],
                                packed[1],
                                l->bias,
                                l->y,
                                l->dx,
                                l->packed_gradients[0],
                                l->packed_gradients[1],
                                l->bias_gradient,
                                l->dy};
    TR_DNNL(dnnl_primitive_create(&c->primitive, c->pd), "generate code for a primitive");
    for (int i = 0; i < (backward ? ARRAYS : GRADIENT); i++)
        TR_TRY(add(team, c, arguments[i], data[i]));
    TR_TRY(add(team, c, DNNL_ARG_WORKSPACE, l->workspace));
    TR_TRY(add(team, c, DNNL_ARG_SCRATCHPAD, f->scratch));
out:
    return st;
}

static tr_status open_packing(tr_cpu *team, rnn_form *f, rnn_layer *l, int64_t in)
{
    tr_status st = TR_OK;
    for (int i = 0; i < 4; i++) { /* forward, then backward */
        const tr_dnnl_array plain = stored(f, i % 2 ? f->H : in);
        dnnl_primitive_desc_t pd = i < 2 ? l->forward.pd : l->backward.pd;
        const int arg = arguments[W_IH + i % 2];
        TR_TRY(zeros(tr_dnnl_arg_size(pd, arg), &l->packed[i]));
        TR_TRY(open_reorder(team, &plain, pd, arg, false, l->masters[i % 2], l->packed[i],
                            &l->pack[i]));
    }
    for (int i = 0; i < 2; i++) {
        const tr_dnnl_array plain = stored(f, i ? f->H : in);
        const int arg = arguments[GRADIENT + W_IH + i];
        l->gradient_sizes[i] = tr_dnnl_arg_size(l->backward.pd, arg);
        TR_TRY(zeros(l->gradient_sizes[i], &l->packed_gradients[i]));
        TR_TRY(open_reorder(team, &plain, l->backward.pd, arg, true, l->gradients[i],
                            l->packed_gradients[i], &l->unpack[i]));
    }
out:
    return st;
}

static tr_status open_layer(tr_cpu *team, rnn_form *f, int i)
{
    tr_status st;
    rnn_layer *l = &f->layers[i], *below = i ? &f->layers[i - 1] : NULL;
    const int64_t in = i ? f->H : f->features;
    const size_t rows = (size_t)(f->T * f->N), G = (size_t)(f->gates * f->H);
    TR_TRY(open_rnn_pd(team, f, in, NULL, &l->forward.pd));
    TR_TRY(open_rnn_pd(team, f, in, l->forward.pd, &l->backward.pd));
    for (int k = 0; k < 2; k++) {
        TR_TRY(zeros(G * (size_t)(k ? f->H : in) * sizeof(float), &l->masters[k]));
        TR_TRY(zeros(G * (size_t)(k ? f->H : in) * sizeof(float), &l->gradients[k]));
    }
    l->bias_size = tr_dnnl_arg_size(l->backward.pd, DNNL_ARG_DIFF_BIAS);
    TR_TRY(zeros(l->bias_size, &l->bias));
    TR_TRY(zeros(l->bias_size, &l->bias_gradient));
    if (below)
        l->x = below->y;
    else
        TR_TRY(zeros(rows * (size_t)in * tr_dtype_size(f->type), &l->x));
    TR_TRY(zeros(rows * (size_t)in * sizeof(float), &l->dx));
    if (below) below->dy = l->dx;
    TR_TRY(zeros(rows * (size_t)f->H * tr_dtype_size(f->type), &l->y));
    if (i == RNN_LAYERS - 1) TR_TRY(zeros(rows * (size_t)f->H * sizeof(float), &l->dy));
    TR_TRY(zeros(tr_dnnl_arg_size(l->forward.pd, DNNL_ARG_WORKSPACE), &l->workspace));
    TR_TRY(open_packing(team, f, l, in));
out:
    return st;
}

static size_t scratch_of(const rnn_form *f)
{
    size_t most = 0;
    for (int i = 0; i < RNN_LAYERS; i++) {
        dnnl_primitive_desc_t const pds[] = {f->layers[i].forward.pd, f->layers[i].backward.pd};
        for (int k = 0; k < 2; k++) {
            const size_t n = tr_dnnl_arg_size(pds[k], DNNL_ARG_SCRATCHPAD);
            if (n > most) most = n;
        }
    }
    return most;
}

/* Ours is (samples, rows, features), as the loader gives it. */
static tr_status open_order(tr_cpu *team, rnn_form *f)
{
    const int64_t dims[] = {f->T, f->N, f->features};
    tr_dnnl_array plain = tr_dnnl_dense(3, dims, f->type);
    plain.strides[0] = f->features;
    plain.strides[1] = f->T * f->features;
    return open_reorder(team, &plain, f->layers[0].forward.pd, DNNL_ARG_SRC_LAYER, false,
                        f->ours.inputs[0], f->layers[0].x, &f->order);
}

int64_t rnn_gate_of(const rnn_form *f, int64_t gate)
{
    return f->kind != RNN_LSTM && gate < 2 ? 1 - gate : gate; /* z, r, n beside r, z, n */
}

static void copy_weights(rnn_form *f)
{
    for (int i = 0; i < RNN_LAYERS; i++) {
        rnn_layer *l = &f->layers[i];
        const float *p[4];
        for (size_t k = 0; k < 4; k++) p[k] = tr_params_weight(f->ours.params, 4 * (size_t)i + k);
        for (int64_t g = 0; g < f->gates; g++) {
            const size_t H = (size_t)f->H;
            for (int k = 0; k < 2; k++) {
                const size_t n = H * (size_t)(k || i ? f->H : f->features);
                memcpy(l->masters[k] + (size_t)g * n, p[k] + (size_t)rnn_gate_of(f, g) * n,
                       n * sizeof(float));
            }
            const bool apart = f->kind == RNN_LBR_GRU && g == 2; /* the recurrent product's bias */
            const float *b = p[2] + rnn_gate_of(f, g) * f->H, *c = p[3] + rnn_gate_of(f, g) * f->H;
            for (int64_t j = 0; j < f->H; j++) {
                l->bias[g * f->H + j] = apart ? b[j] : b[j] + c[j];
                if (apart) l->bias[3 * f->H + j] = c[j];
            }
        }
    }
}

tr_status rnn_open_theirs(tr_cpu *team, rnn_form *f)
{
    tr_status st;
    for (int i = 0; i < RNN_LAYERS; i++) TR_TRY(open_layer(team, f, i));
    TR_TRY(zeros(scratch_of(f), &f->scratch));
    TR_TRY(open_order(team, f));
    for (int i = 0; i < RNN_LAYERS; i++)
        for (int backward = 0; backward < 2; backward++)
            TR_TRY(open_call(team, f, &f->layers[i], backward));
    copy_weights(f);
out:
    return st;
}

/* The loss is the mean of squares of the last row. */
static void start_back(const rnn_form *f)
{
    const rnn_layer *top = &f->layers[RNN_LAYERS - 1];
    const size_t n = (size_t)(f->N * f->H), at = (size_t)(f->T - 1) * n;
    for (size_t i = 0; i < n; i++)
        ((float *)top->dy)[at + i] =
            (f->type == TR_BF16 ? tr_bf16_to_f32(((const tr_bf16 *)top->y)[at + i])
                                : ((const float *)top->y)[at + i]) *
            2.0f / (float)f->H;
}

tr_status rnn_run_theirs(tr_cpu *team, rnn_form *f, size_t round)
{
    tr_status st = TR_OK;
    tr_dnnl_use(team);
    MPI_Barrier(MPI_COMM_WORLD);
    const double begin = tr_now();
    TR_TRY(run_call(team, &f->order));
    for (int i = 0; i < RNN_LAYERS; i++) {
        for (int k = 0; k < 2; k++) TR_TRY(run_call(team, &f->layers[i].pack[k]));
        TR_TRY(run_call(team, &f->layers[i].forward));
    }
    const double between = tr_now();
    start_back(f);
    for (int i = RNN_LAYERS - 1; i >= 0; i--) {
        rnn_layer *l = &f->layers[i];
        for (int k = 2; k < 4; k++) TR_TRY(run_call(team, &l->pack[k]));
        /* it adds to what is there */
        for (int k = 0; k < 2; k++) memset(l->packed_gradients[k], 0, l->gradient_sizes[k]);
        memset(l->bias_gradient, 0, l->bias_size);
        TR_TRY(run_call(team, &l->backward));
        for (int k = 0; k < 2; k++) TR_TRY(run_call(team, &l->unpack[k]));
    }
    const double end = tr_now();
    f->seconds[0][round] = between - begin;
    f->seconds[1][round] = end - between;
    f->seconds[2][round] = end - begin;
out:
    return st;
}

void rnn_close_theirs(rnn_form *f)
{
    for (int i = 0; i < RNN_LAYERS; i++) {
        rnn_layer *l = &f->layers[i];
        close_call(&l->forward);
        close_call(&l->backward);
        for (int k = 0; k < 4; k++) close_call(&l->pack[k]);
        for (int k = 0; k < 2; k++) close_call(&l->unpack[k]);
        for (int k = 0; k < 4; k++) tr_free(l->packed[k]);
        for (int k = 0; k < 2; k++) {
            tr_free(l->masters[k]);
            tr_free(l->gradients[k]);
            tr_free(l->packed_gradients[k]);
        }
        if (i == 0) tr_free(l->x);
        if (i == RNN_LAYERS - 1) tr_free(l->dy);
        tr_free(l->dx);
        tr_free(l->y);
        tr_free(l->bias);
        tr_free(l->bias_gradient);
        tr_free(l->workspace);
    }
    close_call(&f->order);
    tr_free(f->scratch);
}
