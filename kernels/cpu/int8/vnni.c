/* Products with AVX-512 VNNI: four bytes of a position against four of 16 outputs at once. The
 * instruction takes x as unsigned, so signed x is moved up by 128, and 128 times the weights' sum
 * is taken away again. Positions are gathered over rows of the image, so that as many as keep both
 * multipliers busy are computed at once. */
#include "kernels/cpu/int8/store512.h"

#include <string.h>

/* Positions at once: where they lie a step apart MANY with one tile of outputs, MANY_OF_TWO with
 * two. RUN, all registers with two tiles, divides the rows of images of 224 and what halves of
 * them. */
enum { ROWS = 8, SEVEN = 7, FEW = 4, MANY = 16, MANY_OF_TWO = 12, RUN = 14 };
enum { GATHERED = TR_INT8_BLOCKS * TR_INT8_BLOCK };

/* The first byte of each position's window; step: between them, where it is the same. ahead:
 * weights that are needed next, so many lines of which are asked for with each chunk of a
 * segment. */
typedef struct {
    const uint8_t *at[ROWS];
    int64_t step;
    const int8_t *ahead;
    int64_t ahead_lines;
} places;

enum { LINE = 64, WORDS = TR_INT8_CHUNK / 4, FAR = 128 << 10 };

/* Weights beyond FAR come from memory, all of a network's through a second-level cache that does
 * not hold them: the next tiles' while these are multiplied, a share with each of the image's
 * positions. Rows of linear layers are too few, or networks of them so small that it costs more
 * than it brings. */
static void look_ahead(const tr_int8_work *w, int tiles, int rows, int64_t to, places *x)
{
    const tr_int8_plan *p = w->p;
    const int64_t chunks = p->segments * (p->full + (p->tail > 0)), positions = p->s.OH * p->s.OW;
    const int64_t total = chunks * TR_INT8_TILE * tiles, next = w->tile + tiles;
    x->ahead_lines = 0;
    if (next + tiles > p->s.groups * p->tiles) return;
    x->ahead =
        w->r->w.weights + next * chunks * TR_INT8_TILE + total * (to % positions) / positions;
    x->ahead_lines = (total * rows / positions / chunks + LINE - 1) / LINE;
}

/* What `all` is for. PLAIN; FLIPPED: x is signed, and not moved yet; FARTHER: weights are asked for
 * ahead. */
typedef enum { PLAIN, FLIPPED, FARTHER } kind;

/* rows, tiles, spaced, how: constants where they are called. spaced: by step. */

/* Words [begin, end) of a segment that begins at at[i] for position i. */
static inline __attribute__((always_inline)) void
add_words(const int8_t *v, int64_t other, const uint8_t *const at[ROWS], int64_t step,
          int64_t begin, int64_t end, int rows, int tiles, bool spaced, kind how,
          __m512i acc[MANY][TR_INT8_TILES])
{
    enum { FOUR = 4 };
    const uint8_t *base[MANY / FOUR];
    for (int i = 0; spaced && i < rows; i += FOUR) base[i / FOUR] = at[0] + i * step + begin * 4;
    for (int64_t k = begin; k < end; k++) {
        __m512i b[TR_INT8_TILES];
        for (int t = 0; t < tiles; t++) b[t] = _mm512_loadu_si512(v + t * other + k * 64);
        for (int i = 0; i < rows; i++) {
            int32_t word;
            memcpy(&word, spaced ? base[i / FOUR] + i % FOUR * step : at[i] + k * 4, sizeof word);
            __m512i a = _mm512_set1_epi32(word);
            if (how == FLIPPED) a = _mm512_xor_si512(a, _mm512_set1_epi8((char)0x80));
            for (int t = 0; t < tiles; t++) acc[i][t] = _mm512_dpbusd_epi32(acc[i][t], a, b[t]);
        }
        for (int i = 0; spaced && i < rows; i += FOUR) {
            base[i / FOUR] += 4;
            /* else compilers keep a pointer each, those beyond 16 in vectors, whose way back is a
             * multiplier's port */
            __asm__("" : "+r"(base[i / FOUR]));
        }
    }
}

static inline __attribute__((always_inline)) void multiply(const tr_int8_work *w, const places *x,
                                                           int rows, int tiles, bool spaced,
                                                           kind how,
                                                           __m512i acc[MANY][TR_INT8_TILES])
{
    const tr_int8_plan *p = w->p;
    const tr_int8_shape *s = &p->s;
    const bool together = s->dilation[1] == 1;
    const int64_t row = p->padded_w * s->C, chunks = p->full + (p->tail > 0), step = x->step;
    const int64_t other = p->segments * chunks * TR_INT8_TILE;
    const int64_t words = p->full * 16 + p->tail / 4;
    const int8_t *v = w->r->w.weights + w->tile * other, *ahead = x->ahead;
    for (int i = 0; i < rows; i++)
        for (int t = 0; t < tiles; t++) acc[i][t] = _mm512_setzero_si512();
    for (int64_t g = 0; g < p->segments; g++) {
        const int64_t ky = together ? g : g / s->kernel[1], kx = together ? 0 : g % s->kernel[1];
        const int64_t from = ky * s->dilation[0] * row + kx * s->dilation[1] * s->C;
        const uint8_t *at[ROWS];
        for (int i = 0; i < (spaced ? 1 : rows); i++) at[i] = x->at[i] + from;
        if (how != FARTHER) /* short segments feel a second loop */
            add_words(v, other, at, step, 0, words, rows, tiles, spaced, how, acc);
        for (int64_t k = 0; how == FARTHER && k < words; k += WORDS) {
            for (int64_t i = 0; i < x->ahead_lines; i++, ahead += LINE)
                _mm_prefetch((const char *)ahead, _MM_HINT_T1);
            add_words(v, other, at, step, k, k + WORDS < words ? k + WORDS : words, rows, tiles,
                      spaced, how, acc);
        }
        v += chunks * TR_INT8_TILE;
    }
    for (int t = 0; p->x_signed && t < tiles; t++) {
        const __m512i moved =
            _mm512_slli_epi32(_mm512_loadu_si512(w->r->w.sums + (w->tile + t) * 16), 7);
        for (int i = 0; i < rows; i++) acc[i][t] = _mm512_sub_epi32(acc[i][t], moved);
    }
}

static inline __attribute__((always_inline)) void
some(const tr_int8_work *w, const places *x, int64_t to, int rows, int tiles, bool spaced, kind how)
{
    __m512i acc[MANY][TR_INT8_TILES];
    tr_int8_store s[TR_INT8_TILES];
    multiply(w, x, rows, tiles, spaced, how, acc);
    for (int t = 0; t < tiles; t++) s[t] = tr_int8_store_of(w->r, w->tile + t, w->left - t * 16);
    const size_t O = (size_t)(w->p->s.groups * w->p->s.O), at = (size_t)to * O + (size_t)w->out;
    TR_INT8_BY_STORE(
        w->r, tr_int8_store_rows(s, tiles, acc[0], TR_INT8_TILES, 1, rows, TYPE, RESIDUAL, O, at));
}

/* All positions of the blocks, which lie one behind the other in y. */
static int64_t gather(const tr_int8_work *w, const uint8_t *at[GATHERED])
{
    int64_t n = 0;
    for (int b = 0; b < w->nblocks; b++)
        for (int k = 0; k < w->nspans[b]; k++) {
            const tr_int8_span *span = &w->spans[b][k];
            for (int32_t i = 0; i < span->n; i++)
                at[n++] = w->at[b] + (span->from + i) * w->p->step;
        }
    return n;
}

static int64_t rows_of(int64_t left)
{
    if (left % ROWS && left % SEVEN == 0) return SEVEN; /* images of 7 x 7 */
    return left >= ROWS ? ROWS : left >= FEW ? FEW : 1;
}

static inline __attribute__((always_inline)) void all(const tr_int8_work *w, int tiles, kind how)
{
    const bool runs = tiles == 2 && w->p->block == RUN;
    const int many = runs ? RUN : tiles == 1 ? MANY : MANY_OF_TWO;
    const uint8_t *at[GATHERED];
    const int64_t n = gather(w, at), to = n ? w->spans[0][0].to : 0, step = w->p->step;
    places x = {.step = step};
    int64_t i = 0, rows;
    for (; i < n; i += rows) {
        if (i + many <= n && at[i + many - 1] - at[i] == (many - 1) * step) {
            rows = many;
            x.at[0] = at[i];
            if (how == FARTHER) look_ahead(w, tiles, many, to + i, &x);
            if (runs)
                some(w, &x, to + i, RUN, tiles, true, how);
            else
                some(w, &x, to + i, tiles == 1 ? MANY : MANY_OF_TWO, tiles, true, how);
            continue;
        }
        rows = rows_of(n - i);
        memcpy(x.at, at + i, (size_t)rows * sizeof *at);
        if (how == FARTHER) look_ahead(w, tiles, (int)rows, to + i, &x);
        if (rows == ROWS)
            some(w, &x, to + i, ROWS, tiles, false, how);
        else if (rows == SEVEN)
            some(w, &x, to + i, SEVEN, tiles, false, how);
        else if (rows == FEW)
            some(w, &x, to + i, FEW, tiles, false, how);
        else
            some(w, &x, to + i, 1, tiles, false, how);
    }
}

/* Functions of their own: compilers keep sums and places in registers where they see one such loop
 * at a time. */
#define ALL(name, tiles, how)                                                                      \
    static __attribute__((noinline)) void name(const tr_int8_work *w)                              \
    {                                                                                              \
        all(w, tiles, how);                                                                        \
    }
ALL(one_plain, 1, PLAIN)
ALL(two_plain, 2, PLAIN)
ALL(one_flipped, 1, FLIPPED)
ALL(two_flipped, 2, FLIPPED)
ALL(one_farther, 1, FARTHER)
ALL(two_farther, 2, FARTHER)
#undef ALL

static void blocks(const tr_int8_work *w)
{
    const tr_int8_plan *p = w->p;
    const bool one = w->ntiles == 1;
    if (p->x_signed && !p->copied)
        one ? one_flipped(w) : two_flipped(w);
    else if (p->s.H > 1 && (int64_t)p->weight_bytes >= FAR)
        one ? one_farther(w) : two_farther(w);
    else
        one ? one_plain(w) : two_plain(w);
}

const tr_int8_code tr_int8_vnni = {.blocks = blocks,
                                   .blocks_of_one = TR_INT8_BLOCKS,
                                   .blocks_of_two = TR_INT8_BLOCKS,
                                   .moved = true,
                                   .run = RUN,
                                   .depthwise = tr_int8_depthwise_vnni};
