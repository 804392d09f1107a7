/* `trainer plan --json` and `--summary`: what scripts and a first look want of a planned job. Sizes
 * in bytes, of rank 0, which has the largest share. */
#include <string.h>

#include "runtime/base/numbers.h"

#include "runtime/base/json.h"
#include "runtime/optimizer/groups.h"
#include "trainer/device/device.h"
#include "trainer/plan/planned.h"
#include "trainer/plan/shares.h"

void tr_planned_title(const tr_planned *r, FILE *to)
{
    const tr_topology *t = &r->on.topology;
    fprintf(to, "%s: %d rank%s", r->c->name, t->size, t->size == 1 ? "" : "s");
    if (t->nodes > 1) fprintf(to, " on %d nodes", t->nodes);
    fprintf(to, ", batch %lld, %s\n", (long long)r->c->train.batch, tr_planned_precision(r));
}

static uint64_t steps_per_epoch(const tr_planned *r)
{
    return tr_steps_per_epoch(r->train_samples, r->c->train.batch, r->c->data.drop_last);
}

static void key_text(const char *key, const char *value, FILE *to)
{
    fprintf(to, ", \"%s\": ", key);
    tr_json_text(value, to);
}

static void key_count(const char *key, size_t value, FILE *to)
{
    fprintf(to, ", \"%s\": %zu", key, value);
}

static void key_real(const char *key, double value, FILE *to)
{
    fprintf(to, ", \"%s\": ", key);
    tr_json_real(value, to);
}

/* Kinds that are 0 everywhere are left out. */
static void write_memory(const char *key, const tr_memory_total *m, FILE *to)
{
    static const char *const names[TR_SPACES] = {"device", "host"};
    fprintf(to, ",\n \"%s\": {", key);
    for (int s = 0; s < TR_SPACES; s++) {
        fprintf(to, "%s\"%s\": {\"total\": %zu", s ? ", " : "", names[s], m->total[s]);
        for (int k = 0; k < TR_MEM_KINDS; k++)
            if (m->bytes[s][k] > 0) key_count(tr_mem_kind_name((tr_mem_kind)k), m->bytes[s][k], to);
        fputc('}', to);
    }
    fputc('}', to);
}

static void write_fit(const tr_planned *r, const tr_fit *f, FILE *to)
{
    fprintf(to, ",\n \"fit\": {\"of\": \"%s\", \"ranks\": %d, \"needed_bytes\": %zu",
            f->space == TR_SPACE_DEVICE ? "device" : "node",
            f->space == TR_SPACE_DEVICE ? 1 : r->on.topology.local_size, f->need);
    if (!f->known) {
        fputs(", \"fits\": null}", to);
        return;
    }
    fprintf(to,
            ", \"program_bytes\": %zu, \"available_bytes\": %zu, \"given\": %s, \"limited\": %s, "
            "\"fits\": %s",
            f->programs, f->have, f->given ? "true" : "false", f->limited ? "true" : "false",
            f->fits ? "true" : "false");
    if (f->least > 0) key_count("smallest_limit_bytes", f->least, to);
    if (f->searched) fprintf(to, ", \"largest_batch\": %lld", (long long)f->largest);
    fputs(", \"advice\": [", to);
    for (int i = 0; i < f->nadvice; i++) {
        fprintf(to, "%s{\"set\": ", i ? ", " : "");
        tr_json_text(f->advice[i].set, to);
        fprintf(to, ", \"needed_bytes\": %zu, \"fits\": %s}", f->advice[i].need,
                f->advice[i].fits ? "true" : "false");
    }
    fputs("]}", to);
}

static void write_communication(const tr_planned *r, FILE *to)
{
    tr_reducer_cost cost;
    double gathered;
    const tr_memory_of of = {.config = r->c,
                             .model = r->m,
                             .backend = r->on.backend,
                             .topology = &r->on.topology,
                             .nccl = tr_config_nccl(r->c)};
    tr_predict_reducer(&of, &cost);
    const size_t gathers = tr_planned_gathers(r, &gathered);
    fprintf(to, ",\n \"communication\": {\"node_bytes\": %zu, \"network_bytes\": %zu",
            cost.wire_node, cost.wire_network);
    key_count("buckets", r->m->nbuckets, to);
    key_count("batchnorm_gathers", gathers, to);
    key_real("batchnorm_bytes", gathered, to);
    fputc('}', to);
}

static void write_arithmetic(const tr_planned *r, FILE *to)
{
    const tr_plan *train = tr_session_plan(r->both, TR_MODE_TRAIN, r->train_batch);
    const tr_plan *eval = tr_session_plan(r->eval, TR_MODE_EVALUATE, r->eval_batch);
    fputs(",\n \"flop_per_sample\": {\"forward\": ", to);
    tr_json_real(tr_planned_flops(train, false), to);
    key_real("backward", tr_planned_flops(train, true), to);
    key_real("evaluation", tr_planned_flops(eval, false), to);
    if (r->teacher) key_real("teacher", tr_teacher_flops(r->teacher, r->train_batch), to);
    fputc('}', to);
}

static void write_notes(const char *notes, FILE *to)
{
    fputs(",\n \"notes\": [", to);
    for (const char *s = notes, *end; *s; s = end + 1) {
        char line[1200];
        end = strchrnul(s, '\n');
        snprintf(line, sizeof line, "%.*s", (int)(end - s), s);
        fputs(s == notes ? "" : ", ", to);
        tr_json_text(line, to);
        if (!*end) break;
    }
    fputs("]}\n", to);
}

void tr_plan_write_json(const tr_planned *r, const tr_fit *f, const char *notes, FILE *to)
{
    char text[160];
    const tr_topology *t = &r->on.topology;
    tr_memory_total train, alone;
    tr_planned_memory(r, &train);
    tr_planned_memory_alone(r, &alone);
    tr_device_describe(r->on.backend, r->backend_ctx, r->on.threads, text, sizeof text);
    fputs("{\"name\": ", to);
    tr_json_text(r->c->name, to);
    fprintf(to, ", \"ranks\": %d, \"nodes\": %d, \"ranks_per_node\": %d", t->size, t->nodes,
            t->local_size);
    key_text("device", r->on.backend->name, to);
    key_text("backend", text, to);
    key_text("precision", tr_planned_precision(r), to);
    key_count("parameters", r->m->nparameters, to);
    key_count("batch", (size_t)r->c->train.batch, to);
    key_count("micro_batches", (size_t)r->micro_batches, to);
    key_count("samples_per_rank", (size_t)r->train_batch, to);
    if (r->counted) {
        key_count("train_samples", r->train_samples, to);
        key_count("eval_samples", r->eval_samples, to);
        key_count("steps_per_epoch", steps_per_epoch(r), to);
    }
    write_memory("memory", &train, to);
    write_memory("evaluation_memory", &alone, to);
    write_fit(r, f, to);
    write_arithmetic(r, to);
    tr_planned_sketches_json(r, to);
    write_communication(r, to);
    write_notes(notes, to);
}

void tr_plan_write_summary(const tr_planned *r, const tr_fit *f, FILE *to)
{
    char a[32], b[32], c[32];
    const tr_plan *p = tr_session_plan(r->both, TR_MODE_TRAIN, r->train_batch);
    const double flops = tr_planned_flops(p, false) + tr_planned_flops(p, true);
    tr_reducer_cost cost;
    tr_memory_total train;
    const tr_memory_of of = {.config = r->c,
                             .model = r->m,
                             .backend = r->on.backend,
                             .topology = &r->on.topology,
                             .nccl = tr_config_nccl(r->c)};
    tr_predict_reducer(&of, &cost);
    tr_planned_memory(r, &train);
    tr_planned_title(r, to);
    fprintf(to, "  %s parameters; %s a sample, forward and backward",
            tr_format_count((double)r->m->nparameters, a, sizeof a),
            tr_format_flop(flops, b, sizeof b));
    if (r->counted)
        fprintf(to, "; %llu step%s an epoch", (unsigned long long)steps_per_epoch(r),
                tr_plural(steps_per_epoch(r)));
    if (r->on.backend->host)
        fprintf(to, "\n  a rank holds %s",
                tr_format_bytes((double)train.total[TR_SPACE_HOST], a, sizeof a));
    else
        fprintf(to, "\n  a rank holds %s on its GPU and %s on the host",
                tr_format_bytes((double)train.total[TR_SPACE_DEVICE], a, sizeof a),
                tr_format_bytes((double)train.total[TR_SPACE_HOST], b, sizeof b));
    fprintf(to, ", and sends %s within the node, %s between nodes a step\n",
            tr_format_bytes((double)cost.wire_node, b, sizeof b),
            tr_format_bytes((double)cost.wire_network, c, sizeof c));
    if (f->known)
        tr_plan_fit_write(r, f, to);
    else
        fputs("  whether that fits a GPU: --memory 80GB\n", to);
}
