/* The curves of several runs in one plot. */
#include <math.h>

#include "optimize/plot/plot.h"
#include "trainer/compare/compare.h"

static size_t measured(const double *v, size_t n)
{
    size_t found = 0;
    for (size_t i = 0; i < n; i++) found += isfinite(v[i]);
    return found;
}

/* On a logarithmic axis where all is above 0, as losses are. */
static bool positive(const tr_plot_series *s, size_t n)
{
    for (size_t k = 0; k < n; k++)
        for (size_t i = 0; i < s[k].n; i++)
            if (isfinite(s[k].y[i]) && !(s[k].y[i] > 0)) return false;
    return true;
}

tr_status tr_comparison_write_svg(const tr_comparison *c, tr_compared_metric m, FILE *to)
{
    tr_status st = TR_OK;
    const char *name = tr_compared_metrics[m].name;
    size_t n = 0;
    tr_plot_series *s = tr_alloc(TR_MEM_OTHER, 2 * c->count, sizeof *s);
    char **names = tr_alloc(TR_MEM_OTHER, c->count, sizeof *names);
    TR_HAVE(s && names);
    for (size_t k = 0; k < c->count; k++) {
        const tr_compared *r = &c->runs[k];
        const bool line =
            m == TR_COMPARED_loss && measured(r->training.value[m], r->training.count);
        TR_HAVE(names[k] = tr_sprintf("%s%s", r->path, line ? ", evaluation" : ""));
        if (line)
            s[n++] = (tr_plot_series){.name = r->path,
                                      .n = r->training.count,
                                      .x = r->training.step,
                                      .y = r->training.value[m],
                                      .color = (int)(k % 8) + 1};
        if (measured(r->evaluation.value[m], r->evaluation.count))
            s[n++] = (tr_plot_series){.name = names[k],
                                      .n = r->evaluation.count,
                                      .x = r->evaluation.step,
                                      .y = r->evaluation.value[m],
                                      .points = line,
                                      .filled = line,
                                      .color = (int)(k % 8) + 1};
    }
    TR_NEED(n > 0, TR_DATA, "none of the runs has measured %s", name);
    TR_TRY(tr_svg_lines(&(tr_plot_lines){.title = name,
                                         .x_label = "step",
                                         .y_label = name,
                                         .log_y = m == TR_COMPARED_loss && positive(s, n),
                                         .nseries = n,
                                         .series = s},
                        to));
out:
    for (size_t k = 0; names && k < c->count; k++) tr_free(names[k]);
    tr_free(names);
    tr_free(s);
    return st;
}
