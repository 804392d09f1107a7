/* Shares, and what holds each op up: what its arithmetic and its bytes would need at the rates of
 * the machine, against what it took. */
#include "optimize/profile/profile.h"

#include <math.h>
#include <string.h>

const char *const tr_bound_names[] = {"overhead", "compute", "memory"};

static void judge_row(tr_profile_row *r, const tr_machine *m)
{
    const double peak = m->peak[r->type] > 0 ? m->peak[r->type] : m->peak[TR_PEAK_FP32];
    const double bandwidth = r->bytes <= m->cache_bytes * fmax(r->times, 1) ? m->cache : m->memory;
    const double compute = peak > 0 ? tr_profile_computed(r) / peak : 0;
    const double memory = bandwidth > 0 ? r->bytes / bandwidth : 0;
    const double needed = fmax(compute, memory);
    r->roof = r->seconds > 0 ? needed / r->seconds : 0;
    r->bound = 3 * needed < r->seconds ? TR_BOUND_OVERHEAD
               : compute >= memory     ? TR_BOUND_COMPUTE
                                       : TR_BOUND_MEMORY;
}

void tr_profile_judge(tr_profile *p, const tr_machine *m)
{
    double sum = 0;
    for (size_t i = 0; i < p->nrows; i++) sum += p->rows[i].seconds;
    for (size_t i = 0; i < p->nrows; i++) {
        tr_profile_row *r = &p->rows[i];
        r->share = sum > 0 ? r->seconds / sum : 0;
        r->bottleneck = r->share > TR_BOTTLENECK;
        if (m) judge_row(r, m);
    }
}

const tr_profile_row *tr_profile_above_peak(const tr_profile *p, size_t n, const tr_machine *m,
                                            double *rate)
{
    const tr_profile_row *found = NULL;
    *rate = 1 + TR_ROOF_SLACK;
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < p[i].nrows; k++) {
            const tr_profile_row *r = &p[i].rows[k];
            const double peak = m->peak[r->type], computed = tr_profile_computed(r);
            if (peak <= 0 || r->seconds <= 0 || computed / r->seconds <= *rate * peak) continue;
            *rate = computed / r->seconds / peak;
            found = r;
        }
    return found;
}

const char *tr_profile_title(const tr_profile *p, char *buf, size_t size)
{
    snprintf(buf, size, "%s, batch %lld", p->mode == TR_MODE_TRAIN ? "training step" : "inference",
             (long long)p->batch);
    return buf;
}

void tr_profile_free(tr_profile *p)
{
    tr_free(p->rows);
    tr_free(p->tensors);
    *p = (tr_profile){0};
}

/* *Collective.* An array of rank 0's; others have none yet. */
static tr_status share_array(void **v, size_t count, size_t size, tr_comm *c)
{
    tr_status st = TR_OK;
    if (tr_comm_topology(c)->rank != 0) *v = tr_alloc(TR_MEM_OTHER, count, size);
    TR_TRY(tr_agree(c, *v ? TR_OK : tr_last_status(), NULL));
    TR_TRY(tr_comm_broadcast(c, *v, count * size, 0));
out:
    return st;
}

tr_status tr_profile_share(tr_profile *p, tr_comm *c)
{
    tr_status st;
    tr_profile all = *p;
    TR_TRY(tr_comm_broadcast(c, &all, sizeof all, 0));
    if (tr_comm_topology(c)->rank != 0) {
        all.rows = NULL;
        all.tensors = NULL;
        *p = all;
    }
    TR_TRY(share_array((void **)&p->rows, all.nrows, sizeof *p->rows, c));
    TR_TRY(share_array((void **)&p->tensors, all.ntensors, sizeof *p->tensors, c));
out:
    return st;
}

tr_status tr_machine_share(tr_machine *m, tr_comm *c)
{
    return tr_comm_broadcast(c, m, sizeof *m, 0);
}
