/* What the table cannot say: keys that belong together, defaults that depend on others, names that
 * must exist elsewhere. Every error points to the value, or to the map that lacks it. */
#include "runtime/config/internal.h"

#include <ctype.h>
#include <string.h>

#include "runtime/config/patterns.h"

static bool given(const tr_config *c, const char *path)
{
    return !tr_node_empty(tr_node_at(c->document.root, path, NULL));
}

tr_status tr_config_blame(const tr_config *c, const char *path, tr_status st)
{
    const tr_node *at;
    (void)tr_fail_place(st, "%s", path); /* before all of it, and behind the key's own place */
    (void)tr_node_at(c->document.root, path, &at);
    if (at) return tr_node_blame(at, st);
    return tr_fail_place(st, "%s", c->file ? c->file : "config"); /* made by a program */
}

tr_status tr_config_fail(const tr_config *c, const char *path, const char *fmt, ...)
{
    char text[TR_ERROR_TEXT];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return tr_config_blame(c, path, TR_FAIL(TR_CONFIG, "%s", text));
}

/* ---- model --------------------------------------------------------------------------------- */

static tr_status check_loss(tr_config *c)
{
    tr_status st = TR_OK;
    const tr_loss_config *l = &c->model.loss;
    const bool soft = tr_loss_soft(l), ignores = l->ignore_index != TR_NO_LABEL;
    if (l->kind.which != TR_LOSS_CROSS_ENTROPY) return TR_OK;
    TR_REQUIRE(!soft || !ignores, "model.loss",
               "ignore_index is of targets: labels; probabilities have no class number");
    TR_REQUIRE(!soft || !tr_config_balances(c), "model.loss",
               "class_weights: balanced counts class labels, and targets are probabilities");
    TR_REQUIRE(!soft || l->gamma == 0, "model.loss",
               "gamma is of targets: labels; probabilities have no one class to be right about");
    TR_REQUIRE(l->gamma == 0 || l->label_smoothing == 0, "model.loss",
               "gamma and label_smoothing are given: expected one of them");
    TR_REQUIRE(!soft || !c->data.split.stratify, "data.split.stratify",
               "the targets are probabilities, not classes");
out:
    return st;
}

static tr_status check_model(tr_config *c)
{
    static const tr_field dims[] = {{.key = "dims", .kind = TR_FIELD_INTS, .min = 1, .max = 1e9},
                                    {.key = NULL}};
    tr_status st = TR_OK;
    char show[TR_SHOW], path[TR_PATH];
    if (tr_node_empty(c->model.inputs)) c->model.inputs = NULL;
    const tr_node *named = c->model.inputs, *layers = c->model.layers;
    TR_REQUIRE(!named || !c->model.input.count, "model.inputs",
               "model.input is given too: expected one");
    TR_REQUIRE(named || c->model.input.count, "model",
               "required key \"input\" is missing: dimensions of one "
               "sample, such as [1, 8, 8] (or inputs, for several)");
    TR_REQUIRE(!named || (named->kind == TR_NODE_MAP && named->count), "model.inputs",
               "found %s, expected a map of dimensions by input name", tr_node_show(named, show));
    for (size_t i = 0; named && i < named->count; i++) {
        tr_ints ignored;
        tr_path_join("model.inputs", named->keys[i]->text, path);
        TR_TRY(tr_field_read_simple(dims, named->values[i], path, &ignored));
    }
    TR_REQUIRE(layers->kind == TR_NODE_LIST && layers->count, "model.layers",
               "found %s, expected a list of layers", tr_node_show(layers, show));
    tr_init_from from;
    TR_TRY(tr_config_init_from(c, &from));
    tr_init_from_free(&from);
    TR_TRY(tr_patterns_check(c->model.sketch.match, "model.sketch.match"));
    TR_TRY(check_loss(c));
    if (c->model.loss.class_weights.count) {
        double sum = 0;
        for (size_t i = 0; i < c->model.loss.class_weights.count; i++)
            sum += c->model.loss.class_weights.v[i];
        TR_REQUIRE(sum > 0 || tr_config_balances(c), "model.loss", "class_weights are all 0");
    }
out:
    return st;
}

/* ---- train --------------------------------------------------------------------------------- */

/* every_epochs: auto */
static void resolve_every(int64_t every_steps, int64_t *every_epochs)
{
    if (*every_epochs < 0) *every_epochs = every_steps == 0;
}

static tr_status check_eval(tr_config *c)
{
    tr_status st = TR_OK;
    bool wanted = c->train.eval.every_steps > 0 || c->train.eval.every_epochs > 0;
    if (!tr_config_has_eval(c)) {
        TR_REQUIRE(!wanted, "train.eval", "there is no data.eval to evaluate on");
        TR_REQUIRE(!given(c, "train.eval.batch") || !c->train.eval.batch, "train.eval.batch",
                   "there is no data.eval to evaluate on");
        TR_REQUIRE(!c->train.checkpoint.best || !given(c, "train.checkpoint.best"),
                   "train.checkpoint.best", "there is no data.eval to judge by");
        c->train.eval.every_epochs = 0;
        c->train.checkpoint.best = false;
    }
    resolve_every(c->train.eval.every_steps, &c->train.eval.every_epochs);
    bool evaluates = c->train.eval.every_steps > 0 || c->train.eval.every_epochs > 0;
    TR_REQUIRE(evaluates || !c->train.early_stop.patience, "train.early_stop",
               "without evaluations (data.eval, train.eval) nothing can stop early");
    TR_REQUIRE(evaluates || c->train.schedule.kind.which != TR_SCHEDULE_PLATEAU, "train.schedule",
               "plateau needs evaluations (data.eval, train.eval)");
    if (!evaluates) {
        TR_REQUIRE(!c->train.checkpoint.best || !given(c, "train.checkpoint.best"),
                   "train.checkpoint.best", "without evaluations (train.eval) there is no best");
        c->train.checkpoint.best = false;
    }
out:
    return st;
}

/* Names that do not exist are the model's to find. */
static tr_status check_groups(tr_config *c)
{
    tr_status st;
    tr_group_config *groups;
    size_t count;
    if (tr_node_empty(c->train.freeze)) c->train.freeze = NULL;
    TR_TRY(tr_config_groups(c, &groups, &count));
    tr_free(groups);
    TR_TRY(tr_patterns_check(c->train.freeze, "train.freeze"));
    TR_REQUIRE(!c->train.freeze_statistics || c->train.freeze, "train.freeze_statistics",
               "there is no train.freeze to name layers");
out:
    return st;
}

static tr_status check_result(tr_config *c)
{
    tr_status st = TR_OK;
    TR_REQUIRE(c->train.result != TR_RESULT_EMA || c->train.ema > 0, "train.result",
               "there is no average of the weights: set train.ema");
    TR_REQUIRE(c->train.result != TR_RESULT_BEST || c->train.checkpoint.best, "train.result",
               "there is no best: it needs evaluations (data.eval, train.eval) and "
               "train.checkpoint.best");
out:
    return st;
}

static tr_status check_train(tr_config *c)
{
    tr_status st = TR_OK;
    const tr_spans *milestones = &c->train.schedule.o.milestones;
    const tr_spans *restart = &c->train.schedule.o.restart;
    TR_REQUIRE(c->train.epochs || c->train.steps, "train",
               "required key \"epochs\" is missing: how long to train (or steps)");
    TR_REQUIRE(c->train.micro_batch <= c->train.batch, "train.micro_batch",
               "%lld is more than the global batch of %lld", (long long)c->train.micro_batch,
               (long long)c->train.batch);
    TR_REQUIRE(c->train.accumulate <= c->train.batch, "train.accumulate",
               "%lld micro-batches of a global batch of %lld", (long long)c->train.accumulate,
               (long long)c->train.batch);
    TR_REQUIRE(!c->train.accumulate || !c->train.micro_batch, "train.accumulate",
               "train.micro_batch says already how the batch is cut: give one of them");
    if (c->train.loss_scale == -2)
        c->train.loss_scale = c->train.precision == TR_PRECISION_FP16 ? -1 : 0;
    if (c->train.optimizer.kind.which == TR_OPT_SGD && c->train.optimizer.o.nesterov)
        TR_REQUIRE(c->train.optimizer.o.momentum > 0, "train.optimizer", "nesterov needs momentum");
    if (c->train.schedule.kind.which == TR_SCHEDULE_STEP)
        for (size_t i = 1; i < milestones->count; i++)
            TR_REQUIRE(milestones->v[i].unit != milestones->v[i - 1].unit ||
                           milestones->v[i].value > milestones->v[i - 1].value,
                       "train.schedule", "milestones must ascend, found %g after %g",
                       milestones->v[i].value, milestones->v[i - 1].value);
    TR_TRY(check_groups(c));
    for (size_t i = 1; i < restart->count; i++)
        TR_REQUIRE(restart->v[i].unit != restart->v[i - 1].unit ||
                       restart->v[i].value > restart->v[i - 1].value,
                   "train.schedule", "restart must ascend, found %g after %g", restart->v[i].value,
                   restart->v[i - 1].value);
    resolve_every(c->train.checkpoint.every_steps, &c->train.checkpoint.every_epochs);
    if (c->train.on_nonfinite == TR_NONFINITE_ROLLBACK)
        TR_REQUIRE(c->train.checkpoint.every_steps || c->train.checkpoint.every_epochs,
                   "train.on_nonfinite", "rollback needs train.checkpoint");
    TR_TRY(check_eval(c));
    TR_TRY(tr_config_check_metrics(c));
    TR_TRY(check_result(c));
    if (c->train.distill.present)
        TR_TRY(tr_distill_check(&c->train.distill, &c->model.loss, c->data.train.weights != NULL,
                                tr_node_at(c->document.root, "train.distill", NULL),
                                "train.distill"));
out:
    return st;
}

/* ---- the whole ----------------------------------------------------------------------------- */

static tr_status check_run(tr_config *c)
{
    tr_status st = TR_OK;
    TR_REQUIRE(!c->run.benchmark || c->run.deterministic != TR_DETERMINISTIC_ON, "run.benchmark",
               "which candidate is the fastest differs from run to run, and with it the last bits: "
               "it needs run.deterministic: auto or off");
out:
    return st;
}

tr_status tr_config_check(tr_config *c)
{
    tr_status st = TR_OK;
    char show[TR_SHOW];
    for (const char *p = c->name; *p; p++)
        TR_REQUIRE(isalnum((unsigned char)*p) || (strchr("._-", *p) && p > c->name), "name",
                   "%s names files: expected letters, digits, and after the first also . _ -",
                   tr_text_show(c->name, show));
    if (!c->output) {
        c->output = tr_sprintf("runs/%s", c->name);
        if (!c->output) return tr_last_status();
    }
    TR_TRY(check_model(c));
    TR_TRY(tr_config_check_data(c));
    TR_TRY(check_train(c));
    TR_TRY(check_run(c));
out:
    return st;
}
