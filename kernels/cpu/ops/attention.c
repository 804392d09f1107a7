/* Attention without a matrix queries x keys (Dao et al. 2022): a thread takes a tile of queries of
 * one head, goes over the tiles of keys that it sees, and keeps each row's maximum, sum and
 * weighted values so far (Milakov and Gimelshein 2018). Products of float32 are computed by our own
 * loops, of bfloat16 by oneDNN, or forward on CPUs that multiply it by pairs (tr_cpu.bf16_pairs) by
 * our own, too: oneDNN would order each tile's keys and values anew for every tile of queries. All
 * read copies of the rows of queries, keys and values, made once for each head of keys: in the
 * tensors consecutive rows are often a multiple of 4 KB apart, where they push each other out of
 * the cache. Where it is faster, the copies of bfloat16 rows are float32. Tiles depend on the
 * shapes alone, so results have the same bits for any number of threads. */
#include "kernels/cpu/ops/attention.h"

#include <math.h>
#include <omp.h>
#include <string.h>

enum { SCORES, VALUES, FORWARD_PRODUCTS };

/* A thread: its memory, and the head of keys and values that it has as products read them. */
typedef struct {
    int number;
    char *room;
    size_t have; /* 1 + sample * kv_heads + head; 0: none */
    dnnl_status_t st;
} worker;

/* Elements of a tile of keys. */
static size_t keys_size(const tr_attention *k)
{
    if (!k->own) return k->keys * k->s.D;
    return tr_attention_words(k, k->s.D) * k->turned * (k->pairs ? 2 : 1);
}

/* Tile kt of the keys or values: copied once for all tiles of queries that follow, keys before
 * values. */
static tr_attention_rows keys_of(const tr_attention *k, const worker *w, bool values, size_t sample,
                                 size_t head, size_t kt, bool first)
{
    const tr_attention_shape *s = &k->s;
    const size_t row = sample * s->keys + kt * k->keys, count = tr_chunk_size(s->keys, k->keys, kt);
    const size_t at = (values ? s->v_at : s->k_at) + head * s->D;
    const void *in = k->k.b.in[values ? s->v : s->k];
    void *rows = tr_loop_to(k->type, w->room + k->v_as, kt * k->keys * k->width);
    void *keys = tr_loop_to(k->type, w->room + k->k_as, kt * keys_size(k));
    void *to = values ? rows : keys;
    if (k->copies && !first) return (tr_attention_rows){to, k->width};
    if (values && k->pairs) {
        const int64_t length = tr_attention_length(k, sample) - (int64_t)(kt * k->keys);
        const size_t seen = length < 0 ? 0 : (size_t)length < count ? (size_t)length : count;
        tr_attention_read_pairs(k, in, s->kv_pitch, at, row, count, seen, to);
        return (tr_attention_rows){to, k->width};
    }
    if (values || !k->own) return tr_attention_read(k, in, s->kv_pitch, at, row, count, to);
    tr_attention_read(k, in, s->kv_pitch, at, row, count, rows); /* where values go then */
    tr_attention_turn(k, rows, count, keys);
    return (tr_attention_rows){keys, k->turned};
}

static void forward_part(const tr_attention *k, worker *w, const tr_attention_part *part,
                         const tr_cpu_scores *a, tr_attention_rows q, tr_attention_rows keys,
                         tr_attention_rows values)
{
    const tr_cpu_loops *loops = k->k.loops;
    float *scores = (float *)(void *)(w->room + k->scores);
    float *o = (float *)(void *)(w->room + k->acc) + part->row * k->width;
    double *sum = (double *)(void *)(w->room + k->rows);
    float *top = (float *)(sum + k->queries), *fade = top + k->queries;
    void *probs = w->room + k->probs, *scratch = w->room + k->scratch;
    w->st = tr_attention_multiply(k, SCORES, part, w->number, tr_attention_row(k, q, part->row),
                                  tr_attention_key(k, keys, part->column), scores, scratch);
    if (w->st != dnnl_success) return;
    loops->attention_probs(k->type, a, scores, probs, top + part->row, sum + part->row, fade);
    loops->attention_fade(o, fade, part->rows, k->width);
    w->st = tr_attention_multiply(k, VALUES, part, w->number, probs,
                                  tr_attention_row(k, values, part->column), o, scratch);
}

static void forward_tile(const tr_attention *k, const tr_run *run, worker *w, size_t sample,
                         size_t head, size_t qt)
{
    const tr_attention_shape *s = &k->s;
    const size_t D = s->D, kv = head / k->group, row = qt * k->queries;
    const size_t rows = tr_chunk_size(s->queries, k->queries, qt);
    const int64_t length = tr_attention_length(k, sample);
    const tr_attention_span span = tr_attention_seen(k, qt, length);
    float *o = (float *)(void *)(w->room + k->acc);
    double *sum = (double *)(void *)(w->room + k->rows);
    float *top = (float *)(sum + k->queries);
    unsigned char *have = (unsigned char *)w->room + k->have;
    if (w->have != 1 + sample * s->kv_heads + kv) memset(have, 0, k->nkeys);
    w->have = 1 + sample * s->kv_heads + kv;
    const tr_attention_rows q = tr_attention_read(k, k->k.b.in[s->q], s->q_pitch, head * D,
                                                  sample * s->queries + row, rows, w->room + k->q);
    memset(o, 0, rows * k->width * sizeof *o);
    for (size_t r = 0; r < rows; r++) sum[r] = 0, top[r] = -INFINITY;
    for (size_t kt = span.begin; kt < span.end && w->st == dnnl_success; kt++) {
        tr_attention_part parts[TR_ATTENTION_PARTS];
        const int n = tr_attention_parts(k, qt, kt, length, parts);
        const tr_attention_rows keys = keys_of(k, w, false, sample, kv, kt, !have[kt]);
        const tr_attention_rows values = keys_of(k, w, true, sample, kv, kt, !have[kt]);
        have[kt] = 1;
        for (int i = 0; i < n && w->st == dnnl_success; i++) {
            const tr_cpu_scores a =
                tr_attention_scores(k, run, sample, head, qt, kt, &parts[i], length);
            forward_part(k, w, &parts[i], &a, q, keys, values);
        }
    }
    const size_t width = s->heads * D;
    float *lse = k->k.b.out[1];
    k->k.loops->attention_out(
        k->k.dtype, o, k->width, top, sum,
        tr_loop_to(k->k.dtype, k->k.b.out[0], (sample * s->queries + row) * width + head * D),
        width, lse ? lse + (sample * s->heads + head) * s->queries + row : NULL, rows, D);
}

static tr_status run_forward(tr_kernel *base, const tr_run *run)
{
    const tr_attention *k = (const tr_attention *)base;
    const size_t per_sample = k->s.heads * k->nqueries, items = k->s.samples * per_sample;
    const int threads = k->k.threads;
    int failed = dnnl_success;
#pragma omp parallel num_threads(threads) if (threads > 1 && items > 1)
    {
        worker w = {.number = omp_get_thread_num(), .st = dnnl_success};
        w.room = (char *)k->k.b.workspace + (size_t)w.number * k->room;
        if (!k->own) tr_dnnl_tiles_enter();
#pragma omp for schedule(dynamic)
        for (size_t i = 0; i < items; i++) {
            const size_t sample = i / per_sample, in = i % per_sample;
            if (w.st == dnnl_success)
                forward_tile(k, run, &w, sample, in / k->nqueries, in % k->nqueries);
        }
        if (w.st != dnnl_success) {
#pragma omp atomic write
            failed = (int)w.st;
        }
    }
    if (failed == dnnl_success) return TR_OK;
    return tr_dnnl_fail(__FILE__, __LINE__, (dnnl_status_t)failed, "run a product");
}

tr_status tr_cpu_attention(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    if (op->nin > TR_ATTENTION_KEYS_HELD) return tr_cpu_attention_held(cpu, g, op, out);
    tr_attention *k = NULL;
    tr_status st = tr_attention_open(cpu, g, op, cpu->bf16_pairs, run_forward, &k);
    if (st != TR_OK) return st;
    const tr_attention_shape *s = &k->s;
    const size_t tile = tr_attention_tile(k), row = k->copies * k->width * tr_dtype_size(k->type);
    k->scores = tr_attention_reserve(k, tile * sizeof(float));
    k->probs = k->type == TR_F32 ? k->scores : tr_attention_reserve(k, tile * sizeof(tr_bf16));
    k->acc = tr_attention_reserve(k, k->queries * k->width * sizeof(float));
    k->rows = tr_attention_reserve(k, k->queries * (sizeof(double) + 2 * sizeof(float)));
    k->q = tr_attention_reserve(k, k->queries * row);
    k->k_as = tr_attention_reserve(k, k->nkeys * keys_size(k) * k->copies * tr_dtype_size(k->type));
    k->v_as = tr_attention_reserve(k, tr_align_up(s->keys, 2) * row);
    k->have = tr_attention_reserve(k, k->nkeys);
    const size_t q = tr_attention_pitch(k, s->q_pitch), kv = tr_attention_pitch(k, s->kv_pitch);
    const tr_attention_product products[FORWARD_PRODUCTS] = {
        [SCORES] = {TR_OF_QUERIES, TR_OF_KEYS, TR_OF_D, q, kv, 0, false, true},
        [VALUES] = {TR_OF_QUERIES, TR_OF_D, TR_OF_KEYS, 0, kv, k->width, false, false},
    };
    st = tr_attention_multiply_by(cpu, k, products, FORWARD_PRODUCTS);
    return tr_attention_hand_over(k, st, out);
}
