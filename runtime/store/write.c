/* A snapshot as a run file: which groups, datasets and attributes it has. How they get to the disk
 * is image.c's and commit.c's. */
#include "runtime/store/internal.h"

#include <string.h>
#include <time.h>

/* A model in fewer bits is to be small; what is trained, or goes on, stays as it always was. */
static bool is_packed(const tr_model *m, const tr_snapshot *s)
{
    for (size_t i = 0; !s->checkpoint && i < m->nparams; i++)
        if (m->params[i].stored != TR_F32) return true;
    return false;
}

static tr_status root_attrs(const tr_snapshot *s, bool packed, tr_attrs *a)
{
    tr_status st = TR_OK;
    char created[32];
    time_t now = time(NULL);
    struct tm utc;
    gmtime_r(&now, &utc);
    strftime(created, sizeof created, "%Y-%m-%dT%H:%M:%SZ", &utc);
    TR_TRY(tr_attrs_add_text(a, "format", TR_FORMAT_NAME));
    TR_TRY(tr_attrs_add_count(a, "format_version", packed ? TR_FORMAT_PACKED : TR_FORMAT_PLAIN));
    TR_TRY(tr_attrs_add_text(a, "kind", s->checkpoint ? "checkpoint" : "model"));
    TR_TRY(tr_attrs_add_text(a, "trireme_version", TR_VERSION));
    TR_TRY(tr_attrs_add_text(a, "created", created));
    TR_TRY(tr_attrs_add_count(a, "step", s->train.step));
    TR_TRY(tr_attrs_add_count(a, "epoch", s->train.epoch));
    TR_TRY(tr_attrs_add_text(a, "config", s->config_text));
    if (s->configs) TR_TRY(tr_past_configs_write(s->configs, a));
    TR_TRY(tr_attrs_add_text(a, "parent_sha256", s->parent_sha256));
    if (s->teacher_sha256[0]) TR_TRY(tr_attrs_add_text(a, "teacher_sha256", s->teacher_sha256));
    if (s->origin.sha256[0]) {
        TR_TRY(tr_attrs_add_text(a, "init_sha256", s->origin.sha256));
        TR_TRY(tr_attrs_add_text(a, "init_from", s->origin.text));
    }
out:
    return st;
}

static tr_status array(tr_image *im, const char *group, const char *layer, const char *name,
                       int ndim, const int64_t *dims, const float *data)
{
    char *where = tr_sprintf("%s/%s/%s", group, layer, name);
    if (!where) return tr_last_status();
    tr_status st = tr_image_array(im, where, TR_F32, ndim, dims, data);
    tr_free(where);
    return st;
}

/* A row of a flat array, in float32. */
static tr_status row(tr_image *im, const char *group, const tr_param *p, const float *whole,
                     const tr_flat_parts *parts)
{
    if (whole) return array(im, group, p->layer, p->name, p->ndim, p->dims, whole + p->offset);
    char *where = tr_sprintf("%s/%s/%s", group, p->layer, p->name);
    if (!where) return tr_last_status();
    tr_status st = tr_image_row(im, where, p, parts);
    tr_free(where);
    return st;
}

/* A model's row as the row says; a checkpoint goes on from float32. */
static tr_status param(tr_image *im, const char *path, const tr_model *m, const tr_param *p,
                       const tr_snapshot *s)
{
    if (s->checkpoint || p->stored == TR_F32)
        return row(im, "/model/params", p, s->params, &s->params_parts);
    tr_status st = TR_OK;
    void *bytes = NULL;
    char *where = tr_sprintf("/model/params/%s/%s", p->layer, p->name);
    TR_HAVE(where);
    TR_NEED(s->params, TR_INTERNAL, "%s: %s: in parts", path, where);
    TR_TRY(tr_stored_pack(path, p, s->params + p->offset,
                          p->stored == TR_I8 ? s->states + m->states[p->scale].offset : NULL,
                          &bytes));
    st = tr_image_take(im, where, p->stored, p->ndim, p->dims, bytes);
out:
    tr_free(where);
    return st;
}

/* Row i of parameters or states: whose, and what it is called. */
typedef struct {
    const char *layer, *name;
} row_name;

static row_name name_of(const tr_model *m, bool states, size_t i)
{
    return states ? (row_name){m->states[i].layer, m->states[i].name}
                  : (row_name){m->params[i].layer, m->params[i].name};
}

/* A group of groups, one a layer, each with room for just its rows, which stand together. */
static tr_status layers(tr_image *im, const char *group, const tr_model *m, bool states)
{
    tr_status st = TR_OK;
    char *where = NULL;
    const size_t n = states ? m->nstates : m->nparams;
    size_t count = 0, nbytes = 0;
    for (size_t i = 0; i < n; i++) {
        const char *layer = name_of(m, states, i).layer;
        if (i > 0 && strcmp(layer, name_of(m, states, i - 1).layer) == 0) continue;
        count++;
        nbytes += strlen(layer);
    }
    TR_TRY(tr_image_group_of(im, group, count, nbytes));
    for (size_t i = 0, end; i < n; i = end) {
        const char *layer = name_of(m, states, i).layer;
        for (end = i, nbytes = 0; end < n && strcmp(layer, name_of(m, states, end).layer) == 0;
             end++)
            nbytes += strlen(name_of(m, states, end).name);
        tr_free(where);
        TR_HAVE(where = tr_sprintf("%s/%s", group, layer));
        TR_TRY(tr_image_group_of(im, where, end - i, nbytes));
    }
out:
    tr_free(where);
    return st;
}

static tr_status arrays(tr_image *im, const char *path, const tr_model *m, const tr_snapshot *s)
{
    tr_status st = TR_OK;
    TR_TRY(layers(im, "/model/params", m, false));
    TR_TRY(layers(im, "/model/state", m, true));
    for (size_t i = 0; i < m->nparams; i++) TR_TRY(param(im, path, m, &m->params[i], s));
    for (size_t i = 0; i < m->nstates; i++) {
        const tr_state *p = &m->states[i];
        TR_TRY(
            array(im, "/model/state", p->layer, p->name, p->ndim, p->dims, s->states + p->offset));
    }
    for (int k = 0; s->checkpoint && k < s->nslots; k++) {
        char group[TR_NAME + 16];
        snprintf(group, sizeof group, "/optimizer/%s", s->slot_names[k]);
        for (size_t i = 0; i < m->nparams; i++)
            TR_TRY(row(im, group, &m->params[i], s->slots[k], &s->slot_parts[k]));
    }
out:
    return st;
}

static tr_status history(tr_image *im, const tr_history *h, void *columns[TR_HISTORY_COLUMNS])
{
    tr_status st = TR_OK;
    const tr_history none = {0};
    if (!h) h = &none;
    TR_TRY(tr_image_group(im, "/history"));
    if (!h->nsteps && !h->nevals && !h->classes) return TR_OK; /* a stage's file */
    for (size_t i = 0; i < TR_HISTORY_COLUMNS; i++) {
        const tr_column *c = &tr_history_columns[i];
        int64_t n = (int64_t)(c->eval ? h->nevals : h->nsteps);
        char where[64];
        if (!tr_history_has(h, c)) continue;
        snprintf(where, sizeof where, "/history/%s", c->name);
        columns[i] = tr_history_column(h, c);
        if (!columns[i]) return tr_last_status();
        TR_TRY(tr_image_array(im, where, c->real ? TR_F64 : TR_I64, 1, &n, columns[i]));
    }
    if (h->classes > 0) {
        const int64_t dims[2] = {h->classes, h->classes};
        TR_TRY(tr_image_array(im, "/history/confusion", TR_I64, 2, dims, h->confusion));
    }
out:
    return st;
}

tr_status tr_store_write(const char *path, const tr_model *m, const tr_snapshot *s, size_t *nbytes)
{
    tr_status st = TR_OK;
    tr_image *im = NULL;
    tr_attrs root = {0}, train = {0};
    const bool packed = is_packed(m, s);
    void *columns[TR_HISTORY_COLUMNS] = {NULL};

    TR_TRY(root_attrs(s, packed, &root));
    TR_TRY(tr_train_to_attrs(&s->train, &train));
    TR_TRY(tr_image_open(path, packed, &im));
    TR_TRY(tr_image_attrs(im, "/", &root));
    TR_TRY(tr_image_group(im, "/train"));
    TR_TRY(tr_image_attrs(im, "/train", &train));
    TR_TRY(arrays(im, path, m, s));
    TR_TRY(history(im, s->history, columns));
    if (s->lineage) TR_TRY(tr_lineage_write(im, s->lineage));
    TR_TRY(tr_image_commit(im, nbytes));
out:
    tr_image_close(im);
    for (size_t i = 0; i < TR_HISTORY_COLUMNS; i++) tr_free(columns[i]);
    tr_attrs_free(&root);
    tr_attrs_free(&train);
    return st;
}
