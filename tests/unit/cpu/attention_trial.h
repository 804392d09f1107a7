/* For tests of attention: shapes, and a forward and a backward run of one. */
#ifndef TR_TEST_ATTENTION_TRIAL_H
#define TR_TEST_ATTENTION_TRIAL_H

#include "tests/unit/cpu/loop_levels.h"

typedef struct {
    const char *what;
    int64_t samples, heads, kv_heads, queries, keys, D, window;
    bool causal, alibi, packed, lengths;
    double dropout, scale;
    bool large; /* beyond a tile: not at lower levels */
} shape;

enum { Y, LSE, DQ, DK, DV };

/* What products of bfloat16 are: those of float32, oneDNN's, or our own of pairs, which only
 * forward has. */
enum { OF_FLOATS, OF_16_BITS, OF_PAIRS };

typedef struct {
    harness h;
    int dy, q, k, v, lengths, y, lse, dq, dk, dv;
    const shape *s;
    tr_attention_attrs a;
    double *want[5], *size[5]; /* y, lse, dq, dk, dv, each (n, i, head, d) */
} trial;

#ifndef TEST_MIRROR
static inline void multiply_by(tr_cpu *cpu, int products)
{
    cpu->bf16_faster = products != OF_FLOATS;
    cpu->bf16_pairs = products == OF_PAIRS;
}
#endif

/* Place of a value of queries (0), keys (1), values (2) in its tensor. */
static inline size_t place(const shape *s, int what, int64_t n, int64_t i, int64_t head, int64_t d)
{
    const int64_t all = s->heads + 2 * s->kv_heads;
    const int64_t first[] = {0, s->heads, s->heads + s->kv_heads};
    if (s->packed) return (size_t)(((n * s->queries + i) * all + first[what] + head) * s->D + d);
    const int64_t rows = what ? s->keys : s->queries, heads = what ? s->kv_heads : s->heads;
    return (size_t)(((n * rows + i) * heads + head) * s->D + d);
}

static inline int64_t length_of(const shape *s, int64_t n) /* 0 and 1 come, and all */
{
    const int64_t some[] = {s->keys, 1, 0, s->keys / 2};
    return s->lengths ? some[(n + (s->samples > 1)) % 4] : s->keys;
}

static inline tr_attention_attrs attrs_of(const shape *s)
{
    return (tr_attention_attrs){.heads = s->heads,
                                .kv_heads = s->kv_heads,
                                .window = s->window,
                                .causal = s->causal,
                                .alibi = s->alibi,
                                .dropout = s->dropout,
                                .scale = s->scale};
}

static inline void open_inputs(trial *t)
{
    const shape *s = t->s;
    harness *h = &t->h;
    const tr_dtype type = h_activation(h);
    const int64_t width = s->packed ? s->heads + 2 * s->kv_heads : s->heads;
    t->q = h_in(h, type, 3, (int64_t[]){s->samples, s->queries, width * s->D});
    if (s->packed) {
        h_absent_in(h);
        h_absent_in(h);
    } else {
        t->k = h_in(h, type, 3, (int64_t[]){s->samples, s->keys, s->kv_heads * s->D});
        t->v = h_in(h, type, 3, (int64_t[]){s->samples, s->keys, s->kv_heads * s->D});
        h_fill_range(h, t->k, 2, -2, 2);
        h_fill(h, t->v, 3);
    }
    h_fill_range(h, t->q, 1, -2, 2);
    if (s->lengths) {
        t->lengths = h_in_role(h, TR_ROLE_INPUT, TR_I32, 2, (int64_t[]){s->samples, 1});
        for (int64_t n = 0; n < s->samples; n++)
            h_put(h, t->lengths, (size_t)n, (double)length_of(s, n));
    } else {
        h_absent_in(h);
    }
    t->a = attrs_of(s);
    h->op.layer_index = 3;
    h->run.ordinal = 11;
}

/* In place: what was prepared points into the trial. */
static inline void prepare_forward(trial *t, const shape *s, tr_precision p, int isa, int threads,
                                   int products)
{
    *t = (trial){.s = s};
    t->h = open_level("attention", p, isa, threads);
#ifndef TEST_MIRROR
    multiply_by(t->h.team, products);
#else
    (void)products;
#endif
    open_inputs(t);
    t->y =
        h_out(&t->h, h_activation(&t->h), 3, (int64_t[]){s->samples, s->queries, s->heads * s->D});
    t->lse = h_out(&t->h, TR_F32, 3, (int64_t[]){s->samples, s->heads, s->queries});
    h_prepare(&t->h, &t->a, TR_ACT_NONE);
}

static inline void run_forward(trial *t, const shape *s, tr_precision p, int isa, int threads,
                               int products)
{
    prepare_forward(t, s, p, isa, threads, products);
    h_run(&t->h, false);
}

static inline void prepare_backward(trial *t, const shape *s, tr_precision p, int isa, int threads,
                                    int products)
{
    *t = (trial){.s = s};
    t->h = open_level("attention.grad", p, isa, threads);
#ifndef TEST_MIRROR
    multiply_by(t->h.team, products);
#else
    (void)products;
#endif
    harness *h = &t->h;
    const tr_dtype type = h_activation(h);
    const int64_t out[] = {s->samples, s->queries, s->heads * s->D};
    t->dy = h_in(h, type, 3, out);
    h_fill(h, t->dy, 7);
    open_inputs(t);
    t->y = h_in(h, type, 3, out);
    t->lse = h_in(h, TR_F32, 3, (int64_t[]){s->samples, s->heads, s->queries});
    t->dq = h_out(h, type, 3, h->tensors[t->q].dims);
    if (!s->packed) {
        t->dk = h_out(h, type, 3, h->tensors[t->k].dims);
        t->dv = h_out(h, type, 3, h->tensors[t->v].dims);
    }
    h_prepare(h, &t->a, TR_ACT_NONE);
}

/* With y and lse of a forward run. */
static inline void run_backward(trial *t, const trial *forward, tr_precision p, int isa,
                                int threads, int products)
{
    prepare_backward(t, forward->s, p, isa, threads, products);
    memcpy(t->h.data[t->y], forward->h.data[forward->y], t->h.tensors[t->y].nbytes);
    memcpy(t->h.data[t->lse], forward->h.data[forward->lse], t->h.tensors[t->lse].nbytes);
    h_run(&t->h, false);
}

static inline void close_trial(trial *t)
{
    for (int i = Y; i <= DV; i++) {
        tr_free(t->want[i]);
        tr_free(t->size[i]);
    }
    h_close(&t->h);
}

#endif
