/* A run file back into memory, held against the model: every array must be there with its shape, no
 * other may be, and every checksum must fit. */
#include "runtime/store/internal.h"

#include <string.h>

static tr_status check_attrs(const tr_index *ix)
{
    if (ix->root_fault[0]) return TR_FAIL(TR_FILE, "%s: %s", ix->path, ix->root_fault);
    if (ix->train_fault[0]) return TR_FAIL(TR_FILE, "%s: %s", ix->path, ix->train_fault);
    return TR_OK;
}

/* The entry of an array, if it is as the model has it: float32, or of the other type `stored`. */
static tr_status find(const tr_index *ix, const char *group, const char *layer, const char *name,
                      tr_dtype stored, int ndim, const int64_t *dims, const tr_entry **out)
{
    tr_status st = TR_OK;
    char want[200], found[200];
    char *where = tr_sprintf("%s/%s/%s", group, layer, name);
    if (!where) return tr_last_status();
    const tr_entry *e = tr_index_find(ix, where);
    tr_entry_shape(stored, ndim, dims, want, sizeof want);
    TR_NEED(e, TR_FILE, "%s: %s: expected %s, found nothing", ix->path, where, want);
    TR_NEED(!e->fault[0], TR_FILE, "%s: %s: %s", ix->path, where, e->fault);
    TR_NEED((e->type == TR_F32 || e->type == stored) && e->ndim == ndim &&
                memcmp(e->dims, dims, (size_t)ndim * sizeof *dims) == 0,
            TR_FILE, "%s: %s: expected %s, found %s", ix->path, where, want,
            tr_entry_shape(e->type, e->ndim, e->dims, found, sizeof found));
    *out = e;
out:
    tr_free(where);
    return st;
}

/* A row of another type than float32, with the scales that it has. */
static tr_status read_stored(const tr_index *ix, const tr_model *m, const tr_param *p,
                             const tr_entry *e, float *to)
{
    tr_status st = TR_OK;
    float *scale = NULL;
    void *bytes = tr_alloc(TR_MEM_OTHER, p->count, tr_dtype_size(p->stored));
    TR_HAVE(bytes);
    TR_TRY(tr_entry_read(ix, e, bytes, NULL, NULL));
    if (p->stored == TR_I8) {
        const tr_state *s = &m->states[p->scale];
        const tr_entry *its;
        TR_TRY(find(ix, "/model/state", s->layer, s->name, TR_F32, s->ndim, s->dims, &its));
        TR_HAVE(scale = tr_alloc(TR_MEM_OTHER, s->count, sizeof *scale));
        TR_TRY(tr_entry_read(ix, its, scale, NULL, NULL));
    }
    if (to) tr_stored_unpack(p, bytes, scale, to);
out:
    tr_free(scale);
    tr_free(bytes);
    return st;
}

/* All parameters, or the arrays of a slot. `bytes`: checked, and put into `to` (NULL: into `parts`,
 * if there are any); else only whether they are there. */
static tr_status param_arrays(const tr_index *ix, const tr_model *m, const char *group, bool slot,
                              float *to, const tr_flat_parts *parts, bool bytes)
{
    tr_status st = TR_OK;
    for (size_t i = 0; i < m->nparams; i++) {
        const tr_param *p = &m->params[i];
        const tr_entry *e;
        float *at = to ? to + p->offset : NULL;
        TR_TRY(find(ix, group, p->layer, p->name, slot ? TR_F32 : p->stored, p->ndim, p->dims, &e));
        if (!bytes) continue;
        if (e->type != TR_F32)
            TR_TRY(read_stored(ix, m, p, e, at));
        else if (!to && parts->count > 0)
            TR_TRY(tr_entry_read_row(ix, e, p, parts));
        else
            TR_TRY(tr_entry_read(ix, e, at, NULL, NULL));
    }
out:
    return st;
}

static tr_status state_arrays(const tr_index *ix, const tr_model *m, float *to, bool bytes)
{
    tr_status st = TR_OK;
    for (size_t i = 0; i < m->nstates; i++) {
        const tr_state *p = &m->states[i];
        const tr_entry *e;
        TR_TRY(find(ix, "/model/state", p->layer, p->name, TR_F32, p->ndim, p->dims, &e));
        if (bytes) TR_TRY(tr_entry_read(ix, e, to ? to + p->offset : NULL, NULL, NULL));
    }
out:
    return st;
}

static bool knows(const tr_model *m, bool states, const char *name)
{
    char own[2 * TR_NAME + 2];
    for (size_t i = 0; i < (states ? m->nstates : m->nparams); i++) {
        snprintf(own, sizeof own, "%s/%s", states ? m->states[i].layer : m->params[i].layer,
                 states ? m->states[i].name : m->params[i].name);
        if (strcmp(own, name) == 0) return true;
    }
    return false;
}

/* Nothing under `group` but what the model has: a file of a larger model is another model's. */
static tr_status no_more(const tr_index *ix, const tr_model *m, const char *group, bool states)
{
    size_t n = strlen(group), have = 0;
    for (size_t i = 0; i < ix->count; i++)
        if (strncmp(ix->entries[i].where, group, n) == 0) have++;
    if (have == (states ? m->nstates : m->nparams)) return TR_OK;
    for (size_t i = 0; i < ix->count; i++) {
        const char *where = ix->entries[i].where;
        if (strncmp(where, group, n) == 0 && !knows(m, states, where + n))
            return TR_FAIL(TR_FILE, "%s: %s: the model of the config has no such array", ix->path,
                           where);
    }
    return TR_FAIL(TR_FILE, "%s: %s: the same array twice", ix->path, group);
}

/* The slots there are: names after /optimizer/, one after another as entries are sorted, in `text`
 * with commas between. `other`: only those that are not in `s`. */
static size_t list_slots(const tr_index *ix, const tr_snapshot *s, bool other, char *text,
                         size_t size)
{
    size_t count = 0, used = 0;
    char name[TR_NAME] = "";
    text[0] = 0;
    for (size_t i = 0; i < ix->count; i++) {
        const char *where = ix->entries[i].where;
        if (strncmp(where, "/optimizer/", 11) != 0) continue;
        int n = (int)strcspn(where + 11, "/");
        if (strlen(name) == (size_t)n && strncmp(where + 11, name, (size_t)n) == 0) continue;
        snprintf(name, sizeof name, "%.*s", n, where + 11);
        bool wanted = false;
        for (int k = 0; k < s->nslots; k++) wanted |= strcmp(s->slot_names[k], name) == 0;
        if (other && wanted) continue;
        if (used < size)
            used += (size_t)snprintf(text + used, size - used, "%s%s", count ? ", " : "", name);
        count++;
    }
    return count;
}

static bool has_slot(const tr_index *ix, const char *name)
{
    char group[TR_NAME + 16];
    size_t n = (size_t)snprintf(group, sizeof group, "/optimizer/%s/", name);
    for (size_t i = 0; i < ix->count; i++)
        if (strncmp(ix->entries[i].where, group, n) == 0) return true;
    return false;
}

static void list_wanted(const tr_snapshot *s, char *text, size_t size)
{
    size_t used = 0;
    text[0] = 0;
    for (int k = 0; k < s->nslots && used < size; k++)
        used += (size_t)snprintf(text + used, size - used, "%s%s", k ? ", " : "", s->slot_names[k]);
}

static void warn_of_slots(const tr_index *ix, const tr_snapshot *s)
{
    char have[256], extra[256], wanted[256];
    if (list_slots(ix, s, true, extra, sizeof extra) == 0) return;
    list_slots(ix, s, false, have, sizeof have);
    list_wanted(s, wanted, sizeof wanted);
    tr_log(TR_LOG_WARN, "%s: was another optimizer's: it has %s, this run's keeps %s; not used: %s",
           ix->path, have, s->nslots ? wanted : "nothing", extra);
}

/* The optimizer that wrote the file against the one that goes on from it, known by their slots. */
static tr_status compare_slots(const tr_index *ix, const tr_model *m, const tr_snapshot *s)
{
    char have[256], wanted[256];
    bool any = list_slots(ix, s, false, have, sizeof have) > 0;
    list_wanted(s, wanted, sizeof wanted);
    for (int k = 0; m->nparams > 0 && k < s->nslots; k++)
        if (!has_slot(ix, s->slot_names[k]))
            return TR_FAIL(TR_FILE,
                           "%s: /optimizer/%s: missing: this run's optimizer keeps %s, the file "
                           "has %s",
                           ix->path, s->slot_names[k], wanted, any ? have : "nothing");
    return TR_OK;
}

static tr_status arrays(const tr_index *ix, const tr_model *m, const tr_snapshot *s, bool bytes)
{
    tr_status st = TR_OK;
    char group[TR_NAME + 16];
    TR_TRY(param_arrays(ix, m, "/model/params", false, s->params, &s->params_parts, bytes));
    TR_TRY(state_arrays(ix, m, s->states, bytes));
    TR_TRY(compare_slots(ix, m, s));
    for (int k = 0; k < s->nslots; k++) {
        snprintf(group, sizeof group, "/optimizer/%s", s->slot_names[k]);
        TR_TRY(param_arrays(ix, m, group, true, s->slots[k], &s->slot_parts[k], bytes));
    }
out:
    return st;
}

tr_status tr_index_fits(const tr_index *ix, const tr_model *m, const tr_snapshot *s)
{
    tr_status st = TR_OK;
    TR_TRY(arrays(ix, m, s, false));
    TR_TRY(no_more(ix, m, "/model/params/", false));
    TR_TRY(no_more(ix, m, "/model/state/", true));
out:
    return st;
}

/* A text attribute of /; "" where there is none. */
static void copy_text(const tr_index *ix, const char *name, char *to, size_t size)
{
    const tr_attr *a = tr_attrs_get(&ix->root, name);
    snprintf(to, size, "%s", a && a->kind == TR_ATTR_TEXT ? a->text : "");
}

tr_status tr_store_read(const char *path, const tr_model *m, tr_snapshot *s, tr_history *history)
{
    tr_status st = TR_OK;
    tr_index ix;
    tr_train_state train;
    TR_TRY(tr_index_open(path, &ix));
    TR_TRY(check_attrs(&ix));
    TR_TRY(tr_train_from_attrs(ix.of, &ix.train, &train));
    TR_TRY(tr_index_fits(&ix, m, s));
    if (s->checkpoint) warn_of_slots(&ix, s);
    TR_TRY(arrays(&ix, m, s, true));
    if (history) TR_TRY(tr_history_read(&ix, history));

    const tr_attr *kind = tr_attrs_get(&ix.root, "kind");
    s->checkpoint = kind && kind->kind == TR_ATTR_TEXT && strcmp(kind->text, "checkpoint") == 0;
    copy_text(&ix, "parent_sha256", s->parent_sha256, sizeof s->parent_sha256);
    copy_text(&ix, "teacher_sha256", s->teacher_sha256, sizeof s->teacher_sha256);
    copy_text(&ix, "init_sha256", s->origin.sha256, sizeof s->origin.sha256);
    copy_text(&ix, "init_from", s->origin.text, sizeof s->origin.text);
    s->train = train;
out:
    tr_index_close(&ix);
    return st;
}

tr_status tr_index_verify(const tr_index *ix, tr_train_state *train)
{
    tr_status st = TR_OK;
    TR_TRY(check_attrs(ix));
    TR_TRY(tr_train_from_attrs(ix->of, &ix->train, train));
    for (size_t i = 0; i < ix->nsets; i++)
        TR_NEED(!ix->sets[i].fault[0], TR_FILE, "%s: %s", ix->path, ix->sets[i].fault);
    for (size_t i = 0; i < ix->count; i++)
        TR_TRY(tr_entry_read(ix, &ix->entries[i], NULL, NULL, NULL));
out:
    return st;
}

tr_status tr_store_verify(const char *path, tr_train_state *train)
{
    tr_index ix;
    tr_train_state own;
    tr_status st = tr_index_open(path, &ix);
    if (st == TR_OK) st = tr_index_verify(&ix, train ? train : &own);
    tr_index_close(&ix);
    return st;
}

tr_status tr_store_train(const char *path, tr_train_state *train)
{
    tr_index ix;
    tr_status st = tr_index_open(path, &ix);
    if (st == TR_OK) st = check_attrs(&ix);
    if (st == TR_OK) st = tr_train_from_attrs(ix.of, &ix.train, train);
    tr_index_close(&ix);
    return st;
}

tr_status tr_store_config(const char *path, char **text)
{
    tr_index ix;
    tr_status st;
    TR_TRY(tr_index_open(path, &ix));
    TR_TRY(check_attrs(&ix));
    const tr_attr *a = tr_attrs_get(&ix.root, "config");
    TR_NEED(a && a->kind == TR_ATTR_TEXT, TR_FILE, "%s: /@config: missing", path);
    *text = tr_strdup(a->text);
    TR_HAVE(*text);
out:
    tr_index_close(&ix);
    return st;
}

tr_status tr_store_history(const char *path, tr_history *history)
{
    tr_index ix;
    tr_status st = tr_index_open(path, &ix);
    if (st == TR_OK) st = tr_history_read(&ix, history);
    tr_index_close(&ix);
    return st;
}

tr_status tr_store_sha256(const char *path, char hex[65])
{
    tr_index ix;
    tr_status st = tr_index_open(path, &ix);
    tr_index_close(&ix);
    return st == TR_OK ? tr_file_sha256(path, hex) : st;
}
