/* What came of a sweep: sweep.csv for programs, sweep.md and the terminal for people, sweep.svg and
 * sweep.size.svg: accuracy over latency, with sizes, and over size, with latencies. */
#include <math.h>
#include <string.h>

#include "optimize/plot/plot.h"
#include "runtime/base/file.h"
#include "runtime/base/numbers.h"
#include "trainer/sweep/tables.h"

/* ---- CSV (RFC 4180) -------------------------------------------------------------------------- */

static void csv_text(const char *text, FILE *to)
{
    if (!text[strcspn(text, ",\"\r\n")]) {
        fputs(text, to);
        return;
    }
    fputc('"', to);
    for (; *text; text++) {
        if (*text == '"') fputc('"', to);
        fputc(*text, to);
    }
    fputc('"', to);
}

/* The shortest that reads back as the same number; nothing for what is not known. */
static void csv_real(double v, FILE *to)
{
    char text[32];
    fprintf(to, ",%s", isfinite(v) ? tr_format_real(v, text) : "");
}

static void csv_model(const tr_trial_model *m, FILE *to)
{
    fprintf(to, ",%lld,%lld", (long long)m->parameters, (long long)m->bytes);
    csv_real(m->multiply_adds, to);
    csv_real(m->ms, to);
    csv_real(m->evaluated ? m->loss : NAN, to);
    csv_real(m->evaluated ? m->accuracy : NAN, to);
}

static void csv_trial(int64_t number, FILE *to)
{
    if (number < 0)
        fputc(',', to);
    else
        fprintf(to, ",%lld", (long long)number);
}

static tr_status csv_row(const tr_sweep_tables *x, const tr_trial *t, FILE *to)
{
    const tr_trial_result *r = &t->result;
    fprintf(to, "%zu,%s", t->number, tr_trial_done(t) ? "done" : "failed");
    for (size_t k = 0; k < x->s->ncolumns; k++) {
        char *value;
        const tr_status st = tr_trial_value(t, k, &value);
        if (st != TR_OK) return st;
        fputc(',', to);
        csv_text(value, to);
        tr_free(value);
    }
    if (tr_trial_done(t)) {
        csv_model(&r->last, to);
        csv_real(r->trained.ms, to);
        csv_real(r->trained.evaluated ? r->trained.accuracy : NAN, to);
        csv_real(tr_turns_ms(r, x->turns), to);
        csv_trial(r->trained_by, to);
        fprintf(to, ",%d,%d,", x->verdicts[t->place].within, x->verdicts[t->place].front);
    } else {
        fputs(",,,,,,,,,", to);
        csv_trial(r->trained_by, to);
        fputs(",,,", to);
    }
    csv_text(r->reason, to);
    fputs("\r\n", to);
    return TR_OK;
}

/* Not judged: the bounds are another sweep's. */
static void csv_earlier(const tr_sweep_tables *x, const tr_known_trial *t, FILE *to)
{
    const tr_sweep *s = x->s;
    const tr_trial_result *r = t->result;
    fprintf(to, "%zu,earlier", t->number);
    for (size_t k = 0; k < s->ncolumns; k++) {
        fputc(',', to);
        csv_text(t->values[k] ? t->values[k] : "", to);
    }
    csv_model(&r->last, to);
    csv_real(r->trained.ms, to);
    csv_real(r->trained.evaluated ? r->trained.accuracy : NAN, to);
    csv_real(tr_turns_ms(r, x->turns), to);
    fputs(",,,,of a sweep before\r\n", to);
}

static tr_status write_csv(const tr_sweep_tables *x, FILE *to)
{
    tr_status st = TR_OK;
    fputs("trial,state", to);
    for (size_t k = 0; k < x->s->ncolumns; k++) {
        fputc(',', to);
        csv_text(x->s->columns[k]->text, to);
    }
    fputs(",parameters,bytes,multiply_adds,latency_ms,loss,accuracy,trained_latency_ms,"
          "trained_accuracy,turns_latency_ms,trained_by,within,front,reason\r\n",
          to);
    for (size_t i = 0; i < x->s->ntrials; i++)
        if (x->s->trials[i].result.state != TR_TRIAL_OPEN) TR_TRY(csv_row(x, &x->s->trials[i], to));
    for (size_t i = 0; i < x->s->nknown; i++)
        if (tr_is_earlier(&x->s->known[i])) csv_earlier(x, &x->s->known[i], to);
out:
    return st;
}

/* ---- The table for people -------------------------------------------------------------------- */

static tr_status write_markdown(const tr_sweep_tables *x, FILE *to)
{
    tr_status st;
    const tr_sweep *s = x->s;
    char *text = NULL, *earlier = NULL;
    fprintf(to, "# Sweep over %s\n\n", s->file);
    TR_TRY(tr_sweep_rows(x, true, to));
    fputs("\n`front`: no other trial is as fast (to 2 %), as small and as accurate, and better in "
          "one of these.\n`in turns`: those that may be on it were timed once more at the end, in "
          "turns, "
          "and are "
          "judged by that.\n",
          to);
    if (x->untimed)
        fprintf(to, "Missing: the timing in turns, so that each trial is judged by its own: %s\n",
                x->untimed);
    if (x->best != SIZE_MAX && s->spec.search.present) {
        text = tr_trial_text(s, &s->trials[x->best]);
        TR_HAVE(text);
        fprintf(to, "`best`: of these the one with the least %s: %s.\n",
                tr_minimize_names[s->spec.search.minimize], text);
    }
    for (size_t i = 0; i < s->ntrials; i++)
        if (s->trials[i].result.state == TR_TRIAL_FAILED)
            fprintf(to, "\nTrial %zu failed: %s\n", s->trials[i].number,
                    s->trials[i].result.reason);
    TR_TRY(tr_sweep_earlier_text(s, &earlier));
    if (earlier)
        fprintf(to, "\nBesides, there are %s, `earlier` in sweep.csv, not held against these.\n",
                earlier);
    fputs("\n![accuracy over latency](sweep.svg)\n![accuracy over size](sweep.size.svg)\n", to);
out:
    tr_free(text);
    tr_free(earlier);
    return st;
}

/* ---- The plots ------------------------------------------------------------------------------- */

typedef enum { OVER_LATENCY, OVER_SIZE } plot_kind;

typedef struct {
    double *x, *y, *areas;
    char **notes;
    size_t n;
} marks;

static tr_status open_marks(size_t n, marks *m)
{
    tr_status st = TR_OK;
    m->x = tr_alloc(TR_MEM_OTHER, n, sizeof *m->x);
    m->y = tr_alloc(TR_MEM_OTHER, n, sizeof *m->y);
    m->areas = tr_alloc(TR_MEM_OTHER, n, sizeof *m->areas);
    m->notes = tr_alloc(TR_MEM_OTHER, n, sizeof *m->notes);
    TR_HAVE(m->x && m->y && m->areas && m->notes);
out:
    return st;
}

static void close_marks(marks *m)
{
    for (size_t i = 0; m->notes && i < m->n; i++) tr_free(m->notes[i]);
    tr_free(m->x);
    tr_free(m->y);
    tr_free(m->areas);
    tr_free(m->notes);
}

/* "trial 3: amount 0.5; 1.2 ms, 45 kB, loss 0.35, accuracy 98.65%" */
static char *note_of(const tr_sweep_tables *x, const tr_trial *t, double ms)
{
    const tr_trial_model *m = &t->result.last;
    char size[32], loss[48] = "", accuracy[48] = "";
    char *text = tr_trial_text(x->s, t);
    if (!text) return NULL;
    tr_format_bytes((double)m->bytes, size, sizeof size);
    if (m->evaluated) snprintf(loss, sizeof loss, ", loss %.6g", m->loss);
    if (m->evaluated && m->accuracy >= 0)
        snprintf(accuracy, sizeof accuracy, ", accuracy %.2f%%", 100 * m->accuracy);
    char *note =
        tr_sprintf("trial %zu: %s; %.4g ms, %s%s%s", t->number, text, ms, size, loss, accuracy);
    tr_free(text);
    return note;
}

static tr_status add_mark(const tr_sweep_tables *x, plot_kind kind, const tr_trial *t, marks *m)
{
    tr_status st = TR_OK;
    const tr_trial_model *model = &t->result.last;
    double objectives[TR_SEARCH_OBJECTIVES];
    tr_sweep_objectives(model, objectives);
    if (!isfinite(objectives[2])) return TR_OK; /* in the table; there is no place for it */
    const double ms = x->verdicts[t->place].turns ? t->result.turns_ms : model->ms,
                 kb = (double)model->bytes / 1000;
    m->x[m->n] = kind == OVER_SIZE ? kb : ms;
    m->areas[m->n] = kind == OVER_SIZE ? ms : kb;
    m->y[m->n] = !model->evaluated ? 0 : model->accuracy >= 0 ? 100 * model->accuracy : model->loss;
    TR_HAVE(m->notes[m->n] = note_of(x, t, ms));
    m->n++;
out:
    return st;
}

/* The line along the front, as far as it can be seen: what is right against what is up. */
static tr_status front_line(const marks *front, bool loss, marks *line)
{
    tr_status st;
    bool *seen = NULL;
    double *v = tr_alloc(TR_MEM_OTHER, 2 * front->n, sizeof *v);
    TR_TRY(open_marks(front->n, line));
    seen = tr_alloc(TR_MEM_OTHER, front->n, sizeof *seen);
    TR_HAVE(v && seen);
    for (size_t i = 0; i < front->n; i++) {
        v[2 * i] = front->x[i];
        v[2 * i + 1] = loss ? front->y[i] : -front->y[i];
    }
    TR_TRY(tr_pareto_front(front->n, 2, v, NULL, seen));
    for (size_t i = 0; i < front->n; i++) { /* from left to right */
        if (!seen[i]) continue;
        size_t k = line->n++;
        for (; k > 0 && line->x[k - 1] > front->x[i]; k--) {
            line->x[k] = line->x[k - 1];
            line->y[k] = line->y[k - 1];
        }
        line->x[k] = front->x[i];
        line->y[k] = front->y[i];
    }
out:
    tr_free(v);
    tr_free(seen);
    return st;
}

enum { FRONT, OTHERS, OUTSIDE, KINDS };

/* What is right, and what the areas of marks are. */
static void label_of(plot_kind kind, double least, double most, char *label, size_t size)
{
    char low[32] = "", high[32] = "";
    if (most > 0 && kind == OVER_LATENCY) {
        tr_format_bytes(1000 * least, low, sizeof low);
        tr_format_bytes(1000 * most, high, sizeof high);
    } else if (most > 0) {
        snprintf(low, sizeof low, "%.4g", least);
        snprintf(high, sizeof high, "%.4g ms", most);
    }
    snprintf(label, size, "%s (area of a mark: %s, %s to %s)",
             kind == OVER_SIZE ? "file, kB" : "one sample, median, ms",
             kind == OVER_SIZE ? "one sample, median" : "file", low, high);
}

static tr_status draw(const tr_sweep_tables *x, plot_kind kind, const marks m[KINDS],
                      const marks *line, bool loss, FILE *to)
{
    static const char *const names[KINDS] = {"front", "dominated", "outside the bounds"};
    static const int colors[KINDS] = {2, 1, 7};
    tr_plot_series series[KINDS + 1] = {
        {.name = kind == OVER_SIZE ? "best at its size" : "best at its latency",
         .n = line->n,
         .x = line->x,
         .y = line->y,
         .steps = true,
         .color = 2}};
    size_t n = 1;
    double least = INFINITY, most = 0;
    char label[160];
    for (int k = KINDS - 1; k >= 0; k--) {
        for (size_t i = 0; i < m[k].n; i++) {
            least = fmin(least, m[k].areas[i]);
            most = fmax(most, m[k].areas[i]);
        }
        if (m[k].n == 0) continue;
        series[n++] = (tr_plot_series){.name = names[k],
                                       .n = m[k].n,
                                       .x = m[k].x,
                                       .y = m[k].y,
                                       .sizes = m[k].areas,
                                       .notes = (const char *const *)m[k].notes,
                                       .points = true,
                                       .filled = k == FRONT,
                                       .color = colors[k]};
    }
    label_of(kind, least, most, label, sizeof label);
    return tr_svg_lines(&(tr_plot_lines){.title = x->s->base->name,
                                         .x_label = label,
                                         .y_label = loss ? "loss" : "accuracy, %",
                                         .nseries = n,
                                         .series = series},
                        to);
}

static tr_status write_plot(const tr_sweep_tables *x, plot_kind kind, FILE *to)
{
    tr_status st = TR_OK;
    const tr_sweep *s = x->s;
    marks m[KINDS] = {{0}}, line = {0};
    const tr_trial_model *first = tr_sweep_reference(s);
    const bool loss = first && first->evaluated && !(first->accuracy >= 0);
    for (int k = 0; k < KINDS; k++) TR_TRY(open_marks(s->ntrials, &m[k]));
    for (size_t i = 0; i < s->ntrials; i++) {
        const tr_trial *t = &s->trials[i];
        if (!tr_trial_done(t)) continue;
        const tr_verdict *v = &x->verdicts[i];
        TR_TRY(add_mark(x, kind, t, &m[!v->within ? OUTSIDE : v->front ? FRONT : OTHERS]));
    }
    TR_TRY(front_line(&m[FRONT], loss, &line));
    TR_TRY(draw(x, kind, m, &line, loss, to));
out:
    for (int k = 0; k < KINDS; k++) close_marks(&m[k]);
    line.n = 0; /* it has no notes */
    close_marks(&line);
    return st;
}

static tr_status write_latency_plot(const tr_sweep_tables *x, FILE *to)
{
    return write_plot(x, OVER_LATENCY, to);
}

static tr_status write_size_plot(const tr_sweep_tables *x, FILE *to)
{
    return write_plot(x, OVER_SIZE, to);
}

/* ---- Files ----------------------------------------------------------------------------------- */

static tr_status write_file(const tr_sweep_tables *x, const char *name,
                            tr_status (*write)(const tr_sweep_tables *, FILE *))
{
    char *path = tr_sprintf("%s/%s", x->s->spec.output, name);
    tr_text_file f;
    tr_status st = tr_text_file_open(&f, path);
    if (st == TR_OK) st = write(x, f.to);
    st = tr_text_file_close(&f, st);
    tr_free(path);
    return st;
}

static tr_status log_table(const tr_sweep_tables *x)
{
    tr_text_file f;
    tr_status st = tr_text_file_open(&f, "the sweep's table");
    if (st == TR_OK) st = tr_sweep_rows(x, false, f.to);
    return tr_text_file_log(&f, TR_LOG_INFO, st);
}

static tr_status find_timing(tr_sweep_tables *x)
{
    bool *in = tr_alloc(TR_MEM_OTHER, x->s->ntrials, sizeof *in);
    if (!in) return tr_last_status();
    tr_sweep_candidates(x->s, in);
    x->turns = tr_sweep_timed(x->s, in);
    tr_free(in);
    return TR_OK;
}

tr_status tr_sweep_write(const tr_sweep *s, bool table, const char *untimed)
{
    tr_status st = TR_OK;
    tr_sweep_tables x = {.s = s, .untimed = untimed};
    x.verdicts = tr_alloc(TR_MEM_OTHER, s->ntrials, sizeof *x.verdicts);
    TR_HAVE(x.verdicts);
    TR_TRY(tr_sweep_judge(s, x.verdicts, &x.best));
    TR_TRY(find_timing(&x));
    TR_TRY(tr_sweep_read_earlier(s));
    TR_TRY(write_file(&x, "sweep.csv", write_csv));
    TR_TRY(write_file(&x, "sweep.md", write_markdown));
    TR_TRY(write_file(&x, "sweep.svg", write_latency_plot));
    TR_TRY(write_file(&x, "sweep.size.svg", write_size_plot));
    if (table) TR_TRY(log_table(&x));
out:
    tr_free(x.verdicts);
    return st;
}
