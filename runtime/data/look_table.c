/* The columns of a CSV file: numbers, or texts of which there are few (categories); what is neither is left out. */
#include "runtime/data/look_table.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "runtime/base/file.h"
#include "runtime/config/config.h"
#include "runtime/data/csv.h"

enum { TEXTS = 64 };   /* different texts of a category */
enum { CLASSES = 64 }; /* different whole numbers of a label that are classes */

typedef struct {
    bool numbers, whole, missing;
    double least, most;
    size_t texts, values; /* different ones; values: of numbers, whatever their texts */
    size_t single;        /* texts of one sample */
    uint64_t fewest;
} column;

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static bool number(const char *s, double *v)
{
    char *end;
    errno = 0;
    *v = strtod(s, &end);
    return *s && !*end && isfinite(*v);
}

static void look_at_texts(char **all, size_t n, column *c)
{
    qsort(all, n, sizeof *all, by_text);
    c->fewest = n;
    for (size_t i = 0, first = 0; i < n; i++) {
        if (i + 1 < n && strcmp(all[i], all[i + 1]) == 0) continue;
        if (i + 1 - first < c->fewest) c->fewest = i + 1 - first;
        c->single += i == first;
        first = i + 1;
        c->texts++;
    }
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* 0 and 0.0 are one. Samples are counted by value as well. */
static void look_at_numbers(double *all, size_t n, column *c)
{
    qsort(all, n, sizeof *all, by_value);
    c->fewest = n;
    for (size_t i = 0, first = 0; i < n; i++) {
        if (i + 1 < n && all[i] == all[i + 1]) continue;
        if (i + 1 - first < c->fewest) c->fewest = i + 1 - first;
        first = i + 1;
        c->values++;
    }
}

static tr_status look_at(const tr_csv *t, size_t at, column *c)
{
    tr_status st = TR_OK;
    size_t n = 0;
    char **all = tr_alloc(TR_MEM_OTHER, (size_t)t->rows + 1, sizeof *all);
    double *values = tr_alloc(TR_MEM_OTHER, (size_t)t->rows + 1, sizeof *values);
    TR_HAVE(all && values);
    *c = (column){.numbers = true, .whole = true, .least = INFINITY, .most = -INFINITY};
    for (uint64_t i = 0; i < t->rows; i++) {
        double v = 0;
        char *s = tr_csv_trim(t->fields[i * t->columns + at]);
        if (tr_csv_missing(s)) {
            c->missing = true;
            continue;
        }
        all[n] = s;
        c->numbers = c->numbers && number(s, &v);
        values[n++] = v;
        c->whole = c->whole && c->numbers && v == floor(v);
        if (v < c->least) c->least = v;
        if (v > c->most) c->most = v;
    }
    c->numbers = c->numbers && n > 0;
    look_at_texts(all, n, c);
    if (c->numbers) look_at_numbers(values, n, c);
out:
    tr_free(all);
    tr_free(values);
    return st;
}

/* By its name, or the last one. */
static size_t label_column(const tr_csv *t)
{
    static const char *const names[] = {"label", "labels", "class", "target", "species", "y"};
    for (size_t i = 0; i < TR_COUNT(names); i++)
        for (size_t k = 0; k < t->columns; k++)
            if (strcasecmp(t->names[k], names[i]) == 0) return k;
    return t->columns - 1;
}

/* Classes are counted from 0, or are texts; a few whole numbers that are not counted from 0 count as texts. */
static tr_status take_label(const char *name, bool named, const column *c, tr_look *l)
{
    tr_status st = TR_OK;
    const size_t classes = c->numbers ? c->values : c->texts;
    const bool counted = c->numbers && c->whole && c->least == 0 && c->most < CLASSES &&
                         (double)c->values == c->most + 1;
    l->outputs = 1;
    l->fewest = c->fewest;
    l->missing = l->missing || c->missing;
    if (c->numbers && !(c->whole && classes <= CLASSES && classes * 4 <= l->samples)) goto out;
    TR_NEED(named || c->numbers || 2 * c->single <= classes, TR_DATA,
            "%s: column \"%.100s\" has %zu different texts, %zu of them once, which makes no "
            "classes: name the labels: --labels COLUMN",
            l->train.path, name, c->texts, c->single);
    TR_NEED(counted || !c->numbers || c->texts == c->values, TR_DATA,
            "%s: column \"%.100s\" has %zu different numbers in %zu ways of writing them: classes "
            "that do not count from 0 are told apart by their text; write each in one way",
            l->train.path, name, c->values, c->texts);
    l->label_texts = !counted;
    l->classes = (int64_t)(classes > 1 ? classes : 2);
out:
    return st;
}

static tr_status take_column(const tr_csv *t, size_t at, const column *c, tr_look *l)
{
    tr_status st = TR_OK;
    if (!c->numbers && (c->texts > TEXTS || c->texts < 2)) {
        char *name = tr_yaml_quoted(t->names[at]); /* it is to stand in a comment */
        TR_HAVE(name);
        l->left[l->nleft] = tr_sprintf("%s (%zu different texts)", name, c->texts);
        tr_free(name);
        TR_HAVE(l->left[l->nleft]);
        l->nleft++;
        goto out;
    }
    TR_HAVE(l->columns[l->ncolumns].name = tr_strdup(t->names[at]));
    l->columns[l->ncolumns++].texts = c->numbers ? 0 : c->texts;
    l->dims[0] += c->numbers ? 1 : (int64_t)c->texts;
    l->missing = l->missing || c->missing;
out:
    return st;
}

static tr_status find_column(const char *path, const tr_csv *t, const char *name, size_t *at)
{
    for (*at = 0; *at < t->columns && strcmp(t->names[*at], name) != 0;) ++*at;
    if (*at < t->columns) return TR_OK;
    return TR_FAIL(TR_DATA, "%s: there is no column \"%.100s\"", path, name);
}

/* Several columns, "a,b", where none has a name with a comma: is_target[columns]. */
static tr_status name_targets(const char *path, const char *labels, const tr_csv *t, tr_look *l,
                              bool *is_target)
{
    tr_status st = TR_OK;
    size_t at = 0;
    char *list = NULL, *rest;
    if (!labels || !strchr(labels, ',') || find_column(path, t, labels, &at) == TR_OK) return TR_OK;
    TR_HAVE(list = rest = tr_strdup(labels));
    TR_HAVE(l->targets = tr_alloc(TR_MEM_OTHER, t->columns, sizeof *l->targets));
    for (char *word; (word = strsep(&rest, ",")) != NULL;) {
        TR_TRY(find_column(path, t, tr_csv_trim(word), &at));
        TR_NEED(!is_target[at], TR_DATA, "--labels: column \"%.100s\" stands there twice",
                t->names[at]);
        is_target[at] = true;
        TR_HAVE(l->targets[l->ntargets] = tr_strdup(t->names[at]));
        l->ntargets++;
    }
    l->outputs = (int64_t)l->ntargets;
    l->binary = true; /* until one is not */
out:
    tr_free(list);
    return st;
}

static tr_status take_target(const char *name, const column *c, tr_look *l)
{
    tr_status st = TR_OK;
    TR_NEED(c->numbers, TR_DATA,
            "%s: column \"%.100s\" holds texts: several columns of labels are values",
            l->train.path, name);
    l->binary = l->binary && c->whole && c->least >= 0 && c->most <= 1;
    l->missing = l->missing || c->missing;
out:
    return st;
}

static tr_status read_table(const char *path, tr_csv *t)
{
    static const off_t most = TR_LOOK_BYTES;
    char *text = NULL;
    size_t n;
    struct stat info;
    if (stat(path, &info) == 0 && info.st_size > most)
        return TR_FAIL(TR_DATA,
                       "%s: %lld bytes, of which at most %lld are looked at: name a file with its "
                       "first lines (head -n 100000), and put the whole one's name into the config",
                       path, (long long)info.st_size, (long long)most);
    const tr_status st = tr_read_text(path, &text, &n);
    return st == TR_OK ? tr_csv_parse(path, text, n, ',', t) : st;
}

tr_status tr_look_at_table(const char *path, const char *labels, tr_look *l)
{
    tr_status st;
    tr_csv t = {0};
    column c;
    bool *is_target = NULL;
    TR_TRY(read_table(path, &t));
    size_t y = label_column(&t);
    TR_HAVE(is_target = tr_alloc(TR_MEM_OTHER, t.columns, sizeof *is_target));
    TR_TRY(name_targets(path, labels, &t, l, is_target));
    if (l->ntargets > 0)
        y = t.columns;
    else if (labels)
        TR_TRY(find_column(path, &t, labels, &y));
    TR_NEED(t.rows > 0, TR_DATA, "%s: has no rows", path);
    TR_HAVE(l->train.path = tr_strdup(path));
    if (y < t.columns) TR_HAVE(l->train.labels = tr_strdup(t.names[y]));
    TR_HAVE(l->columns = tr_alloc(TR_MEM_OTHER, t.columns, sizeof *l->columns));
    TR_HAVE(l->left = tr_alloc(TR_MEM_OTHER, t.columns, sizeof *l->left));
    l->samples = t.rows;
    l->ndim = 1;
    for (size_t k = 0; k < t.columns; k++) {
        TR_TRY(look_at(&t, k, &c));
        if (k == y)
            TR_TRY(take_label(t.names[y], labels != NULL, &c, l));
        else if (is_target[k])
            TR_TRY(take_target(t.names[k], &c, l));
        else
            TR_TRY(take_column(&t, k, &c, l));
    }
    TR_NEED(l->ncolumns > 0, TR_DATA, "%s: no column can be an input", path);
out:
    tr_free(is_target);
    tr_csv_free(&t);
    return st;
}
