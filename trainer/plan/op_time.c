#include "trainer/plan/op_time.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "optimize/profile/profile.h"
#include "runtime/base/file.h"
#include "runtime/store/store.h"

struct tr_op_time {
    tr_time_source source;
    tr_machine machine;
    tr_peak type;
    tr_findings *found; /* in `lineage`: NULL: no profile */
    const tr_table *table;
    double batch; /* that the table's ops were timed on */
    const double *ms;
    tr_lineage lineage;
};

/* A core's, in round numbers: only the ratio of arithmetic to bytes counts. */
static const tr_machine made_up = {
    .peak = {5e10, 5e10, 5e10, 1e11}, .cache = 4e10, .memory = 1e10, .cache_bytes = 1 << 20};

static void read_machine(tr_op_time *t, const char *folder, const tr_backend *b, void *ctx,
                         int threads)
{
    char *file = tr_sprintf("%s/machine.json", folder), *text = NULL;
    size_t n;
    bool same = false;
    tr_machine wanted, got = {0};
    t->machine = made_up;
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

/* A table of a training step: train_32. */
static bool take_table(tr_op_time *t, tr_findings *f)
{
    for (size_t i = 0; i < f->ntables; i++) {
        const tr_table *table = &f->tables[i];
        char rest;
        if (sscanf(table->name, "train_%lf%c", &t->batch, &rest) != 1 || t->batch < 1) continue;
        for (size_t k = 0; k < table->ncolumns; k++)
            if (strcmp(table->columns[k].name, "ms") == 0) t->ms = table->columns[k].v;
        t->table = t->ms ? table : NULL;
        if (t->table) return true;
    }
    return false;
}

static void read_profile(tr_op_time *t, const char *folder)
{
    glob_t g;
    if (tr_files_like(folder, "/stages/*profile*.h5", &g) == TR_OK)
        for (size_t i = g.gl_pathc; i-- > 0 && !t->table;) { /* the last stage first */
            tr_lineage_free(&t->lineage);
            if (tr_lineage_read(g.gl_pathv[i], &t->lineage) != TR_OK) continue;
            for (size_t k = t->lineage.count; k-- > 0 && !t->table;)
                if (take_table(t, &t->lineage.v[k])) t->source = TR_TIME_MEASURED;
        }
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

/* Milliseconds of the row of that layer and op; NaN: it was not measured. */
static double look_up(const tr_op_time *t, const tr_plan_row *row)
{
    char name[2 * TR_NAME + 2];
    const char *at = t->table->rows;
    const int n = snprintf(name, sizeof name, "%s %s\n", row->layer, row->op);
    for (size_t i = 0; i < t->table->nrows; i++) {
        if (strncmp(at, name, (size_t)n) == 0) return t->ms[i];
        if (!(at = strchr(at, '\n'))) break;
        at++;
    }
    return NAN;
}

double tr_op_time_of(const tr_op_time *t, const tr_plan *p, size_t i)
{
    const tr_plan_row row = tr_plan_row_at(p, i);
    const tr_machine *m = &t->machine;
    const double ms = t->table ? look_up(t, &row) : NAN;
    if (!isnan(ms)) return ms * 1e-3 * (double)tr_plan_batch(p) / t->batch;
    const double peak = m->peak[t->type] > 0 ? m->peak[t->type] : m->peak[TR_PEAK_FP32];
    const double bandwidth = row.bytes <= m->cache_bytes ? m->cache : m->memory;
    return fmax(row.flops / peak, row.bytes / bandwidth);
}

double tr_op_time_all(const tr_op_time *t, const tr_plan *p)
{
    double sum = 0;
    for (size_t i = 0; i < tr_plan_rows(p); i++) sum += tr_op_time_of(t, p, i);
    return sum;
}
