#include "trainer/plan/op_time.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "optimize/profile/profile.h"
#include "runtime/base/file.h"
#include "runtime/store/store.h"

/* A step of so many samples, op by op, as a profile measured it. */
typedef struct {
    const tr_table *table; /* in `lineage` */
    double batch;
    const double *ms, *part, *flops, *bytes; /* its columns */
} timed_step;

enum { STEPS = 8 };

struct tr_op_time {
    tr_time_source source;
    tr_machine machine;
    tr_peak type;
    bool host;
    size_t nsteps;
    timed_step steps[STEPS]; /* each of another batch, ascending */
    tr_lineage lineage;
};

/* In round numbers, as only ratios count: a core with instructions on 512 bits, a GPU with tensor
 * cores. */
static const tr_machine core = {
    .peak = {1e11, 1e11, 1e11, 2e11}, .cache = 1e11, .memory = 2e10, .cache_bytes = 1 << 20};
static const tr_machine gpu = {
    .peak = {5e13, 4e14, 4e14, 8e14}, .cache = 5e12, .memory = 2e12, .cache_bytes = 32 << 20};

/* Seconds that a call of a kernel takes beside its arithmetic and bytes. ResNet-20, 147 ops, by
 * processor time of one core of an EPYC with AVX-512: a step of one sample 3.92 ms, of 16 samples
 * 2.42 ms each: 10 us an op. On an H200 a step of the 50 ops of configs/compress.yaml took 0.76 ms,
 * of which arithmetic and bytes are 0.12: 13 us. */
#define CALL 1e-5

static tr_machine made_up(bool host, int threads)
{
    tr_machine m = host ? core : gpu;
    const double n = host ? threads : 1;
    for (int k = 0; k < TR_PEAKS; k++) m.peak[k] *= n;
    m.cache *= n;
    m.memory *= n;
    return m;
}

static void read_machine(tr_op_time *t, const char *folder, const tr_backend *b, void *ctx,
                         int threads)
{
    char *file = tr_sprintf("%s/machine.json", folder), *text = NULL;
    size_t n;
    bool same = false;
    tr_machine wanted, got = {0};
    t->machine = made_up(b->host, threads);
    tr_machine_name(b, ctx, threads, &wanted);
    if (file && access(file, F_OK) == 0 && tr_read_text(file, &text, &n) == TR_OK)
        tr_machine_read(text, &wanted, &got, &same);
    if (same) {
        t->machine = got;
        t->source = TR_TIME_ROOFLINE;
    }
    tr_free(text);
    tr_free(file);
}

static const double *column(const tr_table *table, const char *name)
{
    for (size_t k = 0; k < table->ncolumns; k++)
        if (strcmp(table->columns[k].name, name) == 0) return table->columns[k].v;
    return NULL;
}

/* Tables of training steps: train_32. */
static void take_tables(tr_op_time *t, const tr_findings *f)
{
    for (size_t i = 0; i < f->ntables && t->nsteps < STEPS; i++) {
        const tr_table *table = &f->tables[i];
        timed_step s = {.table = table,
                        .ms = column(table, "ms"),
                        .part = column(table, "part"),
                        .flops = column(table, "flops"),
                        .bytes = column(table, "bytes")};
        char rest;
        if (sscanf(table->name, "train_%lf%c", &s.batch, &rest) != 1 || s.batch < 1) continue;
        if (!s.ms || !s.part || !s.flops || !s.bytes) continue;
        size_t at = t->nsteps++;
        for (; at > 0 && t->steps[at - 1].batch > s.batch; at--) t->steps[at] = t->steps[at - 1];
        t->steps[at] = s;
    }
}

static void read_profile(tr_op_time *t, const char *folder)
{
    glob_t g;
    if (tr_files_like(folder, "/stages/*profile*.h5", &g) == TR_OK)
        for (size_t i = g.gl_pathc; i-- > 0 && t->nsteps == 0;) { /* the last stage first */
            tr_lineage_free(&t->lineage);
            if (tr_lineage_read(g.gl_pathv[i], &t->lineage) != TR_OK) continue;
            for (size_t k = t->lineage.count; k-- > 0 && t->nsteps == 0;)
                take_tables(t, &t->lineage.v[k]);
        }
    if (t->nsteps > 0) t->source = TR_TIME_MEASURED;
    globfree(&g);
}

tr_status tr_op_time_open(const tr_config *c, const tr_backend *b, void *ctx, int threads,
                          tr_op_time **out)
{
    static const tr_peak types[] = {[TR_PRECISION_FP32] = TR_PEAK_FP32,
                                    [TR_PRECISION_BF16] = TR_PEAK_BF16,
                                    [TR_PRECISION_FP16] = TR_PEAK_FP16};
    tr_op_time *t = TR_NEW(TR_MEM_OTHER, tr_op_time);
    if (!t) return tr_last_status();
    t->type = types[c->train.precision];
    t->host = b->host;
    read_machine(t, c->output, b, ctx, threads);
    read_profile(t, c->output);
    *out = t;
    return TR_OK;
}

void tr_op_time_close(tr_op_time *t)
{
    if (!t) return;
    tr_lineage_free(&t->lineage);
    tr_free(t);
}

tr_time_source tr_op_time_source(const tr_op_time *t)
{
    return t->source;
}

/* ---- As modelled ----------------------------------------------------------------------------- */

static double moving(const tr_machine *m, double nbytes)
{
    return nbytes / (nbytes <= m->cache_bytes ? m->cache : m->memory);
}

/* The roofline, and what a call takes whatever the batch. Products of a recurrence read their
 * weight each anew, for few rows that takes longer than to multiply by it: with the weight's bytes
 * at the cache's rate an LSTM of 2 layers of 256 comes to 1.86, 1.42, 1.20 and 1.09 of a large
 * batch's time a sample at 1, 2, 4 and 8 samples; measured 2.08, 1.39, 1.10, 1.09. */
static double modelled(const tr_op_time *t, const tr_graph *g, const tr_op *op, double flops,
                       double nbytes)
{
    const tr_machine *m = &t->machine;
    const double peak = m->peak[t->type] > 0 ? m->peak[t->type] : m->peak[TR_PEAK_FP32];
    size_t weight;
    const double turns = (double)tr_op_turns(g, op, &weight);
    const double wide = (double)weight * (double)tr_dtype_size(tr_op_dtype(g, op));
    const double launches = t->host ? 1 : turns;
    return launches * CALL + fmax(flops / peak, moving(m, nbytes)) + turns * moving(m, wide);
}

/* ---- As measured ----------------------------------------------------------------------------- */

/* A layer may have several ops of one name: this is which of them. What is recomputed was forward
 * at first. */
typedef struct {
    char name[2 * TR_NAME + 2];
    int length;
    tr_phase phase;
    size_t nth;
} op_key;

static op_key key_of(const tr_graph *g, size_t i)
{
    const tr_op *op = &g->ops[i];
    op_key k = {.phase = op->recomputed ? TR_PHASE_FORWARD : op->phase};
    k.length = snprintf(k.name, sizeof k.name, "%s %s\n", op->layer, tr_op_name(op));
    for (size_t j = 0; j < i; j++)
        k.nth += g->ops[j].def == op->def && g->ops[j].phase == op->phase &&
                 g->ops[j].recomputed == op->recomputed && strcmp(g->ops[j].layer, op->layer) == 0;
    return k;
}

/* Its row; rows of the table: it has none. Where it has fewer of that name, the last. */
static size_t row_of(const timed_step *s, const op_key *k)
{
    const char *at = s->table->rows;
    size_t found = s->table->nrows, seen = 0;
    for (size_t i = 0; i < s->table->nrows && seen <= k->nth; i++) {
        const bool same = strncmp(at, k->name, (size_t)k->length) == 0;
        if (same && s->part[i] == (double)k->phase) {
            found = i;
            seen++;
        }
        if (!(at = strchr(at, '\n'))) break;
        at++;
    }
    return found;
}

typedef struct {
    double batch, seconds, modelled; /* batch 0: it was not measured */
} timed_op;

/* Between two steps that were measured along the line through both: of that LSTM, between 1 sample
 * and 64, a sample's time at 4, 8 and 16 comes to 1.18, 1.08 and 1.04 of that at 64; measured 1.14,
 * 1.11, 1.01. Beyond them, or where there is one, as the model goes from there. */
double tr_op_time_of(const tr_op_time *t, const tr_plan *p, size_t i)
{
    const tr_graph *g = tr_plan_graph(p);
    const tr_op *op = &g->ops[i];
    if (tr_op_is_view(g, op)) return 0;
    const tr_plan_row row = tr_plan_row_at(p, i);
    const double batch = (double)tr_plan_batch(p), now = modelled(t, g, op, row.flops, row.bytes);
    const op_key key = key_of(g, i);
    timed_op low = {0}, high = {0};
    for (size_t k = 0; k < t->nsteps && high.batch == 0; k++) {
        const timed_step *s = &t->steps[k];
        const size_t at = row_of(s, &key);
        if (at == s->table->nrows) continue;
        const timed_op o = {s->batch, s->ms[at] * 1e-3,
                            modelled(t, g, op, s->flops[at], s->bytes[at])};
        *(s->batch <= batch ? &low : &high) = o;
    }
    if (low.batch > 0 && high.batch > 0)
        return low.seconds +
               (high.seconds - low.seconds) * (batch - low.batch) / (high.batch - low.batch);
    if (low.batch > 0 || high.batch > 0) {
        const timed_op *one = low.batch > 0 ? &low : &high;
        return one->seconds * now / one->modelled;
    }
    return now;
}

double tr_op_time_all(const tr_op_time *t, const tr_plan *p)
{
    double sum = 0;
    for (size_t i = 0; i < tr_plan_rows(p); i++) sum += tr_op_time_of(t, p, i);
    return sum;
}
