#include "trainer/models/init_from.h"

#include <string.h>

#include "optimize/tensors/arrays.h"
#include "runtime/base/file.h"
#include "trainer/models/train_model.h"
#include "trainer/stages/stages.h"

/* `named`: model.init_from says which file it is, and is where it is told that it cannot be opened,
 * wherever in the file that lies, or that its arrays do not fit. */
static tr_status read_file(const tr_config *c, const char *file, bool named, tr_network *n,
                           tr_origin *origin)
{
    tr_status st;
    tr_variant_def stages[TR_STAGES + 1];
    tr_init_from o;
    tr_arrays *a = NULL;
    tr_arrays_taken taken;
    char text[700], *path;
    tr_stages_known(stages);
    TR_TRY(tr_config_init_from(c, &o));
    path = tr_strdup(file);
    tr_free(o.file);
    o.file = path;
    TR_HAVE(path);
    st = tr_file_sha256(file, origin->sha256);
    if (st == TR_OK) st = tr_arrays_open(file, stages, &a);
    if (st != TR_OK && named) st = tr_config_blame(c, "model.init_from", st);
    TR_TRY(st);
    st = tr_arrays_take(a, &o, n, &taken);
    if (st == TR_CONFIG && named && tr_last_error()->place == 0) /* no key of its own */
        st = tr_config_blame(c, "model.init_from", st);
    TR_TRY(st);
    snprintf(origin->text, sizeof origin->text, "%.300s: %s", file,
             tr_arrays_taken_text(&taken, text, sizeof text));
out:
    tr_arrays_close(a);
    tr_init_from_free(&o);
    return st;
}

tr_status tr_init_from_read(const tr_config *c, const char *file, tr_network *n, tr_origin *origin)
{
    return read_file(c, file, false, n, origin);
}

/* Rank 0. Of the file, or, where none is given, as the layers say. */
static tr_status read_values(const tr_config *c, const tr_init_from *o, tr_network *n, bool rounded,
                             tr_origin *origin)
{
    const tr_model *m = n->model;
    char before[sizeof origin->sha256];
    memcpy(before, origin->sha256, sizeof before);
    char *path = o->file ? tr_config_path(c, o->file) : NULL;
    tr_status st = path || !o->file ? TR_OK : tr_last_status();
    tr_model_init_params(m, (uint64_t)c->seed, n->params, 0, m->flat_count);
    tr_model_init_states(m, n->states);
    if (st == TR_OK && path) st = read_file(c, path, true, n, origin);
    if (st == TR_CONFIG && rounded)
        st = tr_fail_behind(st, "; model.round_dims made layers wider than they are written");
    if (st == TR_OK && before[0] && strcmp(before, origin->sha256) != 0)
        st = TR_FAIL(TR_FILE,
                     "model.init_from: %s is another file now (SHA-256 %.12s...) than the one that "
                     "the run began from (%.12s...)",
                     path, origin->sha256, before);
    if (st == TR_OK) st = tr_network_hold(n, false);
    if (st == TR_OK && path)
        tr_log(TR_LOG_INFO, "starting from %s (SHA-256 %.12s...)", origin->text, origin->sha256);
    tr_free(path);
    return st;
}

tr_status tr_init_from_open(const tr_config *c, tr_comm *comm, bool rounded, tr_origin *origin,
                            tr_network **out)
{
    const bool root = tr_comm_topology(comm)->rank == 0;
    tr_status st;
    tr_init_from o;
    tr_model *m = NULL;
    tr_network *n = NULL;
    *out = NULL;
    TR_TRY(tr_agree(comm, tr_config_init_from(c, &o), NULL));
    TR_TRY(tr_agree(comm, tr_train_model(c, &m), NULL));
    if (!o.file && !tr_network_keeps_bits(m)) goto out; /* as the layers say, in parts */
    st = tr_network_open(m, &n);
    m = NULL;
    TR_TRY(tr_agree(comm, st, NULL));
    if (root) tr_comm_busy(comm, TR_BUSY_READS);
    TR_TRY(tr_agree(comm, root ? read_values(c, &o, n, rounded, origin) : TR_OK, NULL));
    tr_comm_busy(comm, TR_BUSY_NOT);
    TR_TRY(tr_comm_broadcast(comm, n->params, n->model->flat_count * sizeof(float), 0));
    TR_TRY(tr_comm_broadcast(comm, n->states, n->model->state_count * sizeof(float), 0));
    TR_TRY(tr_comm_broadcast(comm, origin, sizeof *origin, 0));
    *out = n;
out:
    tr_comm_busy(comm, TR_BUSY_NOT);
    tr_init_from_free(&o);
    const tr_error why = *tr_last_error();
    tr_model_close(m);
    if (st != TR_OK) tr_network_close(n);
    tr_set_error(&why);
    return st;
}
