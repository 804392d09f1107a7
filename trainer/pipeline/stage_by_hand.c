/* `trainer STAGE FILE`: one stage on a run file; what it makes lies beside the file. */
#include "trainer/pipeline/pipeline.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/file.h"
#include "runtime/data/reads.h"
#include "trainer/loop/resolve.h"
#include "trainer/pipeline/stage_run.h"
#include "trainer/run/lock.h"

#define MOST_TRIES 1000 /* a millisecond apart */

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

/* Rank 0. Nothing that the stage may write is there, PATH.EXTENSION of whatever kind, or it is to
 * be replaced and is none of the data. A folder of its training may be one to go on in. */
static tr_status look_beside(const tr_config *c, const char *path, bool force)
{
    tr_status st = TR_OK;
    glob_t found = {0};
    TR_TRY(tr_files_like(path, ".*", &found));
    for (size_t i = 0; i < found.gl_pathc; i++) TR_TRY(tr_data_spare(c, found.gl_pathv[i]));
    TR_NEED(found.gl_pathc == 0 || force, TR_USAGE,
            "%s is there: move it away, or replace it (--force)", found.gl_pathv[0]);
out:
    globfree(&found);
    return st;
}

/* What the stage makes is this job's alone to make: a hidden file beside it says so while the stage
 * runs. */
typedef struct {
    char *path;
    int fd;
} hold;

static void release(hold *h)
{
    if (h->fd >= 0) {
        unlink(h->path);
        close(h->fd);
    }
    tr_free(h->path);
    *h = (hold){.fd = -1};
}

static tr_status take(const char *path, hold *h)
{
    tr_status st = TR_OK;
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    bool made, again = true;
    TR_HAVE(h->path = tr_sprintf("%.*s.%s.lock", (int)(name - path), path, name));
    for (int i = 0; i < MOST_TRIES && again; i++) {
        if (i > 0) usleep(1000);
        TR_TRY(tr_lock_take(h->path, path, &h->fd, &made, &again));
    }
    TR_NEED(!again, TR_IO, "%s cannot be made: %s", h->path, strerror(ENOENT));
out:
    return st;
}

/* Rank 0. */
static tr_status claim(const tr_arguments *a, const tr_frame *f, const char *path, hold *h)
{
    tr_status st = TR_OK;
    TR_TRY(take(path, h));
    TR_TRY(look_beside(f->config, path, a->force));
    TR_TRY(tr_stages_check_files(f->config, 0, f->folder));
out:
    return st;
}

static bool trains(const tr_config *c)
{
    const tr_node *keys;
    const tr_list_item *item = &c->pipeline.items[0];
    const tr_stage *s = tr_stage_at(c, 0);
    return s->trains && s->trains(item->options, &keys) > 0;
}

/* *Collective.* A training finds what the command line leaves to the data, as that of a config
 * does: *settled, NULL: nothing is. */
static tr_status settle(const tr_arguments *a, tr_frame *f, tr_config **settled)
{
    tr_status st;
    tr_found_keys found = {0};
    const char **all = NULL;
    size_t n = a->noverrides;
    TR_TRY(tr_data_find(f->comm, f->config, f->chain.network->model, NULL, &found));
    if (found.count == 0) goto out;
    all = tr_alloc(TR_MEM_OTHER, n + found.count, sizeof *all);
    const tr_overrides o = {.texts = (const char *const *)found.v, .count = found.count};
    st = all ? tr_config_derive(f->config, &o, settled) : tr_last_status();
    TR_TRY(tr_agree(f->comm, st, NULL));
    f->config = *settled;
    for (size_t i = 0; i < n; i++) all[i] = a->overrides[i];
    for (size_t i = 0; i < found.count; i++) all[n++] = found.v[i];
    TR_TRY(tr_chain_load(f->comm, a->config, all, n, &f->chain));
out:
    tr_free((void *)all);
    tr_found_keys_free(&found);
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
    tr_config *settled = NULL;
    hold held = {.fd = -1};
    char *name = NULL, *path = path_beside(a->config, a->stage);
    tr_frame f = {.comm = comm, .config = c, .quiet = a->quiet, .by_hand = true};
    *agreed = true;
    char *folder = folder_of(a->config);
    f.folder = folder;
    const bool root = tr_comm_topology(comm)->rank == 0;
    TR_TRY(tr_agree(comm, path && folder ? TR_OK : tr_last_status(), NULL));
    TR_TRY(tr_chain_load(comm, a->config, a->overrides, a->noverrides, &f.chain));
    if (root) tr_comm_busy(comm, TR_BUSY_READS); /* through folders of images, it may be */
    st = root ? claim(a, &f, path, &held) : TR_OK;
    tr_comm_busy(comm, TR_BUSY_NOT);
    TR_TRY(tr_agree(comm, st, NULL));
    if (trains(c)) TR_TRY(settle(a, &f, &settled));
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
        tr_config_close(settled);
        release(&held);
        tr_free(name);
        tr_free(path);
        tr_free(folder);
        tr_set_error(&why);
    }
    return st;
}
