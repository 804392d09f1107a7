#include "trainer/pipeline/job.h"

#include <limits.h>
#include <stdlib.h>

#include "runtime/base/file.h"
#include "runtime/config/files.h"
#include "trainer/loop/resolve.h"
#include "trainer/loop/round.h"
#include "trainer/pipeline/pipeline.h"
#include "trainer/run/keep.h"
#include "trainer/run/run_files.h"
#include "trainer/run/run_folder.h"
#include "trainer/stages/stages.h"

/* *Collective.* The text is rank 0's, but each rank's program resolved it. Where data lies may
 * differ: what it holds is compared when it is open. */
static tr_status compare_config(tr_comm *comm, const tr_config *c)
{
    tr_config other = *c;
    char *text = NULL;
    tr_status st;
    other.directory = (char *)"/";
    TR_TRY(tr_same_text(comm, TR_USAGE, "the program", "version " TR_VERSION));
    TR_TRY(tr_agree(comm, tr_config_text(&other, &text), NULL));
    TR_TRY(tr_same_text(comm, TR_USAGE, "the resolved config", text));
out:
    free(text);
    return st;
}

tr_status tr_settled_open(tr_comm *comm, tr_config *c, const char *kept, tr_settled *out)
{
    tr_status st = TR_OK;
    *out = (tr_settled){.config = c};
    if (kept) TR_TRY(tr_config_keep(c, comm));
    TR_TRY(tr_config_round(comm, c, kept, &out->rounded));
    if (out->rounded) out->config = out->rounded;
    TR_TRY(tr_agree(comm, tr_train_model(out->config, &out->model), NULL));
    TR_TRY(compare_config(comm, out->config));
    TR_TRY(tr_data_resolve(comm, out->config, out->model, kept, &out->resolved));
    if (!out->resolved) goto out;
    out->config = out->resolved;
    tr_model_close(out->model);
    out->model = NULL;
    TR_TRY(tr_agree(comm, tr_train_model(out->config, &out->model), NULL));
out:
    return st;
}

void tr_settled_close(tr_settled *s)
{
    tr_model_close(s->model);
    tr_config_close(s->resolved);
    tr_config_close(s->rounded);
    *s = (tr_settled){0};
}

static bool is_runs(void *folder, const char *path)
{
    char within[PATH_MAX];
    return path && tr_file_there(path) && tr_file_within(folder, path, within) &&
           tr_run_files_name(within);
}

/* Rank 0. What the run will write, or removes, is not what it reads. */
static tr_status check_data(const tr_config *c)
{
    char path[64];
    const char *key = tr_source_find(c, &c->data.train, is_runs, c->output);
    snprintf(path, sizeof path, "data.train.%s", key ? key : "");
    if (!key && c->data.eval.present) {
        key = tr_source_find(c, &c->data.eval, is_runs, c->output);
        snprintf(path, sizeof path, "data.eval.%s", key ? key : "");
    }
    if (!key) return TR_OK;
    return tr_config_fail(c, path,
                          "has the name of a file that the run writes in %s: move it away, or "
                          "choose another folder (output=...)",
                          c->output);
}

/* Rank 0. */
static tr_status open_folder(const tr_job *j, const tr_config *c, tr_run_folder **folder)
{
    const tr_status st = check_data(c);
    return st == TR_OK ? tr_run_folder_open(c->output, j->resume, j->force, folder) : st;
}

tr_status tr_job_run(const tr_job *j, bool *agreed)
{
    tr_status st = TR_OK;
    tr_settled settled = {0};
    char *text = NULL;
    tr_run_folder *folder = NULL;
    *agreed = true;
    TR_TRY(tr_settled_open(j->comm, j->config, j->resume ? j->config->output : NULL, &settled));
    const tr_config *c = settled.config;
    TR_TRY(tr_agree(j->comm, tr_stages_check_model(c, settled.model), NULL));
    TR_TRY(tr_agree(j->comm, tr_config_text(c, &text), NULL));
    st = tr_comm_topology(j->comm)->rank == 0 ? open_folder(j, c, &folder) : TR_OK;
    TR_TRY(tr_agree(j->comm, st, NULL));
    const tr_trainer_options o = {.comm = j->comm,
                                  .config = c,
                                  .config_text = text,
                                  .model = settled.model,
                                  .folder = folder,
                                  .resume = j->resume,
                                  .quiet = j->quiet,
                                  .rounded = settled.rounded != NULL};
    st = tr_pipeline_run(&o, j->from, j->until, agreed);
out:
    if (*agreed) { /* else the job is about to be ended: nothing collective is left to do */
        tr_error why = *tr_last_error();
        tr_settled_close(&settled);
        tr_set_error(&why);
        free(text);
        tr_run_folder_close(folder);
    } else
        tr_run_folder_undo(folder); /* still locked: the writer may be at work */
    return st;
}
