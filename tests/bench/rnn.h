/* A recurrent model as oneDNN's own primitives have it: what rnn.c puts beside ours. */
#ifndef TR_BENCH_RNN_H
#define TR_BENCH_RNN_H

#include "tests/bench/floor.h"
#include "tests/bench/step.h"

enum { RNN_LAYERS = 2, RNN_ARGS = 20 };

typedef enum { RNN_LSTM, RNN_GRU, RNN_LBR_GRU } rnn_kind;

typedef struct {
    dnnl_primitive_desc_t pd;
    dnnl_primitive_t primitive;
    dnnl_exec_arg_t args[RNN_ARGS];
    int nargs;
} rnn_call;

typedef struct {
    rnn_call forward, backward, pack[4], unpack[2]; /* pack: both weights, forward, then backward */
    float *masters[2], *gradients[2], *bias;        /* as parameters are stored */
    void *x, *dx, *y, *dy, *packed[4], *packed_gradients[2], *bias_gradient, *workspace;
    size_t gradient_sizes[2], bias_size;
} rnn_layer;

typedef struct {
    rnn_kind kind;
    tr_dtype type;
    int64_t N, T, features, H, gates;
    bench_step ours;
    rnn_call order; /* of the input's rows */
    rnn_layer layers[RNN_LAYERS];
    void *scratch;
    double *seconds[4]; /* [rounds] forward, backward, both; ours */
    double cosine;
    bool works; /* oneDNN has it */
} rnn_form;

/* *Local.* The primitives of a form whose own step is open, with its weights. Closed by
 * rnn_close_theirs, also when this fails. */
tr_status rnn_open_theirs(tr_cpu *team, rnn_form *f);
void rnn_close_theirs(rnn_form *f);
/* *Collective* over MPI_COMM_WORLD, as all begin together. Forward and backward; what they took is
 * in f->seconds[0..2][round]. */
tr_status rnn_run_theirs(tr_cpu *team, rnn_form *f, size_t round);
/* The gate of ours that oneDNN's `gate` is. */
int64_t rnn_gate_of(const rnn_form *f, int64_t gate);

#endif
