/* A trial's record, trial.yaml, by which a sweep that goes on knows the trial without running it:
 * its key, its settings as the tables show them, and what it came to. It is there, `open`, from
 * when the trial begins; `replaced`, with --force. Records of earlier versions have the key alone,
 * as `settings`. */
#include <float.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/file.h"
#include "trainer/sweep/internal.h"

/* NaN has no place in YAML: what is not there is `none`. */
typedef struct {
    char *key, *training;
    const tr_node *settings; /* by path */
    int state;
    char *reason;
    bool training_failed;
    tr_trial_model trained, last;
    double turns_ms, trained_turns_ms;
    char *turns;
    int64_t trained_by;
} record;

/* More, or longer on one line, are not kept: a record must be short enough to be read. */
enum { MOST_SETTINGS = 256, MOST_BYTES = 1 << 15 };

#define NONE .auto_text = "none", .auto_value = -DBL_MAX

static const tr_field model_fields[] = {
    TR_INT("parameters", offsetof(tr_trial_model, parameters), "0", 0, 0, NULL, ""),
    TR_INT("bytes", offsetof(tr_trial_model, bytes), "0", 0, 0, "bytes", ""),
    TR_REAL("multiply_adds", offsetof(tr_trial_model, multiply_adds), "0", 0, 0, NULL, ""),
    TR_REAL("latency_ms", offsetof(tr_trial_model, ms), "0", 0, 0, "ms", ""),
    TR_BOOL("evaluated", offsetof(tr_trial_model, evaluated), "false", ""),
    TR_REAL("loss", offsetof(tr_trial_model, loss), "none", 0, 0, NULL, "", NONE),
    TR_REAL("accuracy", offsetof(tr_trial_model, accuracy), "none", 0, 0, NULL, "", NONE),
    TR_END,
};
static const char *const states[] = {"open", "done", "failed", "replaced", NULL};
static const tr_field record_fields[] = {
    TR_TEXT("key", offsetof(record, key), "", ""),
    TR_TEXT("training", offsetof(record, training), "", ""),
    TR_NODE("settings", offsetof(record, settings), "", ""),
    TR_CHOICE("state", offsetof(record, state), states, NULL, ""),
    TR_TEXT("reason", offsetof(record, reason), "", ""),
    TR_BOOL("training_failed", offsetof(record, training_failed), "false", ""),
    TR_MAP("trained", offsetof(record, trained), model_fields, "", ""),
    TR_MAP("last", offsetof(record, last), model_fields, "", ""),
    TR_REAL("turns_latency_ms", offsetof(record, turns_ms), "0", 0, 0, "ms", ""),
    TR_REAL("trained_turns_latency_ms", offsetof(record, trained_turns_ms), "0", 0, 0, "ms", ""),
    TR_TEXT("turns", offsetof(record, turns), "", ""),
    TR_INT("trained_by", offsetof(record, trained_by), "none", 0, 1e9, NULL, "",
           .auto_text = "none", .auto_value = -1),
    TR_END,
};

static tr_trial_model with_none(tr_trial_model m)
{
    if (!isfinite(m.loss)) m.loss = -DBL_MAX;
    if (!isfinite(m.accuracy)) m.accuracy = -DBL_MAX;
    return m;
}

static tr_trial_model without_none(tr_trial_model m)
{
    if (m.loss == -DBL_MAX) m.loss = NAN;
    if (m.accuracy == -DBL_MAX) m.accuracy = NAN;
    return m;
}

/* ---- Reading --------------------------------------------------------------------------------- */

typedef struct {
    record r;
    tr_document doc;   /* its settings are there */
    bool there, known; /* known: it can be read */
} reading;

static void close_record(reading *x)
{
    tr_fields_free(record_fields, &x->r);
    tr_document_close(&x->doc);
}

/* The key of an earlier version's. */
static tr_status take_key(reading *x)
{
    record *r = &x->r;
    if (r->key || !r->settings || r->settings->kind != TR_NODE_SCALAR) return TR_OK;
    r->key = tr_strdup(r->settings->text);
    r->settings = NULL;
    return r->key ? TR_OK : tr_last_status();
}

static bool is_key(const char *text)
{
    return text && strlen(text) == sizeof((tr_trial *)0)->key - 1;
}

static bool is_model(const tr_trial_model *m)
{
    return m->parameters >= 0 && m->bytes > 0 && m->multiply_adds >= 0 && m->ms > 0 &&
           isfinite(m->ms);
}

/* Text of a record is anybody's: what no trial comes to is none. */
static tr_status check(reading *x)
{
    const record *r = &x->r;
    const tr_node *at = x->doc.root;
    tr_status st = TR_OK;
    if (r->state == TR_TRIAL_REPLACED) return TR_OK;
    TR_TRY(take_key(x));
    if (!is_key(r->key)) return tr_node_fail(at, "expected a key, of 64 digits");
    if (r->training && *r->training && !is_key(r->training))
        return tr_node_fail(at, "training: expected a key, of 64 digits");
    if (r->turns && *r->turns && strlen(r->turns) >= sizeof((tr_trial_result *)0)->turns)
        return tr_node_fail(at, "turns: expected 16 digits");
    if (r->state == TR_TRIAL_DONE && !(is_model(&r->trained) && is_model(&r->last)))
        return tr_node_fail(at, "a trial that is done has two models, with bytes and a latency");
out:
    return st;
}

/* To be closed in any case. */
static tr_status read_record(const char *folder, reading *x)
{
    tr_status st = TR_OK;
    char *text = NULL, *path = tr_sprintf("%s/trial.yaml", folder);
    size_t n;
    *x = (reading){0};
    TR_HAVE(path);
    x->there = access(path, F_OK) == 0;
    if (!x->there) goto out;
    tr_status looked = tr_read_text(path, &text, &n);
    if (looked == TR_OK) looked = tr_document_parse(path, text, n, &x->doc);
    if (looked == TR_OK) looked = tr_fields_read(x->doc.root, record_fields, "", &x->r);
    if (looked == TR_OK) looked = check(x);
    TR_TRY(tr_unread(looked)); /* to run the trial again may take hours */
    x->known = looked == TR_OK;
    if (!x->known)
        tr_log(TR_LOG_WARN,
               "%s; what is in this folder stays, and does not count: its trial runs again, "
               "under another number (to end this warning remove %s)",
               tr_last_error()->text, folder);
out:
    tr_free(text);
    tr_free(path);
    return st;
}

static tr_trial_result result_of(const record *rec)
{
    tr_trial_result r = {.state = rec->state,
                         .training_failed = rec->training_failed,
                         .trained = without_none(rec->trained),
                         .last = without_none(rec->last),
                         .turns_ms = rec->turns_ms,
                         .trained_turns_ms = rec->trained_turns_ms,
                         .trained_by = rec->trained_by};
    snprintf(r.reason, sizeof r.reason, "%s", rec->reason ? rec->reason : "");
    snprintf(r.turns, sizeof r.turns, "%s", rec->turns ? rec->turns : "");
    return r;
}

tr_status tr_record_look(const char *folder, tr_known_trial *t, bool *there)
{
    reading x;
    const tr_status st = read_record(folder, &x);
    *there = x.there;
    t->state = x.known ? x.r.state : TR_TRIAL_OPEN;
    const bool keys = x.known && t->state != TR_TRIAL_REPLACED;
    snprintf(t->key, sizeof t->key, "%s", keys ? x.r.key : "");
    snprintf(t->training, sizeof t->training, "%s", keys && x.r.training ? x.r.training : "");
    t->recorded = x.there;
    t->says = *t->training != 0;
    close_record(&x);
    return st;
}

tr_status tr_record_read(const char *folder, const char *key, tr_trial_result *r, bool *found)
{
    reading x;
    const tr_status st = read_record(folder, &x);
    *found = x.known && (x.r.state == TR_TRIAL_DONE || x.r.state == TR_TRIAL_FAILED) &&
             strcmp(x.r.key, key) == 0;
    if (*found) *r = result_of(&x.r);
    close_record(&x);
    return st;
}

tr_status tr_record_values(const tr_sweep *s, const char *folder, tr_trial_result *r, char **values,
                           bool *found)
{
    reading x;
    tr_status st = read_record(folder, &x);
    *found = x.known && x.r.state != TR_TRIAL_REPLACED;
    if (*found) *r = result_of(&x.r);
    for (size_t k = 0; *found && st == TR_OK && k < s->ncolumns; k++) {
        const tr_node *value = tr_node_get(x.r.settings, s->columns[k]->text);
        if (value) st = tr_node_line(value, &values[k]);
    }
    close_record(&x);
    return st;
}

/* ---- Writing --------------------------------------------------------------------------------- */

/* What the trial sets, as a map. Its nodes are the trial's; the map's arrays are to be released.
 * *keep false: that is too much. */
static tr_status settings_of(const tr_sweep *s, const tr_trial *t, tr_node *map, bool *keep)
{
    tr_status st = TR_OK;
    char *line = NULL;
    *map = (tr_node){.kind = TR_NODE_MAP, .source = ""};
    map->keys = tr_alloc(TR_MEM_OTHER, s->ncolumns, sizeof(tr_node *));
    map->values = tr_alloc(TR_MEM_OTHER, s->ncolumns, sizeof(tr_node *));
    TR_HAVE(map->keys && map->values);
    for (size_t k = 0; k < s->ncolumns; k++) {
        if (!t->settings[k].key) continue;
        map->keys[map->count] = (tr_node *)s->columns[k];
        map->values[map->count++] = &t->settings[k].value.node;
    }
    TR_TRY(tr_node_line(map, &line));
    *keep = map->count <= MOST_SETTINGS && strlen(line) <= MOST_BYTES;
out:
    tr_free(line);
    return st;
}

tr_status tr_record_write(const tr_sweep *s, const tr_trial *t)
{
    const tr_trial_result *r = &t->result;
    tr_node settings;
    tr_text_file f;
    bool keep;
    char *path = NULL;
    tr_status st = settings_of(s, t, &settings, &keep);
    TR_TRY(st);
    const record rec = {.key = (char *)t->key,
                        .training = *t->training ? (char *)t->training : NULL,
                        .settings = keep ? &settings : NULL,
                        .state = r->state,
                        .reason = r->reason[0] ? (char *)r->reason : NULL,
                        .training_failed = r->training_failed,
                        .trained = with_none(r->trained),
                        .last = with_none(r->last),
                        .turns_ms = r->turns_ms,
                        .trained_turns_ms = r->trained_turns_ms,
                        .turns = r->turns[0] ? (char *)r->turns : NULL,
                        .trained_by = r->trained_by};
    TR_HAVE(path = tr_sprintf("%s/trial.yaml", t->folder));
    st = tr_text_file_open(&f, path);
    if (st == TR_OK) st = tr_fields_write(record_fields, &rec, 0, f.to);
    st = tr_text_file_close(&f, st);
out:
    tr_free(path);
    tr_free((void *)settings.keys);
    tr_free((void *)settings.values);
    return st;
}

tr_status tr_record_replace(const char *folder)
{
    char *path = tr_sprintf("%s/trial.yaml", folder);
    tr_text_file f;
    tr_status st = tr_text_file_open(&f, path);
    if (st == TR_OK)
        fputs("# by --force: what is in this folder counts for nothing\nstate: replaced\n", f.to);
    st = tr_text_file_close(&f, st);
    tr_free(path);
    return st;
}
