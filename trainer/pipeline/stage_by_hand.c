/* `trainer STAGE FILE`: one stage on a run file; what it makes lies beside the file. */
#include "trainer/pipeline/pipeline.h"

#include <string.h>

#include "runtime/base/file.h"
#include "trainer/pipeline/stage_run.h"

/* Beside the file: its name without the extension, and the stage's. */
static char *path_beside(const char *file, const char *stage)
{
    const char *slash = strrchr(file, '/'), *name = slash ? slash + 1 : file;
    const char *dot = strrchr(name, '.');
    const size_t n = dot && dot > name ? (size_t)(dot - file) : strlen(file);
    return tr_sprintf("%.*s-%s", (int)n, file, stage);
}

/* Of the run that the file is in: that of model.h5, or above stages/. */
static char *folder_of(const char *file)
{
    const char *slash = strrchr(file, '/');
    if (!slash) return tr_strdup(".");
    size_t n = (size_t)(slash - file);
    if (n >= 7 && memcmp(slash - 7, "/stages", 7) == 0) n -= 7;
    return n ? tr_sprintf("%.*s", (int)n, file) : tr_strdup("/");
}

/* Rank 0. Nothing that the stage may write is there: PATH.EXTENSION of whatever kind. A folder of its training may be
 * one to go on in. */
static tr_status look_beside(const char *path, bool force)
{
    tr_status st = TR_OK;
    glob_t found = {0};
    if (force) return TR_OK;
    TR_TRY(tr_files_like(path, ".*", &found));
    TR_NEED(found.gl_pathc == 0, TR_USAGE, "%s is there: move it away, or replace it (--force)",
            found.gl_pathv[0]);
out:
    globfree(&found);
    return st;
}

/* One more than the last stage's that made the file. */
static size_t number_after(const tr_lineage *l)
{
    const char *last = l->count ? l->v[l->count - 1].stage : "00";
    size_t n = 0;
    for (; *last >= '0' && *last <= '9' && n < 1000; last++) n = 10 * n + (size_t)(*last - '0');
    return n + 1;
}

tr_status tr_stage_by_hand(const tr_arguments *a, tr_comm *comm, const tr_config *c, bool *agreed)
{
    tr_status st;
    size_t number = 0;
    char *name = NULL, *path = path_beside(a->config, a->stage);
    tr_frame f = {.comm = comm, .config = c, .quiet = a->quiet, .by_hand = true};
    *agreed = true;
    char *folder = folder_of(a->config);
    f.folder = folder;
    const bool root = tr_comm_topology(comm)->rank == 0;
    st = !path || !folder ? tr_last_status() : root ? look_beside(path, a->force) : TR_OK;
    if (st == TR_OK && root) st = tr_stages_check_files(c, 0, folder);
    TR_TRY(tr_agree(comm, st, NULL));
    TR_TRY(tr_chain_load(comm, a->config, a->overrides, a->noverrides, &f.chain));
    number = number_after(&f.chain.lineage); /* rank 0's lineage */
    TR_TRY(tr_comm_broadcast(comm, &number, sizeof number, 0));
    TR_NEED(number < 100, TR_USAGE, "%s: 99 stages have made it: more are not kept apart",
            a->config);
    name = tr_sprintf("%02zu-%s", number, a->stage);
    TR_TRY(tr_agree(comm, name ? TR_OK : tr_last_status(), NULL));
    TR_TRY(tr_stage_run(&f, 0, name, path, agreed));
out:
    if (*agreed) {
        const tr_error why = *tr_last_error();
        tr_frame_close(&f);
        tr_free(name);
        tr_free(path);
        tr_free(folder);
        tr_set_error(&why);
    }
    return st;
}
