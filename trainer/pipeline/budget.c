#include "trainer/pipeline/budget.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* One more that was missed. A number that is not finite, or could not be measured, keeps to no
 * bound. */
static void add(tr_miss *out, const char *what, double is, const char *bound_is, double bound,
                const char *detail)
{
    const size_t n = strlen(out->text);
    char number[32];
    tr_format_finite(is, number, sizeof number);
    snprintf(out->text + n, sizeof out->text - n, "%sbudget.%s: %s, %s %.6g was asked for (%s)",
             n ? "; " : "", what, number, bound_is, bound, detail);
}

static bool at_most(tr_miss *out, const char *what, double is, double bound, const char *detail)
{
    if (bound < 0 || (isfinite(is) && is <= bound)) return true;
    add(out, what, is, "at most", bound, detail);
    return false;
}

static bool at_least(tr_miss *out, const char *what, double is, double bound, const char *detail)
{
    if (bound < 0 || (isfinite(is) && is >= bound)) return true;
    add(out, what, is, "at least", bound, detail);
    return false;
}

/* What the data says. Where the loss is not finite, the accuracy is that of answers that are
 * none. */
static void judge_answers(const tr_budget *b, const tr_measured *m, tr_miss *out)
{
    char detail[120], after[32], before[32];
    const double was = m->evaluated ? m->before.loss : NAN, is = m->evaluated ? m->after.loss : NAN;
    const double right = isfinite(is) ? m->after.accuracy : NAN;
    tr_format_finite(right, after, sizeof after);
    tr_format_finite(m->evaluated ? m->before.accuracy : NAN, before, sizeof before);
    snprintf(detail, sizeof detail, "accuracy %s, before %s%s", after, before,
             m->evaluated && !isfinite(is) ? ", the loss is not finite" : "");
    at_most(out, "accuracy_drop", m->before.accuracy - right, b->accuracy_drop, detail);
    tr_format_finite(is, after, sizeof after);
    tr_format_finite(was, before, sizeof before);
    snprintf(detail, sizeof detail, "loss %s, before %s", after, before);
    at_most(out, "loss_rise", is - was, b->loss_rise, detail);
    at_least(out, "accuracy", right, b->accuracy, "of data.eval");
    at_most(out, "loss", is, b->loss, "of data.eval");
}

static bool judge_size(const tr_budget *b, const tr_measured *m, tr_miss *out)
{
    char detail[120];
    snprintf(detail, sizeof detail, "%llu bytes of %llu", (unsigned long long)m->bytes,
             (unsigned long long)m->parent_bytes);
    const bool size =
        at_most(out, "size", (double)m->bytes / (double)m->parent_bytes, b->size, detail);
    snprintf(detail, sizeof detail, "%llu bytes", (unsigned long long)m->bytes);
    return at_most(out, "size_mb", (double)m->bytes / 1e6, b->size_mb, detail) && size;
}

static bool judge_time(const tr_budget *b, const tr_measured *m, tr_miss *out)
{
    char detail[120];
    snprintf(detail, sizeof detail, "%.6g ms, before %.6g ms", m->ms, m->parent_ms);
    const bool latency = at_most(out, "latency_ms", m->ms > 0 ? m->ms : NAN, b->latency_ms, detail);
    return at_least(out, "speedup", m->ms > 0 ? m->parent_ms / m->ms : NAN, b->speedup, detail) &&
           latency;
}

void tr_budget_judge(const tr_budget *b, const tr_measured *m, tr_miss *out)
{
    *out = (tr_miss){0};
    judge_answers(b, m, out);
    const bool size = judge_size(b, m, out), time = judge_time(b, m, out);
    out->cost = !size || !time;
}

static const char *named(const tr_attempt *a, const char *what, char name[TR_NAME])
{
    snprintf(name, TR_NAME, "attempt_%d%s", a->number, what);
    return name;
}

/* Options as the file has them, a line each, as one line of YAML. */
static tr_status one_line(const char *options, char **line)
{
    tr_document d = {NULL, NULL};
    tr_status st = tr_document_parse("options", options, strlen(options), &d);
    if (st == TR_OK) st = tr_node_line(d.root, line);
    tr_document_close(&d);
    return st;
}

tr_status tr_attempt_note(const tr_attempt *a, const tr_miss *m, const char *options,
                          tr_attrs *findings)
{
    tr_status st = TR_OK;
    const tr_evaluation *e = a->evaluation;
    char name[TR_NAME], *line = NULL;
    TR_TRY(one_line(options, &line));
    TR_TRY(tr_attrs_add_text(findings, named(a, "", name), m->text));
    TR_TRY(tr_attrs_add_text(findings, named(a, "_options", name), line));
    TR_TRY(tr_attrs_add_count(findings, named(a, "_bytes", name), a->nbytes));
    if (a->ms > 0) TR_TRY(tr_attrs_add_real(findings, named(a, "_latency_ms", name), a->ms));
    if (e) TR_TRY(tr_attrs_add_real(findings, named(a, "_loss", name), e->loss));
    if (e && !isnan(e->accuracy))
        TR_TRY(tr_attrs_add_real(findings, named(a, "_accuracy", name), e->accuracy));
out:
    tr_free(line);
    return st;
}
