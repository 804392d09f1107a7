/* The table of trials as text, for people: what stands in its cells, and rows of columns as wide as
 * what they hold. */
#include <string.h>

#include "runtime/base/numbers.h"
#include "runtime/base/visible.h"
#include "trainer/sweep/tables.h"

/* ---- Columns --------------------------------------------------------------------------------- */

static size_t parts(const char *key)
{
    size_t n = 1;
    for (; *key; key++) n += *key == '.';
    return n;
}

static const char *last_parts(const char *key, size_t n)
{
    for (size_t skip = parts(key) > n ? parts(key) - n : 0; skip > 0; skip--)
        key = strchr(key, '.') + 1;
    return key;
}

enum { FIXED = 7 }; /* columns besides the trial and its settings */
static const char *const fixed[FIXED] = {"latency, ms", "in turns", "size", "mult-adds",
                                         "loss",        "accuracy", ""};

/* The end of a key that tells it from the others. */
static const char *short_name(const tr_sweep *s, size_t column)
{
    const char *key = s->columns[column]->text;
    for (size_t n = 1; n < parts(key); n++) {
        size_t same = 0;
        for (size_t k = 0; k < FIXED; k++) same += strcmp(fixed[k], last_parts(key, n)) == 0;
        for (size_t k = 0; k < s->ncolumns; k++)
            same += strcmp(last_parts(s->columns[k]->text, n), last_parts(key, n)) == 0;
        if (same == 1) return last_parts(key, n);
    }
    return key;
}

/* ---- Cells ----------------------------------------------------------------------------------- */

tr_status tr_trial_value(const tr_trial *t, size_t column, char **out)
{
    if (t->settings[column].key) return tr_node_line(&t->settings[column].value.node, out);
    *out = tr_strdup("");
    return *out ? TR_OK : tr_last_status();
}

enum { CELL = 48 };

static void number_cells(const tr_sweep_tables *x, const tr_trial *t, char cells[][CELL])
{
    const tr_trial_model *m = &t->result.last;
    if (!tr_trial_done(t)) {
        for (int i = 0; i < FIXED - 1; i++) snprintf(cells[i], CELL, "-");
        snprintf(cells[FIXED - 1], CELL, "failed");
        return;
    }
    snprintf(cells[0], CELL, "%.4g", m->ms);
    cells[1][0] = 0;
    const double turns = tr_turns_ms(&t->result, x->turns);
    if (turns > 0) snprintf(cells[1], CELL, "%.4g", turns);
    tr_format_bytes((double)m->bytes, cells[2], CELL);
    tr_format_count(m->multiply_adds, cells[3], CELL);
    if (m->evaluated)
        tr_format_finite(m->loss, cells[4], CELL);
    else
        snprintf(cells[4], CELL, "-");
    snprintf(cells[5], CELL, m->evaluated && m->accuracy >= 0 ? "%.2f%%" : "-", 100 * m->accuracy);
    snprintf(cells[6], CELL, "%s",
             t->place == x->best && x->s->spec.search.present ? "best"
             : x->verdicts[t->place].front                    ? "front"
             : !x->verdicts[t->place].within                  ? "outside"
                                                              : "");
}

/* As much of the text as has room, of whole characters, on one line. In markdown `|` ends no
 * cell. */
static void put_cell(char cell[CELL], const char *text, bool markdown)
{
    size_t n = 0;
    for (size_t length; *text; text += length) {
        length = tr_utf8_length(text, strlen(text));
        if (length == 0) length = 1; /* no UTF-8 */
        const bool escaped = markdown && (*text == '|' || *text == '\\');
        if (n + escaped + length >= CELL) break;
        if (escaped) cell[n++] = '\\';
        memcpy(cell + n, *text == '\n' || *text == '\r' ? " " : text, length);
        n += length;
    }
    cell[n] = 0;
}

/* Trial, settings, numbers; row 0: what they are. */
static tr_status fill(const tr_sweep_tables *x, char (*cells)[CELL], size_t columns, bool markdown,
                      size_t *nrows)
{
    const tr_sweep *s = x->s;
    snprintf(cells[0], CELL, "trial");
    for (size_t k = 0; k < s->ncolumns; k++) put_cell(cells[1 + k], short_name(s, k), markdown);
    for (size_t k = 0; k < FIXED; k++) snprintf(cells[1 + s->ncolumns + k], CELL, "%s", fixed[k]);
    *nrows = 1;
    for (size_t i = 0; i < s->ntrials; i++) {
        const tr_trial *t = &s->trials[i];
        char(*row)[CELL] = cells + *nrows * columns;
        if (t->result.state == TR_TRIAL_OPEN) continue;
        snprintf(row[0], CELL, "%zu", t->number);
        for (size_t k = 0; k < s->ncolumns; k++) {
            char *value;
            const tr_status st = tr_trial_value(t, k, &value);
            if (st != TR_OK) return st;
            put_cell(row[1 + k], value, markdown);
            tr_free(value);
        }
        number_cells(x, t, row + 1 + s->ncolumns);
        ++*nrows;
    }
    return TR_OK;
}

static void write_row(char (*row)[CELL], const size_t *width, size_t n, bool markdown, FILE *to)
{
    for (size_t k = 0; k < n; k++) {
        fputs(markdown ? k ? " | " : "| " : k ? "  " : "", to);
        tr_write_cell(to, (int)width[k], row[k]);
    }
    fputs(markdown ? " |\n" : "\n", to);
}

tr_status tr_sweep_rows(const tr_sweep_tables *x, bool markdown, FILE *to)
{
    tr_status st;
    size_t nrows = 0;
    const size_t n = 1 + x->s->ncolumns + FIXED;
    char(*cells)[CELL] = tr_alloc(TR_MEM_OTHER, (x->s->ntrials + 1) * n, sizeof *cells);
    size_t *width = tr_alloc(TR_MEM_OTHER, n, sizeof *width);
    TR_HAVE(cells && width);
    TR_TRY(fill(x, cells, n, markdown, &nrows));
    for (size_t i = 0; i < nrows * n; i++) {
        const size_t length = tr_utf8_count(cells[i]);
        if (length > width[i % n]) width[i % n] = length;
    }
    for (size_t i = 0; i < nrows; i++) {
        write_row(cells + i * n, width, n, markdown, to);
        for (size_t k = 0; k < n && i == 0 && markdown; k++) fputs(k ? " ---: |" : "| ---: |", to);
        if (i == 0 && markdown) fputs("\n", to);
    }
out:
    tr_free(cells);
    tr_free(width);
    return st;
}
