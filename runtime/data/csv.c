/* A CSV file line by line. Unquoting only shrinks a field, so it is done in place: a line is cut
 * into fields in the window that it was read into. */
#include "runtime/data/csv.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "runtime/base/numbers.h"
#include "runtime/base/visible.h"

typedef struct {
    const char *path;
    char *p, *end;
    char delimiter;
    uint64_t line;
    char **all; /* fields */
    size_t count, room;
} parser;

static tr_status add_field(parser *s, char *field)
{
    if (s->count == s->room) {
        const size_t room = s->room ? 2 * s->room : 1024;
        char **all = tr_realloc(TR_MEM_OTHER, s->all, room, sizeof *all);
        if (!all) return tr_last_status();
        s->all = all;
        s->room = room;
    }
    s->all[s->count++] = field;
    return TR_OK;
}

/* One field in quotes; p behind the first of them. Ends behind the last. */
static tr_status quoted(parser *s, char **w)
{
    const uint64_t begin = s->line;
    for (;;) {
        if (s->p == s->end)
            return TR_FAIL(TR_DATA, "%s:%" PRIu64 ": the quote that begins here does not end",
                           s->path, begin);
        if (*s->p == '"') {
            s->p++;
            if (s->p == s->end || *s->p != '"') return TR_OK;
        } else if (*s->p == '\n')
            s->line++;
        *(*w)++ = *s->p++;
    }
}

/* Behind a field: its delimiter, or its line's end (*last). */
static tr_status field_end(parser *s, char *w, bool *last)
{
    tr_status st = TR_OK;
    *last = s->p == s->end || *s->p != s->delimiter;
    if (*last && s->p < s->end && *s->p == '\r') s->p++;
    TR_NEED(!*last || s->p == s->end || *s->p == '\n', TR_DATA,
            "%s:%" PRIu64 ": expected a delimiter or the line's end behind a quote", s->path,
            s->line);
    if (s->p < s->end) s->p++;
    *w = 0;
    if (*last) s->line++;
out:
    return st;
}

static tr_status read_field(parser *s, bool *last)
{
    tr_status st;
    char *w = s->p, *begin = s->p;
    if (s->p < s->end && *s->p == '"') {
        s->p++;
        TR_TRY(quoted(s, &w));
    } else {
        while (s->p < s->end && *s->p != s->delimiter && *s->p != '\n' &&
               !(*s->p == '\r' && (s->p + 1 == s->end || s->p[1] == '\n')))
            s->p++;
        w = s->p;
    }
    TR_TRY(field_end(s, w, last));
    st = add_field(s, begin);
out:
    return st;
}

static bool blank(const parser *s)
{
    return *s->p == '\n' || (*s->p == '\r' && s->p + 1 < s->end && s->p[1] == '\n');
}

char *tr_csv_trim(char *s)
{
    while (*s == ' ' || *s == '\t') s++;
    for (size_t n = strlen(s); n > 0 && (s[n - 1] == ' ' || s[n - 1] == '\t'); n--) s[n - 1] = 0;
    return s;
}

const char *tr_csv_odd_byte(const char *s)
{
    for (size_t n = strlen(s), one; n > 0; s += one, n -= one)
        if ((one = tr_utf8_length(s, n)) == 0) return s;
    return NULL;
}

bool tr_csv_missing(const char *s)
{
    static const char *const words[] = {"", "na", "n/a", "nan", "null"};
    for (size_t i = 0; i < TR_COUNT(words); i++)
        if (strcasecmp(s, words[i]) == 0) return true;
    return false;
}

bool tr_csv_number(const char *s, double *v)
{
    char *end;
    if (!*s || strspn(s, "+-0123456789.eE") != strlen(s)) return false; /* no 0x1F, no infinity */
    *v = strtod(s, &end);
    return !*end && isfinite((float)*v);
}

bool tr_csv_decimal_comma(const char *s)
{
    static const char digits[] = "0123456789";
    s += strspn(s, "+-");
    const size_t before = strspn(s, digits);
    if (before == 0 || s[before] != ',') return false;
    const size_t behind = strspn(s + before + 1, digits);
    return behind > 0 && !s[before + 1 + behind];
}

/* By text, then by place: `names` are pointers into one array. */
static int by_name(const void *a, const void *b)
{
    char *const *x = *(char **const *)a, *const *y = *(char **const *)b;
    const int order = strcmp(*x, *y);
    return order ? order : (x > y) - (x < y);
}

/* Trims them; no two are the same. */
static tr_status take_names(const char *path, char **names, size_t columns)
{
    tr_status st = TR_OK;
    char ***order = tr_alloc(TR_MEM_OTHER, columns, sizeof *order);
    TR_HAVE(order);
    for (size_t i = 0; i < columns; i++) {
        names[i] = tr_csv_trim(names[i]);
        order[i] = &names[i];
    }
    qsort(order, columns, sizeof *order, by_name);
    for (size_t i = 1; i < columns; i++)
        TR_NEED(strcmp(*order[i - 1], *order[i]) != 0, TR_DATA,
                "%s: columns %zu and %zu are both named \"%.60s\"", path,
                (size_t)(order[i - 1] - names) + 1, (size_t)(order[i] - names) + 1, *order[i]);
out:
    tr_free(order);
    return st;
}

/* Behind the line that begins at p, with quotes that may hold line ends; NULL: it does not end
 * here. */
static char *line_end(char *p, const char *end, char delimiter, bool last)
{
    bool quotes = false, start = true;
    for (; p < end; p++) {
        if (quotes) {
            if (*p != '"') continue;
            if (p + 1 == end && !last) return NULL; /* the next may be another one */
            if (p + 1 < end && p[1] == '"')
                p++;
            else
                quotes = false;
        } else if (*p == '\n') {
            return p + 1;
        } else {
            quotes = start && *p == '"';
            start = *p == delimiter;
        }
    }
    return last ? p : NULL;
}

static tr_status more(tr_csv_lines *l)
{
    tr_status st = TR_OK;
    const size_t kept = l->end - l->begin;
    memmove(l->window, l->window + l->begin, kept);
    l->begin = 0;
    l->end = kept;
    if (kept == l->room) {
        TR_NEED(l->room < TR_CSV_LINE, TR_DATA,
                "%s:%" PRIu64
                ": a line of more than %zu bytes: does the quote that begins here not "
                "end?",
                l->file.path, l->line, TR_CSV_LINE);
        char *larger = tr_realloc(TR_MEM_OTHER, l->window, 2 * l->room + 1, 1);
        TR_HAVE(larger);
        l->window = larger;
        l->room *= 2;
    }
    const uint64_t left = l->file.size - l->at;
    const size_t n = left < l->room - kept ? (size_t)left : l->room - kept;
    TR_TRY(tr_data_file_read(&l->file, l->at, l->window + kept, n));
    const char *nul = memchr(l->window + kept, 0, n);
    TR_NEED(!nul, TR_DATA, "%s: byte %" PRIu64 " is NUL: no text", l->file.path,
            l->at + (uint64_t)(nul - l->window) - kept);
    if (l->at == 0 && n >= 3 && memcmp(l->window, "\xef\xbb\xbf", 3) == 0) l->begin = 3;
    l->at += n;
    l->end += n;
out:
    return st;
}

/* The line [begin, end) of the window. */
static tr_status cut(tr_csv_lines *l, char *end)
{
    tr_status st = TR_OK;
    parser s = {.path = l->file.path,
                .p = l->window + l->begin,
                .end = end,
                .delimiter = l->delimiter,
                .line = l->line,
                .all = l->all,
                .room = l->all_room};
    for (bool last = false; st == TR_OK && !last;) st = read_field(&s, &last);
    l->all = s.all;
    l->all_room = s.room;
    TR_TRY(st);
    TR_NEED(l->columns == 0 || s.count == l->columns, TR_DATA,
            "%s:%" PRIu64 ": %zu field%s, expected %zu as in the %s%s", l->file.path, l->line,
            s.count, tr_plural(s.count), l->columns, l->header ? "header" : "first line",
            l->columns == 1 ? TR_CSV_OTHER_DELIMITER : "");
    l->fields = s.all;
    if (l->columns == 0) l->columns = s.count;
    l->row = l->line;
    l->line = s.line;
    l->begin = (size_t)(end - l->window);
out:
    return st;
}

tr_status tr_csv_lines_next(tr_csv_lines *l, bool *there)
{
    tr_status st = TR_OK;
    *there = false;
    for (;;) {
        const bool whole = l->at == l->file.size;
        char *p = l->window + l->begin, *end = NULL;
        if (l->begin == l->end && whole) return TR_OK;
        if (l->begin < l->end) end = line_end(p, l->window + l->end, l->delimiter, whole);
        if (!end) {
            TR_TRY(more(l));
            continue;
        }
        const parser s = {.p = p, .end = end};
        *there = !blank(&s);
        if (*there) return cut(l, end);
        l->begin = (size_t)(end - l->window);
        l->line++;
    }
out:
    return st;
}

tr_status tr_csv_lines_rewind(tr_csv_lines *l)
{
    bool there;
    l->at = 0;
    l->begin = l->end = 0;
    l->line = 1;
    return l->header ? tr_csv_lines_next(l, &there) : TR_OK;
}

/* Of the first line, or by number. */
static tr_status name_columns(const char *path, tr_csv_lines *l)
{
    tr_status st = TR_OK;
    TR_HAVE(l->names = tr_alloc(TR_MEM_OTHER, l->columns, sizeof *l->names));
    for (size_t i = 0; i < l->columns; i++)
        TR_HAVE(l->names[i] = l->header ? tr_strdup(tr_csv_trim(l->fields[i]))
                                        : tr_sprintf("column%zu", i + 1));
    st = l->header ? take_names(path, l->names, l->columns) : tr_csv_lines_rewind(l);
out:
    return st;
}

tr_status tr_csv_lines_open(const char *path, char delimiter, bool header, size_t window,
                            tr_csv_lines *out)
{
    enum { WINDOW = 1 << 18 };
    tr_status st;
    bool there;
    tr_csv_lines l = {.file = {.fd = -1}, .delimiter = delimiter, .header = header, .line = 1};
    l.room = window ? window : WINDOW;
    TR_TRY(tr_data_file_open(path, &l.file));
    TR_HAVE(l.window = tr_alloc(TR_MEM_OTHER, l.room + 1, 1));
    TR_TRY(tr_csv_lines_next(&l, &there));
    TR_NEED(there, TR_DATA, "%s: expected a line with the columns' names", path);
    TR_TRY(name_columns(path, &l));
out:
    if (st != TR_OK) {
        tr_csv_lines_close(&l);
        return st;
    }
    *out = l;
    return TR_OK;
}

void tr_csv_lines_close(tr_csv_lines *l)
{
    for (size_t i = 0; l->names && i < l->columns; i++) tr_free(l->names[i]);
    tr_free(l->names);
    tr_free(l->all);
    tr_free(l->window);
    tr_data_file_close(&l->file);
    *l = (tr_csv_lines){.file = {.fd = -1}};
}

/* Columns that a delimiter makes of the first lines; 0: they are not of one form. */
static size_t columns_by(const char *path, char delimiter)
{
    enum { SOME = 100, WINDOW = 1 << 16 };
    tr_csv_lines l;
    bool there = true;
    if (tr_csv_lines_open(path, delimiter, false, WINDOW, &l) != TR_OK) return 0;
    size_t columns = l.columns;
    for (int i = 0; i <= SOME && there && columns > 0; i++)
        if (tr_csv_lines_next(&l, &there) != TR_OK) columns = 0;
    tr_csv_lines_close(&l);
    return columns;
}

char tr_csv_delimiter(const char *path)
{
    static const char all[] = {',', ';', '\t'};
    char best = ',';
    size_t most = 1;
    for (size_t i = 0; i < TR_COUNT(all); i++) {
        const size_t columns = columns_by(path, all[i]);
        if (columns <= most) continue;
        most = columns;
        best = all[i];
    }
    return best;
}

tr_status tr_csv_first_line(const char *path, char delimiter, tr_csv_first *out)
{
    tr_status st;
    tr_csv_lines l = {.file = {.fd = -1}};
    size_t numbers = 0, by_one = 1; /* by_one: that are one more than the number before */
    double v = 0, before = 0;
    bool there;
    TR_TRY(tr_csv_lines_open(path, delimiter, false, 0, &l));
    TR_TRY(tr_csv_lines_next(&l, &there));
    for (size_t i = 0; i < l.columns; i++, before = v) {
        if (!tr_csv_number(tr_csv_trim(l.fields[i]), &v)) continue;
        numbers++;
        by_one += i > 0 && v == before + 1;
    }
    const bool counted = l.columns > 2 && by_one == l.columns;
    *out = numbers == 0 || counted ? TR_CSV_NAMES
           : numbers == l.columns  ? TR_CSV_NUMBERS
                                   : TR_CSV_MIXED;
out:
    tr_csv_lines_close(&l);
    return st;
}
