/* The columns of a CSV file: numbers, or texts of which there are few (categories); what is neither
 * is left out. */
#include "runtime/data/look_table.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/visible.h"
#include "runtime/config/config.h"
#include "runtime/data/csv.h"
#include "runtime/data/texts.h"

enum { NAME = 256 };   /* bytes of a key of a config */
enum { TEXTS = 64 };   /* different texts of a category */
enum { CLASSES = 64 }; /* different whole numbers of a label that are classes */
/* Different texts that are held of a column, and of one of labels: what has more is no category. */
enum { MOST_TEXTS = 1024, MOST_LABELS = 65536 };

/* Fields of a kind, of which few are a surprise: how many, and the first. */
typedef struct {
    uint64_t count, line;
    char text[40];
} oddity;

typedef struct {
    bool numbers, whole;
    bool counter; /* so far: 0, 1, 2, ... or 1, 2, 3, ... */
    double least, most;
    oddity missing, texts_among; /* texts_among: that are no numbers */
    uint64_t samples;            /* that are not missing */
    tr_texts held;               /* until there are more than held.most */
    bool many;                   /* there were; texts, values: more than that */
    size_t texts, values;        /* different ones; values: of numbers, whatever their texts */
    size_t single;               /* texts of one sample */
    uint64_t fewest;
    uint64_t comma; /* the line of the first number with a decimal comma; 0: there is none */
    bool others;    /* texts that are no numbers, with a point or a comma */
} column;

static void add_oddity(oddity *o, uint64_t line, const char *s)
{
    if (o->count++ > 0) return;
    o->line = line;
    tr_visible(s, strlen(s), o->text, sizeof o->text);
}

static tr_status add_field(column *c, uint64_t line, char *field)
{
    double v = 0;
    const char *s = tr_csv_trim(field);
    if (tr_csv_missing(s)) {
        c->counter = false;
        add_oddity(&c->missing, line, s);
        return TR_OK;
    }
    c->samples++;
    const bool number = tr_csv_number(s, &v);
    if (!number) add_oddity(&c->texts_among, line, s);
    c->numbers = c->numbers && number;
    c->counter = c->counter && number &&
                 (c->samples == 1 ? v == 0 || v == 1 : v == c->least + (double)(c->samples - 1));
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

/* ---- What is said of it ---------------------------------------------------------------------- */

tr_status tr_look_note(tr_look *l, char *text)
{
    if (!text) return tr_last_status();
    char **all = tr_realloc(TR_MEM_OTHER, l->notes, l->nnotes + 1, sizeof *all);
    if (!all) {
        tr_free(text);
        return tr_last_status();
    }
    l->notes = all;
    l->notes[l->nnotes++] = text;
    return TR_OK;
}

/* "1 of 120: 'inf' in line 9" */
static char *count_of(const oddity *o, uint64_t all)
{
    char *text = tr_yaml_quoted(o->text), *said = NULL;
    if (text)
        said = tr_sprintf("%" PRIu64 " of %" PRIu64 ": %s in line %" PRIu64, o->count, all, text,
                          o->line);
    tr_free(text);
    return said;
}

/* Why a column that looks like numbers holds none; else "". Owned. */
static char *but_for(const column *c)
{
    if (c->texts_among.count == 0 || 2 * c->texts_among.count >= c->samples) return tr_strdup("");
    char *count = count_of(&c->texts_among, c->samples), *said = NULL;
    if (count) said = tr_sprintf("numbers but for %s", count);
    tr_free(count);
    return said;
}

static tr_status take_missing(const char *name, const column *c, tr_look *l)
{
    tr_status st = TR_OK;
    if (c->missing.count == 0) return TR_OK;
    char *quoted = tr_yaml_quoted(name), *count = count_of(&c->missing, l->samples);
    l->missing = true;
    TR_HAVE(quoted && count);
    st = tr_look_note(
        l, tr_sprintf("values missing in column %s, whose lines are left out: %s", quoted, count));
out:
    tr_free(quoted);
    tr_free(count);
    return st;
}

static tr_status note_header(const tr_csv_lines *t, const char *label, tr_csv_first first,
                             tr_look *l)
{
    l->no_header = first == TR_CSV_NUMBERS;
    if (l->no_header)
        return tr_look_note(
            l, tr_sprintf("no line of names: the first is numbers, and taken as a sample; columns "
                          "are column1 to column%zu%s%s",
                          t->columns, label ? ", labels " : "", label ? label : ""));
    if (first == TR_CSV_MIXED)
        return tr_look_note(l,
                            tr_strdup("numbers stand among the names of the columns: is the first "
                                      "line a sample? data.table.header: false says so"));
    return TR_OK;
}

/* ---- What columns are taken for -------------------------------------------------------------- */

/* Classes are counted from 0, or are texts; a few whole numbers that are not counted from 0 count
 * as texts. */
static tr_status take_label(const char *name, bool named, const column *c, tr_look *l)
{
    tr_status st = TR_OK;
    const size_t classes = c->numbers ? c->values : c->texts;
    const bool counted = c->numbers && c->whole && c->least == 0 && c->most < CLASSES &&
                         (double)c->values == c->most + 1;
    l->outputs = 1;
    l->fewest = c->fewest;
    char *odd = but_for(c);
    TR_HAVE(odd);
    TR_TRY(take_missing(name, c, l));
    if (c->numbers && !(c->whole && classes <= CLASSES && classes * 4 <= l->samples)) goto out;
    TR_NEED(!c->many, TR_DATA, "%s: column \"%.100s\" has more than %d different texts: %s",
            l->train.path, name, MOST_LABELS,
            named ? "too many for classes" : "name the labels: --labels COLUMN");
    TR_NEED(named || c->numbers || 2 * c->single <= classes, TR_DATA,
            "%s: column \"%.100s\" has %zu different texts, %zu of them once, which makes no "
            "classes%s%s: name the labels: --labels COLUMN",
            l->train.path, name, c->texts, c->single, *odd ? "; " : "", odd);
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
    tr_free(odd);
    return st;
}

static bool is_counter(const column *c)
{
    return c->numbers && c->counter && c->samples > 2;
}

/* One that is no number, or that counts the lines: left out, or a category. */
static tr_status note_column(const char *name, bool used, const column *c, tr_look *l)
{
    tr_status st = TR_OK;
    char *quoted = tr_yaml_quoted(name), *odd = but_for(c); /* it is to stand in a comment */
    TR_HAVE(quoted && odd);
    if (used)
        st = *odd ? tr_look_note(l, tr_sprintf("column %s: %zu texts (%s)", quoted, c->texts, odd))
                  : TR_OK;
    else if (is_counter(c))
        st = tr_look_note(l, tr_sprintf("not used: column %s (counts the lines)", quoted));
    else if (*odd)
        st = tr_look_note(l, tr_sprintf("not used: column %s (%s)", quoted, odd));
    else
        st = tr_look_note(l, tr_sprintf("not used: column %s (%s%zu different texts%s)", quoted,
                                        c->many ? "more than " : "", c->texts - c->many,
                                        *name ? "" : ", and no name"));
out:
    tr_free(quoted);
    tr_free(odd);
    return st;
}

/* Numbers, or categories, which are found by their column's name. */
static bool is_input(const char *name, const column *c)
{
    return c->numbers ? !is_counter(c) : c->texts <= TEXTS && c->texts >= 2 && *name;
}

/* `counters`: one that counts the lines is an input, too. */
static tr_status take_column(const char *name, bool counters, const column *c, tr_look *l)
{
    tr_status st = TR_OK;
    const bool used = is_input(name, c) || (counters && is_counter(c));
    if (!c->numbers || !used) TR_TRY(note_column(name, used, c, l));
    if (!used) goto out;
    TR_HAVE(l->columns[l->ncolumns].name = tr_strdup(name));
    l->columns[l->ncolumns++].texts = c->numbers ? 0 : c->texts;
    l->dims[0] += c->numbers ? 1 : (int64_t)c->texts;
    st = take_missing(name, c, l);
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
            "%s:%" PRIu64 ": column \"%.100s\" holds texts (\"%s\"): several columns of labels are "
            "values",
            l->train.path, c->texts_among.line, name, c->texts_among.text);
    l->binary = l->binary && c->whole && c->least >= 0 && c->most <= 1;
    st = take_missing(name, c, l);
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
    tr_csv_first first = TR_CSV_NAMES;
    l->delimiter = tr_csv_delimiter(path);
    TR_TRY(tr_csv_first_line(path, l->delimiter, &first));
    TR_TRY(tr_csv_lines_open(path, l->delimiter, first != TR_CSV_NUMBERS, 0, &t));
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
    TR_TRY(note_header(&t, l->train.labels, first, l));
    TR_HAVE(columns = tr_alloc(TR_MEM_OTHER, t.columns, sizeof *columns));
    for (size_t k = 0; k < t.columns; k++)
        columns[k] = (column){.numbers = true,
                              .whole = true,
                              .counter = true,
                              .least = INFINITY,
                              .most = -INFINITY,
                              .held = {.most = k == y ? MOST_LABELS : MOST_TEXTS}};
    TR_TRY(read_columns(&t, columns, l));
    l->ndim = 1;
    bool counters = true; /* for want of other inputs */
    for (size_t k = 0; k < t.columns; k++)
        counters = counters && (k == y || is_target[k] || !is_input(t.names[k], &columns[k]));
    for (size_t k = 0; k < t.columns; k++) {
        if (k == y)
            TR_TRY(take_label(t.names[y], labels != NULL, &columns[k], l));
        else if (is_target[k])
            TR_TRY(take_target(t.names[k], &columns[k], l));
        else
            TR_TRY(take_column(t.names[k], counters, &columns[k], l));
    }
    TR_NEED(l->ncolumns > 0, TR_DATA, "%s: no column can be an input", path);
out:
    for (size_t k = 0; columns && k < t.columns; k++) tr_texts_forget(&columns[k].held);
    tr_free(columns);
    tr_free(is_target);
    tr_csv_lines_close(&t);
    return st;
}
