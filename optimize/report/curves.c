/* A report's curves of a training. */
#include "optimize/report/curves.h"

#include <math.h>

#include "optimize/plot/plot.h"

typedef struct {
    const tr_page *page;
    const tr_history *history;
    const tr_records *steps;
} curves;

/* Columns of the history's rows as arrays: [0] x, the others as they are asked for. */
typedef double pick(const tr_history *h, size_t i);
static double step_at(const tr_history *h, size_t i)
{
    return (double)h->steps[i].step;
}
static double loss_at(const tr_history *h, size_t i)
{
    return h->steps[i].loss;
}
static double lr_at(const tr_history *h, size_t i)
{
    return h->steps[i].lr;
}
static double norm_at(const tr_history *h, size_t i)
{
    return h->steps[i].grad_norm;
}
static double eval_step_at(const tr_history *h, size_t i)
{
    return (double)h->evals[i].step;
}
static double eval_loss_at(const tr_history *h, size_t i)
{
    return h->evals[i].loss;
}
static double accuracy_at(const tr_history *h, size_t i)
{
    return 100 * h->evals[i].accuracy;
}

static double *column(const tr_history *h, size_t n, pick *at)
{
    double *v = tr_alloc(TR_MEM_OTHER, n, sizeof *v);
    for (size_t i = 0; v && i < n; i++) v[i] = at(h, i);
    return v;
}

static tr_status curve(const curves *c, const char *title, const char *y_label, bool log_y,
                       bool evals, pick *y_at, pick *second)
{
    tr_status st = TR_OK;
    const tr_history *h = c->history;
    const size_t n = evals ? h->nevals : h->nsteps;
    double *x = NULL, *y = NULL, *x2 = NULL, *y2 = NULL;
    if (n < 2) return TR_OK;
    x = column(h, n, evals ? eval_step_at : step_at);
    y = column(h, n, y_at);
    TR_HAVE(x && y);
    tr_plot_series s[2] = {{.name = evals ? "evaluation" : "training", .n = n, .x = x, .y = y}};
    if (second && h->nevals > 0) {
        x2 = column(h, h->nevals, eval_step_at);
        y2 = column(h, h->nevals, second);
        TR_HAVE(x2 && y2);
        s[1] = (tr_plot_series){.name = "evaluation", .n = h->nevals, .x = x2, .y = y2};
    }
    TR_TRY(tr_svg_lines(&(tr_plot_lines){.title = title,
                                         .x_label = "step",
                                         .y_label = y_label,
                                         .log_y = log_y,
                                         .nseries = x2 ? 2 : 1,
                                         .series = s},
                        c->page->to));
out:
    tr_free(x);
    tr_free(y);
    tr_free(x2);
    tr_free(y2);
    return st;
}

/* What only metrics.jsonl has. */
static tr_status throughput(const curves *c)
{
    tr_status st = TR_OK;
    const size_t n = c->steps->count;
    double *v = NULL;
    if (n < 2) return TR_OK;
    v = tr_alloc(TR_MEM_OTHER, 2 * n, sizeof *v);
    TR_HAVE(v);
    for (size_t i = 0; i < n; i++) {
        v[i] = tr_records_real(&c->steps->records[i], "step");
        v[n + i] = tr_records_real(&c->steps->records[i], "samples_per_s");
    }
    const tr_plot_series s = {.name = "", .n = n, .x = v, .y = v + n};
    TR_TRY(tr_svg_lines(&(tr_plot_lines){.title = "Throughput",
                                         .x_label = "step",
                                         .y_label = "samples a second",
                                         .from_zero = true,
                                         .nseries = 1,
                                         .series = &s},
                        c->page->to));
out:
    tr_free(v);
    return st;
}

/* Returns whether there is an accuracy: of regression there is none. */
static bool say_last_evaluation(const tr_page *p, const tr_history *h)
{
    char accuracy[48] = "", text[160];
    if (h->nevals == 0) return false;
    const struct tr_history_eval *last = &h->evals[h->nevals - 1];
    if (isfinite(last->accuracy))
        snprintf(accuracy, sizeof accuracy, ", accuracy %.2f %%", 100 * last->accuracy);
    snprintf(text, sizeof text, "Last evaluation, at step %llu: loss %.6g%s.",
             (unsigned long long)last->step, last->loss, accuracy);
    tr_page_text(p, text);
    return accuracy[0] != 0;
}

tr_status tr_report_curves(const tr_page *p, const tr_history *h, const tr_records *steps)
{
    tr_status st = TR_OK;
    const curves c = {p, h, steps};
    if (h->nsteps == 0) return TR_OK;
    tr_page_heading(p, 2, "Training");
    const bool judged = say_last_evaluation(p, h);
    if (!tr_page_plots(p)) return TR_OK;
    TR_TRY(curve(&c, "Loss", "loss", true, false, loss_at, eval_loss_at));
    if (judged) TR_TRY(curve(&c, "Accuracy", "percent", false, true, accuracy_at, NULL));
    TR_TRY(curve(&c, "Learning rate", "learning rate", false, false, lr_at, NULL));
    TR_TRY(curve(&c, "Norm of the gradient", "norm", true, false, norm_at, NULL));
    TR_TRY(throughput(&c));
    if (h->classes > 0)
        TR_TRY(tr_svg_confusion("Confusion matrix of the last evaluation", (size_t)h->classes,
                                h->confusion, p->to));
out:
    return st;
}
