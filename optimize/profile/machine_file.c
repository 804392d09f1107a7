/* machine.json: what was measured of a machine is kept, and measured again where it cannot be
 * right. */
#include "optimize/profile/profile.h"

#include <math.h>
#include <unistd.h>

#include "runtime/base/file.h"

/* Nothing is there, or such a file: any other is somebody's, where it lies in the folder of no
 * run. */
static tr_status look(const char *file)
{
    tr_status st = TR_OK;
    char *text = NULL;
    size_t n;
    tr_machine m;
    bool ours = true;
    if (!tr_file_there(file)) return TR_OK;
    TR_TRY(tr_read_text(file, &text, &n));
    if (n > 0) tr_machine_read(text, NULL, &m, &ours);
    if (!ours) st = tr_last_status();
out:
    tr_free(text);
    return st;
}

static tr_status keep(const char *file, const tr_machine *m)
{
    tr_text_file f = {0};
    tr_status st = look(file);
    if (st == TR_OK) st = tr_text_file_open(&f, file);
    if (st == TR_OK) tr_machine_write(m, f.to);
    return tr_text_file_close(&f, st);
}

static void keep_or_say(const char *file, const tr_machine *m)
{
    if (file && keep(file, m) != TR_OK)
        tr_log(TR_LOG_WARN, "what this machine can do is not kept: %s", tr_last_error()->text);
}

void tr_machine_raise_peak(tr_machine *m, tr_peak type, double rate, const char *by)
{
    if (rate <= m->peak[type]) return;
    m->peak[type] = rate;
    snprintf(m->by[type], sizeof m->by[type], "%s", by);
}

void tr_machine_raise(tr_machine *m, const tr_machine *other)
{
    for (int k = 0; k < TR_PEAKS; k++)
        tr_machine_raise_peak(m, (tr_peak)k, other->peak[k], other->by[k]);
    m->cache = fmax(m->cache, other->cache);
    m->memory = fmax(m->memory, other->memory);
}

tr_status tr_machine_correct(const char *file, const tr_backend *b, void *ctx, tr_profile *p,
                             size_t n, tr_machine *m)
{
    tr_status st = TR_OK;
    double rate;
    tr_machine again;
    const tr_profile_row *r = tr_profile_above_peak(p, n, m, &rate);
    if (!r) return TR_OK;
    const char *const type = tr_peak_names[r->type];
    const double before = m->peak[r->type];
    TR_TRY(tr_machine_measure(b, ctx, (int)m->threads, &again));
    tr_machine_raise(m, &again);
    tr_log(TR_LOG_INFO,
           "layer %s, op %s, computes at %.0f %% of the peak of %s as it was measured, %.4g "
           "GFLOP/s: measured again, %.4g GFLOP/s; the higher rates are kept",
           r->layer, r->op, rate * 100, type, before * 1e-9, again.peak[r->type] * 1e-9);
    keep_or_say(file, m);
    r = tr_profile_above_peak(p, n, m, &rate);
    if (r)
        tr_log(TR_LOG_WARN,
               "layer %s, op %s, still computes at %.0f %% of the peak of %s: other work slows "
               "the probe, or the op leaves out arithmetic that is counted",
               r->layer, r->op, rate * 100, tr_peak_names[r->type]);
    for (size_t i = 0; i < n; i++) tr_profile_judge(&p[i], m);
out:
    return st;
}

tr_status tr_machine_get(const char *file, const tr_backend *b, void *ctx, int threads,
                         tr_machine *out)
{
    tr_status st = TR_OK;
    char *text = NULL;
    size_t n;
    bool same = false;
    tr_machine wanted;
    tr_machine_name(b, ctx, threads, &wanted);
    if (file && access(file, F_OK) == 0 && tr_read_text(file, &text, &n) == TR_OK)
        tr_machine_read(text, &wanted, out, &same);
    if (same) goto out;
    TR_TRY(tr_machine_measure(b, ctx, threads, out));
    keep_or_say(file, out);
out:
    tr_free(text);
    return st;
}
