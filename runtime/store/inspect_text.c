/* `trainer inspect`: a run file for a reader at a terminal. */
#include "runtime/store/internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/numbers.h"

#define CONFUSION_MAX 16 /* more classes than this: only the most frequent confusions */

static bool unicode(void)
{
    static const char *const names[] = {"LC_ALL", "LC_CTYPE", "LANG"};
    for (size_t i = 0; i < TR_COUNT(names); i++) {
        const char *v = getenv(names[i]);
        if (v && v[0]) return strcasestr(v, "utf-8") || strcasestr(v, "utf8");
    }
    return false;
}

static void header(const tr_summary *s, FILE *to)
{
    char size[32];
    tr_plain_text(s->ix.path, 400, to);
    fprintf(to, " (%s)\n  ", tr_format_bytes((double)s->ix.nbytes, size, sizeof size));
    tr_plain_text(tr_summary_text(s, "kind"), 40, to);
    if (s->name) {
        fputs(" of ", to);
        tr_plain_text(s->name, 80, to);
    }
    fputs(", written ", to);
    tr_plain_text(tr_summary_text(s, "created"), 40, to);
    fputs(" by trireme ", to);
    tr_plain_text(tr_summary_text(s, "trireme_version"), 40, to);
    fputc('\n', to);
    if (tr_summary_text(s, "parent_sha256")[0]) {
        fputs("  made from the file with sha256 ", to);
        tr_plain_text(tr_summary_text(s, "parent_sha256"), 64, to);
        fputc('\n', to);
    }
    if (tr_summary_text(s, "teacher_sha256")[0]) {
        fputs("  distilled from the file with sha256 ", to);
        tr_plain_text(tr_summary_text(s, "teacher_sha256"), 64, to);
        fputc('\n', to);
    }
    if (tr_summary_text(s, "init_sha256")[0]) {
        fputs("  begun from ", to);
        tr_plain_text(tr_summary_text(s, "init_from"), TR_ERROR_TEXT, to);
        fputs("\n    whose sha256 was ", to);
        tr_plain_text(tr_summary_text(s, "init_sha256"), 64, to);
        fputc('\n', to);
    }
}

static void progress(const tr_summary *s, FILE *to)
{
    const tr_train_state *t = &s->train;
    char time[32];
    if (!s->has_train) return;
    fprintf(to,
            "\nProgress\n  step %llu, epoch %llu; %llu update%s, %llu skipped, %llu rollback%s; ",
            (unsigned long long)t->step, (unsigned long long)t->epoch,
            (unsigned long long)t->updates, tr_plural(t->updates), (unsigned long long)t->skipped,
            (unsigned long long)t->rollbacks, tr_plural(t->rollbacks));
    fprintf(to, "trained for %s\n", tr_format_seconds(t->seconds, time, sizeof time));
    fprintf(to, "  %llu training sample%s, global batch %llu in %llu micro-batch%s, seed %llu\n",
            (unsigned long long)t->samples, tr_plural(t->samples), (unsigned long long)t->batch,
            (unsigned long long)t->micro_batches, t->micro_batches == 1 ? "" : "es",
            (unsigned long long)t->seed);
    fprintf(to, "  loss scale %g (%llu good step%s since it changed), learning rate factor %g\n",
            t->loss_scale, (unsigned long long)t->loss_scale_good, tr_plural(t->loss_scale_good),
            t->lr_factor);
    if (isfinite(t->best))
        fprintf(to, "  best evaluation: loss %.6g at step %llu\n", t->best,
                (unsigned long long)t->best_step);
}

static int by_place(const void *a, const void *b, void *ctx)
{
    const tr_summary *s = ctx;
    size_t i = *(const size_t *)a, k = *(const size_t *)b;
    uint64_t x = s->ix.entries[i].offset, y = s->ix.entries[k].offset;
    return x < y ? -1 : x > y ? 1 : i < k ? -1 : i > k;
}

/* Indices of the entries below `group` in the order in which they were written, which is the order
 * of the layers. *n: how many; NULL when none. */
static size_t *below(const tr_summary *s, const char *group, size_t *n)
{
    size_t *v = tr_alloc(TR_MEM_OTHER, s->ix.count, sizeof *v);
    *n = 0;
    for (size_t i = 0; v && i < s->ix.count; i++)
        if (strncmp(s->ix.entries[i].where, group, strlen(group)) == 0) v[(*n)++] = i;
    if (*n > 0) qsort_r(v, *n, sizeof *v, by_place, (void *)s);
    return v;
}

static void array_line(const tr_summary *s, const tr_trained *trained, size_t i, const char *name,
                       int width, FILE *to)
{
    const tr_entry *e = &s->ix.entries[i];
    const tr_stats *t = &s->stats[i];
    char shape[200];
    int n = 0;
    for (const char *p = name; *p && n < width; p++) n += (*p & 0xc0) != 0x80;
    fputs("  ", to);
    tr_plain_text(name, width, to);
    fprintf(to, "%*s  ", width - n, "");
    if (s->faults[i]) {
        fputs("DAMAGED\n", to);
        return;
    }
    fprintf(to, "%-22s", tr_entry_shape(e->type, e->ndim, e->dims, shape, sizeof shape));
    if (tr_entry_measured(e))
        fprintf(to, " %11.4g %11.4g %6.1f%% %11.4g", t->mean, t->std,
                t->count ? 100.0 * (double)t->zeros / (double)t->count : 0.0, t->norm);
    if (t->nonfinite) fprintf(to, "  %zu NOT FINITE", t->nonfinite);
    if (trained->of[i] == TR_TRAINED_FROZEN) fputs("  frozen", to);
    if (trained->of[i] >= 0) fprintf(to, "  group %d", trained->of[i]);
    fputc('\n', to);
}

static void table(const tr_summary *s, const tr_trained *trained, const char *title,
                  const char *group, FILE *to)
{
    char count[32];
    size_t n, values = 0, skip = strlen(group), *v = below(s, group, &n);
    int width = 12;
    if (n == 0) goto out;
    for (size_t i = 0; i < n; i++) {
        int w = (int)strlen(s->ix.entries[v[i]].where + skip);
        if (w > width) width = w < 48 ? w : 48;
        values += s->ix.entries[v[i]].count;
    }
    fprintf(to, "\n%s: %zu array%s, %s values\n", title, n, tr_plural(n),
            tr_format_count((double)values, count, sizeof count));
    fprintf(to, "  %-*s  %-22s %11s %11s %7s %11s\n", width, "array", "shape", "mean", "std",
            "zeros", "norm");
    for (size_t i = 0; i < n; i++)
        array_line(s, trained, v[i], s->ix.entries[v[i]].where + skip, width, to);
out:
    tr_free(v);
}

/* One line a slot: its arrays mirror the parameters. */
static void slots(const tr_summary *s, FILE *to)
{
    const char *group = "/optimizer/";
    size_t skip = strlen(group);
    bool titled = false;
    for (size_t i = 0; i < s->ix.count;) {
        const char *name = s->ix.entries[i].where;
        if (strncmp(name, group, skip) != 0) {
            i++;
            continue;
        }
        size_t length = skip + strcspn(name + skip, "/"), n = 0, values = 0, damaged = 0;
        double squares = 0;
        size_t nonfinite = 0;
        char slot[TR_NAME], count[32];
        snprintf(slot, sizeof slot, "%.*s", (int)(length - skip), name + skip);
        for (; i < s->ix.count && strncmp(s->ix.entries[i].where, name, length) == 0 &&
               (s->ix.entries[i].where[length] == '/' || s->ix.entries[i].where[length] == 0);
             i++) {
            n++;
            damaged += s->faults[i] != NULL;
            values += s->stats[i].count;
            nonfinite += s->stats[i].nonfinite;
            squares += s->stats[i].norm * s->stats[i].norm;
        }
        if (!titled) fputs("\nOptimizer\n", to);
        titled = true;
        fputs("  ", to);
        tr_plain_text(slot, 40, to);
        fprintf(to, ": %zu array%s, %s values, norm %.4g", n, tr_plural(n),
                tr_format_count((double)values, count, sizeof count), sqrt(squares));
        if (nonfinite) fprintf(to, ", %zu NOT FINITE", nonfinite);
        if (damaged) fprintf(to, ", %zu DAMAGED", damaged);
        fputc('\n', to);
    }
}

static tr_status plot_losses(const tr_history *h, int width, FILE *to)
{
    double *xy = tr_alloc(TR_MEM_OTHER, 2 * h->nsteps, sizeof *xy);
    if (!xy) return tr_last_status();
    for (size_t i = 0; i < h->nsteps; i++) {
        xy[i] = (double)h->steps[i].step;
        xy[h->nsteps + i] = h->steps[i].loss;
    }
    const tr_status st = tr_plot(xy, xy + h->nsteps, h->nsteps, width, 10, unicode(), "step", to);
    tr_free(xy);
    return st;
}

static void loss_curve(const tr_history *h, int width, FILE *to)
{
    if (h->nsteps == 0) return;
    const struct tr_history_step *last = &h->steps[h->nsteps - 1];
    fprintf(to, "\nTraining loss: %zu record%s, last %.6g at step %llu\n", h->nsteps,
            tr_plural(h->nsteps), last->loss, (unsigned long long)last->step);
    if (plot_losses(h, width, to) != TR_OK)
        fprintf(to, "  the curve is not shown: %s\n", tr_last_error()->text);
}

static void percent(double v, FILE *to)
{
    if (isfinite(v))
        fprintf(to, " %9.2f%%", 100 * v);
    else
        fprintf(to, " %10s", "-");
}

/* Columns that only some runs have. */
static void more_names(const tr_history *h, FILE *to)
{
    for (size_t i = 0; i < TR_HISTORY_COLUMNS; i++) {
        const tr_column *c = &tr_history_columns[i];
        if (c->maybe && tr_history_has(h, c)) fprintf(to, " %10s", c->name + strlen("eval_"));
    }
}

static void more_values(const tr_history *h, size_t row, FILE *to)
{
    for (size_t i = 0; i < TR_HISTORY_COLUMNS; i++) {
        const tr_column *c = &tr_history_columns[i];
        double v;
        memcpy(&v, (const char *)&h->evals[row] + c->offset, sizeof v);
        if (c->maybe && tr_history_has(h, c)) fprintf(to, " %10.4g", v);
    }
}

static void evaluations(const tr_history *h, FILE *to)
{
    size_t best = h->nevals;
    if (h->nevals == 0) return;
    for (size_t i = 0; i < h->nevals; i++)
        if (isfinite(h->evals[i].loss) &&
            (best == h->nevals || h->evals[i].loss < h->evals[best].loss))
            best = i;
    fprintf(to, "\nEvaluations: %zu\n  %10s %12s %10s %10s", h->nevals, "step", "loss", "accuracy",
            "top-5");
    more_names(h, to);
    fputc('\n', to);
    for (size_t i = 0; i < h->nevals; i++) {
        bool shown = h->nevals <= 12 || i < 2 || i + 8 >= h->nevals || i == best;
        if (!shown) {
            if (i == 2 || i == best + 1) fprintf(to, "  %10s\n", "...");
            continue;
        }
        fprintf(to, "  %10llu %12.6g", (unsigned long long)h->evals[i].step, h->evals[i].loss);
        percent(h->evals[i].accuracy, to);
        percent(h->evals[i].top5, to);
        more_values(h, i, to);
        fputs(i == best ? "  best\n" : "\n", to);
    }
}

static void confusion_pairs(const tr_history *h, FILE *to)
{
    int64_t below = INT64_MAX;
    fputs("  the most frequent (true -> predicted: count):\n", to);
    for (int shown = 0; shown < 10 && below > 0;) {
        int64_t most = 0;
        for (int64_t i = 0; i < h->classes * h->classes; i++)
            if (i / h->classes != i % h->classes && h->confusion[i] < below &&
                h->confusion[i] > most)
                most = h->confusion[i];
        for (int64_t i = 0; most > 0 && shown < 10 && i < h->classes * h->classes; i++)
            if (i / h->classes != i % h->classes && h->confusion[i] == most && ++shown)
                fprintf(to, "  %lld -> %lld: %lld\n", (long long)(i / h->classes),
                        (long long)(i % h->classes), (long long)most);
        below = most;
    }
}

static void confusion(const tr_history *h, FILE *to)
{
    int width = 2;
    char text[32];
    if (h->classes == 0) return;
    fprintf(to, "\nConfusion matrix of the last evaluation, %lld classes\n", (long long)h->classes);
    if (h->classes > CONFUSION_MAX) {
        confusion_pairs(h, to);
        return;
    }
    for (int64_t i = 0; i < h->classes * h->classes; i++) {
        int n = snprintf(text, sizeof text, "%lld", (long long)h->confusion[i]);
        if (n > width) width = n;
    }
    fprintf(to, "  true\\predicted");
    for (int64_t k = 0; k < h->classes; k++) fprintf(to, " %*lld", width, (long long)k);
    fputs("   right\n", to);
    for (int64_t i = 0; i < h->classes; i++) {
        double sum = 0, right = (double)h->confusion[i * h->classes + i];
        fprintf(to, "  %14lld", (long long)i);
        for (int64_t k = 0; k < h->classes; k++) {
            int64_t v = h->confusion[i * h->classes + k];
            sum += (double)v;
            if (v)
                fprintf(to, " %*lld", width, (long long)v);
            else
                fprintf(to, " %*s", width, ".");
        }
        if (sum > 0)
            fprintf(to, " %6.1f%%\n", 100 * right / sum);
        else
            fprintf(to, " %7s\n", "-");
    }
}

static void faults(const tr_summary *s, FILE *to)
{
    const char *const other[] = {s->ix.root_fault, s->ix.train_fault};
    if (s->nfaults == 0) return;
    fprintf(to, "\nDAMAGED: %zu\n", s->nfaults);
    for (size_t i = 0; i < s->ix.count + TR_COUNT(other); i++) {
        const char *text = i < TR_COUNT(other) ? other[i] : s->faults[i - TR_COUNT(other)];
        if (!text || !text[0]) continue;
        fputs("  ", to);
        tr_plain_text(text, 400, to);
        fputc('\n', to);
    }
    if (s->history_fault) {
        fputs("  the history is not shown: ", to);
        tr_plain_text(s->history_fault, 400, to);
        fputc('\n', to);
    }
    if (s->lineage_fault) {
        fputs("  the stages are not shown: ", to);
        tr_plain_text(s->lineage_fault, 400, to);
        fputc('\n', to);
    }
}

void tr_inspect_text(const tr_summary *s, const tr_trained *t, int width, FILE *to)
{
    header(s, to);
    progress(s, to);
    table(s, t, "Parameters", "/model/params/", to);
    tr_trained_text(s, t, to);
    table(s, t, "State", "/model/state/", to);
    slots(s, to);
    tr_inspect_stages_text(s, to);
    loss_curve(&s->history, width, to);
    evaluations(&s->history, to);
    confusion(&s->history, to);
    faults(s, to);
}
