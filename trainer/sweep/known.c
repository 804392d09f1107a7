/* What is in the sweep's folder since before: trials by their records, and runs that no record
 * tells of. By number, so that one is found in the logarithm of how many there are. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "trainer/run/run_files.h"
#include "trainer/sweep/internal.h"

static int by_number(const void *a, const void *b)
{
    const size_t x = ((const tr_known_trial *)a)->number, y = ((const tr_known_trial *)b)->number;
    return (x > y) - (x < y);
}

enum { MOST = 1000000000 };

/* What lies there besides the record; what that does not say, the run's config does. */
static tr_status look_at_run(const char *folder, tr_known_trial *t)
{
    tr_status st = TR_OK;
    bool any;
    char name[300], key[65], training[65], *model = tr_sprintf("%s/model.h5", folder);
    TR_HAVE(model);
    t->model = access(model, F_OK) == 0;
    TR_TRY(tr_run_files_find(folder, true, name, sizeof name));
    t->run = name[0] != 0;
    t->checkpoints = strncmp(name, "checkpoints/", 12) == 0; /* they come first */
    if (t->says || (t->recorded && !t->model)) goto out;
    TR_TRY(tr_run_there(folder, &any, key, training));
    memcpy(t->training, training, sizeof training);
    if (!t->recorded) memcpy(t->key, key, sizeof key);
out:
    tr_free(model);
    return st;
}

/* trial-0001 is nobody's: number 1 is trial-001. Of what was replaced nothing counts. */
static tr_status look(tr_sweep *s, const char *folder)
{
    tr_status st;
    tr_known_trial *t = &s->known[s->nknown];
    bool there;
    *t = (tr_known_trial){.number = strtoul(strrchr(folder, '-') + 1, NULL, 10)};
    char *path = tr_sweep_folder(s, t->number);
    TR_HAVE(path);
    if (strcmp(path, folder) != 0 || t->number > MOST) goto out;
    TR_TRY(tr_record_look(folder, t, &there));
    if (t->state == TR_TRIAL_REPLACED) goto out;
    TR_TRY(look_at_run(folder, t));
    s->nknown += there || t->run;
out:
    tr_free(path);
    return st;
}

tr_status tr_sweep_find_known(tr_sweep *s)
{
    tr_status st;
    glob_t found = {0};
    size_t n;
    TR_TRY(tr_sweep_folders(s, &found, &n));
    TR_HAVE(s->known = tr_alloc(TR_MEM_OTHER, n, sizeof *s->known));
    for (size_t i = 0; i < n; i++) TR_TRY(look(s, found.gl_pathv[i]));
    if (s->nknown > 0) qsort(s->known, s->nknown, sizeof *s->known, by_number);
out:
    globfree(&found);
    return st;
}

size_t tr_known_from(const tr_sweep *s, size_t number)
{
    size_t low = 0, high = s->nknown;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (s->known[middle].number < number)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

tr_known_trial *tr_known_at(const tr_sweep *s, size_t number)
{
    const size_t i = tr_known_from(s, number);
    return i < s->nknown && s->known[i].number == number ? &s->known[i] : NULL;
}

void tr_sweep_free_known(tr_sweep *s)
{
    for (size_t i = 0; i < s->nknown; i++) {
        for (size_t k = 0; s->known[i].values && k < s->ncolumns; k++)
            tr_free(s->known[i].values[k]);
        tr_free(s->known[i].values);
        tr_free(s->known[i].result);
    }
    tr_free(s->known);
}
