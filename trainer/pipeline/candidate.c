#include "trainer/pipeline/candidate.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/file.h"
#include "runtime/optimizer/groups.h"
#include "trainer/pipeline/stage_run.h"

static bool is_root(const tr_candidate *c)
{
    return tr_comm_topology(c->frame->comm)->rank == 0;
}

tr_status tr_candidate_open(const tr_frame *f, const char *name, const char *path,
                            tr_candidate *out)
{
    *out = (tr_candidate){.frame = f, .name = name, .path = path};
    out->file = tr_sprintf("%s.candidate.h5", path);
    return out->file ? TR_OK : tr_last_status();
}

static void forget(tr_candidate *c)
{
    tr_config_close(c->config);
    free(c->text);
    c->config = NULL;
    c->text = NULL;
}

void tr_candidate_close(tr_candidate *c)
{
    if (c->file && is_root(c)) unlink(c->file);
    forget(c);
    tr_free(c->file);
    c->file = NULL;
}

/* Patterns of train.freeze or train.groups that were for layers which are no more: trainings behind
 * go without them. */
static tr_status forget_patterns(tr_candidate *c, const tr_model *m, bool freeze)
{
    static const char *const keys[] = {"train.groups", "train.freeze"};
    char *left = NULL, *gone = NULL;
    tr_config *other = NULL;
    tr_status st = tr_groups_forget(c->config, m, freeze, &left, &gone);
    if (st != TR_OK || !left) return st;
    const bool none = freeze && strcmp(left, "train.freeze=[]") == 0;
    const char *const texts[] = {left, "train.freeze_statistics=false"};
    const tr_overrides all = {.texts = texts, .count = none ? 2 : 1};
    TR_TRY(tr_config_derive(c->config, &all, &other));
    tr_config_close(c->config);
    c->config = other;
    if (is_root(c))
        tr_log(TR_LOG_INFO,
               "stage %s: %s: nothing of its model is called %s any more, which is left out from "
               "here on",
               c->name, keys[freeze], gone);
out:
    free(left);
    free(gone);
    return st;
}

tr_status tr_candidate_resolve(tr_candidate *c, const tr_stage_result *made)
{
    tr_status st;
    const tr_chain *chain = &c->frame->chain;
    const char *const texts[] = {made->override};
    const tr_overrides all = {.texts = texts, .count = made->override ? 1 : 0};
    const tr_model *m = made->network ? made->network->model : chain->network->model;
    forget(c);
    TR_TRY(tr_model_config(m, chain->config, &all, &c->config));
    TR_TRY(forget_patterns(c, m, true));
    TR_TRY(forget_patterns(c, m, false));
    TR_TRY(tr_stage_config_text(c->config, &c->text));
out:
    return st;
}

/* Rank 0. What was written must be what was evaluated, bit for bit. */
static tr_status read_back(const tr_candidate *c, const tr_network *n)
{
    tr_status st;
    tr_network *got = NULL;
    tr_variant_def stages[TR_STAGES + 1];
    tr_stages_known(stages);
    TR_TRY(tr_network_read(c->file, NULL, 0, stages, &got, NULL));
    const tr_model *a = n->model, *b = got->model;
    TR_NEED(a->nparams == b->nparams && a->nstates == b->nstates &&
                a->flat_count == b->flat_count && a->state_count == b->state_count &&
                memcmp(n->params, got->params, a->flat_count * sizeof(float)) == 0 &&
                memcmp(n->states, got->states, a->state_count * sizeof(float)) == 0,
            TR_INTERNAL, "%s: what was written is not what stage %s made", c->file, c->name);
out:
    tr_network_close(got);
    return st;
}

/* Rank 0. */
static tr_status write_file(tr_candidate *c, const tr_network *n, const tr_lineage *lineage)
{
    tr_status st;
    size_t size;
    tr_snapshot s = {.config_text = c->text,
                     .params = n->params,
                     .states = n->states,
                     .train = c->frame->chain.train,
                     .lineage = lineage};
    snprintf(s.parent_sha256, sizeof s.parent_sha256, "%s", c->frame->chain.sha256);
    TR_TRY(tr_store_write(c->file, n->model, &s, &size));
    TR_TRY(read_back(c, n));
    c->nbytes = size;
out:
    return st;
}

tr_status tr_candidate_write(tr_candidate *c, const tr_network *n, const tr_lineage *lineage)
{
    tr_comm *comm = c->frame->comm;
    tr_status st = TR_OK;
    if (is_root(c)) tr_comm_busy(comm, TR_BUSY_WRITES);
    if (is_root(c)) st = write_file(c, n, lineage);
    tr_comm_busy(comm, TR_BUSY_NOT);
    TR_TRY(tr_agree(comm, st, NULL));
    TR_TRY(tr_comm_broadcast(comm, &c->nbytes, sizeof c->nbytes, 0));
out:
    return st;
}

static tr_status move_to(const tr_candidate *c, const char *extension, char **to)
{
    *to = tr_sprintf("%s%s", c->path, extension);
    if (!*to) return tr_last_status();
    if (rename(c->file, *to) != 0)
        return TR_FAIL(TR_IO, "%s: %s cannot take its place: %s", *to, c->file, strerror(errno));
    return tr_commit_sync_folder(*to);
}

tr_status tr_candidate_accept(const tr_candidate *c)
{
    tr_status st;
    char *moved = NULL, *rejected = NULL;
    TR_HAVE(rejected = tr_sprintf("%s.rejected.h5", c->path));
    TR_NEED(unlink(rejected) == 0 || errno == ENOENT, TR_IO, "%s cannot be removed: %s", rejected,
            strerror(errno));
    TR_TRY(move_to(c, ".h5", &moved)); /* last: who fails leaves none */
out:
    tr_free(moved);
    tr_free(rejected);
    return st;
}

void tr_candidate_reject(const tr_candidate *c)
{
    char *rejected = NULL;
    if (move_to(c, ".rejected.h5", &rejected) == TR_OK)
        tr_log(TR_LOG_INFO, "what stage %s made is in %s", c->name, rejected);
    tr_free(rejected);
}
