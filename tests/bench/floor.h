/* What floor.c measures beside a step's own kernels: products and convolutions alone. */
#ifndef TR_BENCH_FLOOR_H
#define TR_BENCH_FLOOR_H

#include "kernels/cpu/onednn/onednn.h"

enum { BENCH_ARGS = 5 };

/* A product or convolution by itself. */
typedef struct {
    dnnl_primitive_desc_t pd;
    dnnl_primitive_t primitive;
    dnnl_exec_arg_t args[BENCH_ARGS];
    void *data[BENCH_ARGS];
    int nargs;
    int64_t times; /* that the op computes it */
} bench_product;

/* Small numbers, the same for float32 and bfloat16; NULL: no memory. By tr_free. */
void *bench_numbers(size_t nbytes);
/* c (m x n) = a (m x k) b (k x n), c of type `to`. Closed likewise. */
tr_status bench_matmul(tr_cpu *team, int64_t m, int64_t k, int64_t n, tr_dtype type, tr_dtype to,
                       bench_product *p);
bool bench_is_product(const tr_op *op);
/* The recurrence of an LSTM or a GRU: a product for each row but the first, whose state is zero,
 * and what goes on with it. */
bool bench_recurs(const tr_op *op);
/* The op's problem on arrays of its own, of activations of `type`, at the formats that oneDNN likes
 * best. Closed by bench_product_close, also when this fails. */
tr_status bench_product_open(tr_cpu *team, const tr_graph *g, const tr_op *op, tr_dtype type,
                             bench_product *p);
void bench_product_close(bench_product *p);

#endif
