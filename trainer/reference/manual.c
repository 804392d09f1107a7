/* trainer(1): the help's usage, then the reference, whose Markdown becomes man(7)'s macros:
 * headings sections, rows of tables tagged paragraphs. */
#include <string.h>

#include "trainer/command/commands.h"
#include "trainer/reference/reference.h"
#include "trainer/stages/stages.h"

/* Text with man(7)'s escapes; `code` becomes bold. Each `\|` of a table is a `|`. */
static void put(const char *s, size_t n, FILE *to)
{
    bool bold = false;
    if (n && (*s == '.' || *s == '\'')) fputs("\\&", to);
    for (size_t i = 0; i < n; i++) {
        if (s[i] == '`')
            fputs((bold = !bold) ? "\\fB" : "\\fR", to);
        else if (s[i] == '\\' && i + 1 < n && s[i + 1] == '|')
            ;
        else if (s[i] == '\\')
            fputs("\\e", to);
        else if (s[i] == '-')
            fputs("\\-", to);
        else if (s[i] == '~')
            fputs("\\(ti", to);
        else if (s[i] == '^')
            fputs("\\(ha", to);
        else
            fputc(s[i], to);
    }
    if (bold) fputs("\\fR", to);
}

/* The cell behind the `|` at *p, without its spaces, and *p at the next `|`; false: there is
 * none. */
static bool cell(const char **p, const char *end, const char **text, size_t *n)
{
    const char *s = *p + 1, *e = s;
    if (s >= end) return false;
    while (e < end && (*e != '|' || e[-1] == '\\')) e++;
    if (e == end) return false;
    *p = e;
    while (s < e && *s == ' ') s++;
    while (e > s && e[-1] == ' ') e--;
    *text = s;
    *n = (size_t)(e - s);
    return true;
}

/* | key | type | default | unit | meaning | */
static void put_row(const char *line, size_t length, FILE *to)
{
    const char *p = line, *text[5];
    size_t n[5] = {0};
    int cells = 0;
    while (cells < 5 && cell(&p, line + length, &text[cells], &n[cells])) cells++;
    if (cells < 5 || n[0] == 0 || text[0][0] != '`') return; /* heads, and the line below them */
    fputs(".TP\n", to);
    put(text[0], n[0], to);
    fputc('\n', to);
    for (int i = 1; i < 4; i++) {
        if (n[i] == 0) continue;
        fputs(i == 1 ? "" : i == 2 ? "; default " : "; in ", to);
        put(text[i], n[i], to);
    }
    fputs(".\n", to);
    put(text[4], n[4], to);
    fputs(n[4] ? ".\n" : "", to);
}

static void put_line(const char *line, size_t n, FILE *to)
{
    size_t level = strspn(line, "#");
    if (n == 0) {
        fputs(".PP\n", to);
    } else if (level) {
        fputs(level == 1 ? ".SH " : ".SS ", to);
        put(line + level + 1, n - level - 1, to);
        fputc('\n', to);
    } else if (*line == '|') {
        put_row(line, n, to);
    } else {
        put(line, n, to);
        fputc('\n', to);
    }
}

static void put_reference(const char *text, FILE *to)
{
    bool empty = true; /* the line before */
    for (const char *end; *text; text = end + (*end != 0)) {
        end = strchrnul(text, '\n');
        const bool none = end == text;
        if (!(none && empty)) put_line(text, (size_t)(end - text), to);
        empty = none || *text == '#' || *text == '|';
    }
}

/* As it is printed, in type of one width. */
static void put_as_it_is(const char *section, const char *text, FILE *to)
{
    fprintf(to, ".SH %s\n.nf\n", section);
    for (const char *end; *text; text = end + (*end != 0)) {
        end = strchrnul(text, '\n');
        put(text, (size_t)(end - text), to);
        fputc('\n', to);
    }
    fputs(".fi\n", to);
}

tr_status tr_manual_write(FILE *to)
{
    tr_status st = TR_OK;
    char *reference = tr_text_of(tr_reference_write), *usage = tr_text_of(tr_commands_help);
    TR_HAVE(reference);
    TR_HAVE(usage);
    fprintf(to, ".TH TRAINER 1 \"\" \"trireme %s\" \"Trireme\"\n", TR_VERSION);
    fputs(".SH NAME\ntrainer \\- distributed training, and what comes after it, with MPI\n", to);
    put_as_it_is("SYNOPSIS", usage, to);
    fputs(".SH DESCRIPTION\n"
          "Trains the network that a config describes, data\\-parallel over the ranks that the "
          "launcher starts, then runs the other stages of the config's pipeline. All that is known "
          "of a run lies in its run folder; a run that was stopped or killed goes on with "
          "\\fB\\-\\-resume\\fR, on any number of ranks.\n"
          ".SH STAGES\n",
          to);
    for (size_t i = 0; i < TR_STAGES; i++) {
        fprintf(to, ".TP\n\\fB%s\\fR\n", tr_stages[i]->name);
        put(tr_stages[i]->doc, strlen(tr_stages[i]->doc), to);
        fputs(".\n", to);
    }
    put_reference(reference, to);
out:
    tr_free(usage);
    tr_free(reference);
    return st;
}
