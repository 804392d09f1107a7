/* One row of every sample of a recurrent layer: the gates from both products, and what flows back
 * through them.
 *
 * What a first row lacks (a product, a state before) is a row of zeros that all samples share: its
 * pitch is 0.
 *
 * A sample's row lies far from the next sample's, where no CPU looks ahead by itself: the lines of
 * the next one are asked for, into the second-level cache, block by block, while this one is
 * computed. */
#include "kernels/cpu/loops/vmath.h"

/* BLOCK: elements between two requests. */
enum { BLOCK = 128, LINE = 64 };

/* For elements [from, to) of each of `pieces` that lie H apart. NULL: nothing. */
TR_INLINE void ask(tr_dtype t, const void *p, size_t pieces, size_t H, size_t from, size_t to)
{
    const size_t size = t == TR_BF16 ? 2 : 4;
    if (!p) return;
    for (size_t k = 0; k < pieces; k++)
        for (size_t at = (k * H + from) * size; at < (k * H + to) * size; at += LINE)
            __builtin_prefetch((const char *)p + at, 0, 2);
}

/* Where sample n's row `t` begins in an array of `width` values a row. */
TR_INLINE size_t row_of(const tr_cpu_recurrence *r, size_t n, size_t t, size_t width)
{
    return (n * r->rows + t) * width;
}

TR_INLINE bool behind_end(const tr_cpu_recurrence *r, size_t n, size_t t)
{
    return r->lengths && (int64_t)t >= r->lengths[n];
}

/* ---- Forward --------------------------------------------------------------------------------- */

/* Of one sample's elements [from, to): product p and bias b beside x; `state` float32, which
 * becomes the next; h and y get the output. */
TR_INLINE void lstm_block(tr_dtype t, bool keep, size_t H, size_t from, size_t to, const void *x,
                          const float *p, const float *b, float *state, void *h, void *y,
                          void *gates, float *cells)
{
    TR_SIMD for (size_t j = from; j < to; j++)
    {
        const float i = tr_vsigmoid(tr_load(t, x, j) + p[j] + b[j]);
        const float f = tr_vsigmoid(tr_load(t, x, H + j) + p[H + j] + b[H + j]);
        const float g = tr_vtanh(tr_load(t, x, 2 * H + j) + p[2 * H + j] + b[2 * H + j]);
        const float o = tr_vsigmoid(tr_load(t, x, 3 * H + j) + p[3 * H + j] + b[3 * H + j]);
        const float c = f * state[j] + i * g, out = o * tr_vtanh(c);
        state[j] = c;
        tr_store(t, h, j, out);
        tr_store(t, y, j, out);
        if (keep) {
            tr_store(t, gates, j, i);
            tr_store(t, gates, H + j, f);
            tr_store(t, gates, 2 * H + j, g);
            tr_store(t, gates, 3 * H + j, o);
            cells[j] = c;
        }
    }
}

TR_INLINE void gru_block(tr_dtype t, bool keep, size_t H, size_t from, size_t to, const void *x,
                         const float *p, const float *b, float *state, void *h, void *y,
                         void *gates, void *recurrent)
{
    TR_SIMD for (size_t j = from; j < to; j++)
    {
        const float reset = tr_vsigmoid(tr_load(t, x, j) + p[j] + b[j]);
        const float z = tr_vsigmoid(tr_load(t, x, H + j) + p[H + j] + b[H + j]);
        const float own = p[2 * H + j] + b[2 * H + j];
        const float n = tr_vtanh(tr_load(t, x, 2 * H + j) + reset * own);
        const float out = n + z * (state[j] - n);
        state[j] = out;
        tr_store(t, h, j, out);
        tr_store(t, y, j, out);
        if (keep) {
            tr_store(t, gates, j, reset);
            tr_store(t, gates, H + j, z);
            tr_store(t, gates, 2 * H + j, n);
            tr_store(t, recurrent, j, own);
        }
    }
}

/* The state stays as it is: y is 0, or what it was. What is kept must be finite. */
TR_INLINE void idle_row(tr_dtype t, const tr_cpu_recurrence *r, const void *h, void *y, void *gates,
                        void *kept)
{
    const size_t H = r->hidden, size = t == TR_BF16 ? 2 : 4;
    if (r->hold)
        memcpy(y, h, H * size);
    else
        memset(y, 0, H * size);
    if (!gates) return;
    memset(gates, 0, r->gates * H * size);
    memset(kept, 0, H * (r->gates == TR_LSTM_GATES ? sizeof(float) : size));
}

/* Where the operands' rows of one sample begin. */
typedef struct {
    const void *x;
    void *y, *gates, *kept;
} forward_row;

TR_INLINE forward_row forward_row_of(tr_dtype t, bool keep, const tr_cpu_recurrence *r, size_t n,
                                     size_t row)
{
    const size_t wide = row_of(r, n, row, r->gates * r->hidden),
                 narrow = row_of(r, n, row, r->hidden);
    const tr_dtype kept = r->gates == TR_LSTM_GATES ? TR_F32 : t;
    return (forward_row){.x = tr_from(t, r->x, wide),
                         .y = tr_into(t, r->y, narrow),
                         .gates = keep ? tr_into(t, r->kept_gates, wide) : NULL,
                         .kept = keep ? tr_into(kept, r->kept, narrow) : NULL};
}

TR_INLINE void recurrent_body(tr_dtype t, bool keep, const tr_cpu_recurrence *r, size_t row,
                              bool first, size_t begin, size_t end)
{
    const size_t H = r->hidden, G = r->gates * H;
    const bool lstm = r->gates == TR_LSTM_GATES;
    const float *b = r->bias ? r->bias : r->zeros;
    for (size_t n = begin; n < end; n++) {
        const forward_row s = forward_row_of(t, keep, r, n, row);
        const forward_row next = forward_row_of(t, keep, r, n + 1 < end ? n + 1 : n, row);
        const float *p = first ? r->zeros : r->product + n * G;
        float *state = r->state + n * H;
        void *h = tr_into(t, r->h, n * H);
        if (behind_end(r, n, row)) {
            idle_row(t, r, h, s.y, s.gates, s.kept);
            continue;
        }
        for (size_t from = 0; from < H; from += BLOCK) {
            const size_t to = tr_least(from + BLOCK, H);
            ask(t, next.x, r->gates, H, from, to);
            ask(t, next.gates, r->gates, H, from, to);
            ask(lstm ? TR_F32 : t, next.kept, 1, H, from, to);
            ask(t, next.y, 1, H, from, to);
            if (lstm)
                lstm_block(t, keep, H, from, to, s.x, p, b, state, h, s.y, s.gates, s.kept);
            else
                gru_block(t, keep, H, from, to, s.x, p, b, state, h, s.y, s.gates, s.kept);
        }
    }
}

void TR_LOOP(recurrent)(const tr_cpu_recurrence *r, size_t row, bool first, size_t begin,
                        size_t end)
{
    if (r->kept_gates)
        TR_BY_TYPE(r->type, recurrent_body(T, true, r, row, first, begin, end));
    else
        TR_BY_TYPE(r->type, recurrent_body(T, false, r, row, first, begin, end));
}

/* ---- Backward -------------------------------------------------------------------------------- */

/* Of one sample's elements [from, to): the gradient of the output is dy + p (through the next row's
 * product) + through (past it). */
TR_INLINE void lstm_grad_block(tr_dtype t, size_t H, size_t from, size_t to, const void *dy,
                               const float *p, const float *through, const void *gates,
                               const float *cells, const float *before, float *dcell, void *dg,
                               void *dx)
{
    TR_SIMD for (size_t j = from; j < to; j++)
    {
        const float i = tr_load(t, gates, j), f = tr_load(t, gates, H + j);
        const float g = tr_load(t, gates, 2 * H + j), o = tr_load(t, gates, 3 * H + j);
        const float dh = tr_load(t, dy, j) + p[j] + through[j], c = tr_vtanh(cells[j]);
        const float dc = dcell[j] + dh * o * (1.0f - c * c);
        const float di = dc * g * i * (1.0f - i), df = dc * before[j] * f * (1.0f - f);
        const float dn = dc * i * (1.0f - g * g), d_o = dh * c * o * (1.0f - o);
        dcell[j] = dc * f;
        tr_store(t, dg, j, di);
        tr_store(t, dg, H + j, df);
        tr_store(t, dg, 2 * H + j, dn);
        tr_store(t, dg, 3 * H + j, d_o);
        tr_store(t, dx, j, di);
        tr_store(t, dx, H + j, df);
        tr_store(t, dx, 2 * H + j, dn);
        tr_store(t, dx, 3 * H + j, d_o);
    }
}

TR_INLINE void gru_grad_block(tr_dtype t, size_t H, size_t from, size_t to, const void *dy,
                              const float *p, float *through, const void *gates,
                              const void *recurrent, const void *before, void *dg, void *dx)
{
    TR_SIMD for (size_t j = from; j < to; j++)
    {
        const float r = tr_load(t, gates, j), z = tr_load(t, gates, H + j);
        const float n = tr_load(t, gates, 2 * H + j), own = tr_load(t, recurrent, j);
        const float dh = tr_load(t, dy, j) + p[j] + through[j];
        const float dn = dh * (1.0f - z) * (1.0f - n * n);
        const float dz = dh * (tr_load(t, before, j) - n) * z * (1.0f - z);
        const float dr = dn * own * r * (1.0f - r);
        through[j] = dh * z;
        tr_store(t, dg, j, dr);
        tr_store(t, dg, H + j, dz);
        tr_store(t, dg, 2 * H + j, dn * r);
        tr_store(t, dx, j, dr);
        tr_store(t, dx, H + j, dz);
        tr_store(t, dx, 2 * H + j, dn);
    }
}

/* Nothing reaches the gates: the output's gradient goes past them, with dy where the row had the
 * state. */
TR_INLINE void idle_grad_row(tr_dtype t, const tr_cpu_recurrence *r, const void *dy, const float *p,
                             float *through, void *dg, void *dx)
{
    const size_t H = r->hidden, nbytes = r->gates * H * (t == TR_BF16 ? 2 : 4);
    const float own = r->hold ? 1.0f : 0.0f;
    TR_SIMD for (size_t j = 0; j < H; j++) through[j] += p[j] + own * tr_load(t, dy, j);
    memset(dg, 0, nbytes);
    memset(dx, 0, nbytes);
}

typedef struct {
    const void *dy, *gates, *kept, *before; /* before: the output of the row before */
    const float *cells;                     /* of an LSTM, of the row before */
    void *dx, *before_out;
} grad_row;

TR_INLINE grad_row grad_row_of(tr_dtype t, const tr_cpu_recurrence *r, size_t n, size_t row,
                               bool last)
{
    const bool lstm = r->gates == TR_LSTM_GATES;
    const size_t wide = row_of(r, n, row, r->gates * r->hidden),
                 narrow = row_of(r, n, row, r->hidden);
    const size_t earlier = last ? 0 : row_of(r, n, r->reverse ? row + 1 : row - 1, r->hidden);
    return (grad_row){.dy = tr_from(t, r->dy, narrow),
                      .gates = tr_from(t, r->kept_gates, wide),
                      .kept = tr_from(lstm ? TR_F32 : t, r->kept, narrow),
                      .before = last ? r->zeros : tr_from(t, r->y, earlier),
                      .cells = last   ? r->zeros
                               : lstm ? (const float *)r->kept + earlier
                                      : NULL,
                      .dx = tr_into(t, r->dx, wide),
                      .before_out = r->before ? tr_into(t, r->before, narrow) : NULL};
}

TR_INLINE void recurrent_grad_body(tr_dtype t, const tr_cpu_recurrence *r, size_t row, bool first,
                                   bool last, size_t begin, size_t end)
{
    const size_t H = r->hidden, G = r->gates * H, size = t == TR_BF16 ? 2 : 4;
    const bool lstm = r->gates == TR_LSTM_GATES;
    for (size_t n = begin; n < end; n++) {
        const grad_row s = grad_row_of(t, r, n, row, last);
        const grad_row next = grad_row_of(t, r, n + 1 < end ? n + 1 : n, row, last);
        const float *p = first ? r->zeros : r->product + n * H;
        float *state = r->state + n * H, *through = r->through + n * H;
        void *dg = tr_into(t, r->dg, n * G);
        const bool idle = behind_end(r, n, row);
        if (idle) idle_grad_row(t, r, s.dy, p, through, dg, s.dx);
        for (size_t from = 0; from < H && !idle; from += BLOCK) {
            const size_t to = tr_least(from + BLOCK, H);
            ask(t, next.gates, r->gates, H, from, to);
            ask(t, next.dx, r->gates, H, from, to);
            ask(t, next.dy, 1, H, from, to);
            ask(t, next.before, 1, H, from, to);
            ask(t, next.before_out, 1, H, from, to);
            /* its own cells, this row's, were the row before's of the last call */
            if (lstm) {
                ask(TR_F32, next.cells, 1, H, from, to);
                lstm_grad_block(t, H, from, to, s.dy, p, through, s.gates, s.kept, s.cells, state,
                                dg, s.dx);
            } else {
                ask(t, next.kept, 1, H, from, to);
                gru_grad_block(t, H, from, to, s.dy, p, through, s.gates, s.kept, s.before, dg,
                               s.dx);
            }
        }
        if (lstm && r->lengths && !idle) memset(through, 0, H * sizeof *through);
        if (r->before) memcpy(s.before_out, s.before, H * size);
        if (r->dproduct) memcpy(tr_into(t, r->dproduct, row_of(r, n, row, G)), dg, G * size);
    }
}

void TR_LOOP(recurrent_grad)(const tr_cpu_recurrence *r, size_t row, bool first, bool last,
                             size_t begin, size_t end)
{
    TR_BY_TYPE(r->type, recurrent_grad_body(T, r, row, first, last, begin, end));
}
