#include "trainer/models/chain.h"

#include <stdlib.h>
#include <string.h>

#include "trainer/stages/stages.h"

void tr_chain_free(tr_chain *c)
{
    tr_free(c->file);
    tr_network_close(c->network);
    tr_config_close(c->config);
    tr_lineage_free(&c->lineage);
    *c = (tr_chain){0};
}

static tr_status parse(const char *file, const char *text, const char *const *overrides,
                       size_t noverrides, tr_config **config, tr_model **m)
{
    tr_status st;
    tr_variant_def stages[TR_STAGES + 1];
    tr_stages_known(stages);
    TR_TRY(tr_config_open(file, text, strlen(text), overrides, noverrides, stages, config));
    TR_TRY(tr_stages_check(*config));
    TR_TRY(tr_model_open(*config, 0, m));
out:
    return st;
}

tr_status tr_chain_model(const char *file, tr_config **config, tr_model **m)
{
    char *text = NULL;
    tr_status st = tr_store_config(file, &text);
    if (st == TR_OK) st = parse(file, text, NULL, 0, config, m);
    tr_free(text);
    if (st != TR_OK) {
        tr_config_close(*config);
        *config = NULL;
    }
    return st;
}

static tr_status build(const char *file, const char *text, const char *const *overrides,
                       size_t noverrides, tr_chain *c)
{
    tr_model *m = NULL;
    const tr_status st = parse(file, text, overrides, noverrides, &c->config, &m);
    return st == TR_OK ? tr_network_open(m, &c->network) : st;
}

/* What only rank 0 reads: values, history of stages, who the file is. */
static tr_status read_file(const char *file, tr_chain *c)
{
    tr_status st;
    tr_snapshot s = {.params = c->network->params, .states = c->network->states};
    TR_TRY(tr_store_read(file, c->network->model, &s, NULL));
    c->train = s.train;
    memcpy(c->teacher_sha256, s.teacher_sha256, sizeof c->teacher_sha256);
    c->origin = s.origin;
    TR_TRY(tr_store_model_nbytes(file, &c->nbytes));
    TR_TRY(tr_store_sha256(file, c->sha256));
    TR_TRY(tr_lineage_read(file, &c->lineage));
out:
    return st;
}

tr_status tr_chain_load(tr_comm *comm, const char *file, const char *const *overrides,
                        size_t noverrides, tr_chain *c)
{
    tr_status st;
    const bool root = tr_comm_topology(comm)->rank == 0;
    char *text = NULL, *name = tr_strdup(file); /* may be what is released */
    tr_chain_free(c);
    if (root) tr_comm_busy(comm, TR_BUSY_READS);
    st = name && root ? tr_store_config(name, &text) : name ? TR_OK : tr_last_status();
    TR_TRY(tr_agree(comm, st, NULL));
    TR_TRY(tr_comm_share_text(comm, &text));
    TR_TRY(tr_agree(comm, build(name, text, overrides, noverrides, c), NULL));
    TR_TRY(tr_agree(comm, root ? read_file(name, c) : TR_OK, NULL));
    TR_TRY(tr_comm_broadcast(comm, c->network->params,
                             c->network->model->flat_count * sizeof(float), 0));
    TR_TRY(tr_comm_broadcast(comm, c->network->states,
                             c->network->model->state_count * sizeof(float), 0));
    TR_TRY(tr_comm_broadcast(comm, c->sha256, sizeof c->sha256, 0));
    TR_TRY(tr_comm_broadcast(comm, &c->nbytes, sizeof c->nbytes, 0));
    c->file = name;
    name = NULL;
out:
    tr_comm_busy(comm, TR_BUSY_NOT);
    tr_free(text);
    tr_free(name);
    if (st != TR_OK) {
        const tr_error why = *tr_last_error();
        tr_chain_free(c);
        tr_set_error(&why);
    }
    return st;
}
