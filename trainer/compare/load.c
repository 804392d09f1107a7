/* Runs as they are found: folders by their records, which say more than a checkpoint; what has none by a run file. */
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

/* A row at this step. Rows from there on were taken back: by a rollback, or a start from an earlier checkpoint. */
static size_t row_at(tr_curve *c, double step)
{
    while (c->count > 0 && c->step[c->count - 1] >= step) c->count--;
    c->step[c->count] = step;
    return c->count++;
}

static tr_status take_records(const char *path, const char *event, tr_curve *c, bool evals,
                              double *last)
{
    tr_status st;
    tr_records r;
    TR_TRY(tr_records_read(path, event, &r));
    TR_TRY(curve_open(r.count, c));
    for (size_t i = 0; i < r.count; i++) {
        const double step = tr_records_real(&r.records[i], "step");
        if (isnan(step)) continue;
        const size_t row = row_at(c, step);
        for (int m = 0; m < (evals ? TR_COMPARED_COUNT : 1); m++)
            c->value[m][row] = tr_records_real(&r.records[i], tr_compared_metrics[m].name);
    }
    if (c->count > 0 && !(*last >= c->step[c->count - 1])) *last = c->step[c->count - 1];
out:
    tr_records_free(&r);
    return st;
}

static double mean_rate(const tr_records *steps)
{
    double sum = 0;
    size_t n = 0;
    for (size_t i = 0; i < steps->count; i++) {
        const double v = tr_records_real(&steps->records[i], "samples_per_s");
        if (isnan(v)) continue;
        sum += v;
        n++;
    }
    return n > 0 ? sum / (double)n : NAN;
}

/* A start after the last end goes on, or was killed. */
static tr_status take_ends(const char *path, tr_compared *out)
{
    tr_status st;
    tr_records starts = {0}, ends = {0}, steps = {0};
    TR_TRY(tr_records_read(path, "start", &starts));
    TR_TRY(tr_records_read(path, "end", &ends));
    TR_TRY(tr_records_read(path, "step", &steps));
    if (starts.count > 0)
        out->parameters = tr_records_real(&starts.records[starts.count - 1], "parameters");
    const tr_document *end = ends.count > 0 ? &ends.records[ends.count - 1] : NULL;
    if (end) {
        out->seconds = tr_records_real(end, "seconds");
        out->samples_per_s = tr_records_real(end, "samples_per_s");
    }
    if (end && ends.count >= starts.count) {
        out->steps = tr_records_real(end, "steps");
        TR_HAVE(out->status = tr_strdup(tr_records_text(end, "reason")));
    } else {
        out->samples_per_s = mean_rate(&steps);
        TR_HAVE(out->status = tr_strdup("unfinished"));
    }
out:
    tr_records_free(&starts);
    tr_records_free(&ends);
    tr_records_free(&steps);
    return st;
}

static tr_status load_records(const char *folder, const char *metrics, tr_compared *out)
{
    tr_status st = TR_OK;
    char *text = NULL, *config = tr_sprintf("%s/config.yaml", folder);
    size_t n;
    double last = NAN;
    TR_HAVE(config);
    TR_TRY(tr_read_text(config, &text, &n));
    TR_TRY(tr_document_parse(config, text, n, &out->config));
    TR_TRY(take_ends(metrics, out));
    TR_TRY(take_records(metrics, "step", &out->training, false, &last));
    TR_TRY(take_records(metrics, "eval", &out->evaluation, true, &last));
    if (isnan(out->steps)) out->steps = last;
out:
    tr_free(text);
    tr_free(config);
    return st;
}

static tr_status take_history(const tr_history *h, tr_compared *out)
{
    tr_status st;
    TR_TRY(curve_open(h->nsteps, &out->training));
    TR_TRY(curve_open(h->nevals, &out->evaluation));
    for (size_t i = 0; i < h->nsteps; i++) {
        const size_t row = row_at(&out->training, (double)h->steps[i].step);
        out->training.value[TR_COMPARED_loss][row] = h->steps[i].loss;
    }
    for (size_t i = 0; i < h->nevals; i++) {
        const struct tr_history_eval *e = &h->evals[i];
        const size_t row = row_at(&out->evaluation, (double)e->step);
        const double values[TR_COMPARED_COUNT] = {e->loss, e->accuracy, e->top5, e->f1,
                                                  e->auc,  e->mae,      e->r2};
        for (int m = 0; m < TR_COMPARED_COUNT; m++) out->evaluation.value[m][row] = values[m];
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
    TR_TRY(tr_store_verify(path, &state));
    TR_TRY(tr_store_config(path, &text));
    TR_TRY(tr_document_parse(path, text, strlen(text), &out->config));
    TR_TRY(tr_network_read(path, NULL, 0, NULL, &network, NULL));
    TR_TRY(tr_store_history(path, &history));
    TR_TRY(take_history(&history, out));
    out->parameters = (double)network->model->nparameters;
    out->steps = (double)state.step;
    out->seconds = state.seconds;
    TR_HAVE(out->status = tr_strdup("run file"));
out:
    tr_network_close(network);
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

static tr_status load_folder(const char *folder, tr_comparison *c)
{
    tr_status st;
    tr_compared *run;
    char *file = NULL, *metrics = tr_sprintf("%s/metrics.jsonl", folder);
    TR_HAVE(metrics);
    TR_TRY(add(folder, c, &run));
    if (access(metrics, R_OK) == 0)
        TR_TRY(load_records(folder, metrics, run));
    else {
        TR_TRY(tr_run_list(folder, NULL, &file));
        TR_TRY(load_file(file, run));
    }
out:
    tr_free(metrics);
    tr_free(file);
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
    TR_NEED(c->count > before, TR_FILE, "%s: a sweep of which no trial has begun to train", folder);
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
    TR_NEED(out->count > 1, TR_USAGE, "%s: one run; give another one to compare it with",
            out->count ? out->runs[0].path : "nothing");
out:
    if (st != TR_OK) tr_comparison_close(out);
    return st;
}

static void curve_close(tr_curve *c)
{
    tr_free(c->step);
    for (int m = 0; m < TR_COMPARED_COUNT; m++) tr_free(c->value[m]);
}

void tr_comparison_close(tr_comparison *c)
{
    for (size_t i = 0; i < c->count; i++) {
        tr_free(c->runs[i].path);
        tr_free(c->runs[i].status);
        tr_document_close(&c->runs[i].config);
        curve_close(&c->runs[i].training);
        curve_close(&c->runs[i].evaluation);
    }
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
