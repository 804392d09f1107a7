/* `trainer inspect --json`: everything of a run file but the arrays' elements as one JSON
 * object. */
#include "runtime/store/internal.h"

#include <string.h>

void tr_json_attrs(const tr_attrs *a, FILE *to)
{
    fputc('{', to);
    for (size_t i = 0; i < a->count; i++) {
        const tr_attr *at = &a->v[i];
        fputs(i ? ", " : "", to);
        tr_json_text(at->name, to);
        fputs(": ", to);
        if (at->kind == TR_ATTR_COUNT) fprintf(to, "%llu", (unsigned long long)at->u);
        if (at->kind == TR_ATTR_REAL) tr_json_real(at->f, to);
        if (at->kind == TR_ATTR_TEXT) tr_json_text(at->text, to);
    }
    fputc('}', to);
}

static void real(const char *key, double v, FILE *to)
{
    fprintf(to, ", \"%s\": ", key);
    tr_json_real(v, to);
}

static void array(const tr_summary *s, size_t i, FILE *to)
{
    const tr_entry *e = &s->ix.entries[i];
    const tr_stats *t = &s->stats[i];
    fputs("{\"path\": ", to);
    tr_json_text(e->where, to);
    if (!e->fault[0]) {
        fprintf(to, ", \"dtype\": \"%s\", \"shape\": [", tr_dtype_name(e->type));
        for (int k = 0; k < e->ndim; k++) fprintf(to, k ? ", %lld" : "%lld", (long long)e->dims[k]);
        fprintf(to, "], \"offset\": %llu, \"crc32c\": %u", (unsigned long long)e->offset, e->crc);
    }
    fprintf(to, ", \"ok\": %s", s->faults[i] ? "false" : "true");
    if (s->faults[i]) {
        fputs(", \"fault\": ", to);
        tr_json_text(s->faults[i], to);
    } else if (tr_entry_measured(e)) {
        real("mean", t->mean, to);
        real("std", t->std, to);
        real("min", t->min, to);
        real("max", t->max, to);
        real("norm", t->norm, to);
        real("sparsity", t->count ? (double)t->zeros / (double)t->count : 0, to);
        fprintf(to, ", \"nonfinite\": %zu", t->nonfinite);
    }
    fputc('}', to);
}

static void column(const tr_history *h, const tr_column *c, FILE *to)
{
    size_t n = c->eval ? h->nevals : h->nsteps;
    const char *row = c->eval ? (const char *)h->evals : (const char *)h->steps;
    size_t size = c->eval ? sizeof *h->evals : sizeof *h->steps;
    fprintf(to, "\"%s\": [", c->name);
    for (size_t i = 0; i < n; i++) {
        uint64_t u;
        double f;
        memcpy(&u, row + i * size + c->offset, 8);
        memcpy(&f, &u, 8);
        fputs(i ? ", " : "", to);
        if (c->real)
            tr_json_real(f, to);
        else
            fprintf(to, "%llu", (unsigned long long)u);
    }
    fputs("], ", to);
}

static void history(const tr_history *h, FILE *to)
{
    fputs("{", to);
    for (size_t i = 0; i < TR_HISTORY_COLUMNS; i++)
        if (tr_history_has(h, &tr_history_columns[i])) column(h, &tr_history_columns[i], to);
    fputs("\"confusion\": [", to);
    for (int64_t i = 0; i < h->classes; i++) {
        fputs(i ? ", [" : "[", to);
        for (int64_t k = 0; k < h->classes; k++)
            fprintf(to, k ? ", %lld" : "%lld", (long long)h->confusion[i * h->classes + k]);
        fputc(']', to);
    }
    fputs("]}", to);
}

static void fault(const char *text, bool *first, FILE *to)
{
    if (!text || !text[0]) return;
    fputs(*first ? "" : ", ", to);
    *first = false;
    tr_json_text(text, to);
}

void tr_inspect_json(const tr_summary *s, const tr_trained *t, FILE *to)
{
    bool first = true;
    fputs("{\"file\": ", to);
    tr_json_text(s->ix.path, to);
    fprintf(to, ",\n \"bytes\": %llu,\n \"ok\": %s,\n \"faults\": [",
            (unsigned long long)s->ix.nbytes, s->nfaults ? "false" : "true");
    fault(s->ix.root_fault, &first, to);
    fault(s->ix.train_fault, &first, to);
    for (size_t i = 0; i < s->ix.count; i++) fault(s->faults[i], &first, to);
    fault(s->history_fault, &first, to);
    fault(s->lineage_fault, &first, to);
    fputs("],\n \"name\": ", to);
    if (s->name)
        tr_json_text(s->name, to);
    else
        fputs("null", to);
    fputs(",\n \"attributes\": ", to);
    tr_json_attrs(&s->ix.root, to);
    fputs(",\n \"train\": ", to);
    tr_json_attrs(&s->ix.train, to);
    fputs(",\n \"arrays\": [", to);
    for (size_t i = 0; i < s->ix.count; i++) {
        fputs(i ? ",\n  " : "\n  ", to);
        array(s, i, to);
    }
    fputs("],\n \"trained\": ", to);
    tr_trained_json(s, t, to);
    fputs(",\n \"stages\": ", to);
    tr_inspect_stages_json(s, to);
    fputs(",\n \"history\": ", to);
    history(&s->history, to);
    fputs("}\n", to);
}
