/* A trial's record, trial.yaml, by which a sweep that goes on knows the trial without running it. */
#include <float.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/file.h"
#include "trainer/sweep/internal.h"

/* NaN has no place in YAML: what is not there is `none`. */
typedef struct {
    char *settings; /* tr_trial.key */
    int state;
    char *reason;
    bool training_failed;
    tr_trial_model trained, last;
    double turns_ms, trained_turns_ms;
} record;

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
static const char *const states[] = {"open", "done", "failed", NULL};
static const tr_field record_fields[] = {
    TR_TEXT("settings", offsetof(record, settings), NULL, ""),
    TR_CHOICE("state", offsetof(record, state), states, NULL, ""),
    TR_TEXT("reason", offsetof(record, reason), "", ""),
    TR_BOOL("training_failed", offsetof(record, training_failed), "false", ""),
    TR_MAP("trained", offsetof(record, trained), model_fields, "", ""),
    TR_MAP("last", offsetof(record, last), model_fields, "", ""),
    TR_REAL("turns_latency_ms", offsetof(record, turns_ms), "0", 0, 0, "ms", ""),
    TR_REAL("trained_turns_latency_ms", offsetof(record, trained_turns_ms), "0", 0, 0, "ms", ""),
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

/* *known false: there is none that can be read. What it holds is to be freed in any case. */
static tr_status read_record(const char *folder, const char *else_what, record *rec, bool *known)
{
    tr_status st = TR_OK;
    tr_document doc = {NULL, NULL};
    char *text = NULL, *path = tr_sprintf("%s/trial.yaml", folder);
    size_t n;
    *known = false;
    TR_HAVE(path);
    if (access(path, F_OK) != 0) goto out;
    tr_status looked = tr_read_text(path, &text, &n);
    if (looked == TR_OK) looked = tr_document_parse(path, text, n, &doc);
    if (looked == TR_OK) looked = tr_fields_read(doc.root, record_fields, "", rec);
    TR_TRY(tr_unread(looked)); /* to run the trial again may take hours */
    *known = looked == TR_OK;
    if (!*known) tr_log(TR_LOG_WARN, "%s; %s", tr_last_error()->text, else_what);
out:
    tr_document_close(&doc);
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
                         .trained_turns_ms = rec->trained_turns_ms};
    snprintf(r.reason, sizeof r.reason, "%s", rec->reason ? rec->reason : "");
    return r;
}

tr_status tr_record_read(const tr_trial *t, tr_trial_result *r, bool *found)
{
    record rec = {0};
    bool known;
    const tr_status st = read_record(t->folder, "the trial runs again", &rec, &known);
    const bool same = known && strcmp(rec.settings, t->key) == 0;
    *found = same && rec.state != TR_TRIAL_OPEN;
    if (*found) *r = result_of(&rec);
    if (known && !same && rec.state == TR_TRIAL_DONE)
        tr_log(TR_LOG_WARN,
               "trial %zu: %s holds one that is done with other settings, which this one replaces",
               t->number, t->folder);
    tr_fields_free(record_fields, &rec);
    return st;
}

tr_status tr_record_look(const char *folder, tr_trial_result *r, bool *done)
{
    record rec = {0};
    bool known;
    const tr_status st = read_record(folder, "it is left out", &rec, &known);
    *done = known && rec.state == TR_TRIAL_DONE;
    if (*done) *r = result_of(&rec);
    tr_fields_free(record_fields, &rec);
    return st;
}

tr_status tr_record_write(const tr_trial *t)
{
    const tr_trial_result *r = &t->result;
    const record rec = {.settings = (char *)t->key,
                        .state = r->state,
                        .reason = r->reason[0] ? (char *)r->reason : NULL,
                        .training_failed = r->training_failed,
                        .trained = with_none(r->trained),
                        .last = with_none(r->last),
                        .turns_ms = r->turns_ms,
                        .trained_turns_ms = r->trained_turns_ms};
    char *path = tr_sprintf("%s/trial.yaml", t->folder);
    tr_text_file f;
    tr_status st = tr_text_file_open(&f, path);
    if (st == TR_OK) st = tr_fields_write(record_fields, &rec, 0, f.to);
    st = tr_text_file_close(&f, st);
    tr_free(path);
    return st;
}
