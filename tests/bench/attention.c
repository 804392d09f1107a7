/* Attention alone, forward and backward, beside the floor: oneDNN's products of the same sizes,
 * whole matrices queries x keys at the formats that it likes best, and nothing between them.
 *
 *     bench_attention [T] [D] [heads] [rounds] [case]
 *
 * One thread, processor time of that thread, so that others on the machine cost little; all cases
 * in turns, the fastest of the rounds. Prints a line a case: milliseconds, GFLOP/s of the products
 * (causal: of what is seen), the floor's rate, of products of the activations' type, and the share
 * of it. With a case, 0 to 7 in the order of these lines, it alone runs, without its floor: for a
 * profiler. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/bench/floor.h"

enum { PRODUCTS = 5, CASES = 8 };

typedef struct {
    tr_graph graph;
    tr_op op;
    tr_tensor tensors[12];
    void *data[12];
    tr_kernel *kernel;
    void *workspace;
} attention;

typedef struct {
    tr_dtype type;
    bool causal, backward;
    attention a;
    bench_product products[PRODUCTS];
    double flops, best, floor_flops, floor;
} bench_case;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static const tr_op_def *named(const char *name)
{
    size_t i = 0;
    while (strcmp(tr_op_def_name(tr_op_at(i)), name) != 0) i++;
    return tr_op_at(i);
}

static int tensor(attention *a, tr_dtype type, int64_t d0, int64_t d1, int64_t d2)
{
    const int id = (int)a->graph.ntensors++;
    const size_t count = (size_t)(d0 * d1 * d2);
    a->tensors[id] = (tr_tensor){.id = id,
                                 .dtype = type,
                                 .ndim = 3,
                                 .dims = {d0, d1, d2},
                                 .count = count,
                                 .nbytes = count * tr_dtype_size(type),
                                 .alias = -1};
    a->data[id] = tr_alloc(TR_MEM_OTHER, count, tr_dtype_size(type));
    for (size_t i = 0; i < count; i++) {
        const float v = (float)(i * 2654435761u % 1000) * 2e-3f - 1.0f;
        if (type == TR_BF16)
            ((tr_bf16 *)a->data[id])[i] = tr_f32_to_bf16(v);
        else
            ((float *)a->data[id])[i] = type == TR_F32 && d2 != 1 ? v : 5.0f;
    }
    return id;
}

static tr_status open_attention(void *team, bench_case *c, const tr_attention_attrs *attrs,
                                int64_t T, int64_t D)
{
    const int64_t H = attrs->heads;
    attention *a = &c->a;
    tr_op *op = &a->op;
    tr_status st = TR_OK;
    op->def = named(c->backward ? "attention.grad" : "attention");
    op->attrs = attrs;
    a->graph = (tr_graph){.mode = TR_MODE_TRAIN, .tensors = a->tensors, .batch = 1};
    if (c->backward) op->in[op->nin++] = tensor(a, c->type, 1, T, H * D);
    op->in[op->nin++] = tensor(a, c->type, 1, T, 3 * H * D);
    for (int i = 0; i < 3; i++) op->in[op->nin++] = -1;
    if (c->backward) {
        op->in[op->nin++] = tensor(a, c->type, 1, T, H * D);
        op->in[op->nin++] = tensor(a, TR_F32, H, T, 1);
        op->out[op->nout++] = tensor(a, c->type, 1, T, 3 * H * D);
    } else {
        op->out[op->nout++] = tensor(a, c->type, 1, T, H * D);
        op->out[op->nout++] = tensor(a, TR_F32, H, T, 1);
    }
    TR_TRY(tr_cpu_backend.kernels->prepare(team, &a->graph, op, &a->kernel));
    tr_binding b = {0};
    for (int i = 0; i < op->nin; i++) b.in[i] = op->in[i] < 0 ? NULL : a->data[op->in[i]];
    for (int i = 0; i < op->nout; i++) b.out[i] = op->out[i] < 0 ? NULL : a->data[op->out[i]];
    TR_HAVE(b.workspace = a->workspace = tr_alloc(TR_MEM_OTHER, a->kernel->workspace, 1));
    TR_TRY(a->kernel->bind(a->kernel, &b));
    c->flops = tr_op_flops(&a->graph, op);
out:
    return st;
}

/* Of one head: q k^T, p v; and backward dy v^T, p^T dy, ds^T q, ds k. */
static tr_status open_floor(void *team, bench_case *c, int64_t T, int64_t D, int64_t heads)
{
    tr_status st = TR_OK;
    const int n = c->backward ? 5 : 2;
    for (int i = 0; i < n; i++) {
        const bool scores = i == 0 || (c->backward && i == 1);
        TR_TRY(bench_matmul(team, T, scores ? D : T, scores ? T : D, c->type, TR_F32,
                            &c->products[i]));
    }
    c->floor_flops = (double)heads * n * 2.0 * (double)(T * T * D);
out:
    return st;
}

static void run_floor(tr_cpu *team, bench_case *c, int64_t heads)
{
    const double t = now();
    for (int64_t h = 0; h < heads; h++)
        for (int i = 0; i < (c->backward ? 5 : 2); i++)
            dnnl_primitive_execute(c->products[i].primitive, team->stream, c->products[i].nargs,
                                   c->products[i].args);
    const double took = now() - t;
    if (c->floor == 0 || took < c->floor) c->floor = took;
}

static void run_attention(bench_case *c)
{
    const tr_run run = {.seed = 1, .loss_scale = 1};
    const double t = now();
    c->a.kernel->run(c->a.kernel, &run);
    const double took = now() - t;
    if (c->best == 0 || took < c->best) c->best = took;
}

static void print(const bench_case *c)
{
    const double rate = c->flops / c->best, floor = c->floor_flops / c->floor;
    printf("%s %s%s %.3f ms, %.1f GFLOP/s, floor %.1f, share %.2f\n",
           c->type == TR_F32 ? "fp32" : "bf16", c->backward ? "backward" : "forward",
           c->causal ? " causal" : "", c->best * 1e3, rate * 1e-9, floor * 1e-9, rate / floor);
}

int main(int argc, char **argv)
{
    const int64_t T = argc > 1 ? atoi(argv[1]) : 1024, D = argc > 2 ? atoi(argv[2]) : 64;
    const int64_t heads = argc > 3 ? atoi(argv[3]) : 8, rounds = argc > 4 ? atoi(argv[4]) : 20;
    static bench_case cases[CASES];
    tr_attention_attrs attrs[2];
    const tr_backend_options o = {0};
    void *ctx = NULL, *team = NULL;
    tr_status st = TR_OK;
    TR_TRY(tr_cpu_backend.open(&o, &ctx));
    TR_TRY(tr_team_open(&tr_cpu_backend, ctx, 1, &team));
    for (int i = 0; i < 2; i++)
        attrs[i] = (tr_attention_attrs){.heads = heads, .kv_heads = heads, .causal = i};
    const int n = ((tr_cpu *)team)->bf16 ? CASES : CASES / 2;
    for (int i = 0; i < n; i++) {
        cases[i].type = i < CASES / 2 ? TR_F32 : TR_BF16;
        cases[i].backward = i & 1;
        cases[i].causal = i & 2;
        TR_TRY(open_attention(team, &cases[i], &attrs[cases[i].causal], T, D));
        TR_TRY(open_floor(team, &cases[i], T, D, heads));
    }
    const int only = argc > 5 ? atoi(argv[5]) : -1;
    for (int64_t r = 0; r < rounds; r++)
        for (int i = 0; i < n; i++) {
            if (only >= 0 && i != only) continue;
            run_attention(&cases[i]);
            if (only < 0) run_floor(team, &cases[i], heads);
        }
    for (int i = 0; i < n; i++)
        if (only < 0 || i == only) print(&cases[i]);
out:
    if (st != TR_OK) fprintf(stderr, "%s\n", tr_last_error()->text);
    return st != TR_OK;
}
