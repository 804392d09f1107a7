/* What a trial's models came to: from what its stages found, or measured here. */
#include <math.h>

#include "trainer/loop/resolve.h"
#include "trainer/pipeline/frame.h"
#include "trainer/run/stage_files.h"
#include "trainer/stages/stages.h"
#include "trainer/sweep/internal.h"

/* ---- Measuring ------------------------------------------------------------------------------- */

static tr_status model_size(const char *file, int64_t *nbytes)
{
    uint64_t n = 0;
    const tr_status st = tr_store_model_nbytes(file, &n);
    *nbytes = (int64_t)n;
    return st;
}

static void take_findings(const tr_findings *f, tr_trial_model *m)
{
    m->parameters = (int64_t)tr_attrs_number(&f->values, "parameters");
    m->multiply_adds = tr_attrs_number(&f->values, "multiply_adds");
    m->ms = tr_attrs_number(&f->values, "latency_ms");
    m->loss = tr_attrs_number(&f->values, "loss");
    m->accuracy = tr_attrs_number(&f->values, "accuracy");
    m->evaluated = tr_attrs_get(&f->values, "loss") != NULL;
}

/* Rank 0. */
static tr_status take_files(const tr_trial *t, const char *last, tr_trial_result *r)
{
    tr_status st;
    tr_lineage l = {0};
    char *model = tr_sprintf("%s/model.h5", t->folder);
    TR_HAVE(model);
    TR_TRY(tr_lineage_read(last, &l));
    TR_NEED(l.count > 0, TR_FILE, "%s says of no stage that made it", last);
    take_findings(&l.v[0], &r->trained);
    take_findings(&l.v[l.count - 1], &r->last);
    TR_TRY(model_size(model, &r->trained.bytes));
    TR_TRY(model_size(last, &r->last.bytes));
out:
    tr_lineage_free(&l);
    tr_free(model);
    return st;
}

/* *Collective.* What training made: no stage has looked at it. `judge`: nor has a run, at the
 * budget of `train`. */
static tr_status measure_model(const char *file, const tr_config *c, bool quiet, bool judge,
                               tr_comm *comm, tr_trial_model *m)
{
    tr_status st;
    tr_frame f = {.comm = comm, .config = c, .quiet = quiet, .folder = c->output};
    tr_config *settled = NULL;
    tr_evaluation e;
    double multiply_adds;
    const tr_budget *budget = judge ? tr_train_budget(c, 0) : NULL;
    TR_TRY(tr_chain_load(comm, file, NULL, 0, &f.chain));
    TR_TRY(tr_data_resolve(comm, c, f.chain.network->model, c->output, &settled));
    if (settled) f.config = settled;
    TR_TRY(tr_frame_enter_device(&f));
    const tr_network *n = f.chain.network;
    m->evaluated = tr_config_has_eval(c);
    if (m->evaluated) {
        TR_TRY(tr_evaluate(f.evaluator, n, f.chain.config, &e));
        m->loss = e.loss;
        m->accuracy = e.accuracy;
    }
    TR_TRY(tr_frame_latency(&f, n, &f.latency_ms));
    m->ms = f.latency_ms;
    TR_TRY(tr_agree(comm, tr_model_multiply_adds(n->model, &multiply_adds), NULL));
    m->multiply_adds = multiply_adds;
    m->parameters = (int64_t)n->model->nparameters;
    m->bytes = (int64_t)f.chain.nbytes;
    if (budget) TR_TRY(tr_frame_judge(&f, "00-train", budget));
out:;
    const tr_error why = *tr_last_error();
    tr_frame_close(&f);
    tr_config_close(settled);
    tr_set_error(&why);
    return st;
}

/* Of the last stage's model. */
static char *last_file(const tr_trial *t, const tr_config *c)
{
    const size_t place = c->pipeline.count - 1;
    char *path =
        place ? tr_stage_path(t->folder, place, tr_stages[c->pipeline.items[place].which]->name)
              : NULL;
    char *file = path     ? tr_sprintf("%s.h5", path)
                 : !place ? tr_sprintf("%s/model.h5", t->folder)
                          : NULL;
    tr_free(path);
    return file;
}

tr_status tr_trial_measure(const tr_trial *t, const tr_config *c, bool quiet, tr_comm *comm,
                           tr_trial_result *r)
{
    tr_status st;
    char *file = last_file(t, c);
    TR_TRY(tr_agree(comm, file ? TR_OK : tr_last_status(), NULL));
    if (c->pipeline.count == 1) {
        TR_TRY(measure_model(file, c, quiet, t->takes, comm, &r->trained));
        r->last = r->trained;
    } else {
        st = tr_comm_topology(comm)->rank == 0 ? take_files(t, file, r) : TR_OK;
        TR_TRY(tr_agree(comm, st, NULL));
        TR_TRY(tr_comm_broadcast(comm, r, sizeof *r, 0));
    }
out:
    tr_free(file);
    return st;
}

tr_status tr_trial_latency(const tr_sweep *s, const tr_trial *t, bool trained, tr_comm *comm,
                           double *ms)
{
    tr_status st;
    tr_config *c = NULL;
    char *file = NULL;
    tr_frame f = {.comm = comm, .quiet = s->arguments->quiet, .folder = t->folder};
    st = tr_trial_config(s, t, &c);
    if (st == TR_OK) {
        file = trained ? tr_sprintf("%s/model.h5", t->folder) : last_file(t, c);
        if (!file) st = tr_last_status();
    }
    TR_TRY(tr_agree(comm, st, NULL));
    f.config = c;
    TR_TRY(tr_chain_load(comm, file, NULL, 0, &f.chain));
    TR_TRY(tr_frame_enter_device(&f));
    TR_TRY(tr_frame_latency(&f, f.chain.network, ms));
out:;
    const tr_error why = *tr_last_error();
    tr_frame_close(&f);
    tr_config_close(c);
    tr_free(file);
    tr_set_error(&why);
    return st;
}
