/* Products of sub-matrices that the threads of one region run side by side. A primitive may run in
 * several threads at a time as long as each has its own memory objects, scratchpad and stream; it
 * is made for one thread, and must see that one alone, whatever the region around it is
 * (tr_dnnl_tiles_enter). */
#include "kernels/cpu/onednn/onednn.h"

#include <omp.h>

enum { LINE = 64, ARGS = 4 };

typedef struct {
    dnnl_primitive_desc_t pd;
    dnnl_primitive_t primitive;
    dnnl_memory_t *memory; /* [threads * ARGS]: a, b, c, scratchpad */
} product;

struct tr_dnnl_tiles {
    tr_cpu *cpu;
    int threads, count;
    size_t scratch;
    dnnl_stream_t *streams; /* [threads] */
    product *products;
};

static const int args_of[ARGS] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST,
                                  DNNL_ARG_SCRATCHPAD};

void tr_dnnl_tiles_close(tr_dnnl_tiles *t)
{
    if (!t) return;
    for (int i = 0; t->products && i < t->count; i++) {
        product *p = &t->products[i];
        for (int m = 0; p->memory && m < t->threads * ARGS; m++)
            if (p->memory[m]) dnnl_memory_destroy(p->memory[m]);
        tr_free(p->memory);
        if (p->primitive) dnnl_primitive_destroy(p->primitive);
        if (p->pd) dnnl_primitive_desc_destroy(p->pd);
    }
    for (int i = 0; t->streams && i < t->threads; i++)
        if (t->streams[i]) dnnl_stream_destroy(t->streams[i]);
    tr_free(t->products);
    tr_free(t->streams);
    tr_free(t);
}

tr_status tr_dnnl_tiles_open(tr_cpu *cpu, int count, tr_dnnl_tiles **out)
{
    tr_status st = TR_OK;
    tr_dnnl_tiles *t = TR_NEW(TR_MEM_OTHER, tr_dnnl_tiles);
    if (!t) return tr_last_status();
    t->cpu = cpu;
    t->threads = cpu->threads;
    t->count = count;
    t->streams = tr_alloc(TR_MEM_OTHER, (size_t)t->threads, sizeof *t->streams);
    t->products = tr_alloc(TR_MEM_OTHER, (size_t)count, sizeof *t->products);
    TR_NEED(t->streams && t->products, tr_last_status(), "no memory for products");
    for (int i = 0; i < t->threads; i++)
        TR_DNNL(dnnl_stream_create(&t->streams[i], cpu->engine, dnnl_stream_default_flags),
                "open a stream");
out:
    if (st != TR_OK) {
        tr_dnnl_tiles_close(t);
        return st;
    }
    *out = t;
    return TR_OK;
}

static tr_status make(tr_dnnl_tiles *t, product *p)
{
    tr_status st = TR_OK;
    TR_DNNL(dnnl_primitive_create(&p->primitive, p->pd), "generate code for a product");
    const size_t scratch = tr_dnnl_arg_size(p->pd, DNNL_ARG_SCRATCHPAD);
    if (scratch > t->scratch) t->scratch = scratch;
    for (int m = 0; m < t->threads * ARGS; m++)
        TR_DNNL(dnnl_memory_create(
                    &p->memory[m],
                    dnnl_primitive_desc_query_md(p->pd, dnnl_query_exec_arg_md, args_of[m % ARGS]),
                    t->cpu->engine, DNNL_MEMORY_NONE),
                "describe an argument");
out:
    return st;
}

tr_status tr_dnnl_tiles_add(tr_dnnl_tiles *t, int i, const tr_dnnl_array *a, const tr_dnnl_array *b,
                            const tr_dnnl_array *c, bool sum)
{
    product *p = &t->products[i];
    const tr_dnnl_post post = {.sum = sum};
    const int before = omp_get_max_threads();
    tr_status st = TR_OK;
    p->memory = tr_alloc(TR_MEM_OTHER, (size_t)t->threads * ARGS, sizeof(dnnl_memory_t));
    if (!p->memory) return tr_last_status();
    omp_set_num_threads(1);
    st = tr_dnnl_matmul(t->cpu, a, b, NULL, c, &post, &p->pd);
    if (st == TR_OK) st = make(t, p);
    omp_set_num_threads(before);
    return st;
}

size_t tr_dnnl_tiles_scratch(const tr_dnnl_tiles *t)
{
    return tr_align_up(t->scratch, LINE);
}

const char *tr_dnnl_tiles_impl(const tr_dnnl_tiles *t)
{
    int i = 0;
    while (!t->products[i].pd) i++;
    return tr_dnnl_impl(t->products[i].pd);
}

/* The number is the calling task's alone, and forgotten with the region. */
void tr_dnnl_tiles_enter(void)
{
    omp_set_num_threads(1);
}

dnnl_status_t tr_dnnl_tiles_run(const tr_dnnl_tiles *t, int i, int thread, const void *a,
                                const void *b, void *c, void *scratch)
{
    const product *p = &t->products[i];
    dnnl_memory_t *m = p->memory + thread * ARGS;
    void *const at[ARGS] = {(void *)(uintptr_t)a, (void *)(uintptr_t)b, c, scratch};
    dnnl_exec_arg_t args[ARGS];
    for (int k = 0; k < ARGS; k++) {
        const dnnl_status_t st = dnnl_memory_set_data_handle(m[k], at[k]);
        if (st != dnnl_success) return st;
        args[k] = (dnnl_exec_arg_t){.arg = args_of[k], .memory = m[k]};
    }
    return dnnl_primitive_execute(p->primitive, t->streams[thread], ARGS, args);
}
