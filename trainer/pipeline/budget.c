#include "trainer/pipeline/budget.h"

#include <math.h>
#include <string.h>

/* A number that could not be measured keeps to no bound. */
static void at_most(tr_miss *out, const char *what, double is, double bound, const char *detail)
{
    if (out->text[0] || bound < 0 || is <= bound) return;
    snprintf(out->text, sizeof out->text, "budget.%s: %.6g, at most %.6g was asked for (%s)", what,
             is, bound, detail);
}

static void at_least(tr_miss *out, const char *what, double is, double bound, const char *detail)
{
    if (out->text[0] || bound < 0 || is >= bound) return;
    snprintf(out->text, sizeof out->text, "budget.%s: %.6g, at least %.6g was asked for (%s)", what,
             is, bound, detail);
}

void tr_budget_judge(const tr_budget *b, const tr_measured *m, tr_miss *out)
{
    char detail[120];
    const tr_evaluation none = {.loss = NAN, .accuracy = NAN};
    const tr_evaluation before = m->evaluated ? m->before : none;
    const tr_evaluation after = m->evaluated ? m->after : none;
    out->text[0] = 0;
    snprintf(detail, sizeof detail, "accuracy %.6g, before %.6g", after.accuracy, before.accuracy);
    at_most(out, "accuracy_drop", before.accuracy - after.accuracy, b->accuracy_drop, detail);
    snprintf(detail, sizeof detail, "loss %.6g, before %.6g", after.loss, before.loss);
    at_most(out, "loss_rise", after.loss - before.loss, b->loss_rise, detail);
    snprintf(detail, sizeof detail, "%llu bytes of %llu", (unsigned long long)m->bytes,
             (unsigned long long)m->parent_bytes);
    at_most(out, "size", (double)m->bytes / (double)m->parent_bytes, b->size, detail);
    snprintf(detail, sizeof detail, "%.6g ms, before %.6g ms", m->ms, m->parent_ms);
    at_most(out, "latency_ms", m->ms > 0 ? m->ms : NAN, b->latency_ms, detail);
    at_least(out, "speedup", m->ms > 0 ? m->parent_ms / m->ms : NAN, b->speedup, detail);
    snprintf(detail, sizeof detail, "of data.eval");
    at_least(out, "accuracy", after.accuracy, b->accuracy, detail);
    at_most(out, "loss", after.loss, b->loss, detail);
    snprintf(detail, sizeof detail, "%llu bytes", (unsigned long long)m->bytes);
    at_most(out, "size_mb", (double)m->bytes / 1e6, b->size_mb, detail);
}

static const char *named(const tr_attempt *a, const char *what, char name[TR_NAME])
{
    snprintf(name, TR_NAME, "attempt_%d%s", a->number, what);
    return name;
}

tr_status tr_attempt_note(const tr_attempt *a, const tr_miss *m, const char *options,
                          tr_attrs *findings)
{
    tr_status st = TR_OK;
    const tr_evaluation *e = a->evaluation;
    char name[TR_NAME];
    char *line = tr_sprintf("%s", options);
    TR_HAVE(line);
    for (size_t n = strlen(line); n > 0 && line[n - 1] == '\n'; n--) line[n - 1] = 0;
    for (char *p = line; *p; p++)
        if (*p == '\n') *p = ';';
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
