/* tr_train_state as attributes of /train: one table says name, kind and place of each, and both
 * directions walk it. */
#include "runtime/store/internal.h"

#include <math.h>
#include <string.h>

typedef struct {
    const char *name;
    bool real;
    size_t offset;
    bool later; /* files of earlier versions lack it: 0 */
} field;

#define COUNT(f)                                                                                   \
    {                                                                                              \
#f, false, offsetof(tr_train_state, f), false                                              \
    }
#define REAL(f)                                                                                    \
    {                                                                                              \
#f, true, offsetof(tr_train_state, f), false                                               \
    }
#define LATER(f)                                                                                   \
    {                                                                                              \
#f, false, offsetof(tr_train_state, f), true                                               \
    }
#define LATER_REAL(f)                                                                              \
    {                                                                                              \
#f, true, offsetof(tr_train_state, f), true                                                \
    }
static const field fields[] = {
    COUNT(step),
    COUNT(epoch),
    COUNT(updates),
    COUNT(seed),
    REAL(loss_scale),
    COUNT(loss_scale_good),
    REAL(lr_factor),
    REAL(plateau_best),
    COUNT(plateau_bad),
    REAL(best),
    COUNT(best_step),
    REAL(stop_best),
    COUNT(stop_bad),
    COUNT(rollbacks),
    COUNT(skipped),
    COUNT(samples),
    COUNT(batch),
    {"micro", false, offsetof(tr_train_state, micro_batches), false},
    REAL(seconds),
    LATER(failed),
    LATER(failed_row),
    LATER(unsound),
    LATER_REAL(epoch_loss),
    LATER_REAL(epoch_weight),
    LATER_REAL(epoch_correct),
    LATER(epoch_samples),
    LATER(epoch_targets),
    LATER_REAL(epoch_seconds),
    LATER(names),
    LATER(threads),
};
/* Every field is 8 bytes: one that the table forgets would be lost on resume. */
_Static_assert(sizeof(tr_train_state) == TR_COUNT(fields) * 8, "a field is missing from the table");

tr_status tr_train_to_attrs(const tr_train_state *t, tr_attrs *a)
{
    tr_status st = TR_OK;
    for (size_t i = 0; i < TR_COUNT(fields); i++) {
        const char *at = (const char *)t + fields[i].offset;
        uint64_t u;
        double f;
        memcpy(&u, at, 8);
        memcpy(&f, at, 8);
        if (fields[i].real)
            TR_TRY(tr_attrs_add_real(a, fields[i].name, f));
        else
            TR_TRY(tr_attrs_add_count(a, fields[i].name, u));
    }
out:
    return st;
}

tr_status tr_train_from_attrs(const char *of, const tr_attrs *a, tr_train_state *t)
{
    for (size_t i = 0; i < TR_COUNT(fields); i++) {
        const tr_attr *at = tr_attrs_get(a, fields[i].name);
        const char *kind = fields[i].real ? "float64" : "uint64";
        if (!at && fields[i].later) {
            memset((char *)t + fields[i].offset, 0, 8);
            continue;
        }
        if (!at) return TR_FAIL(TR_FILE, "%s/train@%s: missing", of, fields[i].name);
        if (at->kind != (fields[i].real ? TR_ATTR_REAL : TR_ATTR_COUNT))
            return TR_FAIL(TR_FILE, "%s/train@%s: expected %s, found another type", of,
                           fields[i].name, kind);
        const void *from = fields[i].real ? (const void *)&at->f : (const void *)&at->u;
        memcpy((char *)t + fields[i].offset, from, 8);
    }
    if (t->epoch_targets == 0) t->epoch_targets = t->epoch_samples;
    if (t->epoch_samples > 0 && !tr_attrs_get(a, "epoch_seconds")) t->epoch_seconds = NAN;
    return TR_OK;
}
