/* The gradient of attention without a matrix queries x keys (Dao 2023): a thread takes a head of
 * keys and values of a sample, with all heads of queries that share it, and goes over its tiles:
 * the probabilities again from the scores and each row's log-sum-exp; dv += p^T dy, ds = p (dy v^T
 * - delta) scale, dk += ds^T q, dq += ds k, with delta = sum(dy * y). Five products of a tile,
 * against two forward.
 *
 * Where there are fewer heads than threads, several share one: each takes tiles of keys in turn,
 * and adds to a tile of dq once the thread with the tile of keys before it has, as a single thread
 * would. So the order of every sum, and with it the bits of a sample's gradients, depends on the
 * sample's own shapes (heads, queries, keys, D) and lengths alone: neither on the number of threads
 * nor on the samples beside it. Nor does memory for dq: one of a head of keys each, of no more
 * heads than there are threads. */
#include "kernels/cpu/ops/attention.h"

#include <math.h>
#include <omp.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

enum { SCORES, DPROBS, DVALUES, DKEYS, DQUERIES, PRODUCTS };
/* Operands. */
enum { DY, Q, K, V, LENGTHS, Y, LSE };

typedef struct {
    int number;
    char *room, *head; /* its own memory, and that of the head it is at */
    dnnl_status_t st;
    size_t sample, kv; /* head of keys */
    bool shared;       /* with other threads */
    int64_t length;
} worker;

static float *floats(const worker *w, size_t at)
{
    return (float *)(void *)(w->room + at);
}

/* Row `row` of head `in` of the group. */
static float *dq_of(const tr_attention *k, const worker *w, size_t in, size_t row)
{
    return (float *)(void *)(w->head + k->acc) + (in * k->s.queries + row) * k->width;
}

static float *delta_of(const tr_attention *k, const worker *w, size_t in, size_t row)
{
    return (float *)(void *)(w->head + k->rows) + in * k->s.queries + row;
}

static void product(const tr_attention *k, worker *w, int p, const tr_attention_part *part,
                    const void *a, const void *b, void *c)
{
    if (w->st == dnnl_success)
        w->st = tr_attention_multiply(k, p, part, w->number, a, b, c, w->room + k->scratch);
}

/* Rows of head `in` of the group: of the queries, or of dy (the same place in it, and in y). */
static tr_attention_rows group_rows(const tr_attention *k, const worker *w, bool dy, size_t in,
                                    size_t qt, bool first)
{
    const tr_attention_shape *s = &k->s;
    const size_t head = w->kv * k->group + in, row = qt * k->queries;
    void *to =
        tr_loop_to(k->type, w->head + (dy ? k->dy : k->q), (in * s->queries + row) * k->width);
    if (k->copies && !first) return (tr_attention_rows){to, k->width};
    return tr_attention_read(k, k->k.b.in[dy ? DY : Q], dy ? s->heads * s->D : s->q_pitch,
                             head * s->D, w->sample * s->queries + row,
                             tr_chunk_size(s->queries, k->queries, qt), to);
}

/* A tile of keys: as it is the first factor's other side, and of scores. */
typedef struct {
    tr_attention_rows keys, scoring, values;
} key_rows;

typedef struct {
    size_t in, qt, kt; /* head of the group, tiles */
    const key_rows *rows;
} place;

/* No gradient comes to these rows, as to those behind the last block of a model that reads one row
 * alone: with finite numbers everything that they would add is 0. (Where v is none, y and with it
 * delta are none.) */
static bool without_gradient(const tr_attention *k, const tr_attention_part *part, const float *lse,
                             const float *delta, const void *dy)
{
    for (size_t r = 0; r < part->rows; r++)
        if (!(delta[r] == 0.0f && isfinite(lse[r]))) return false;
    return k->k.loops->largest(TR_F32, true, dy, part->rows * k->width) == 0.0f;
}

static void one_part(const tr_attention *k, const tr_run *run, worker *w, const place *at,
                     const tr_attention_part *part)
{
    const tr_attention_shape *s = &k->s;
    const size_t head = w->kv * k->group + at->in, row = at->qt * k->queries + part->row;
    const tr_cpu_scores a =
        tr_attention_scores(k, run, w->sample, head, at->qt, at->kt, part, w->length);
    const float *lse =
        (const float *)k->k.b.in[LSE] + (w->sample * s->heads + head) * s->queries + row;
    const float *delta = delta_of(k, w, at->in, row);
    const void *q = tr_attention_row(k, group_rows(k, w, false, at->in, at->qt, false), part->row);
    const void *dy = tr_attention_row(k, group_rows(k, w, true, at->in, at->qt, false), part->row);
    const void *keys = tr_attention_row(k, at->rows->keys, part->column);
    const void *scoring = tr_attention_key(k, at->rows->scoring, part->column);
    const void *values = tr_attention_key(k, at->rows->values, part->column);
    float *scores = floats(w, k->scores), *dscores = floats(w, k->dscores);
    void *probs = w->room + k->probs, *dprobs = w->room + k->dprobs;
    if (k->own && without_gradient(k, part, lse, delta, dy)) return;
    product(k, w, SCORES, part, q, scoring, scores);
    product(k, w, DPROBS, part, dy, values, dscores);
    k->k.loops->attention_grad(k->type, &a, scores, dscores, lse, delta, probs, dprobs);
    product(k, w, DVALUES, part, probs, dy, floats(w, k->dv) + part->column * k->width);
    product(k, w, DKEYS, part, dprobs, q, floats(w, k->dk) + part->column * k->width);
    product(k, w, DQUERIES, part, dprobs, keys, dq_of(k, w, at->in, row));
}

static void one_tile(const tr_attention *k, const tr_run *run, worker *w, const place *at)
{
    tr_attention_part parts[TR_ATTENTION_PARTS];
    const int n = tr_attention_parts(k, at->qt, at->kt, w->length, parts);
    for (int i = 0; i < n && w->st == dnnl_success; i++) one_part(k, run, w, at, &parts[i]);
}

/* ---- A head of keys -------------------------------------------------------------------------- */

/* To a head of keys, of all samples, in a slot of the memory for them. */
static void take(const tr_attention *k, worker *w, size_t head, size_t slot)
{
    w->sample = head / k->s.kv_heads;
    w->kv = head % k->s.kv_heads;
    w->length = tr_attention_length(k, w->sample);
    w->head = (char *)k->k.b.workspace + slot * k->head_room;
}

/* Tile i of all tiles of queries of the head's group: copies of what products read, delta, and
 * zeros for dq. */
static void begin_queries(const tr_attention *k, const worker *w, size_t i)
{
    const tr_attention_shape *s = &k->s;
    const tr_dtype t = k->k.dtype;
    const size_t width = s->heads * s->D, in = i / k->nqueries, qt = i % k->nqueries;
    const size_t row = qt * k->queries, rows = tr_chunk_size(s->queries, k->queries, qt);
    const size_t at = (w->sample * s->queries + row) * width + (w->kv * k->group + in) * s->D;
    k->k.loops->attention_delta(t, tr_loop_at(t, k->k.b.in[DY], at),
                                tr_loop_at(t, k->k.b.in[Y], at), width, delta_of(k, w, in, row),
                                rows, s->D);
    memset(dq_of(k, w, in, row), 0, rows * k->width * sizeof(float));
    if (!k->copies) return;
    group_rows(k, w, false, in, qt, true);
    group_rows(k, w, true, in, qt, true);
}

/* The tile's dq. */
static void end_queries(const tr_attention *k, const worker *w, size_t i)
{
    const tr_attention_shape *s = &k->s;
    const size_t in = i / k->nqueries, row = i % k->nqueries * k->queries;
    if (k->k.b.out[0])
        tr_attention_write(k, dq_of(k, w, in, row), k->k.b.out[0], s->q_pitch,
                           (w->kv * k->group + in) * s->D, w->sample * s->queries + row,
                           tr_chunk_size(s->queries, k->queries, i % k->nqueries));
}

/* How many tiles of queries of the group the thread with tile of keys kt is done with. */
static atomic_size_t *done_of(const tr_attention *k, const worker *w, size_t kt)
{
    return (atomic_size_t *)(void *)(w->head + k->done) + kt;
}

/* Tile i of queries sees tiles of keys that follow one another, so whoever waits for the one before
 * has waited for all. */
static void wait_for_turn(const tr_attention *k, const worker *w, size_t i, size_t kt)
{
    while (atomic_load_explicit(done_of(k, w, kt - 1), memory_order_acquire) <= i) sched_yield();
}

static void all_queries(const tr_attention *k, const tr_run *run, worker *w, size_t kt,
                        const key_rows *rows)
{
    for (size_t i = 0; i < k->group * k->nqueries; i++) {
        const place at = {i / k->nqueries, i % k->nqueries, kt, rows};
        const tr_attention_span seen = tr_attention_seen(k, at.qt, w->length);
        if (kt >= seen.begin && kt < seen.end) {
            if (w->shared && kt > seen.begin) wait_for_turn(k, w, i, kt);
            one_tile(k, run, w, &at);
        }
        if (w->shared) atomic_store_explicit(done_of(k, w, kt), i + 1, memory_order_release);
    }
}

/* Copies of a tile's `count` rows, as products read them. */
static key_rows read_keys(const tr_attention *k, const worker *w, size_t row, size_t count,
                          size_t k_at, size_t v_at)
{
    const tr_attention_shape *s = &k->s;
    const void *in = k->k.b.in[s->k], *from = k->k.b.in[s->v];
    void *keys = w->room + k->k_as, *values = w->room + k->v_as, *scoring = w->room + k->scoring;
    if (!k->own) {
        const tr_attention_rows r = tr_attention_read(k, in, s->kv_pitch, k_at, row, count, keys);
        return (key_rows){r, r, tr_attention_read(k, from, s->kv_pitch, v_at, row, count, values)};
    }
    tr_attention_read(k, from, s->kv_pitch, v_at, row, count, keys); /* keys go there then */
    tr_attention_turn(k, keys, count, values);
    tr_attention_read(k, in, s->kv_pitch, k_at, row, count, keys);
    tr_attention_turn(k, keys, count, scoring);
    return (key_rows){{keys, k->width}, {scoring, k->turned}, {values, k->turned}};
}

/* A tile of keys, with all queries that see it. */
static void key_tile(const tr_attention *k, const tr_run *run, worker *w, size_t kt)
{
    const tr_attention_shape *s = &k->s;
    void *dk = k->k.b.out[s->packed ? 0 : 1], *dv = k->k.b.out[s->packed ? 0 : 2];
    const size_t row = w->sample * s->keys + kt * k->keys;
    const size_t rows = tr_chunk_size(s->keys, k->keys, kt);
    const size_t k_at = s->k_at + w->kv * s->D, v_at = s->v_at + w->kv * s->D;
    const key_rows read = read_keys(k, w, row, rows, k_at, v_at);
    memset(w->room + k->dk, 0, rows * k->width * sizeof(float));
    memset(w->room + k->dv, 0, rows * k->width * sizeof(float));
    all_queries(k, run, w, kt, &read);
    if (dk) tr_attention_write(k, floats(w, k->dk), dk, s->kv_pitch, k_at, row, rows);
    if (dv) tr_attention_write(k, floats(w, k->dv), dv, s->kv_pitch, v_at, row, rows);
}

/* ---- All heads, by the threads of a region --------------------------------------------------- */

/* Heads [0, n), each by one thread. */
static void whole_heads(const tr_attention *k, const tr_run *run, worker *w, size_t n)
{
    const size_t tiles = k->group * k->nqueries;
#pragma omp for schedule(dynamic)
    for (size_t i = 0; i < n; i++) {
        if (w->st != dnnl_success) continue;
        take(k, w, i, (size_t)w->number);
        for (size_t t = 0; t < tiles; t++) begin_queries(k, w, t);
        for (size_t kt = 0; kt < k->nkeys; kt++) key_tile(k, run, w, kt);
        for (size_t t = 0; t < tiles; t++) end_queries(k, w, t);
    }
}

/* Heads [from, from + n), by all threads. Tiles of keys are dealt out in turn, those of a head in
 * their order: the first that is not done waits for none, so no thread waits for ever, even with
 * fewer threads than asked for. */
static void shared_heads(const tr_attention *k, const tr_run *run, worker *w, size_t from, size_t n)
{
    const size_t tiles = k->group * k->nqueries;
    w->shared = true;
#pragma omp for schedule(static)
    for (size_t i = 0; i < n * tiles; i++) {
        take(k, w, from + i / tiles, i / tiles);
        for (size_t kt = 0; i % tiles == 0 && kt < k->nkeys; kt++)
            atomic_init(done_of(k, w, kt), 0);
        begin_queries(k, w, i % tiles);
    }
#pragma omp for schedule(static, 1)
    for (size_t i = 0; i < n * k->nkeys; i++) {
        take(k, w, from + i % n, i % n);
        key_tile(k, run, w, i / n);
    }
#pragma omp for schedule(static)
    for (size_t i = 0; i < n * tiles; i++) {
        take(k, w, from + i / tiles, i / tiles);
        end_queries(k, w, i % tiles);
    }
}

static tr_status run_grad(tr_kernel *base, const tr_run *run)
{
    const tr_attention *k = (const tr_attention *)base;
    const size_t heads = k->s.samples * k->s.kv_heads;
    const int threads = k->k.threads;
    const size_t rest = heads % (size_t)threads;
    int failed = dnnl_success;
#pragma omp parallel num_threads(threads) if (threads > 1 && heads * k->nkeys > 1)
    {
        worker w = {.number = omp_get_thread_num(), .st = dnnl_success};
        w.room = (char *)k->k.b.workspace + k->slots * k->head_room + (size_t)w.number * k->room;
        if (!k->own) tr_dnnl_tiles_enter();
        if (heads > rest) whole_heads(k, run, &w, heads - rest);
        if (rest) shared_heads(k, run, &w, heads - rest, rest);
        if (w.st != dnnl_success) {
#pragma omp atomic write
            failed = (int)w.st;
        }
    }
    if (failed == dnnl_success) return TR_OK;
    return tr_dnnl_fail(__FILE__, __LINE__, (dnnl_status_t)failed, "run a product");
}

/* Memory of a head of keys, of as many as are at work at a time. */
static void reserve_heads(tr_attention *k)
{
    const tr_attention_shape *s = &k->s;
    const size_t heads = s->samples * s->kv_heads, all = k->group * s->queries;
    const size_t copy = k->copies * k->width * tr_dtype_size(k->type);
    const size_t threads = (size_t)k->k.threads;
    k->slots = heads < threads ? heads : threads;
    k->acc = tr_attention_reserve(k, all * k->width * sizeof(float));
    k->done = tr_attention_reserve(k, k->nkeys * sizeof(atomic_size_t));
    k->rows = tr_attention_reserve(k, all * sizeof(float));
    k->q = tr_attention_reserve(k, all * copy);
    k->dy = tr_attention_reserve(k, all * copy);
    k->head_room = k->room;
    k->room = 0;
}

static void reserve(tr_attention *k)
{
    const size_t tile = tr_attention_tile(k), row = k->width * sizeof(float);
    const size_t copy = k->copies * k->width * tr_dtype_size(k->type);
    const size_t turned = k->own * k->s.D * k->turned * sizeof(float);
    reserve_heads(k);
    k->scores = tr_attention_reserve(k, tile * sizeof(float));
    k->dscores = tr_attention_reserve(k, tile * sizeof(float));
    k->probs = k->type == TR_F32 ? k->scores : tr_attention_reserve(k, tile * sizeof(tr_bf16));
    k->dprobs = k->type == TR_F32 ? k->dscores : tr_attention_reserve(k, tile * sizeof(tr_bf16));
    k->dk = tr_attention_reserve(k, k->keys * row);
    k->dv = tr_attention_reserve(k, k->keys * row);
    k->k_as = tr_attention_reserve(k, k->keys * copy);
    k->v_as = tr_attention_reserve(k, k->own ? turned : k->keys * copy);
    k->scoring = tr_attention_reserve(k, turned);
}

tr_status tr_cpu_attention_grad(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    tr_attention *k = NULL;
    tr_status st = tr_attention_open(cpu, g, op, false, run_grad, &k);
    if (st != TR_OK) return st;
    const size_t width = k->width, q = tr_attention_pitch(k, k->s.q_pitch);
    const size_t kv = tr_attention_pitch(k, k->s.kv_pitch),
                 dy = tr_attention_pitch(k, k->s.heads * k->s.D);
    reserve(k);
    const tr_attention_product products[PRODUCTS] = {
        [SCORES] = {TR_OF_QUERIES, TR_OF_KEYS, TR_OF_D, q, kv, 0, false, true},
        [DPROBS] = {TR_OF_QUERIES, TR_OF_KEYS, TR_OF_D, dy, kv, 0, false, true},
        [DVALUES] = {TR_OF_KEYS, TR_OF_D, TR_OF_QUERIES, 0, dy, width, true, false},
        [DKEYS] = {TR_OF_KEYS, TR_OF_D, TR_OF_QUERIES, 0, q, width, true, false},
        [DQUERIES] = {TR_OF_QUERIES, TR_OF_D, TR_OF_KEYS, 0, kv, width, false, false},
    };
    st = tr_attention_multiply_by(cpu, k, products, PRODUCTS);
    return tr_attention_hand_over(k, st, out);
}
