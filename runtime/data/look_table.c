/* The columns of a CSV file: numbers, or texts of which there are few (categories); what is neither is left out. */
#include "runtime/data/look_table.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/config/config.h"
#include "runtime/data/csv.h"
#include "runtime/data/texts.h"

enum { NAME = 256 };   /* bytes of a key of a config */
enum { TEXTS = 64 };   /* different texts of a category */
enum { CLASSES = 64 }; /* different whole numbers of a label that are classes */
/* Different texts that are held of a column, and of one of labels: what has more is no category. */
enum { MOST_TEXTS = 1024, MOST_LABELS = 65536 };

typedef struct {
    bool numbers, whole, missing;
    double least, most;
    uint64_t samples;     /* that are not missing */
    tr_texts held;        /* until there are more than held.most */
    bool many;            /* there were; texts, values: more than that */
    size_t texts, values; /* different ones; values: of numbers, whatever their texts */
    size_t single;        /* texts of one sample */
    uint64_t fewest;
    uint64_t comma; /* the line of the first number with a decimal comma; 0: there is none */
    bool others;    /* texts that are no numbers, with a point or a comma */
} column;

static tr_status add_field(column *c, uint64_t line, char *field)
{
    double v = 0;
    const char *s = tr_csv_trim(field);
    if (tr_csv_missing(s)) {
        c->missing = true;
        return TR_OK;
    }
    c->samples++;
    const bool number = tr_csv_number(s, &v);
    c->numbers = c->numbers && number;
    if (tr_csv_decimal_comma(s))
        c->comma = c->comma ? c->comma : line;
    else
        c->others = c->others || !number;
    c->whole = c->whole && c->numbers && v == floor(v);
    if (v < c->least) c->least = v;
    if (v > c->most) c->most = v;
    return c->many ? TR_OK : tr_texts_add(&c->held, s, &c->many);
}

typedef struct {
    double v;
    uint64_t count;
} value;

static int by_value(const void *a, const void *b)
{
    const double x = ((const value *)a)->v, y = ((const value *)b)->v;
    return (x > y) - (x < y);
}

/* 0 and 0.0 are one. Samples are counted by value. */
static tr_status count_values(column *c)
{
    size_t n = 0;
    value *all = tr_alloc(TR_MEM_OTHER, c->held.count, sizeof *all);
    if (!all) return tr_last_status();
    for (size_t i = 0; i < c->held.room; i++)
        if (c->held.v[i].text)
            all[n++] = (value){strtod(c->held.v[i].text, NULL), c->held.v[i].count};
    qsort(all, n, sizeof *all, by_value);
    c->fewest = UINT64_MAX;
    for (size_t i = 0; i < n; c->values++) {
        uint64_t samples = 0;
        const double v = all[i].v;
        for (; i < n && !(all[i].v > v); i++) samples += all[i].count;
        if (samples < c->fewest) c->fewest = samples;
    }
    tr_free(all);
    return TR_OK;
}

/* What the texts that were held say. */
static tr_status sum_up(column *c)
{
    c->numbers = c->numbers && c->samples > 0;
    if (c->many) {
        c->texts = c->values = c->held.most + 1;
        c->fewest = 1;
        return TR_OK;
    }
    c->texts = c->held.count;
    c->fewest = c->texts ? UINT64_MAX : 0;
    for (size_t i = 0; i < c->held.room; i++) {
        const tr_text *e = &c->held.v[i];
        if (!e->text) continue;
        c->single += e->count == 1;
        if (e->count < c->fewest) c->fewest = e->count;
    }
    return c->numbers ? count_values(c) : TR_OK;
}

/* By its name, or the last one. */
static size_t label_column(const tr_csv_lines *t)
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
    TR_NEED(!c->many, TR_DATA, "%s: column \"%.100s\" has more than %d different texts: %s",
            l->train.path, name, MOST_LABELS,
            named ? "too many for classes" : "name the labels: --labels COLUMN");
    TR_NEED(named || c->numbers || 2 * c->single <= classes, TR_DATA,
            "%s: column \"%.100s\" has %zu different texts, %zu of them once, which makes no "
            "classes: name the labels: --labels COLUMN",
            l->train.path, name, c->texts, c->single);
    TR_NEED(
        counted || !c->numbers || c->texts == c->values, TR_DATA,
        "%s: column \"%.100s\" has %zu different numbers in %zu ways of writing them: classes "
        "that do not count from 0 are told apart by their text. Write each in one way, name other "
        "labels (--labels COLUMN), or take the numbers as values: data.train.targets: "
        "[%.100s] in the place of labels, with model.loss: mse",
        l->train.path, name, c->values, c->texts, name);
    l->label_texts = !counted;
    l->classes = (int64_t)(classes > 1 ? classes : 2);
out:
    return st;
}

static tr_status take_column(const tr_csv_lines *t, size_t at, const column *c, tr_look *l)
{
    tr_status st = TR_OK;
    const bool nameless = !*t->names[at]; /* categories are found by their column's name */
    if (!c->numbers && (c->texts > TEXTS || c->texts < 2 || nameless)) {
        char *name = tr_yaml_quoted(t->names[at]); /* it is to stand in a comment */
        TR_HAVE(name);
        l->left[l->nleft] =
            tr_sprintf("%s (%s%zu different texts%s)", name, c->many ? "more than " : "",
                       c->texts - c->many, nameless ? ", and no name" : "");
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

static tr_status find_column(const char *path, const tr_csv_lines *t, const char *name, size_t *at)
{
    for (*at = 0; *at < t->columns && strcmp(t->names[*at], name) != 0;) ++*at;
    if (*at < t->columns) return TR_OK;
    return TR_FAIL(TR_DATA, "%s: there is no column \"%.100s\"", path, name);
}

/* Several columns, "a,b", where none has a name with a comma: is_target[columns]. */
static tr_status name_targets(const char *path, const char *labels, const tr_csv_lines *t,
                              tr_look *l, bool *is_target)
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

/* Line by line: of each column what is summed up is held. columns: [t->columns]. */
static tr_status read_columns(tr_csv_lines *t, column *columns, tr_look *l)
{
    tr_status st = TR_OK;
    for (;;) {
        bool there;
        TR_TRY(tr_csv_lines_next(t, &there));
        if (!there) break;
        l->samples++;
        for (size_t k = 0; k < t->columns; k++)
            TR_TRY(add_field(&columns[k], t->row, t->fields[k]));
    }
    TR_NEED(l->samples > 0, TR_DATA,
            "%s: expected a line with the columns' names and one at least below", l->train.path);
    for (size_t k = 0; k < t->columns; k++) {
        const column *c = &columns[k];
        TR_NEED(c->comma == 0 || c->others || l->delimiter == ',', TR_DATA,
                "%s:%" PRIu64
                ": column \"%.100s\" has numbers with a decimal comma (1,5), expected "
                "a point (1.5): write them so, sed 's/,/./g' does where no text has commas",
                l->train.path, c->comma, t->names[k]);
        TR_TRY(sum_up(&columns[k]));
    }
out:
    return st;
}

/* Columns stand in a config by their names. */
static tr_status check_names(const char *path, const tr_csv_lines *t)
{
    tr_status st = TR_OK;
    for (size_t k = 0; k < t->columns; k++) {
        const size_t n = strlen(t->names[k]);
        TR_NEED(n <= NAME, TR_DATA, "%s: column %zu has a name of %zu bytes, expected %d at most",
                path, k + 1, n, NAME);
        const char *odd = tr_csv_odd_byte(t->names[k]);
        TR_NEED(!odd, TR_DATA,
                "%s: column %zu: byte 0x%02x of its name is not UTF-8 text: store the table in "
                "that encoding",
                path, k + 1, (unsigned char)*odd);
    }
out:
    return st;
}

tr_status tr_look_at_table(const char *path, const char *labels, tr_look *l)
{
    tr_status st;
    tr_csv_lines t = {.file = {.fd = -1}};
    column *columns = NULL;
    bool *is_target = NULL;
    l->delimiter = tr_csv_delimiter(path);
    TR_TRY(tr_csv_lines_open(path, l->delimiter, 0, &t));
    TR_TRY(check_names(path, &t));
    size_t y = label_column(&t);
    TR_HAVE(is_target = tr_alloc(TR_MEM_OTHER, t.columns, sizeof *is_target));
    TR_TRY(name_targets(path, labels, &t, l, is_target));
    if (l->ntargets > 0)
        y = t.columns;
    else if (labels)
        TR_TRY(find_column(path, &t, labels, &y));
    TR_NEED(y == t.columns || *t.names[y], TR_DATA,
            "%s: column %zu, which would be the labels, has no name: name others: --labels COLUMN",
            path, y + 1);
    TR_HAVE(l->train.path = tr_strdup(path));
    if (y < t.columns) TR_HAVE(l->train.labels = tr_strdup(t.names[y]));
    TR_HAVE(l->columns = tr_alloc(TR_MEM_OTHER, t.columns, sizeof *l->columns));
    TR_HAVE(l->left = tr_alloc(TR_MEM_OTHER, t.columns, sizeof *l->left));
    TR_HAVE(columns = tr_alloc(TR_MEM_OTHER, t.columns, sizeof *columns));
    for (size_t k = 0; k < t.columns; k++)
        columns[k] = (column){.numbers = true,
                              .whole = true,
                              .least = INFINITY,
                              .most = -INFINITY,
                              .held = {.most = k == y ? MOST_LABELS : MOST_TEXTS}};
    TR_TRY(read_columns(&t, columns, l));
    l->ndim = 1;
    for (size_t k = 0; k < t.columns; k++) {
        if (k == y)
            TR_TRY(take_label(t.names[y], labels != NULL, &columns[k], l));
        else if (is_target[k])
            TR_TRY(take_target(t.names[k], &columns[k], l));
        else
            TR_TRY(take_column(&t, k, &columns[k], l));
    }
    TR_NEED(l->ncolumns > 0, TR_DATA, "%s: no column can be an input", path);
out:
    for (size_t k = 0; columns && k < t.columns; k++) tr_texts_forget(&columns[k].held);
    tr_free(columns);
    tr_free(is_target);
    tr_csv_lines_close(&t);
    return st;
}
