/* `trainer plan`: the report that people read, section by section. */
#include <string.h>

#include "runtime/base/numbers.h"
#include "runtime/data/data.h"
#include "runtime/optimizer/groups.h"
#include "trainer/device/device.h"
#include "trainer/plan/offload.h"
#include "trainer/plan/planned.h"
#include "trainer/plan/shares.h"

static tr_status print_head(const tr_planned *r, FILE *to)
{
    tr_status st = TR_OK;
    char text[160], count[32];
    const tr_config *c = r->c;
    tr_device_describe(r->on.backend, r->backend_ctx, r->on.threads, text, sizeof text);
    tr_planned_title(r, to);
    fprintf(to, "  backend        %s: %s\n", r->on.backend->name, text);
    tr_describe_buckets(r->m, text, sizeof text);
    fprintf(to, "  parameters     %s in %zu array%s, %s\n",
            tr_format_count((double)r->m->nparameters, count, sizeof count), r->m->nparams,
            tr_plural(r->m->nparams), text);
    if (r->teacher)
        fprintf(to, "  teacher        %s: %s parameters\n", c->train.distill.teacher,
                tr_format_count((double)tr_teacher_model(r->teacher)->nparameters, count,
                                sizeof count));
    TR_TRY(tr_groups_describe(c, r->m, to));
    const int64_t whole = (c->train.batch + r->micro_batches - 1) / r->micro_batches;
    fprintf(to, "  micro-batches  %d a step, of up to %lld samples, %lld a rank\n",
            r->micro_batches, (long long)whole, (long long)r->train_batch);
    const uint64_t steps = tr_steps_per_epoch(r->train_samples, c->train.batch, c->data.drop_last);
    if (r->counted)
        fprintf(to,
                "  samples        %llu for training, %llu for evaluation; %llu step%s an epoch\n",
                (unsigned long long)r->train_samples, (unsigned long long)r->eval_samples,
                (unsigned long long)steps, tr_plural(steps));
out:
    return st;
}

static void print_arena(FILE *to, const char *what, const tr_memory_plan *m)
{
    char arena[32], floor[32];
    fprintf(to, "  arena, %-10s  %s; at most %s are live at once: %.1f %% above the floor\n", what,
            tr_format_bytes((double)m->arena, arena, sizeof arena),
            tr_format_bytes((double)m->arena_floor, floor, sizeof floor),
            m->arena_floor > 0 ? 100.0 * ((double)m->arena / (double)m->arena_floor - 1) : 0.0);
}

/* One kind of memory: that of a GPU, or all else. */
static void print_space(FILE *to, const char *title, const size_t *train, const size_t *alone,
                        size_t train_total, size_t alone_total)
{
    char a[32], b[32];
    fprintf(to, "\n%-28s%12s  %16s\n", title, "training", "evaluation alone");
    for (int k = 0; k < TR_MEM_KINDS; k++)
        if (train[k] > 0 || alone[k] > 0)
            fprintf(to, "  %-26s%12s  %16s\n", tr_mem_kind_name((tr_mem_kind)k),
                    tr_format_bytes((double)train[k], a, sizeof a),
                    tr_format_bytes((double)alone[k], b, sizeof b));
    fprintf(to, "  %-26s%12s  %16s\n", "total", tr_format_bytes((double)train_total, a, sizeof a),
            tr_format_bytes((double)alone_total, b, sizeof b));
}

static tr_status print_memory(const tr_planned *r, FILE *to)
{
    tr_memory_plan both, eval;
    tr_memory_total train, alone;
    char a[32];
    tr_session_memory(r->both, &both);
    tr_session_memory(r->eval, &eval);
    tr_planned_memory(r, &train);
    tr_planned_memory_alone(r, &alone);
    const char *titles[TR_SPACES] = {"GPU memory of rank 0", "memory of rank 0"};
    if (!r->on.backend->host) titles[TR_SPACE_HOST] = "host memory of rank 0";
    for (int s = (int)tr_space_of(r->on.backend); s < TR_SPACES; s++) {
        print_space(to, titles[s], train.bytes[s], alone.bytes[s], train.total[s], alone.total[s]);
        if (s == TR_SPACE_DEVICE)
            fprintf(to, "  besides: CUDA's context, the libraries' kernels, NCCL's buffers; "
                        "workspace is the most that libraries may take\n");
    }
    fprintf(
        to,
        "  besides: the program and its libraries, %s resident in this process, and MPI's own\n",
        tr_format_bytes((double)r->rss_before, a, sizeof a));
    print_arena(to, "training", &both);
    print_arena(to, "evaluation", &eval);
    return TR_OK;
}

static void print_arithmetic(const tr_planned *r, FILE *to)
{
    tr_plan *p = tr_session_plan(r->both, TR_MODE_TRAIN, r->train_batch);
    char f[32], b[32], t[32];
    const double forward = tr_planned_flops(p, false), backward = tr_planned_flops(p, true);
    fprintf(to, "\narithmetic a sample\n");
    fprintf(to, "  training       %s forward, %s backward, %s in all\n",
            tr_format_flop(forward, f, sizeof f), tr_format_flop(backward, b, sizeof b),
            tr_format_flop(forward + backward, t, sizeof t));
    if (r->teacher) {
        const double teacher = tr_teacher_flops(r->teacher, r->train_batch);
        const double step = (forward + backward + teacher) * (double)r->c->train.batch;
        fprintf(to, "  teacher        %s forward; with it a step of all ranks takes %s\n",
                tr_format_flop(teacher, f, sizeof f), tr_format_flop(step, t, sizeof t));
    }
    p = tr_session_plan(r->eval, TR_MODE_EVALUATE, r->eval_batch);
    fprintf(to, "  evaluation     %s\n", tr_format_flop(tr_planned_flops(p, false), f, sizeof f));
}

/* Who keeps how much of the optimizer's slots, and what handing the weights on costs. */
static void print_sharding(const tr_planned *r, FILE *to, const tr_topology *t,
                           const tr_reducer_cost *cost)
{
    char kept[32], reduced[32], gathered[32];
    const tr_params_options p = tr_params_options_of(r->c, r->m, r->on.backend);
    const double all = (double)(p.count * sizeof(float)) * p.nslots;
    if (t->size == 1 || p.nslots == 0) return;
    fprintf(to, "    a rank keeps %s of the optimizer's %s",
            tr_format_bytes((double)cost->slots, kept, sizeof kept),
            tr_format_bytes(all, gathered, sizeof gathered));
    if (cost->wire_weights > 0)
        fprintf(to,
                ", sharded over %d ranks: reduce-scatter of gradients %s, all-gather of weights %s",
                t->size,
                tr_format_bytes((double)(cost->wire_node + cost->wire_network - cost->wire_weights),
                                reduced, sizeof reduced),
                tr_format_bytes((double)cost->wire_weights, gathered, sizeof gathered));
    else if (t->shared && r->on.backend->host)
        fprintf(to, ": its slices, in the memory that the ranks of a node share");
    fprintf(to, "\n");
}

static void print_offload(const tr_memory_of *of, FILE *to)
{
    tr_offload_cost c;
    char text[160];
    tr_offload_cost_of(of, &c);
    if (c.slots == 0) return;
    tr_offload_describe(&c, text, sizeof text);
    fprintf(to,
            "    run.offload: a rank keeps %s, beside the update; how long that takes a run says\n",
            text);
}

static tr_status print_wire(const tr_planned *r, FILE *to, const tr_topology *t)
{
    tr_reducer_cost cost;
    char node[32], net[32], grads[32];
    const tr_memory_of of = {.config = r->c,
                             .model = r->m,
                             .backend = r->on.backend,
                             .topology = t,
                             .nccl = tr_config_nccl(r->c)};
    tr_predict_reducer(&of, &cost);
    fprintf(to, "  %s\n", t->reason);
    fprintf(to, "    a rank sends %s within the node and %s between nodes for %zu bucket%s, %s\n",
            tr_format_bytes((double)cost.wire_node, node, sizeof node),
            tr_format_bytes((double)cost.wire_network, net, sizeof net), r->m->nbuckets,
            r->m->nbuckets == 1 ? "" : "s",
            r->c->run.wire == TR_WIRE_BF16 ? "bf16 between nodes" : "float32");
    print_sharding(r, to, t, &cost);
    print_offload(&of, to);
    if (t->nodes > 1)
        fprintf(to,
                "    and holds %s of gradients and transfer buffers, %s of weights and moments\n",
                tr_format_bytes((double)cost.gradients, grads, sizeof grads),
                tr_format_bytes((double)(cost.weights + cost.slots), net, sizeof net));
    return TR_OK;
}

static tr_status print_communication(const tr_planned *r, FILE *to)
{
    double nbytes;
    char text[32], reason[160];
    tr_topology other;
    const tr_topology *t = &r->on.topology;
    fprintf(to, "\ncommunication a step\n");
    tr_status st = print_wire(r, to, t);
    if (st == TR_OK && t->size > 1 && t->nodes == 1) {
        tr_assume_nodes(r->c, &r->on, t->size > 3 ? 2 : t->size, &other, reason, sizeof reason);
        fprintf(to, "  or, across nodes:\n");
        st = print_wire(r, to, &other);
    }
    const size_t gathers = tr_planned_gathers(r, &nbytes);
    if (gathers > 0)
        fprintf(to,
                "  synchronized batchnorm: %zu gathers of %s in all from each rank, inside each "
                "micro-batch, over %s\n",
                gathers, tr_format_bytes(nbytes, text, sizeof text),
                r->c->train.sync_batchnorm == TR_SYNC_NODE ? "the ranks of a node" : "all ranks");
    return st;
}

static void shape_text(const tr_graph *g, const tr_op *op, char *buf, size_t room)
{
    size_t n = 0;
    buf[0] = 0;
    if (op->nout == 0 || op->out[0] < 0) return;
    const tr_tensor *t = &g->tensors[op->out[0]];
    for (int d = 0; d < t->ndim && n < room; d++)
        n += (size_t)snprintf(buf + n, room - n, "%s%lld", d ? "x" : "", (long long)t->dims[d]);
}

/* What the passes found in the graph of each kind. */
static tr_status print_passes(const tr_planned *r, FILE *to)
{
    tr_status st = TR_OK;
    static const char *const titles[] = {"training", "evaluation", "inference"};
    static const tr_mode modes[] = {TR_MODE_TRAIN, TR_MODE_EVALUATE, TR_MODE_INFER};
    size_t found[TR_COUNT(modes)][TR_GRAPH_PASSES];
    const tr_session_options o = tr_planned_options(r);
    for (size_t m = 0; m < TR_COUNT(modes); m++)
        TR_TRY(tr_session_passes(&o,
                                 (tr_plan_key){.mode = modes[m],
                                               .batch = m == 0   ? r->train_batch
                                                        : m == 1 ? r->eval_batch
                                                                 : 1},
                                 found[m]));
    fprintf(to, "\n%-24s", "passes over the graph");
    for (size_t m = 0; m < TR_COUNT(modes); m++) fprintf(to, "%12s", titles[m]);
    fputc('\n', to);
    for (int i = 0; i < TR_GRAPH_PASSES; i++) {
        const tr_graph_pass *pass = tr_graph_pass_at((tr_graph_pass_id)i);
        fprintf(to, "  %-22s", pass->name);
        for (size_t m = 0; m < TR_COUNT(modes); m++)
            if ((o.skip_passes | r->m->skip_passes) & TR_PASS_IS(i))
                fprintf(to, "%12s", "skipped");
            else if (pass->modes & 1u << modes[m])
                fprintf(to, "%12zu", found[m][i]);
            else
                fprintf(to, "%12s", "-");
        fputc('\n', to);
    }
out:
    return st;
}

/* Parameters and forward ops stand in the same order: *next moves along. */
static size_t layer_parameters(const tr_model *m, const char *layer, size_t *next)
{
    size_t n = 0;
    while (*next < m->nparams && strcmp(m->params[*next].layer, layer) == 0)
        n += m->params[(*next)++].count;
    return n;
}

static int widest_impl(const tr_plan *p)
{
    size_t wide = 22;
    for (size_t i = 0; i < tr_plan_rows(p); i++) {
        const size_t n = strlen(tr_plan_row_at(p, i).impl);
        if (n > wide) wide = n;
    }
    return (int)wide;
}

static void print_table(const tr_planned *r, FILE *to, const char *what, const tr_plan *p)
{
    const tr_graph *g = tr_plan_graph(p);
    const char *previous = "";
    size_t next = 0;
    const int wide = widest_impl(p);
    char shape[64], parameters[32], flops[32], nbytes[32];
    fprintf(to, "\n%s, %lld sample%s\n", what, (long long)tr_plan_batch(p),
            tr_plan_batch(p) == 1 ? "" : "s");
    fprintf(to, "  %-18s %-22s %-*s %-18s %10s %10s %10s\n", "layer", "op", wide, "kernel",
            "output", "parameters", "flop", "bytes");
    for (size_t i = 0; i < tr_plan_rows(p); i++) {
        const tr_plan_row row = tr_plan_row_at(p, i);
        const bool first = row.phase == TR_PHASE_FORWARD && strcmp(row.layer, previous) != 0;
        const size_t count = first ? layer_parameters(r->m, row.layer, &next) : 0;
        previous = row.layer;
        shape_text(g, &g->ops[i], shape, sizeof shape);
        fprintf(to, "  %-18s %-22s %-*s %-18s %10s %10s %10s\n", row.layer, row.op, wide, row.impl,
                shape, count ? tr_format_count((double)count, parameters, sizeof parameters) : "",
                tr_format_count(row.flops, flops, sizeof flops),
                tr_format_bytes(row.bytes, nbytes, sizeof nbytes));
    }
}

tr_status tr_plan_write_text(const tr_planned *r, const tr_fit *f, FILE *to)
{
    tr_status st;
    TR_TRY(print_head(r, to));
    TR_TRY(print_memory(r, to));
    if (f->known) {
        fprintf(to, "\nfit\n");
        tr_plan_fit_write(r, f, to);
    } else
        fprintf(to, "  whether that fits a GPU: --memory 80GB\n");
    print_arithmetic(r, to);
    tr_planned_sketches(r, to);
    TR_TRY(print_communication(r, to));
    TR_TRY(print_passes(r, to));
    print_table(r, to, "training", tr_session_plan(r->both, TR_MODE_TRAIN, r->train_batch));
    print_table(r, to, "evaluation", tr_session_plan(r->eval, TR_MODE_EVALUATE, r->eval_batch));
out:
    return st;
}
