/* The gradient of attention without a matrix queries x keys (Dao 2023): a thread takes a head of keys and values of a
 * sample, with all heads of queries that share it, and goes over its tiles: the probabilities again from the scores and
 * each row's log-sum-exp; dv += p^T dy, ds = p (dy v^T - delta) scale, dk += ds^T q, dq += ds k, with delta = sum(dy * y).
 * Five products of a tile, against two forward.
 *
 * Where there are fewer heads than ITEMS, several threads share one, each with some of its tiles of keys (a piece) and a dq of
 * its own; these are added in the order of pieces. How many pieces there are depends on the shapes alone, so the bits do not
 * depend on the number of threads. */
#include "kernels/cpu/ops/attention.h"

#include <omp.h>
#include <string.h>

enum { SCORES, DPROBS, DVALUES, DKEYS, DQUERIES, PRODUCTS };
/* Operands. */
enum { DY, Q, K, V, LENGTHS, Y, LSE };

enum { ITEMS = 32 };

typedef struct {
    int number;
    char *room, *head; /* its own memory, and that of the head it is at */
    dnnl_status_t st;
    size_t sample, kv, piece; /* head of keys */
    int64_t length;
} worker;

static float *floats(const worker *w, size_t at)
{
    return (float *)(void *)(w->room + at);
}

/* Element of row `row` of head `in` of the group, in a piece's dq. */
static float *dq_of(const tr_attention *k, const worker *w, size_t piece, size_t in, size_t row)
{
    const size_t all = k->group * k->s.queries;
    float *dq = (float *)(void *)(w->head + k->acc);
    return dq + (piece * all + in * k->s.queries + row) * k->s.D;
}

static float *delta_of(const tr_attention *k, const worker *w, size_t in, size_t row)
{
    return (float *)(void *)(w->head + k->rows) + in * k->s.queries + row;
}

static void product(const tr_attention *k, worker *w, int p, const tr_attention_part *part,
                    const void *a, const void *b, void *c)
{
    if (w->st == dnnl_success)
        w->st = tr_dnnl_tiles_run(k->tiles, tr_attention_which(k, p, part->rows, part->columns),
                                  w->number, a, b, c, w->room + k->scratch);
}

/* Rows of head `in` of the group: of the queries, or of dy (the same place in it, and in y). */
static tr_attention_rows group_rows(const tr_attention *k, const worker *w, bool dy, size_t in,
                                    size_t qt, bool first)
{
    const tr_attention_shape *s = &k->s;
    const size_t head = w->kv * k->group + in, row = qt * k->queries;
    void *to = tr_loop_to(k->type, w->head + (dy ? k->dy : k->q), (in * s->queries + row) * s->D);
    if (k->copies && !first) return (tr_attention_rows){to, s->D};
    return tr_attention_read(k, k->k.b.in[dy ? DY : Q], dy ? s->heads * s->D : s->q_pitch,
                             head * s->D, w->sample * s->queries + row,
                             tr_chunk_size(s->queries, k->queries, qt), to);
}

typedef struct {
    size_t in, qt, kt; /* head of the group, tiles */
    tr_attention_rows keys, values;
} place;

static void one_part(const tr_attention *k, const tr_run *run, worker *w, const place *at,
                     const tr_attention_part *part)
{
    const tr_attention_shape *s = &k->s;
    const size_t head = w->kv * k->group + at->in, row = at->qt * k->queries + part->row;
    const tr_cpu_scores a =
        tr_attention_scores(k, run, w->sample, head, at->qt, at->kt, part, w->length);
    const float *lse = k->k.b.in[LSE];
    const void *q = tr_attention_row(k, group_rows(k, w, false, at->in, at->qt, false), part->row);
    const void *dy = tr_attention_row(k, group_rows(k, w, true, at->in, at->qt, false), part->row);
    const void *keys = tr_attention_row(k, at->keys, part->column);
    const void *values = tr_attention_row(k, at->values, part->column);
    float *scores = floats(w, k->scores), *dscores = floats(w, k->dscores);
    void *probs = w->room + k->probs, *dprobs = w->room + k->dprobs;
    product(k, w, SCORES, part, q, keys, scores);
    product(k, w, DPROBS, part, dy, values, dscores);
    k->k.loops->attention_grad(k->type, &a, scores, dscores,
                               lse + (w->sample * s->heads + head) * s->queries + row,
                               delta_of(k, w, at->in, row), probs, dprobs);
    product(k, w, DVALUES, part, probs, dy, floats(w, k->dv) + part->column * s->D);
    product(k, w, DKEYS, part, dprobs, q, floats(w, k->dk) + part->column * s->D);
    product(k, w, DQUERIES, part, dprobs, keys, dq_of(k, w, w->piece, at->in, row));
}

static void one_tile(const tr_attention *k, const tr_run *run, worker *w, const place *at)
{
    tr_attention_part parts[TR_ATTENTION_PARTS];
    const int n = tr_attention_parts(k, at->qt, at->kt, w->length, parts);
    for (int i = 0; i < n && w->st == dnnl_success; i++) one_part(k, run, w, at, &parts[i]);
}

/* ---- A head of keys ---------------------------------------------------------------------------- */

/* To a head of keys, of all samples, in a slot of the memory for them. */
static void take(const tr_attention *k, worker *w, size_t head, size_t slot)
{
    w->sample = head / k->s.kv_heads;
    w->kv = head % k->s.kv_heads;
    w->length = tr_attention_length(k, w->sample);
    w->head = (char *)k->k.b.workspace + slot * k->head_room;
}

/* Tile i of all tiles of queries of the head's group: copies of what products read, and delta. */
static void begin_queries(const tr_attention *k, const worker *w, size_t i)
{
    const tr_attention_shape *s = &k->s;
    const tr_dtype t = k->k.dtype;
    const size_t width = s->heads * s->D, in = i / k->nqueries, qt = i % k->nqueries;
    const size_t row = qt * k->queries;
    const size_t at = (w->sample * s->queries + row) * width + (w->kv * k->group + in) * s->D;
    k->k.loops->attention_delta(t, tr_loop_at(t, k->k.b.in[DY], at),
                                tr_loop_at(t, k->k.b.in[Y], at), width, delta_of(k, w, in, row),
                                tr_chunk_size(s->queries, k->queries, qt), s->D);
    if (!k->copies) return;
    group_rows(k, w, false, in, qt, true);
    group_rows(k, w, true, in, qt, true);
}

/* The tile's dq: the sum of all pieces'. */
static void end_queries(const tr_attention *k, const worker *w, size_t i)
{
    const tr_attention_shape *s = &k->s;
    const size_t in = i / k->nqueries, qt = i % k->nqueries, row = qt * k->queries;
    const size_t rows = tr_chunk_size(s->queries, k->queries, qt);
    float *dq = dq_of(k, w, 0, in, row);
    if (!k->k.b.out[0]) return;
    for (size_t p = 1; p < k->pieces; p++) {
        const void *both[] = {dq, dq_of(k, w, p, in, row)};
        k->k.loops->add(TR_F32, TR_ACT_NONE, 2, both, dq, rows * s->D);
    }
    tr_attention_write(k, dq, k->k.b.out[0], s->q_pitch, (w->kv * k->group + in) * s->D,
                       w->sample * s->queries + row, rows);
}

/* A tile of keys, with all queries that see it. */
static void key_tile(const tr_attention *k, const tr_run *run, worker *w, size_t kt)
{
    const tr_attention_shape *s = &k->s;
    void *dk = k->k.b.out[s->packed ? 0 : 1], *dv = k->k.b.out[s->packed ? 0 : 2];
    const size_t row = w->sample * s->keys + kt * k->keys;
    const size_t rows = tr_chunk_size(s->keys, k->keys, kt);
    const size_t k_at = s->k_at + w->kv * s->D, v_at = s->v_at + w->kv * s->D;
    const tr_attention_rows keys =
        tr_attention_read(k, k->k.b.in[s->k], s->kv_pitch, k_at, row, rows, w->room + k->k_as);
    const tr_attention_rows values =
        tr_attention_read(k, k->k.b.in[s->v], s->kv_pitch, v_at, row, rows, w->room + k->v_as);
    memset(w->room + k->dk, 0, rows * s->D * sizeof(float));
    memset(w->room + k->dv, 0, rows * s->D * sizeof(float));
    for (size_t in = 0; in < k->group; in++)
        for (size_t qt = 0; qt < k->nqueries; qt++) {
            const tr_attention_span seen = tr_attention_seen(k, qt, w->length);
            if (kt >= seen.begin && kt < seen.end)
                one_tile(k, run, w, &(place){in, qt, kt, keys, values});
        }
    if (dk) tr_attention_write(k, floats(w, k->dk), dk, s->kv_pitch, k_at, row, rows);
    if (dv) tr_attention_write(k, floats(w, k->dv), dv, s->kv_pitch, v_at, row, rows);
}

static void one_piece(const tr_attention *k, const tr_run *run, worker *w, size_t piece)
{
    w->piece = piece;
    memset(dq_of(k, w, piece, 0, 0), 0, k->group * k->s.queries * k->s.D * sizeof(float));
    for (size_t kt = piece; kt < k->nkeys && w->st == dnnl_success; kt += k->pieces)
        key_tile(k, run, w, kt);
}

/* ---- All heads, by the threads of a region ------------------------------------------------------ */

static void whole_heads(const tr_attention *k, const tr_run *run, worker *w, size_t heads)
{
    const size_t tiles = k->group * k->nqueries;
#pragma omp for schedule(dynamic)
    for (size_t i = 0; i < heads; i++) {
        if (w->st != dnnl_success) continue;
        take(k, w, i, (size_t)w->number);
        for (size_t t = 0; t < tiles; t++) begin_queries(k, w, t);
        one_piece(k, run, w, 0);
        for (size_t t = 0; t < tiles; t++) end_queries(k, w, t);
    }
}

/* Heads [from, from + n), a slot each. */
static void shared_heads(const tr_attention *k, const tr_run *run, worker *w, size_t from, size_t n)
{
    const size_t tiles = k->group * k->nqueries;
#pragma omp for schedule(static)
    for (size_t i = 0; i < n * tiles; i++) {
        take(k, w, from + i / tiles, i / tiles);
        begin_queries(k, w, i % tiles);
    }
#pragma omp for schedule(dynamic)
    for (size_t i = 0; i < n * k->pieces; i++) {
        take(k, w, from + i / k->pieces, i / k->pieces);
        one_piece(k, run, w, i % k->pieces);
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
    int failed = dnnl_success;
#pragma omp parallel num_threads(threads) if (threads > 1 && heads * k->pieces > 1)
    {
        worker w = {.number = omp_get_thread_num(), .st = dnnl_success};
        w.room = (char *)k->k.b.workspace + k->slots * k->head_room + (size_t)w.number * k->room;
        tr_dnnl_tiles_enter();
        if (k->pieces == 1) whole_heads(k, run, &w, heads);
        for (size_t from = 0; k->pieces > 1 && from < heads; from += k->slots)
            shared_heads(k, run, &w, from, heads - from < k->slots ? heads - from : k->slots);
        if (w.st != dnnl_success) {
#pragma omp atomic write
            failed = (int)w.st;
        }
    }
    if (failed == dnnl_success) return TR_OK;
    return tr_dnnl_fail(__FILE__, __LINE__, (dnnl_status_t)failed, "run a product");
}

/* Memory of a head of keys, and how many heads have it at a time: so many that every thread has a piece. */
static void reserve_heads(tr_attention *k)
{
    const tr_attention_shape *s = &k->s;
    const size_t heads = s->samples * s->kv_heads, all = k->group * s->queries;
    const size_t copy = k->copies * s->D * tr_dtype_size(k->type);
    const size_t wanted = heads ? tr_chunks(ITEMS, heads) : 1;
    k->pieces = wanted < k->nkeys ? wanted : k->nkeys;
    k->slots = tr_chunks((size_t)k->k.threads, k->pieces);
    k->acc = tr_attention_reserve(k, k->pieces * all * s->D * sizeof(float));
    k->rows = tr_attention_reserve(k, all * sizeof(float));
    k->q = tr_attention_reserve(k, all * copy);
    k->dy = tr_attention_reserve(k, all * copy);
    k->head_room = k->room;
    k->room = 0;
}

static void reserve(tr_attention *k)
{
    const tr_attention_shape *s = &k->s;
    const size_t tile = k->queries * k->keys, row = s->D * sizeof(float);
    const size_t copy = k->copies * s->D * tr_dtype_size(k->type);
    reserve_heads(k);
    k->scores = tr_attention_reserve(k, tile * sizeof(float));
    k->dscores = tr_attention_reserve(k, tile * sizeof(float));
    k->probs = k->type == TR_F32 ? k->scores : tr_attention_reserve(k, tile * sizeof(tr_bf16));
    k->dprobs = k->type == TR_F32 ? k->dscores : tr_attention_reserve(k, tile * sizeof(tr_bf16));
    k->dk = tr_attention_reserve(k, k->keys * row);
    k->dv = tr_attention_reserve(k, k->keys * row);
    k->k_as = tr_attention_reserve(k, k->keys * copy);
    k->v_as = tr_attention_reserve(k, k->keys * copy);
}

tr_status tr_cpu_attention_grad(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    tr_attention *k = NULL;
    tr_status st = tr_attention_open(cpu, g, op, run_grad, &k);
    if (st != TR_OK) return st;
    const size_t D = k->s.D, q = tr_attention_pitch(k, k->s.q_pitch);
    const size_t kv = tr_attention_pitch(k, k->s.kv_pitch),
                 dy = tr_attention_pitch(k, k->s.heads * D);
    reserve(k);
    const tr_attention_product products[PRODUCTS] = {
        [SCORES] = {TR_OF_QUERIES, TR_OF_KEYS, TR_OF_D, q, kv, 0, false, true},
        [DPROBS] = {TR_OF_QUERIES, TR_OF_KEYS, TR_OF_D, dy, kv, 0, false, true},
        [DVALUES] = {TR_OF_KEYS, TR_OF_D, TR_OF_QUERIES, 0, dy, D, true, false},
        [DKEYS] = {TR_OF_KEYS, TR_OF_D, TR_OF_QUERIES, 0, q, D, true, false},
        [DQUERIES] = {TR_OF_QUERIES, TR_OF_D, TR_OF_KEYS, 0, kv, D, false, false},
    };
    TR_TRY(tr_dnnl_tiles_open(cpu, PRODUCTS * TR_ATTENTION_SHAPES, &k->tiles));
    for (int p = 0; p < PRODUCTS; p++) TR_TRY(tr_attention_add(k, p, &products[p]));
out:
    return tr_attention_hand_over(k, st, out);
}
