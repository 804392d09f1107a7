/* What a process that looks at an HDF5 file (hdf5_process.c) is asked for: datasets by name, as far
 * as they are not known (hdf5_known.c), or a list of all. What it says is checked before anybody
 * goes by it. */
#include "runtime/data/hdf5_process.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static tr_status said(tr_hdf5_letter *l)
{
    l->text[sizeof l->text - 1] = '\0';
    if (l->st == TR_OK) return TR_OK;
    return TR_FAIL(l->st == TR_MEMORY ? TR_MEMORY : TR_DATA, "%s", l->text);
}

/* Without file and name. */
static tr_status believe(const tr_data_file *file, const tr_hdf5_sight *s)
{
    size_t total = (unsigned)s->elem < TR_ELEMS ? tr_elem_size(s->elem) : 0;
    bool sane =
        total > 0 && s->ndim >= 1 && s->ndim <= TR_MAX_DIMS && s->chunk_bytes <= TR_HDF5_MOST_CHUNK;
    for (int d = 0; sane && d < s->ndim; d++)
        sane = s->dims[d] > 0 && tr_mul_size(total, s->dims[d], &total);
    if (!sane) return TR_FAIL(TR_DATA, "HDF5 reports an impossible shape");
    if (s->flat && (s->offset > file->size || total > file->size - s->offset))
        return TR_FAIL(TR_DATA,
                       "ends at byte %" PRIu64 ", expected within the file's %" PRIu64
                       ": it is cut short",
                       s->offset + total, file->size);
    return TR_OK;
}

tr_status tr_hdf5_believe(const tr_data_file *file, const char *name, const tr_hdf5_sight *s)
{
    const tr_status st = believe(file, s);
    return st == TR_OK ? TR_OK : tr_fail_before(st, "%s: dataset %s: ", file->path, name);
}

/* Of a list, all that the letter promises; *all false where it did not come. */
static tr_status hear_list(const tr_looker *p, tr_hdf5_letter *l, tr_hdf5_listed **out, bool *all)
{
    const size_t n = l->st == TR_OK && l->count <= TR_HDF5_LISTED_MOST ? l->count : 0;
    tr_hdf5_listed *v = tr_alloc(TR_MEM_OTHER, n, sizeof *v);
    if (!v) return tr_last_status();
    *all = tr_looker_hear(p, v, n * sizeof *v);
    l->count = n;
    *out = v;
    return TR_OK;
}

/* What it says of the names, up to the first that fails; *came: how many are good. Names from
 * `needed` on are looked at ahead. *missing: the failure is that there is no such name. Closes
 * it. */
static tr_status hear(tr_looker *p, const char *const *names, size_t needed, size_t count,
                      tr_hdf5_sight *sights, size_t *came, bool *missing)
{
    tr_status st = TR_OK;
    tr_hdf5_letter l;
    char what[TR_HDF5_NAME + 16];
    bool all = true;
    size_t n = 0;
    for (; n < count; n++) {
        if (n == needed) p->deadline = fmin(p->deadline, tr_now() + TR_HDF5_AHEAD * p->seconds);
        all = tr_looker_hear(p, &l, sizeof l);
        if (all) st = said(&l);
        if (all && st == TR_OK) st = tr_hdf5_believe(p->file, names[n], &l.sight);
        if (!all || st != TR_OK) break;
        sights[n] = l.sight;
    }
    *came = n;
    *missing = n < needed && all && st != TR_OK && l.missing;
    snprintf(what, sizeof what, "dataset %s", n < count ? names[n] : "");
    const tr_status end = tr_looker_close(p, what, all);
    if (n >= needed) return TR_OK;
    return all ? st : end;
}

/* Asks for those of the names that are not known, where one of the first `needed` is among them. */
static tr_status look(const tr_data_file *file, const char *const *names, size_t needed,
                      size_t count, double seconds, tr_hdf5_sight *out, tr_failed_set *failed)
{
    tr_status st = TR_OK;
    tr_looker p;
    tr_hdf5_state before;
    tr_failed_set none;
    size_t n = 0, must = 0, came; /* of what is asked */
    if (!failed) failed = &none;
    *failed = (tr_failed_set){.at = count};
    const char **asked = tr_alloc(TR_MEM_OTHER, count, sizeof *asked);
    size_t *place = tr_alloc(TR_MEM_OTHER, count, sizeof *place);
    tr_hdf5_sight *sights = tr_alloc(TR_MEM_OTHER, count, sizeof *sights);
    TR_HAVE(asked && place && sights);
    const bool told = tr_hdf5_state_of(file, &before);
    for (size_t i = 0; i < count; i++) {
        if (told && tr_hdf5_known(&before, names[i], &out[i])) continue;
        asked[n] = names[i];
        place[n++] = i;
        if (i < needed) must = n;
    }
    if (must == 0) goto out;
    TR_TRY(tr_looker_open(&p, file, asked, n, seconds));
    st = hear(&p, asked, must, n, sights, &came, &failed->missing);
    for (size_t k = 0; k < came; k++) {
        out[place[k]] = sights[k];
        if (told) tr_hdf5_remember(file, &before, asked[k], &sights[k]);
    }
    if (st != TR_OK) failed->at = place[came];
out:
    tr_free(sights);
    tr_free(place);
    tr_free(asked);
    return st;
}

tr_status tr_hdf5_look(const tr_data_file *file, const char *const *names, size_t count,
                       double seconds, tr_hdf5_sight *out, tr_failed_set *failed)
{
    return look(file, names, count, count, seconds, out, failed);
}

tr_status tr_hdf5_look_ahead(const tr_data_file *file, const char *const *names, size_t needed,
                             size_t count, double seconds, tr_failed_set *failed)
{
    tr_hdf5_sight *sights = tr_alloc(TR_MEM_OTHER, count, sizeof *sights);
    *failed = (tr_failed_set){.at = count};
    if (!sights) return tr_last_status();
    const tr_status st = look(file, names, needed, count, seconds, sights, failed);
    tr_free(sights);
    return st;
}

tr_status tr_hdf5_look_all(const tr_data_file *file, double seconds, tr_hdf5_listed **out,
                           size_t *count)
{
    tr_looker p;
    tr_hdf5_letter l;
    tr_status st;
    tr_hdf5_listed *v = NULL;
    TR_TRY(tr_looker_open(&p, file, NULL, 0, seconds));
    bool all = tr_looker_hear(&p, &l, sizeof l);
    if (all) st = said(&l);
    if (all && st == TR_OK) st = hear_list(&p, &l, &v, &all);
    const tr_status end = tr_looker_close(&p, "its datasets", all);
    TR_TRY(all ? st : end);
    for (size_t i = 0; i < l.count; i++) {
        v[i].name[sizeof v[i].name - 1] = v[i].fault[sizeof v[i].fault - 1] = 0;
        if (!v[i].fault[0] && believe(file, &v[i].sight) != TR_OK)
            snprintf(v[i].fault, sizeof v[i].fault, "%.250s", tr_last_error()->text);
    }
    *out = v;
    *count = l.count;
    v = NULL;
out:
    tr_free(v);
    return st;
}
