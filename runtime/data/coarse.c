/* Numbers far from 0 beside how much they differ: float32 has 24 bits of each, so that of
 * milliseconds since 1970 it tells none within two minutes apart. A mean that is subtracted before
 * they are rounded is the remedy (element.c). */
#include "runtime/data/internal.h"

#include <inttypes.h>
#include <math.h>

enum { SAMPLES = 4096, PLACES = 4096 }; /* of it, that are looked at, at most */
enum { STEPS = 1000 };                  /* fewer are few */

/* Between this and the next float32. */
static double step_at(double v)
{
    return (double)nextafterf((float)fabs(v), INFINITY) - (double)(float)fabs(v);
}

static void judge(const tr_array *a, size_t place, double least, double most, const char *key)
{
    char which[300], once[400];
    const double far = fabs(least) > fabs(most) ? least : most;
    if (!(least < most) || most - least >= STEPS * step_at(far)) return;
    if (a->column)
        snprintf(which, sizeof which, "column \"%.256s\"", a->column(a, place));
    else
        snprintf(which, sizeof which, "value %zu of each sample", place);
    snprintf(once, sizeof once, "%s: %s", key, which);
    tr_log_once(TR_LOG_WARN, once,
                "%s: %s: from %.15g to %.15g, where float32, which models compute in, has steps of "
                "%g: %s: auto subtracts the mean before; or subtract an offset in the file, or "
                "leave it out",
                a->name, which, least, most, step_at(far), key);
}

/* Each value of a sample, of many samples. */
static void look(const tr_dataset *d, const tr_array *a, const char *key)
{
    const uint64_t apart = d->samples / SAMPLES + 1;
    if (!a->held || !tr_elem_wide(a->elem) || a->count > PLACES) return;
    for (size_t p = 0; p < a->count; p++) {
        double least = INFINITY, most = -INFINITY;
        for (uint64_t i = 0; i < d->samples; i += apart) {
            const double v = tr_elem_value(a->elem, (const char *)a->held + i * a->nbytes, p);
            least = v < least ? v : least;
            most = v > most ? v : most;
        }
        judge(a, p, least, most, key);
    }
}

void tr_coarse_warn(const tr_dataset *d, const tr_config *c, const tr_model *m)
{
    for (size_t k = 0; k < d->ninputs && !c->data.normalize.automatic; k++) {
        const tr_normalize_config *stats = tr_normalize_of(c, &m->inputs[k]);
        if (m->inputs[k].ids == 0 && !(stats && stats->mean.count > 0))
            look(d, d->inputs[k], "data.normalize");
    }
    if (d->targets && !d->labels && !c->data.normalize_targets.automatic &&
        c->data.normalize_targets.stats.mean.count == 0)
        look(d, d->targets, "data.normalize_targets");
}
