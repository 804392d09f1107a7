/* What attention's forward and backward kernels share: tiles, and a thread's memory. */
#ifndef TR_CPU_OPS_ATTENTION_H
#define TR_CPU_OPS_ATTENTION_H

#include "kernels/cpu/onednn/onednn.h"
#include "kernels/cpu/ops/loop_kernel.h"

/* Queries and keys of a tile. Where products are oneDNN's, its scores stay in the second-level
 * cache, and a tile that is masked in part is cut into parts of STEP queries, each with the keys
 * that they see, to multiples of STEP. Own products (loops->product) cost no call: every tile is
 * cut into parts of ROWS queries, of pairs PAIR_ROWS, whose scores stay in the first-level cache,
 * with the keys that they see to multiples of COLUMNS. */
enum { TR_ATTENTION_QUERIES = 128, TR_ATTENTION_KEYS = 256, TR_ATTENTION_STEP = 64 };
enum { TR_ATTENTION_ROWS = 32, TR_ATTENTION_PAIR_ROWS = 16 };
enum { TR_ATTENTION_COLUMNS = TR_CPU_PRODUCT_COLUMNS };

/* Part of a tile: `rows` queries from its row `row` on, `columns` keys from its column `column`
 * on. */
typedef struct {
    size_t row, rows, column, columns;
} tr_attention_part;

/* Numbers of queries that parts have: those of a whole tile, of the last one, STEP, or what is left
 * of that; of keys: multiples of STEP or others. */
enum { TR_ATTENTION_HEIGHTS = 4, TR_ATTENTION_WIDTHS = 2 * TR_ATTENTION_KEYS / TR_ATTENTION_STEP };
enum { TR_ATTENTION_SHAPES = TR_ATTENTION_HEIGHTS * TR_ATTENTION_WIDTHS };

/* The product p: of m x depth by depth x n matrices of the type of products, or `sum` of float32.
 * Where m, n and depth are queries or keys of a part, it is made for all parts that there may
 * be. */
typedef enum { TR_OF_D, TR_OF_QUERIES, TR_OF_KEYS } tr_attention_extent;
typedef struct {
    tr_attention_extent m, n, depth;
    size_t a_pitch, b_pitch, c_pitch; /* 0: that of scores */
    bool a_turned, b_turned;          /* stored transposed */
} tr_attention_product;
enum { TR_ATTENTION_PRODUCTS = 5 }; /* at most */

typedef struct {
    tr_loop_kernel k;
    tr_attention_shape s;
    tr_attention_attrs a;
    tr_dtype type;        /* that products read: float32, or bfloat16 where that is faster */
    bool own;             /* products: those of float32, or `pairs` */
    bool pairs;           /* own products of bfloat16, by words of two along the depth */
    bool copies;          /* of what they read: of another type, or rows that stand apart */
    bool masked;          /* some tiles may be seen in part */
    tr_dnnl_tiles *tiles; /* oneDNN's product p of a part: tr_attention_which */
    tr_attention_product products[TR_ATTENTION_PRODUCTS];
    size_t width;           /* of rows of copies and results: D, or what own products take */
    size_t pitch;           /* of scores; 0: as many as the part has keys */
    size_t turned;          /* own products: of a tile of keys or values, stored transposed */
    size_t queries, keys;   /* of a whole tile */
    size_t step;            /* queries of a part of one */
    size_t nqueries, nkeys; /* tiles */
    size_t group;           /* heads of queries that share a head of keys */
    uint32_t stream;
    size_t slots, head_room; /* backward: heads of keys that have memory at a time, so much */
    /* A thread's memory (backward q, dy, acc, rows and done a head's), in bytes from its beginning;
     * 0 where there is none. */
    size_t room, scores, dscores, probs, dprobs, q, k_as, v_as, scoring, dy, acc, dk, dv, rows,
        done, have, scratch;
} tr_attention;

/* A matrix that products read: its rows so many elements apart. */
typedef struct {
    const void *at;
    size_t pitch;
} tr_attention_rows;

/* Row r of it. */
static inline const void *tr_attention_row(const tr_attention *k, tr_attention_rows m, size_t r)
{
    return tr_loop_at(k->type, m.at, r * m.pitch);
}

/* What n elements of a row are for own products: words of two, or themselves. */
static inline size_t tr_attention_words(const tr_attention *k, size_t n)
{
    return k->pairs ? (n + 1) / 2 : n;
}

/* Of a graph that decodes. */
tr_cpu_prepare_fn tr_cpu_attention_held;

/* Opens all but the tiles; `pairs`: products of bfloat16 are own ones; `run` and the thread's
 * memory are the caller's. */
tr_status tr_attention_open(tr_cpu *cpu, const tr_graph *g, const tr_op *op, bool pairs,
                            tr_status (*run)(tr_kernel *, const tr_run *), tr_attention **out);
/* Reserves `nbytes` of a thread's memory. */
size_t tr_attention_reserve(tr_attention *k, size_t nbytes);
/* To the caller, with the workspace for all threads, if st is TR_OK; else closed. Returns st. */
tr_status tr_attention_hand_over(tr_attention *k, tr_status st, tr_kernel **out);

/* Scores that a thread has at a time, all in all. */
size_t tr_attention_tile(const tr_attention *k);

/* Opens `count` products. */
tr_status tr_attention_multiply_by(tr_cpu *cpu, tr_attention *k, const tr_attention_product *of,
                                   int count);
/* Runs product p of a part, as thread `number`. */
dnnl_status_t tr_attention_multiply(const tr_attention *k, int p, const tr_attention_part *part,
                                    int number, const void *a, const void *b, void *c,
                                    void *scratch);

/* Keys of the sample; all where there is no list of lengths. */
static inline int64_t tr_attention_length(const tr_attention *k, size_t sample)
{
    if (k->s.lengths < 0) return (int64_t)k->s.keys;
    const int64_t n = ((const int32_t *)k->k.b.in[k->s.lengths])[sample];
    return n < 0 ? 0 : n < (int64_t)k->s.keys ? n : (int64_t)k->s.keys;
}

/* Tiles of keys [begin, end) that queries of tile qt see anything of. */
typedef struct {
    size_t begin, end;
} tr_attention_span;
tr_attention_span tr_attention_seen(const tr_attention *k, size_t qt, int64_t length);

/* The parts of a tile that queries see anything of; returns how many. */
enum { TR_ATTENTION_PARTS = TR_ATTENTION_QUERIES / TR_ATTENTION_PAIR_ROWS };
int tr_attention_parts(const tr_attention *k, size_t qt, size_t kt, int64_t length,
                       tr_attention_part parts[TR_ATTENTION_PARTS]);

/* What loops are told of a part of a tile. */
tr_cpu_scores tr_attention_scores(const tr_attention *k, const tr_run *run, size_t sample,
                                  size_t head, size_t qt, size_t kt, const tr_attention_part *part,
                                  int64_t length);

/* Of what products read of a tensor's rows. */
size_t tr_attention_pitch(const tr_attention *k, size_t pitch);

/* Rows of the sample's tensor `in` from `row` on, of D values behind element `at`, as products read
 * them: themselves, or copied to `to` (the pitch is D then). */
tr_attention_rows tr_attention_read(const tr_attention *k, const void *in, size_t pitch, size_t at,
                                    size_t row, size_t count, void *to);
/* The same rows two by two, for a product whose depth they are: a word holds a value of a row and
 * that of the next one. Rows from `seen` on are zeros. */
void tr_attention_read_pairs(const tr_attention *k, const void *in, size_t pitch, size_t at,
                             size_t row, size_t count, size_t seen, void *to);
/* Rows of a tile, as tr_attention_read copied them, transposed for own products, in pairs word by
 * word. */
void tr_attention_turn(const tr_attention *k, const void *rows, size_t count, void *to);
/* Key `column` on of a tile that is the second factor of scores. */
static inline const void *tr_attention_key(const tr_attention *k, tr_attention_rows m,
                                           size_t column)
{
    return k->own ? (const float *)m.at + column : tr_attention_row(k, m, column);
}

/* Rows of float32 to a tensor. */
void tr_attention_write(const tr_attention *k, const float *from, void *out, size_t pitch,
                        size_t at, size_t row, size_t count);

#endif
