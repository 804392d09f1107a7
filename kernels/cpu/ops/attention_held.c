/* Attention in a graph that decodes: a run's keys and values go behind those that are held, and
 * each of its queries looks back on all. A thread takes a head of keys and values of one sequence,
 * with the heads of queries that share it. At one row a sequence the time is that of reading what
 * is held.
 *
 * Items depend on the shapes alone, so results have the same bits for any number of threads and of
 * sequences beside. */
#include "kernels/cpu/ops/attention.h"

#include <math.h>
#include <omp.h>
#include <string.h>

typedef struct {
    tr_loop_kernel k;
    tr_attention_shape s;
    tr_attention_attrs a;
    size_t group, cache, scratch; /* scratch: floats of a thread */
    float *slopes;                /* [heads]; NULL: none */
} kernel;

static void close_kernel(tr_kernel *base)
{
    tr_free(((kernel *)base)->slopes);
    tr_free(base);
}

/* Of one sequence: rows that came before, and those of this run that there is room for. */
static size_t rows_of(const kernel *k, size_t sample, size_t *past)
{
    const int32_t before = ((const int32_t *)k->k.b.in[TR_ATTENTION_PAST])[sample];
    const int32_t count = ((const int32_t *)k->k.b.in[TR_ATTENTION_COUNT])[sample];
    *past = before < 0 ? 0 : (size_t)before < k->cache ? (size_t)before : k->cache;
    const size_t room = k->cache - *past, rows = count < 0 ? 0 : (size_t)count;
    const size_t most = rows < k->s.queries ? rows : k->s.queries;
    return most < room ? most : room;
}

/* The head's rows of this run to where they are held. */
static void hold(const kernel *k, int operand, size_t column, size_t sample, size_t count,
                 void *held)
{
    const tr_dtype t = k->k.dtype;
    const tr_attention_shape *s = &k->s;
    const char *from =
        tr_loop_at(t, k->k.b.in[operand], sample * s->queries * s->kv_pitch + column);
    for (size_t r = 0; r < count; r++)
        memcpy(tr_loop_to(t, held, r * s->D), tr_loop_at(t, from, r * s->kv_pitch),
               s->D * tr_dtype_size(t));
}

static void run_head(const kernel *k, size_t sample, size_t head, float *scratch)
{
    const tr_dtype t = k->k.dtype;
    const tr_attention_shape *s = &k->s;
    const size_t at = (sample * s->kv_heads + head) * k->cache * s->D, first = head * k->group;
    void *keys = tr_loop_to(t, k->k.b.in[TR_ATTENTION_KEYS_HELD], at);
    void *values = tr_loop_to(t, k->k.b.in[TR_ATTENTION_VALUES_HELD], at);
    size_t past;
    const size_t count = rows_of(k, sample, &past);
    hold(k, s->k, s->k_at + head * s->D, sample, count, tr_loop_to(t, keys, past * s->D));
    hold(k, s->v, s->v_at + head * s->D, sample, count, tr_loop_to(t, values, past * s->D));
    for (size_t r = 0; r < s->queries; r++) {
        const size_t row = sample * s->queries + r;
        const void *q = tr_loop_at(t, k->k.b.in[s->q], row * s->q_pitch + first * s->D);
        void *y = tr_loop_to(t, k->k.b.out[0], (row * s->heads + first) * s->D);
        if (r >= count) {
            memset(y, 0, k->group * s->D * tr_dtype_size(t));
            continue;
        }
        const int64_t i = (int64_t)(past + r);
        const tr_key_range seen = tr_attention_keys(i, i + 1, true, k->a.window);
        const tr_cpu_look_back look = {.D = s->D,
                                       .heads = k->group,
                                       .position = i,
                                       .begin = seen.begin,
                                       .end = seen.end,
                                       .scale = s->scale,
                                       .slopes = k->slopes ? k->slopes + first : NULL};
        k->k.loops->attention_held(t, &look, q, keys, values, y, scratch);
    }
}

/* What the run's queries look back on: below so much, waking threads takes longer. */
enum { WORTH_THREADS = 128 << 10 };

static size_t bytes_of(const kernel *k)
{
    size_t rows = 0, past;
    for (size_t n = 0; n < k->s.samples; n++) {
        const size_t count = rows_of(k, n, &past);
        rows += count * (past + count);
    }
    return rows * 2 * k->s.heads * k->s.D * tr_dtype_size(k->k.dtype);
}

static tr_status run_held(tr_kernel *base, const tr_run *run)
{
    const kernel *k = (const kernel *)base;
    const size_t items = k->s.samples * k->s.kv_heads;
    const int threads = bytes_of(k) >= WORTH_THREADS ? k->k.threads : 1;
    (void)run;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1 && items > 1)
    for (size_t i = 0; i < items; i++)
        run_head(k, i / k->s.kv_heads, i % k->s.kv_heads,
                 (float *)k->k.b.workspace + (size_t)omp_get_thread_num() * k->scratch);
    return TR_OK;
}

tr_status tr_cpu_attention_held(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    const tr_attention_shape s = tr_attention_of(g, op);
    kernel *k = NULL;
    const tr_status st =
        tr_loop_kernel_open(cpu, &g->tensors[op->in[s.q]], "own", run_held, sizeof *k, &k);
    if (st != TR_OK) return st;
    k->k.base.close = close_kernel;
    k->s = s;
    k->a = *(const tr_attention_attrs *)op->attrs;
    k->group = s.heads / s.kv_heads;
    k->cache = (size_t)g->tensors[op->in[s.keys_held]].dims[2];
    k->scratch = tr_align_up(tr_cpu_look_back_scratch(k->group, s.D), 16);
    k->k.base.workspace = k->scratch * sizeof(float) * (size_t)k->k.threads;
    if (k->a.alibi) {
        k->slopes = tr_alloc(TR_MEM_OTHER, s.heads, sizeof *k->slopes);
        if (!k->slopes) {
            close_kernel(&k->k.base);
            return tr_last_status();
        }
        for (size_t h = 0; h < s.heads; h++)
            k->slopes[h] = exp2f(tr_attention_slope_power((int)h, (int)s.heads));
    }
    *out = &k->k.base;
    return TR_OK;
}
