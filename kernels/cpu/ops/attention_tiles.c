/* What attention's forward and backward kernels share: tiles, their parts and products, and copies
 * of rows. */
#include "kernels/cpu/ops/attention.h"

#include <math.h>
#include <string.h>

enum { LINE = 64 };

static void close_kernel(tr_kernel *base)
{
    tr_attention *k = (tr_attention *)base;
    if (!k) return;
    tr_dnnl_tiles_close(k->tiles);
    tr_free(k);
}

size_t tr_attention_reserve(tr_attention *k, size_t nbytes)
{
    const size_t at = k->room;
    k->room += tr_align_up(nbytes, LINE);
    return at;
}

tr_status tr_attention_open(tr_cpu *cpu, const tr_graph *g, const tr_op *op, bool pairs,
                            tr_status (*run)(tr_kernel *, const tr_run *), tr_attention **out)
{
    const tr_attention_shape s = tr_attention_of(g, op);
    tr_attention *k = NULL;
    const tr_status st =
        tr_loop_kernel_open(cpu, &g->tensors[op->in[s.q]], "own", run, sizeof *k, &k);
    if (st != TR_OK) return st;
    k->k.base.close = close_kernel;
    k->s = s;
    k->a = *(const tr_attention_attrs *)op->attrs;
    if (g->mode != TR_MODE_TRAIN) k->a.dropout = 0;
    k->type = k->k.dtype == TR_BF16 && cpu->bf16_faster ? TR_BF16 : TR_F32;
    k->pairs = k->type == TR_BF16 && pairs;
    k->own = k->type == TR_F32 || k->pairs;
    k->step = k->pairs ? TR_ATTENTION_PAIR_ROWS : k->own ? TR_ATTENTION_ROWS : TR_ATTENTION_STEP;
    k->copies = k->own || s.q_pitch > s.D;
    k->queries = s.queries < TR_ATTENTION_QUERIES ? s.queries : TR_ATTENTION_QUERIES;
    k->keys = s.keys < TR_ATTENTION_KEYS ? s.keys : TR_ATTENTION_KEYS;
    k->width = k->own ? tr_align_up(s.D, TR_CPU_PRODUCT_COLUMNS) : s.D;
    /* rows begin in other sets of the first-level cache, even where there are 256 keys */
    k->turned = tr_align_up(k->keys, TR_CPU_PRODUCT_COLUMNS) + LINE / sizeof(float);
    k->pitch = k->own ? k->turned : 0;
    k->nqueries = tr_chunks(s.queries, k->queries);
    k->nkeys = tr_chunks(s.keys, k->keys);
    k->masked = k->a.causal || k->a.window || s.lengths >= 0;
    k->group = s.heads / s.kv_heads;
    k->stream = (uint32_t)op->layer_index;
    *out = k;
    return TR_OK;
}

tr_status tr_attention_hand_over(tr_attention *k, tr_status st, tr_kernel **out)
{
    if (st != TR_OK) {
        close_kernel((tr_kernel *)k);
        return st;
    }
    if (!k->own) k->scratch = tr_attention_reserve(k, tr_dnnl_tiles_scratch(k->tiles));
    k->k.base.workspace = k->slots * k->head_room + k->room * (size_t)k->k.threads;
    if (!k->own) k->k.base.impl = tr_dnnl_tiles_impl(k->tiles);
    *out = &k->k.base;
    return TR_OK;
}

size_t tr_attention_tile(const tr_attention *k)
{
    const size_t rows = k->queries < k->step ? k->queries : k->step;
    return k->own ? rows * k->pitch : k->queries * k->keys;
}

/* Queries of height h, keys of width w; 0: there is no such part. */
static size_t queries_of(const tr_attention *k, int h)
{
    const size_t all = k->s.queries;
    const size_t of[TR_ATTENTION_HEIGHTS] = {k->queries, all % k->queries, TR_ATTENTION_STEP,
                                             all % TR_ATTENTION_STEP};
    return of[h] <= k->queries ? of[h] : 0;
}

static size_t keys_of_width(const tr_attention *k, int w)
{
    const int steps = w % (TR_ATTENTION_WIDTHS / 2);
    const size_t n = w < TR_ATTENTION_WIDTHS / 2
                         ? (size_t)(steps + 1) * TR_ATTENTION_STEP
                         : (size_t)steps * TR_ATTENTION_STEP + k->s.keys % TR_ATTENTION_STEP;
    return n <= k->keys ? n : 0;
}

static int height_of(const tr_attention *k, size_t queries)
{
    int h = 0;
    while (queries_of(k, h) != queries) h++;
    return h;
}

static int width_of(size_t keys)
{
    const int steps = (int)(keys / TR_ATTENTION_STEP);
    return keys % TR_ATTENTION_STEP ? TR_ATTENTION_WIDTHS / 2 + steps : steps - 1;
}

/* Which product of p: by the numbers of queries and keys. */
static int which(const tr_attention *k, int p, size_t queries, size_t keys)
{
    return p * TR_ATTENTION_SHAPES + height_of(k, queries) * TR_ATTENTION_WIDTHS + width_of(keys);
}

/* Whether tiles, or parts of them, are so many queries by so many keys. */
static bool occurs(const tr_attention *k, size_t queries, size_t keys)
{
    const bool whole = keys == k->keys || keys == k->s.keys % k->keys;
    const bool tile = queries == k->queries || queries == k->s.queries % k->queries;
    const bool part = queries == TR_ATTENTION_STEP || queries == k->s.queries % TR_ATTENTION_STEP;
    return queries && keys && ((tile && whole) || (part && k->masked));
}

static tr_dnnl_array matrix(size_t rows, size_t cols, size_t pitch, bool turned, tr_dtype type)
{
    return tr_dnnl_matrix((int64_t)rows, (int64_t)cols, turned ? 1 : (int64_t)pitch,
                          turned ? (int64_t)pitch : 1, type);
}

static size_t extent(const tr_attention *k, tr_attention_extent of, size_t queries, size_t keys)
{
    return of == TR_OF_D ? k->s.D : of == TR_OF_QUERIES ? queries : keys;
}

static tr_status add_product(tr_attention *k, int p, const tr_attention_product *of)
{
    tr_status st = TR_OK;
    for (int i = 0; i < TR_ATTENTION_SHAPES && st == TR_OK; i++) {
        const size_t queries = queries_of(k, i / TR_ATTENTION_WIDTHS);
        const size_t keys = keys_of_width(k, i % TR_ATTENTION_WIDTHS);
        if (!occurs(k, queries, keys) || which(k, p, queries, keys) != p * TR_ATTENTION_SHAPES + i)
            continue;
        const size_t m = extent(k, of->m, queries, keys), n = extent(k, of->n, queries, keys),
                     depth = extent(k, of->depth, queries, keys);
        const size_t a_pitch = of->a_pitch ? of->a_pitch : keys;
        const size_t c_pitch = of->c_pitch ? of->c_pitch : keys;
        const tr_dnnl_array a = matrix(m, depth, a_pitch, of->a_turned, k->type);
        const tr_dnnl_array b = matrix(depth, n, of->b_pitch, of->b_turned, k->type);
        const tr_dnnl_array c = matrix(m, n, c_pitch, false, TR_F32);
        st = tr_dnnl_tiles_add(k->tiles, p * TR_ATTENTION_SHAPES + i, &a, &b, &c, of->n == TR_OF_D);
    }
    return st;
}

tr_status tr_attention_multiply_by(tr_cpu *cpu, tr_attention *k, const tr_attention_product *of,
                                   int count)
{
    tr_status st = TR_OK;
    for (int p = 0; p < count; p++) k->products[p] = of[p];
    if (k->own) return TR_OK;
    TR_TRY(tr_dnnl_tiles_open(cpu, count * TR_ATTENTION_SHAPES, &k->tiles));
    for (int p = 0; p < count; p++) TR_TRY(add_product(k, p, &of[p]));
out:
    return st;
}

dnnl_status_t tr_attention_multiply(const tr_attention *k, int p, const tr_attention_part *part,
                                    int number, const void *a, const void *b, void *c,
                                    void *scratch)
{
    if (!k->own)
        return tr_dnnl_tiles_run(k->tiles, which(k, p, part->rows, part->columns), number, a, b, c,
                                 scratch);
    const tr_attention_product *of = &k->products[p];
    const size_t a_pitch = of->a_pitch ? of->a_pitch : k->pitch;
    const size_t n = extent(k, of->n, part->rows, part->columns);
    const tr_cpu_product own = {
        .m = extent(k, of->m, part->rows, part->columns),
        .n = tr_align_up(n, TR_CPU_PRODUCT_COLUMNS),
        .depth = tr_attention_words(k, extent(k, of->depth, part->rows, part->columns)),
        .a_row = of->a_turned ? 1 : tr_attention_words(k, a_pitch),
        .a_column = of->a_turned ? a_pitch : 1,
        .b_pitch = of->b_turned ? k->turned : of->b_pitch,
        .c_pitch = of->c_pitch ? of->c_pitch : k->pitch,
        .add = of->n == TR_OF_D};
    if (k->pairs)
        k->k.loops->product_pairs(&own, a, b, c);
    else
        k->k.loops->product(&own, a, b, c);
    return dnnl_success;
}

/* Keys that queries [first, last] see anything of. */
static tr_key_range seen_by(const tr_attention *k, int64_t first, int64_t last, int64_t length)
{
    const int64_t begin = tr_attention_keys(first, length, k->a.causal, k->a.window).begin;
    const int64_t end = tr_attention_keys(last, length, k->a.causal, k->a.window).end;
    return (tr_key_range){begin, end < begin ? begin : end};
}

tr_attention_span tr_attention_seen(const tr_attention *k, size_t qt, int64_t length)
{
    const int64_t first = (int64_t)(qt * k->queries);
    const int64_t last = first + (int64_t)tr_chunk_size(k->s.queries, k->queries, qt) - 1;
    const tr_key_range r = seen_by(k, first, last, length);
    if (r.end <= r.begin) return (tr_attention_span){0, 0};
    return (tr_attention_span){(size_t)r.begin / k->keys, tr_chunks((size_t)r.end, k->keys)};
}

/* What of a tile its rows from `row` on see, in whole steps. */
static tr_attention_part part_of(const tr_attention *k, size_t qt, size_t kt, size_t row,
                                 size_t rows, int64_t length)
{
    const int64_t from = (int64_t)(kt * k->keys), first = (int64_t)(qt * k->queries + row);
    const size_t columns = tr_align_up(tr_chunk_size(k->s.keys, k->keys, kt), k->pairs ? 2 : 1);
    const tr_key_range r = seen_by(k, first, first + (int64_t)rows - 1, length);
    if (r.end <= from || r.begin >= from + (int64_t)columns || r.end <= r.begin)
        return (tr_attention_part){row, rows, 0, 0};
    const size_t step = k->own ? TR_ATTENTION_COLUMNS : TR_ATTENTION_STEP;
    const size_t begin = r.begin > from ? (size_t)(r.begin - from) : 0;
    /* Of own products the depth ends with what is seen: what stands behind a sample's length may be
     * no number. */
    const size_t end = tr_align_up((size_t)(r.end - from), k->pairs ? 2 : k->own ? 1 : step);
    const size_t column = begin / step * step;
    return (tr_attention_part){row, rows, column, (end < columns ? end : columns) - column};
}

int tr_attention_parts(const tr_attention *k, size_t qt, size_t kt, int64_t length,
                       tr_attention_part parts[TR_ATTENTION_PARTS])
{
    const size_t rows = tr_chunk_size(k->s.queries, k->queries, qt);
    const size_t columns = tr_chunk_size(k->s.keys, k->keys, kt);
    const size_t step = k->step;
    bool whole = !k->own;
    int n = 0;
    for (size_t row = 0; (k->own || k->masked) && row < rows; row += step) {
        parts[n] = part_of(k, qt, kt, row, rows - row < step ? rows - row : step, length);
        whole &= parts[n].columns == columns;
        n += parts[n].columns > 0;
    }
    if (!whole) return n;
    parts[0] = (tr_attention_part){0, rows, 0, columns};
    return 1;
}

tr_cpu_scores tr_attention_scores(const tr_attention *k, const tr_run *run, size_t sample,
                                  size_t head, size_t qt, size_t kt, const tr_attention_part *part,
                                  int64_t length)
{
    const tr_attention_shape *s = &k->s;
    const size_t row = qt * k->queries + part->row;
    return (tr_cpu_scores){
        .row = (int64_t)row,
        .column = (int64_t)(kt * k->keys + part->column),
        .rows = (int64_t)part->rows,
        .columns = (int64_t)part->columns,
        .keys = length,
        .window = k->a.window,
        .causal = k->a.causal,
        .pitch = k->pitch ? k->pitch : part->columns,
        .D = s->D,
        .scale = s->scale,
        .slope = k->a.alibi ? exp2f(tr_attention_slope_power((int)head, (int)s->heads)) : 0.0f,
        .key = tr_philox_key(run->seed, TR_RNG_DROPOUT, k->stream),
        .index = tr_attention_draw(run->ordinal + sample, s->heads, head, row),
        .drop = (float)k->a.dropout,
        .keep = (float)(1 / (1 - k->a.dropout))};
}

size_t tr_attention_pitch(const tr_attention *k, size_t pitch)
{
    return k->copies ? k->width : pitch;
}

/* Fetches the n values from p on into the cache ahead of their use: consecutive rows often lie on
 * different pages, over which the processor does not look ahead by itself. */
enum { AHEAD = 12 };
#define FETCH(p, n, type, write)                                                                   \
    for (size_t at_ = 0, end_ = (n)*tr_dtype_size(type); at_ < end_; at_ += LINE)                  \
    __builtin_prefetch((const char *)(p) + at_, write)

tr_attention_rows tr_attention_read(const tr_attention *k, const void *in, size_t pitch, size_t at,
                                    size_t row, size_t count, void *to)
{
    const tr_dtype t = k->k.dtype;
    const size_t size = tr_dtype_size(k->type);
    const void *from = tr_loop_at(t, in, row * pitch + at);
    if (!k->copies) return (tr_attention_rows){from, pitch};
    for (size_t r = 0; r < count; r++) {
        char *row_to = tr_loop_to(k->type, to, r * k->width);
        if (r + AHEAD < count) FETCH(tr_loop_at(t, from, (r + AHEAD) * pitch), k->s.D, t, 0);
        if (t == k->type)
            memcpy(row_to, tr_loop_at(t, from, r * pitch), k->s.D * size);
        else
            k->k.loops->cast_f32((float *)(void *)row_to, tr_loop_at(t, from, r * pitch), k->s.D);
        if (k->width > k->s.D) memset(row_to + k->s.D * size, 0, (k->width - k->s.D) * size);
    }
    return (tr_attention_rows){to, k->width};
}

void tr_attention_read_pairs(const tr_attention *k, const void *in, size_t pitch, size_t at,
                             size_t row, size_t count, size_t seen, void *to)
{
    const size_t D = k->s.D;
    const tr_bf16 *from = (const tr_bf16 *)in + row * pitch + at;
    for (size_t r = 0; r < count; r += 2) {
        uint32_t *row_to = tr_loop_to(k->type, to, r * k->width);
        const tr_bf16 *first = from + r * pitch;
        if (r + AHEAD < seen) FETCH(first + AHEAD * pitch, D, TR_BF16, 0);
        if (r + AHEAD + 1 < seen) FETCH(first + (AHEAD + 1) * pitch, D, TR_BF16, 0);
        const size_t rows = r + 1 < seen ? 2 : r < seen ? 1 : 0, width = rows ? D : 0;
        if (rows) k->k.loops->pair_rows(first, rows == 2 ? first + pitch : NULL, row_to, D);
        memset(row_to + width, 0, (k->width - width) * sizeof *row_to);
    }
}

void tr_attention_turn(const tr_attention *k, const void *rows, size_t count, void *to)
{
    float *y = to;
    const size_t end = tr_align_up(count, TR_CPU_PRODUCT_COLUMNS);
    const size_t depth = tr_attention_words(k, k->s.D);
    k->k.loops->transpose_apart(rows, tr_attention_words(k, k->width), y, k->turned, count, depth);
    for (size_t d = 0; d < depth && count < end; d++)
        memset(y + d * k->turned + count, 0, (end - count) * sizeof *y);
}

void tr_attention_write(const tr_attention *k, const float *from, void *out, size_t pitch,
                        size_t at, size_t row, size_t count)
{
    const tr_dtype t = k->k.dtype;
    for (size_t r = 0; r < count; r++) {
        void *to = tr_loop_to(t, out, (row + r) * pitch + at);
        if (r + AHEAD < count)
            FETCH(tr_loop_at(t, out, (row + r + AHEAD) * pitch + at), k->s.D, t, 1);
        if (t == TR_BF16)
            k->k.loops->cast_bf16(to, from + r * k->width, k->s.D);
        else
            memcpy(to, from + r * k->width, k->s.D * sizeof *from);
    }
}
