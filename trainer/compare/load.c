/* Runs as they are found: folders by their records, which say more than a checkpoint; what has none
 * by a run file. */
#include "trainer/compare/compare.h"

#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "optimize/network/network.h"
#include "optimize/report/records.h"
#include "runtime/base/file.h"
#include "runtime/config/measures.h"
#include "trainer/run/run_list.h"

const tr_compared_metric_def tr_compared_metrics[TR_COMPARED_COUNT] = {
#define X(name, more) {#name, more},
    TR_COMPARED_METRICS(X)
#undef X
};

static tr_status curve_open(size_t most, tr_curve *c)
{
    tr_status st = TR_OK;
    TR_HAVE(c->step = tr_alloc(TR_MEM_OTHER, most, sizeof *c->step));
    for (int m = 0; m < TR_COMPARED_COUNT; m++) {
        TR_HAVE(c->value[m] = tr_alloc(TR_MEM_OTHER, most, sizeof *c->step));
        for (size_t i = 0; i < most; i++) c->value[m][i] = NAN;
    }
out:
    return st;
}

/* Rows from this step on were taken back. */
static void take_back(tr_curve *c, double step)
{
    while (c->count > 0 && c->step[c->count - 1] >= step) c->count--;
}

/* A row at this step. */
static size_t row_at(tr_curve *c, double step)
{
    take_back(c, step);
    c->step[c->count] = step;
    return c->count++;
}

static void take_row(const tr_document *record, tr_curve *c, int metrics)
{
    const double step = tr_records_real(record, "step");
    if (!isfinite(step)) return;
    const size_t row = row_at(c, step);
    for (int m = 0; m < metrics; m++)
        c->value[m][row] = tr_records_real(record, tr_compared_metrics[m].name);
}

/* What goes on from this step makes what came behind it void: in evaluations, too. */
static void go_on_from(double step, tr_compared *out)
{
    if (!isfinite(step)) return;
    take_back(&out->training, step + 1);
    take_back(&out->evaluation, step + 1);
}

typedef struct {
    const tr_document *end;
    bool ended; /* no start behind it */
    double rates;
    size_t nrates; /* of steps */
} seen;

static void take_record(const tr_document *record, tr_compared *out, seen *s)
{
    const char *event = tr_records_text(record, "event");
    if (strcmp(event, "step") == 0) {
        const double rate = tr_records_real(record, "samples_per_s");
        take_row(record, &out->training, 1);
        if (isnan(rate)) return;
        s->rates += rate;
        s->nrates++;
    } else if (strcmp(event, "eval") == 0)
        take_row(record, &out->evaluation, TR_COMPARED_COUNT);
    else if (strcmp(event, "rollback") == 0)
        go_on_from(tr_records_real(record, "to"), out);
    else if (strcmp(event, "start") == 0) {
        go_on_from(tr_records_real(record, "step"), out);
        out->parameters = tr_records_real(record, "parameters");
        s->ended = false;
        s->rates = 0;
        s->nrates = 0;
    } else if (strcmp(event, "end") == 0) {
        s->end = record;
        s->ended = true;
    }
}

static double last_step(const tr_curve *c)
{
    return c->count > 0 ? c->step[c->count - 1] : NAN;
}

/* In the file's order: a start behind the last end goes on, or was killed. */
static tr_status take_records(const char *path, tr_compared *out)
{
    tr_status st;
    tr_records r;
    seen s = {0};
    TR_TRY(tr_records_read(path, NULL, &r));
    TR_TRY(curve_open(r.count, &out->training));
    TR_TRY(curve_open(r.count, &out->evaluation));
    for (size_t i = 0; i < r.count; i++) take_record(&r.records[i], out, &s);
    if (s.end) out->seconds = tr_records_real(s.end, "seconds");
    if (s.ended) {
        out->steps = tr_records_real(s.end, "steps");
        out->samples_per_s = tr_records_real(s.end, "samples_per_s");
        TR_HAVE(out->status = tr_strdup(tr_records_text(s.end, "reason")));
    } else {
        if (s.nrates > 0) out->samples_per_s = s.rates / (double)s.nrates;
        TR_HAVE(out->status = tr_strdup("unfinished"));
    }
    if (isnan(out->steps))
        out->steps = fmax(last_step(&out->training), last_step(&out->evaluation));
out:
    tr_records_free(&r);
    return st;
}

static tr_status load_records(const char *folder, const char *metrics, tr_compared *out)
{
    tr_status st = TR_OK;
    char *text = NULL, *config = tr_sprintf("%s/config.yaml", folder);
    size_t n;
    TR_HAVE(config);
    TR_TRY(tr_read_text(config, &text, &n));
    TR_TRY(tr_document_parse(config, text, n, &out->config));
    TR_TRY(take_records(metrics, out));
out:
    tr_free(text);
    tr_free(config);
    return st;
}

/* `c`, `m`: of the run, as what is a function of the loss is not kept. */
static tr_status take_history(const tr_history *h, const tr_config *c, const tr_model *m,
                              tr_compared *out)
{
    tr_status st;
    const bool sequence = tr_is_sequence(m),
               perplexity = tr_config_measures(c, TR_METRIC_PERPLEXITY, m->classes, sequence),
               bits = tr_config_measures(c, TR_METRIC_BITS_PER_BYTE, m->classes, sequence);
    TR_TRY(curve_open(h->nsteps, &out->training));
    TR_TRY(curve_open(h->nevals, &out->evaluation));
    for (size_t i = 0; i < h->nsteps; i++) {
        const size_t row = row_at(&out->training, (double)h->steps[i].step);
        out->training.value[TR_COMPARED_loss][row] = h->steps[i].loss;
    }
    for (size_t i = 0; i < h->nevals; i++) {
        const struct tr_history_eval *e = &h->evals[i];
        const size_t row = row_at(&out->evaluation, (double)e->step);
        const double values[TR_COMPARED_COUNT] = {
            [TR_COMPARED_loss] = e->loss,
            [TR_COMPARED_accuracy] = e->accuracy,
            [TR_COMPARED_top5] = e->top5,
            [TR_COMPARED_f1] = e->f1,
            [TR_COMPARED_auc] = e->auc,
            [TR_COMPARED_mae] = e->mae,
            [TR_COMPARED_r2] = e->r2,
            [TR_COMPARED_perplexity] = perplexity ? exp(e->loss) : NAN,
            [TR_COMPARED_bits_per_byte] = bits ? tr_config_bits_per_byte(c, e->loss) : NAN,
        };
        for (int k = 0; k < TR_COMPARED_COUNT; k++) out->evaluation.value[k][row] = values[k];
    }
out:
    return st;
}

static tr_status load_file(const char *path, tr_compared *out)
{
    tr_status st;
    char *text = NULL;
    tr_history history = {0};
    tr_train_state state = {0};
    tr_network *network = NULL;
    tr_config *config = NULL;
    TR_TRY(tr_store_verify(path, &state));
    TR_TRY(tr_store_config(path, &text));
    TR_TRY(tr_document_parse(path, text, strlen(text), &out->config));
    TR_TRY(tr_network_read(path, NULL, 0, NULL, &network, &config));
    TR_TRY(tr_store_history(path, &history));
    TR_TRY(take_history(&history, config, network->model, out));
    out->parameters = (double)network->model->nparameters;
    out->steps = (double)state.step;
    out->seconds = state.seconds;
    TR_HAVE(out->status = tr_strdup("run file"));
out:
    tr_network_close(network);
    tr_config_close(config);
    tr_history_free(&history);
    tr_free(text);
    return st;
}

static tr_status add(const char *path, tr_comparison *c, tr_compared **out)
{
    tr_status st = TR_OK;
    tr_compared *grown = tr_realloc(TR_MEM_OTHER, c->runs, c->count + 1, sizeof *grown);
    TR_HAVE(grown);
    c->runs = grown;
    *out = &grown[c->count++];
    **out = (tr_compared){.parameters = NAN, .steps = NAN, .seconds = NAN, .samples_per_s = NAN};
    TR_HAVE((*out)->path = tr_strdup(path));
out:
    return st;
}

static void curve_close(tr_curve *c)
{
    tr_free(c->step);
    for (int m = 0; m < TR_COMPARED_COUNT; m++) tr_free(c->value[m]);
}

static void drop_last(tr_comparison *c)
{
    tr_compared *r = &c->runs[--c->count];
    tr_free(r->path);
    tr_free(r->status);
    tr_document_close(&r->config);
    curve_close(&r->training);
    curve_close(&r->evaluation);
}

static tr_status add_recorded(const char *folder, const char *metrics, tr_comparison *c)
{
    tr_compared *run;
    tr_status st = add(folder, c, &run);
    return st == TR_OK ? load_records(folder, metrics, run) : st;
}

static tr_status add_file(const char *folder, tr_comparison *c)
{
    tr_status st;
    tr_compared *run;
    char *file = NULL;
    TR_TRY(tr_run_list(folder, NULL, &file));
    TR_TRY(add(folder, c, &run));
    TR_TRY(load_file(file, run));
out:
    tr_free(file);
    return st;
}

/* By its records; where they are not there, or cannot be read, by its run file. One of which
 * neither can be read is left out; one that has neither is an error. */
static tr_status load_folder(const char *folder, tr_comparison *c)
{
    tr_status st = TR_OK;
    const size_t before = c->count;
    char *metrics = tr_sprintf("%s/metrics.jsonl", folder);
    TR_HAVE(metrics);
    const bool recorded = access(metrics, R_OK) == 0;
    if (recorded) {
        st = add_recorded(folder, metrics, c);
        if (st == TR_OK || st == TR_MEMORY) goto out;
        tr_log(TR_LOG_WARN, "compare: without what %s recorded: %s", folder, tr_last_error()->text);
        if (c->count > before) drop_last(c);
    }
    st = add_file(folder, c);
    if (!recorded || st == TR_OK || st == TR_MEMORY) goto out;
    tr_log(TR_LOG_WARN, "compare: %s is left out: %s", folder, tr_last_error()->text);
    if (c->count > before) drop_last(c);
    c->unread++;
    st = TR_OK;
out:
    tr_free(metrics);
    return st;
}

static int is_trial(const struct dirent *e)
{
    return strncmp(e->d_name, "trial-", 6) == 0;
}

/* Trials that left nothing to compare, as those that failed at their start, are passed over. */
static tr_status load_sweep(const char *folder, tr_comparison *c)
{
    tr_status st = TR_OK;
    struct dirent **found = NULL;
    const size_t before = c->count;
    char *trial = NULL;
    const int n = scandir(folder, &found, is_trial, alphasort);
    for (int i = 0; i < n; i++) {
        char *model, *metrics;
        tr_free(trial);
        TR_HAVE(trial = tr_sprintf("%s/%s", folder, found[i]->d_name));
        model = tr_sprintf("%s/model.h5", trial);
        metrics = tr_sprintf("%s/metrics.jsonl", trial);
        const bool any =
            model && metrics && (access(model, F_OK) == 0 || access(metrics, F_OK) == 0);
        tr_free(model);
        tr_free(metrics);
        if (any) TR_TRY(load_folder(trial, c));
    }
    TR_NEED(c->count > before || c->unread > 0, TR_FILE,
            "%s: a sweep of which no trial has begun to train", folder);
out:
    for (int i = 0; i < n; i++) free(found[i]);
    free(found);
    tr_free(trial);
    return st;
}

static tr_status load(const char *path, tr_comparison *c)
{
    tr_status st = TR_OK;
    tr_compared *run;
    struct stat info;
    char *sweep = tr_sprintf("%s/sweep.yaml", path);
    TR_HAVE(sweep);
    TR_NEED(stat(path, &info) == 0, TR_FILE,
            "%s is not there: expected a run folder, a run file or a sweep's folder", path);
    if (!S_ISDIR(info.st_mode)) {
        TR_TRY(add(path, c, &run));
        st = load_file(path, run);
    } else
        st = access(sweep, F_OK) == 0 ? load_sweep(path, c) : load_folder(path, c);
out:
    tr_free(sweep);
    return st;
}

tr_status tr_comparison_open(size_t npaths, char *const *paths, tr_comparison *out)
{
    tr_status st = TR_OK;
    *out = (tr_comparison){0};
    for (size_t i = 0; i < npaths; i++) TR_TRY(load(paths[i], out));
    TR_NEED(out->count > 1 || out->unread == 0, TR_DATA, "%zu of %zu runs cannot be read",
            out->unread, out->unread + out->count);
    TR_NEED(out->count > 1, TR_USAGE, "%s: one run; give another one to compare it with",
            out->count ? out->runs[0].path : "nothing");
out:
    if (st != TR_OK) tr_comparison_close(out);
    return st;
}

void tr_comparison_close(tr_comparison *c)
{
    while (c->count > 0) drop_last(c);
    tr_free(c->runs);
    *c = (tr_comparison){0};
}

void tr_compared_best(const tr_compared *r, tr_compared_metric m, double *best, double *step,
                      double *last)
{
    const tr_curve *c = &r->evaluation;
    *best = *step = *last = NAN;
    for (size_t i = 0; i < c->count; i++) {
        const double v = c->value[m][i];
        if (isnan(v)) continue;
        *last = v;
        if (!isnan(*best) && !(tr_compared_metrics[m].more ? v > *best : v < *best)) continue;
        *best = v;
        *step = c->step[i];
    }
}
