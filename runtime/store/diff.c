/* The differences of two run files: attribute by attribute, array by array. What only tells when
 * and where a file was made (created, trireme_version, parent_sha256; of a training seconds and
 * threads) is shown and does not make two files different: a run that was killed and resumed is the
 * same as one that was not. */
#include "runtime/store/internal.h"

#include <math.h>
#include <string.h>

#include "runtime/base/numbers.h"

typedef struct {
    bool json, same, first;
    size_t identical, different, uncounted; /* arrays; different ones that count, and others */
    size_t attributes;                      /* different ones that count */
    FILE *to;
} diff;

/* An attribute by its name; "": the array there. */
static bool ignored(const char *where, const char *name)
{
    static const struct {
        const char *where, *name;
    } all[] = {{"/", "created"},        {"/", "trireme_version"},    {"/", "parent_sha256"},
               {"/train", "seconds"},   {"/train", "epoch_seconds"}, {"/train", "threads"},
               {"/history/seconds", ""}};
    for (size_t i = 0; i < TR_COUNT(all); i++)
        if (strcmp(where, all[i].where) == 0 && strcmp(name, all[i].name) == 0) return true;
    return false;
}

static void separate(diff *d)
{
    if (d->json && !d->first) fputs(",", d->to);
    if (d->json) fputs("\n  ", d->to);
    d->first = false;
}

static bool same_attr(const tr_attr *a, const tr_attr *b)
{
    if (!a || !b) return a == b;
    if (a->kind != b->kind) return false;
    if (a->kind == TR_ATTR_TEXT) return strcmp(a->text, b->text) == 0;
    if (a->kind == TR_ATTR_REAL) return memcmp(&a->f, &b->f, sizeof a->f) == 0;
    return a->u == b->u;
}

static void attr_value(const diff *d, const tr_attr *a)
{
    char number[32];
    if (!a)
        fputs(d->json ? "null" : "(none)", d->to);
    else if (a->kind == TR_ATTR_COUNT)
        fprintf(d->to, "%llu", (unsigned long long)a->u);
    else if (a->kind == TR_ATTR_REAL && d->json)
        tr_json_real(a->f, d->to);
    else if (a->kind == TR_ATTR_REAL)
        fputs(tr_format_real(a->f, number), d->to);
    else if (d->json)
        tr_json_text(a->text, d->to);
    else
        tr_plain_text(a->text, 70, d->to);
}

static const char *line_end(const char *p)
{
    const char *end = strchr(p, '\n');
    return end ? end : p + strlen(p);
}

/* The first line in which two texts part; a config is too long to show twice. */
static void text_difference(const diff *d, const char *a, const char *b)
{
    int line = 1;
    for (;; line++) {
        const char *ea = line_end(a), *eb = line_end(b);
        if (ea - a != eb - b || memcmp(a, b, (size_t)(ea - a)) != 0 || *ea != *eb) {
            char left[80], right[80];
            snprintf(left, sizeof left, "%.*s", (int)(ea - a < 79 ? ea - a : 79), a);
            snprintf(right, sizeof right, "%.*s", (int)(eb - b < 79 ? eb - b : 79), b);
            fprintf(d->to, "line %d: ", line);
            tr_plain_text(left, 70, d->to);
            fputs(" | ", d->to);
            tr_plain_text(right, 70, d->to);
            return;
        }
        if (*ea == 0) return;
        a = ea + 1;
        b = eb + 1;
    }
}

static void attr(diff *d, const char *where, const char *name, const tr_attr *a, const tr_attr *b)
{
    if (same_attr(a, b)) return;
    if (!ignored(where, name)) {
        d->same = false;
        d->attributes++;
    }
    separate(d);
    if (d->json) {
        fputs("{\"name\": ", d->to);
        char full[TR_NAME + 16];
        snprintf(full, sizeof full, "%s@%s", where, name);
        tr_json_text(full, d->to);
        fputs(", \"a\": ", d->to);
        attr_value(d, a);
        fputs(", \"b\": ", d->to);
        attr_value(d, b);
        fprintf(d->to, ", \"counts\": %s}", ignored(where, name) ? "false" : "true");
        return;
    }
    fprintf(d->to, "  %s@", where);
    tr_plain_text(name, TR_NAME, d->to);
    fputs(": ", d->to);
    if (a && b && a->kind == TR_ATTR_TEXT && b->kind == TR_ATTR_TEXT && strchr(a->text, '\n')) {
        text_difference(d, a->text, b->text);
    } else {
        attr_value(d, a);
        fputs(" | ", d->to);
        attr_value(d, b);
    }
    fputs(ignored(where, name) ? "  (does not count)\n" : "\n", d->to);
}

static void attrs(diff *d, const char *where, const tr_attrs *a, const tr_attrs *b)
{
    for (size_t i = 0; i < a->count; i++)
        attr(d, where, a->v[i].name, &a->v[i], tr_attrs_get(b, a->v[i].name));
    for (size_t i = 0; i < b->count; i++)
        if (!tr_attrs_get(a, b->v[i].name)) attr(d, where, b->v[i].name, NULL, &b->v[i]);
}

static double element(tr_dtype type, const void *p, size_t i)
{
    switch (type) {
    case TR_F32:
        return ((const float *)p)[i];
    case TR_F64:
        return ((const double *)p)[i];
    case TR_I32:
        return ((const int32_t *)p)[i];
    case TR_I64:
        return (double)((const int64_t *)p)[i];
    case TR_U8:
        return ((const uint8_t *)p)[i];
    default:
        return tr_stored_value(type, p, i);
    }
}

static void measure(const tr_entry *e, const void *a, const void *b, double *max, double *relative)
{
    double squares = 0, norm = 0;
    *max = 0;
    for (size_t i = 0; i < e->count; i++) {
        double x = element(e->type, a, i), y = element(e->type, b, i), gap = fabs(x - y);
        if (x == y || (isnan(x) && isnan(y))) gap = 0;
        if (!isfinite(gap)) gap = INFINITY; /* one of them is not finite */
        if (gap > *max) *max = gap;
        squares += gap * gap;
        if (isfinite(x)) norm += x * x;
    }
    *relative = squares == 0 ? 0 : sqrt(squares) / sqrt(norm);
}

static void say(diff *d, const char *where, const char *status, const char *detail, double max,
                double relative)
{
    bool differs = strcmp(status, "identical") != 0;
    if (differs && !ignored(where, "")) d->same = false;
    *(!differs ? &d->identical : ignored(where, "") ? &d->uncounted : &d->different) += 1;
    separate(d);
    if (d->json) {
        fputs("{\"path\": ", d->to);
        tr_json_text(where, d->to);
        fprintf(d->to, ", \"status\": \"%s\"", status);
        if (detail) {
            fputs(", \"detail\": ", d->to);
            tr_json_text(detail, d->to);
        }
        if (strcmp(status, "differs") == 0) {
            fputs(", \"max_abs\": ", d->to);
            tr_json_real(max, d->to);
            fputs(", \"relative_norm\": ", d->to);
            tr_json_real(relative, d->to);
        }
        fprintf(d->to, ", \"counts\": %s}", ignored(where, "") ? "false" : "true");
        return;
    }
    fputs("  ", d->to);
    tr_plain_text(where, 100, d->to);
    fprintf(d->to, "%*s %s", (int)(strlen(where) < 44 ? 44 - strlen(where) : 0), "", status);
    if (strcmp(status, "differs") == 0)
        fprintf(d->to, ": max abs %.4g, relative norm %.4g", max, relative);
    if (detail) {
        fputs(": ", d->to);
        tr_plain_text(detail, 300, d->to);
    }
    fputs(differs && ignored(where, "") ? "  (does not count)\n" : "\n", d->to);
}

static tr_status pair(diff *d, const tr_index *ia, const tr_entry *a, const tr_index *ib,
                      const tr_entry *b)
{
    tr_status st = TR_OK;
    void *va = NULL, *vb = NULL;
    double max, relative;
    char left[200], right[200], both[420];
    const tr_entry *bad = a->fault[0] ? a : b;
    if (bad->fault[0]) {
        say(d, a->where, "damaged", bad->fault, 0, 0);
        goto out;
    }
    if (a->type != b->type || a->ndim != b->ndim ||
        memcmp(a->dims, b->dims, (size_t)a->ndim * sizeof *a->dims) != 0) {
        snprintf(both, sizeof both, "%s | %s",
                 tr_entry_shape(a->type, a->ndim, a->dims, left, sizeof left),
                 tr_entry_shape(b->type, b->ndim, b->dims, right, sizeof right));
        say(d, a->where, "shape", both, 0, 0);
        goto out;
    }
    va = tr_alloc(TR_MEM_OTHER, a->nbytes, 1);
    vb = tr_alloc(TR_MEM_OTHER, b->nbytes, 1);
    TR_HAVE(va && vb);
    if (tr_entry_read(ia, a, va, NULL, NULL) != TR_OK ||
        tr_entry_read(ib, b, vb, NULL, NULL) != TR_OK) {
        say(d, a->where, "damaged", tr_last_error()->text, 0, 0);
        goto out;
    }
    if (memcmp(va, vb, a->nbytes) == 0) {
        say(d, a->where, "identical", NULL, 0, 0);
        goto out;
    }
    measure(a, va, vb, &max, &relative);
    say(d, a->where, "differs", NULL, max, relative);
out:
    tr_free(va);
    tr_free(vb);
    return st;
}

/* Both lists are sorted: one merge. */
static tr_status arrays(diff *d, const tr_index *a, const tr_index *b)
{
    tr_status st = TR_OK;
    for (size_t i = 0, k = 0; i < a->count || k < b->count;) {
        int order = i >= a->count   ? 1
                    : k >= b->count ? -1
                                    : strcmp(a->entries[i].where, b->entries[k].where);
        if (order < 0)
            say(d, a->entries[i++].where, "only in the first", NULL, 0, 0);
        else if (order > 0)
            say(d, b->entries[k++].where, "only in the second", NULL, 0, 0);
        else
            TR_TRY(pair(d, a, &a->entries[i++], b, &b->entries[k++]));
    }
out:
    return st;
}

static void damaged_attrs(diff *d, const tr_index *ix)
{
    const char *const faults[] = {ix->root_fault, ix->train_fault};
    for (size_t i = 0; i < TR_COUNT(faults); i++) {
        if (!faults[i][0]) continue;
        d->same = false;
        if (d->json) continue; /* the values say it; `same` is false */
        fputs("  ", d->to);
        tr_plain_text(ix->path, 200, d->to);
        fputs(": ", d->to);
        tr_plain_text(faults[i], 300, d->to);
        fputc('\n', d->to);
    }
}

static void begin(diff *d, const char *a, const char *b)
{
    d->first = true;
    if (d->json) {
        fputs("{\"a\": ", d->to);
        tr_json_text(a, d->to);
        fputs(", \"b\": ", d->to);
        tr_json_text(b, d->to);
        fputs(",\n \"attributes\": [", d->to);
        return;
    }
    tr_plain_text(a, 400, d->to);
    fputs(" | ", d->to);
    tr_plain_text(b, 400, d->to);
    fputs("\nAttributes\n", d->to);
}

static void sum_up(const diff *d)
{
    fprintf(d->to, "%s: %zu array%s identical, %zu not", d->same ? "Same" : "Different",
            d->identical, tr_plural(d->identical), d->different);
    if (d->uncounted > 0)
        fprintf(d->to, ", %zu that %s not count", d->uncounted, d->uncounted == 1 ? "does" : "do");
    if (d->attributes > 0)
        fprintf(d->to, "; %zu attribute%s", d->attributes,
                d->attributes == 1 ? " differs" : "s differ");
    fputc('\n', d->to);
}

tr_status tr_store_diff(const char *a, const char *b, bool json, FILE *to, bool *same)
{
    tr_status st = TR_OK;
    diff d = {.json = json, .same = true, .to = to};
    tr_index ia = {.fd = -1}, ib = {.fd = -1};
    *same = false;
    TR_TRY(tr_index_open(a, &ia));
    TR_TRY(tr_index_open(b, &ib));
    begin(&d, a, b);
    damaged_attrs(&d, &ia);
    damaged_attrs(&d, &ib);
    attrs(&d, "/", &ia.root, &ib.root);
    attrs(&d, "/train", &ia.train, &ib.train);
    if (!json && d.first) fputs("  identical\n", to);
    d.first = true;
    fputs(json ? "],\n \"arrays\": [" : "Arrays\n", to);
    TR_TRY(arrays(&d, &ia, &ib));
    if (json)
        fprintf(to, "],\n \"same\": %s}\n", d.same ? "true" : "false");
    else
        sum_up(&d);
    *same = d.same;
out:
    tr_index_close(&ia);
    tr_index_close(&ib);
    return st;
}
