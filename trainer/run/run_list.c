/* A run folder as `trainer inspect` shows it: which run files it holds, and which of them is the
 * run's. */
#include "trainer/run/run_list.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

bool tr_is_folder(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

static bool has(const char *path, struct stat *info)
{
    return stat(path, info) == 0 && S_ISREG(info->st_mode);
}

static int is_run_file(const struct dirent *e)
{
    const size_t n = strlen(e->d_name);
    return n > 3 && strcmp(e->d_name + n - 3, ".h5") == 0;
}

/* The run files of FOLDER/BELOW, in the order of their names, shown as "BELOW/NAME"; *last: the
 * last one that begins with `prefix`, which takes the place of what was there. */
static tr_status list(const char *folder, const char *below, const char *prefix, FILE *to,
                      char **last)
{
    tr_status st = TR_OK;
    struct dirent **found = NULL;
    struct stat info;
    char size[32], *path = NULL, *place = tr_sprintf("%s%s%s", folder, *below ? "/" : "", below);
    int n = 0;
    TR_HAVE(place);
    n = scandir(place, &found, is_run_file, alphasort);
    for (int i = 0; i < n; i++) {
        tr_free(path);
        TR_HAVE(path = tr_sprintf("%s/%s", place, found[i]->d_name));
        if (!has(path, &info)) continue;
        if (to)
            fprintf(to, "  %s%s%s  %s\n", below, *below ? "/" : "", found[i]->d_name,
                    tr_format_bytes((double)info.st_size, size, sizeof size));
        if (strncmp(found[i]->d_name, prefix, strlen(prefix)) != 0) continue;
        tr_free(*last);
        *last = path;
        path = NULL;
    }
out:
    for (int i = 0; i < n; i++) free(found[i]);
    free(found);
    tr_free(path);
    tr_free(place);
    return st;
}

tr_status tr_run_list(const char *folder, FILE *to, char **file)
{
    tr_status st;
    char *model = NULL, *step = NULL, *best = NULL, *stage = NULL;
    if (to) fprintf(to, "%s: run files\n", folder);
    TR_TRY(list(folder, "checkpoints", "best.h5", to, &best));
    TR_TRY(list(folder, "checkpoints", "step-", NULL, &step));
    TR_TRY(list(folder, "stages", "", to, &stage));
    TR_TRY(list(folder, "", "model.h5", to, &model));
    char **which = model ? &model : step ? &step : &best;
    TR_NEED(*which, TR_FILE, "%s: no run folder: neither model.h5 nor checkpoints/*.h5 is there",
            folder);
    if (to) fputc('\n', to);
    *file = *which;
    *which = NULL;
out:
    tr_free(model);
    tr_free(step);
    tr_free(best);
    tr_free(stage);
    return st;
}

tr_status tr_run_file_of(const char **path, char **found)
{
    const tr_status st = tr_is_folder(*path) ? tr_run_list(*path, NULL, found) : TR_OK;
    if (*found) *path = *found;
    return st;
}
