/* The run in a trial's folder: whose training it is, and whether another trial may take its model.
 * The config that the run left there says so, settled as it was found: data may say what a trial's
 * own config leaves open. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/file.h"
#include "trainer/stages/stages.h"
#include "trainer/sweep/internal.h"

tr_status tr_run_there(const char *folder, bool *any, char key[65], char training[65])
{
    tr_status st = TR_OK;
    tr_config *c = NULL;
    tr_variant_def stages[TR_STAGES + 1];
    char *text = NULL, *path = tr_sprintf("%s/config.yaml", folder);
    size_t n;
    key[0] = training[0] = 0;
    TR_HAVE(path);
    *any = access(path, F_OK) == 0;
    if (!*any) goto out;
    tr_stages_known(stages);
    tr_status looked = tr_read_text(path, &text, &n);
    if (looked == TR_OK) looked = tr_config_open(path, text, n, NULL, 0, stages, &c);
    TR_TRY(tr_unread(looked)); /* to train again may take hours */
    if (looked != TR_OK) goto out;
    TR_TRY(tr_trial_key(c, key));
    TR_TRY(tr_training_key(c, training));
out:
    tr_config_close(c);
    tr_free(text);
    tr_free(path);
    return st;
}

tr_status tr_run_look_at(const char *folder, tr_config *c, tr_comm *comm, tr_run_look *l)
{
    tr_status st = TR_OK;
    char training[65] = "", key[65], there[65] = "";
    *l = (tr_run_look){0};
    if (tr_comm_topology(comm)->rank == 0) st = tr_run_there(folder, &l->any, key, there);
    TR_TRY(tr_agree(comm, st, NULL));
    TR_TRY(tr_comm_broadcast(comm, &l->any, sizeof l->any, 0));
    if (!l->any) goto out;
    st = tr_settled_open(comm, c, folder, &l->now);
    if (tr_comm_broken(comm)) goto out;
    l->settled = st == TR_OK;
    if (l->settled) st = tr_training_key(l->now.config, training);
    if (l->settled && st == TR_OK) st = tr_trial_key(l->now.config, l->key);
    TR_TRY(tr_agree(comm, tr_unread(st), NULL));
    l->same = l->settled && strcmp(training, there) == 0;
    TR_TRY(tr_comm_broadcast(comm, &l->settled, sizeof l->settled, 0));
    TR_TRY(tr_comm_broadcast(comm, &l->same, sizeof l->same, 0));
out:
    return st;
}

tr_status tr_model_is_whole(const char *folder, bool *whole)
{
    tr_status st = TR_OK;
    char *model = tr_sprintf("%s/model.h5", folder);
    TR_HAVE(model);
    tr_status looked = access(model, F_OK) == 0 ? tr_store_verify(model, NULL)
                                                : TR_FAIL(TR_FILE, "%s is gone", model);
    if (looked == TR_MEMORY) TR_TRY(looked);
    *whole = looked == TR_OK;
    if (!*whole)
        tr_log(TR_LOG_WARN, "%s; no other trial takes that training from there",
               tr_last_error()->text);
out:
    tr_free(model);
    return st;
}

tr_status tr_run_lends(const char *folder, tr_config *c, tr_comm *comm, bool *lends, tr_run_look *l)
{
    tr_status st;
    *lends = false;
    TR_TRY(tr_run_look_at(folder, c, comm, l));
    if (l->same && tr_comm_topology(comm)->rank == 0) st = tr_model_is_whole(folder, lends);
    TR_TRY(tr_agree(comm, st, NULL));
    TR_TRY(tr_comm_broadcast(comm, lends, sizeof *lends, 0));
out:
    if (st == TR_OK && *lends) return TR_OK;
    const tr_error why = *tr_last_error();
    tr_settled_close(&l->now);
    tr_set_error(&why);
    return st;
}
