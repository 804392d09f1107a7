/* A run file read for showing: every array through its checksum and its statistics in one pass, and
 * whatever is damaged noted by name instead of ending the reading. */
#include "runtime/store/internal.h"

#include <math.h>
#include <string.h>

typedef struct {
    tr_stats *s;
    tr_dtype type;
    const float *scale; /* of int8 values, one for each `span` of them; NULL: 1 */
    size_t span, at;
    double shift, sum, squares, plain; /* of v - shift, for the variance; of v * v, for the norm */
    size_t finite;
} gather;

static void take(void *ctx, const void *bytes, size_t nbytes)
{
    gather *g = ctx;
    const size_t n = nbytes / tr_dtype_size(g->type);
    for (size_t i = 0; i < n; i++, g->at++) {
        double x =
            g->type == TR_F32 ? ((const float *)bytes)[i] : tr_stored_value(g->type, bytes, i);
        if (g->scale) x *= (double)g->scale[g->at / g->span];
        if (!isfinite(x)) {
            g->s->nonfinite++;
            continue;
        }
        if (g->finite++ == 0) g->shift = g->s->min = g->s->max = x;
        double d = x - g->shift;
        g->sum += d;
        g->squares += d * d;
        g->plain += x * x;
        if (x == 0) g->s->zeros++;
        if (x < g->s->min) g->s->min = x;
        if (x > g->s->max) g->s->max = x;
    }
}

static void finish(gather *g)
{
    double n = g->finite ? (double)g->finite : 1, mean = g->sum / n;
    double variance = g->squares / n - mean * mean;
    g->s->mean = g->shift + mean;
    g->s->std = variance > 0 ? sqrt(variance) : 0;
    g->s->norm = sqrt(g->plain);
}

/* The last error as a fault; memory running out is no fault of the file. */
static tr_status note_error(tr_summary *s, char **fault, tr_status st)
{
    if (st == TR_MEMORY) return st;
    *fault = tr_strdup(tr_last_error()->text);
    s->nfaults++;
    return *fault ? TR_OK : tr_last_status();
}

bool tr_entry_measured(const tr_entry *e)
{
    return e->type == TR_F32 || e->type == TR_BF16 || e->type == TR_F16 || e->type == TR_I8;
}

/* The scales of an int8 weight, allocated; NULL where they are not there: then its values count as
 * they are. */
static tr_status find_scales(const tr_summary *s, const tr_entry *e, gather *g, float **scale)
{
    static const char params[] = "/model/params/", weight[] = "/weight";
    const size_t n = strlen(e->where), skip = sizeof params - 1, tail = sizeof weight - 1;
    *scale = NULL;
    if (e->type != TR_I8 || e->ndim < 1 || e->count == 0 || n < skip + tail ||
        strncmp(e->where, params, skip) != 0 || strcmp(e->where + n - tail, weight) != 0)
        return TR_OK;
    char *where =
        tr_sprintf("/model/state/%.*s/%s", (int)(n - skip - tail), e->where + skip, TR_SCALE_STATE);
    if (!where) return tr_last_status();
    const tr_entry *its = tr_index_find(&s->ix, where);
    tr_free(where);
    if (!its || its->fault[0] || its->type != TR_F32 || its->ndim != 1 ||
        its->dims[0] != e->dims[0])
        return TR_OK;
    *scale = tr_alloc(TR_MEM_OTHER, its->count, sizeof **scale);
    if (!*scale) return tr_last_status();
    if (tr_entry_read(&s->ix, its, *scale, NULL, NULL) != TR_OK)
        return TR_OK; /* told at its line */
    g->scale = *scale;
    g->span = e->count / its->count;
    return TR_OK;
}

static tr_status read_arrays(tr_summary *s)
{
    tr_status st = TR_OK;
    s->stats = tr_alloc(TR_MEM_OTHER, s->ix.count, sizeof *s->stats);
    s->faults = tr_alloc(TR_MEM_OTHER, s->ix.count, sizeof *s->faults);
    if (!s->stats || !s->faults) return tr_last_status();
    for (size_t i = 0; i < s->ix.count; i++) {
        const tr_entry *e = &s->ix.entries[i];
        gather g = {.s = &s->stats[i], .type = e->type};
        float *scale;
        TR_TRY(find_scales(s, e, &g, &scale));
        tr_status bad =
            tr_entry_read(&s->ix, e, NULL, tr_entry_measured(e) && !e->fault[0] ? take : NULL, &g);
        tr_free(scale);
        s->stats[i].count = e->count;
        finish(&g);
        if (bad != TR_OK) TR_TRY(note_error(s, &s->faults[i], bad));
    }
out:
    return st;
}

static void config_name(tr_summary *s)
{
    tr_document doc = {0};
    const char *text = tr_summary_text(s, "config");
    if (!text[0] || tr_document_parse("config", text, strlen(text), &doc) != TR_OK) return;
    const tr_node *name = doc.root ? tr_node_get(doc.root, "name") : NULL;
    if (name && name->kind == TR_NODE_SCALAR) s->name = tr_strdup(name->text);
    tr_document_close(&doc);
}

/* Of a part made of arrays: a damaged one was counted already. */
static tr_status note_part(tr_summary *s, char **fault, tr_status bad)
{
    const size_t before = s->nfaults;
    const tr_status st = note_error(s, fault, bad);
    for (size_t i = 0; st == TR_OK && i < s->ix.count; i++)
        if (s->faults[i] && strcmp(s->faults[i], *fault) == 0) s->nfaults = before;
    return st;
}

tr_status tr_summary_open(const char *path, tr_summary *s)
{
    tr_status st = TR_OK, bad;
    *s = (tr_summary){.ix.fd = -1};
    TR_TRY(tr_index_open(path, &s->ix));
    s->ix.of[0] = 0; /* what is wrong is told below the file's name */
    s->nfaults = (s->ix.root_fault[0] != 0) + (s->ix.train_fault[0] != 0);
    TR_TRY(read_arrays(s));
    s->has_train = tr_train_from_attrs(s->ix.of, &s->ix.train, &s->train) == TR_OK;
    if (!s->has_train && !s->ix.train_fault[0]) {
        snprintf(s->ix.train_fault, TR_FAULT, "%.300s", tr_last_error()->text);
        s->nfaults++;
    }
    bad = tr_history_read(&s->ix, &s->history);
    if (bad != TR_OK) TR_TRY(note_part(s, &s->history_fault, bad));
    bad = tr_lineage_of(&s->ix, &s->lineage);
    if (bad != TR_OK) TR_TRY(note_part(s, &s->lineage_fault, bad));
    config_name(s);
out:
    if (st != TR_OK) tr_summary_close(s);
    return st;
}

void tr_summary_close(tr_summary *s)
{
    for (size_t i = 0; s->faults && i < s->ix.count; i++) tr_free(s->faults[i]);
    tr_free(s->faults);
    tr_free(s->stats);
    tr_free(s->history_fault);
    tr_free(s->lineage_fault);
    tr_lineage_free(&s->lineage);
    tr_free(s->name);
    tr_history_free(&s->history);
    tr_index_close(&s->ix);
    *s = (tr_summary){.ix.fd = -1};
}

const char *tr_summary_text(const tr_summary *s, const char *attr)
{
    const tr_attr *a = tr_attrs_get(&s->ix.root, attr);
    return a && a->kind == TR_ATTR_TEXT ? a->text : "";
}
