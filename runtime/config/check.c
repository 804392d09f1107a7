/* What the table cannot say: keys that belong together, defaults that depend on others, names that
 * must exist elsewhere. Every error points to the value, or to the map that lacks it. */
#include "runtime/config/internal.h"

#include <ctype.h>
#include <string.h>

/* The node at a dotted path, or the nearest one above it that is there. */
static const tr_node *nearest(const tr_config *c, const char *path, bool *found)
{
    const tr_node *n = c->document.root;
    *found = true;
    while (*path) {
        char word[TR_YAML_KEY + 1];
        size_t length = strcspn(path, ".");
        snprintf(word, sizeof word, "%.*s", (int)length, path);
        const tr_node *child = tr_node_get(n, word);
        if (!child) {
            *found = false;
            return n;
        }
        n = child;
        path += length + (path[length] == '.');
    }
    return n;
}

static bool given(const tr_config *c, const char *path)
{
    bool found;
    return !tr_node_empty(nearest(c, path, &found)) && found;
}

static tr_status fail(const tr_config *c, const char *path, const char *fmt, ...) TR_PRINTF(3, 4);
static tr_status fail(const tr_config *c, const char *path, const char *fmt, ...)
{
    char text[512];
    bool found;
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return tr_node_fail(nearest(c, path, &found), "%s: %s", path, text);
}

#define REQUIRE(cond, path, ...)                                                                   \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            st = fail(c, (path), __VA_ARGS__);                                                     \
            goto out;                                                                              \
        }                                                                                          \
    } while (0)

/* ---- data ---------------------------------------------------------------------------------- */

static const char *first_text(const tr_node *n)
{
    while (n && n->kind != TR_NODE_SCALAR) n = n->count ? n->values[0] : NULL;
    return n ? n->text : NULL;
}

/* By the config's own names of the model's inputs. */
static tr_status check_inputs(const tr_config *c, const tr_source_config *s, const char *block)
{
    const char *names[TR_YAML_KEYS], *found[TR_YAML_KEYS];
    const size_t count = tr_input_names(c, names);
    return tr_source_inputs(s, block, names, count, found);
}

/* A column's name, a list of names, or a map of these by input. */
static tr_status check_columns(const tr_config *c, const tr_source_config *s, const char *block)
{
    const char *names[TR_YAML_KEYS];
    char path[TR_PATH], show[TR_SHOW];
    tr_status st = TR_OK;
    const size_t count = tr_input_names(c, names);
    const tr_node *n = s->inputs;
    const bool map = n && n->kind == TR_NODE_MAP;
    tr_path_join(block, "inputs", path);
    REQUIRE(map || count == 1, path, "expected a map with columns for each of the model's inputs");
    for (size_t i = 0; n && i < (map ? n->count : 1); i++) {
        const tr_node *v = map ? n->values[i] : n;
        if (map) TR_TRY(tr_input_check(n->keys[i], path, names, count));
        for (size_t k = 0; v->kind == TR_NODE_LIST && k < v->count; k++)
            REQUIRE(v->values[k]->kind == TR_NODE_SCALAR, path,
                    "found %s, expected a column's name", tr_node_show(v->values[k], show));
        REQUIRE(v->kind != TR_NODE_MAP, path, "found %s, expected names of columns",
                tr_node_show(v, show));
    }
    for (size_t k = 0; map && k < count; k++)
        REQUIRE(tr_node_get(n, names[k]), path, "the model's input %s is missing",
                tr_text_show(names[k], show));
out:
    return st;
}

static tr_status check_table(tr_config *c)
{
    tr_status st = TR_OK;
    char path[TR_PATH], show[TR_SHOW];
    if (tr_node_empty(c->data.table.categories)) c->data.table.categories = NULL;
    const tr_node *n = c->data.table.categories;
    REQUIRE(strlen(c->data.table.delimiter) == 1 && !strchr("\"\r\n", *c->data.table.delimiter),
            "data.table.delimiter",
            "expected one character that is neither a quote nor a line's end");
    REQUIRE(!n || n->kind == TR_NODE_MAP, "data.table.categories",
            "found %s, expected a map of lists by column", tr_node_show(n, show));
    for (size_t i = 0; n && i < n->count; i++) {
        const tr_node *v = n->values[i];
        tr_path_join("data.table.categories", n->keys[i]->text, path);
        if (v->kind == TR_NODE_SCALAR && strcmp(v->text, "auto") == 0) continue;
        REQUIRE(v->kind == TR_NODE_LIST && v->count > 0, path,
                "found %s, expected a list of texts, or auto", tr_node_show(v, show));
        for (size_t k = 0; k < v->count; k++)
            REQUIRE(v->values[k]->kind == TR_NODE_SCALAR, path, "found %s, expected a text",
                    tr_node_show(v->values[k], show));
    }
out:
    return st;
}

/* `labeled`: it must have labels. */
static tr_status check_source(const tr_config *c, const tr_source_config *s, const char *path,
                              bool labeled)
{
    static const char *const names[] = {"auto",     "hdf5",      "idx", "npy",   "cifar10",
                                        "cifar100", "synthetic", "csv", "folder"};
    tr_status st = TR_OK;
    char at[5][TR_PATH], show[TR_SHOW];
    tr_path_join(path, "path", at[0]);
    tr_path_join(path, "inputs", at[1]);
    tr_path_join(path, "labels", at[2]);
    tr_path_join(path, "classes", at[3]);
    tr_path_join(path, "weights", at[4]);
    if (tr_node_empty(s->inputs)) ((tr_source_config *)s)->inputs = NULL;
    const char *file = s->path ? s->path : first_text(s->inputs);
    int format = tr_source_kind(c, s);
    if (format == TR_FORMAT_AUTO) {
        REQUIRE(file, at[0], "no file is given, nor format: synthetic");
        format = tr_source_format(file);
        REQUIRE(format != TR_FORMAT_AUTO, s->path ? at[0] : at[1],
                "%s does not tell its format (nor is there such a folder of images): add format: "
                "hdf5, csv, idx, npy, cifar10, cifar100 or folder",
                tr_text_show(file, show));
    }
    const char *name = names[format];
    bool two_files = format == TR_FORMAT_IDX || format == TR_FORMAT_NPY;
    const bool table = format == TR_FORMAT_CSV;
    bool one_file = table || format == TR_FORMAT_CIFAR10 || format == TR_FORMAT_CIFAR100 ||
                    format == TR_FORMAT_FOLDER;
    if (format == TR_FORMAT_SYNTHETIC) {
        REQUIRE(!s->path, at[0], "format synthetic reads no file");
        REQUIRE(s->samples > 0, path, "format synthetic needs samples");
        REQUIRE(!s->offset, path, "offset: format synthetic has none");
    } else {
        REQUIRE(!s->classes, at[3], "only format synthetic takes it");
    }
    REQUIRE(!two_files || !s->path, at[0], "format %s takes its files as inputs and labels", name);
    if (format == TR_FORMAT_HDF5 || one_file)
        REQUIRE(s->path, at[0], "format %s needs the %s", name,
                format == TR_FORMAT_FOLDER ? "folder" : "file");
    if (format == TR_FORMAT_HDF5 || two_files) {
        REQUIRE(s->inputs, at[1], "format %s needs the %s of the inputs", name,
                two_files ? "file" : "dataset");
        REQUIRE(s->labels || !labeled, at[2], "format %s needs the %s of the labels", name,
                two_files ? "file" : "dataset");
        TR_TRY(check_inputs(c, s, path));
    } else if (table) {
        REQUIRE(s->labels || !labeled, at[2], "format csv needs the column of the labels");
        TR_TRY(check_columns(c, s, path));
    } else {
        REQUIRE(!s->inputs, at[1], "format %s takes no names", name);
        REQUIRE(!s->labels || format == TR_FORMAT_CIFAR100, at[2], "format %s takes no names",
                name);
        REQUIRE(!s->weights, at[4], "format %s takes no names", name);
    }
out:
    return st;
}

/* Two numbers, the second one no less. */
static tr_status check_span(const tr_config *c, const tr_reals *r, const char *path)
{
    tr_status st = TR_OK;
    REQUIRE(r->count == 2 && r->v[0] <= r->v[1], path, "expected two numbers, [least, most]");
out:
    return st;
}

static bool has_folder(const tr_config *c)
{
    const tr_source_config *const all[] = {&c->data.train, &c->data.eval, &c->data.predict};
    for (size_t i = 0; i < TR_COUNT(all); i++)
        if (tr_source_kind(c, all[i]) == TR_FORMAT_FOLDER) return true;
    return false;
}

static tr_status check_images(const tr_config *c)
{
    tr_status st = TR_OK;
    const tr_resized_crop_config *r = &c->data.augment.resized_crop;
    const tr_ints *resize = &c->data.image.resize;
    REQUIRE(resize->count <= 2, "data.image.resize",
            "%zu numbers, expected one (the shorter side) or two: [height, width]", resize->count);
    REQUIRE((resize->count == 0 && !c->data.image.center_crop) || has_folder(c), "data.image",
            "only folders of images are resized and cropped");
    if (c->data.augment.scale.count > 0)
        TR_TRY(check_span(c, &c->data.augment.scale, "data.augment.scale"));
    REQUIRE(c->data.augment.translate.count <= 2, "data.augment.translate",
            "expected one number, or two: [width, height]");
    if (c->data.augment.erasing.present) {
        TR_TRY(check_span(c, &c->data.augment.erasing.scale, "data.augment.random_erasing.scale"));
        TR_TRY(check_span(c, &c->data.augment.erasing.ratio, "data.augment.random_erasing.ratio"));
    }
    if (!r->present) goto out;
    TR_TRY(check_span(c, &r->scale, "data.augment.random_resized_crop.scale"));
    TR_TRY(check_span(c, &r->ratio, "data.augment.random_resized_crop.ratio"));
    REQUIRE(tr_source_kind(c, &c->data.train) == TR_FORMAT_FOLDER,
            "data.augment.random_resized_crop", "data.train is no folder of images");
    REQUIRE(c->data.augment.crop == 0, "data.augment.random_resized_crop",
            "data.augment.crop is given too: expected one of the two");
out:
    return st;
}

static tr_status check_class_names(tr_config *c)
{
    tr_status st = TR_OK;
    char show[TR_SHOW];
    if (tr_node_empty(c->data.class_names)) c->data.class_names = NULL;
    const tr_node *n = c->data.class_names;
    REQUIRE(!n || n->kind == TR_NODE_LIST, "data.class_names", "found %s, expected a list of texts",
            tr_node_show(n, show));
    for (size_t i = 0; n && i < n->count; i++)
        REQUIRE(n->values[i]->kind == TR_NODE_SCALAR, "data.class_names",
                "found %s, expected the name of class %zu", tr_node_show(n->values[i], show), i);
out:
    return st;
}

static tr_status check_data(tr_config *c)
{
    tr_status st = TR_OK;
    TR_TRY(check_source(c, &c->data.train, "data.train", true));
    if (c->data.eval.present) TR_TRY(check_source(c, &c->data.eval, "data.eval", true));
    if (c->data.predict.present) TR_TRY(check_source(c, &c->data.predict, "data.predict", false));
    TR_TRY(check_class_names(c));
    TR_TRY(check_table(c));
    TR_TRY(check_images(c));
    TR_TRY(tr_normalize_read(c));
    TR_TRY(tr_normalize_targets_read(c));
    REQUIRE(
        !c->data.normalize_targets.present || (c->model.loss.kind.which != TR_LOSS_CROSS_ENTROPY &&
                                               !tr_loss_binary(c->model.loss.kind.which)),
        "data.normalize_targets", "the loss takes no values: expected mse, l1, huber or smooth_l1");
    REQUIRE(!c->data.split.present || !c->data.split.stratify ||
                c->model.loss.kind.which == TR_LOSS_CROSS_ENTROPY,
            "data.split.stratify", "the loss takes no classes: expected loss: cross_entropy");
out:
    return st;
}

/* ---- model --------------------------------------------------------------------------------- */

static tr_status check_loss(tr_config *c)
{
    tr_status st = TR_OK;
    const tr_loss_config *l = &c->model.loss;
    const bool soft = tr_loss_soft(l), ignores = l->ignore_index != TR_NO_LABEL;
    if (l->kind.which != TR_LOSS_CROSS_ENTROPY) return TR_OK;
    REQUIRE(!soft || !ignores, "model.loss",
            "ignore_index is of targets: labels; probabilities have no class number");
    REQUIRE(!soft || !tr_config_balances(c), "model.loss",
            "class_weights: balanced counts class labels, and targets are probabilities");
    REQUIRE(!soft || l->gamma == 0, "model.loss",
            "gamma is of targets: labels; probabilities have no one class to be right about");
    REQUIRE(l->gamma == 0 || l->label_smoothing == 0, "model.loss",
            "gamma and label_smoothing are given: expected one of them");
    REQUIRE(!soft || !c->data.split.stratify, "data.split.stratify",
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
    REQUIRE(!named || !c->model.input.count, "model.inputs",
            "model.input is given too: expected one");
    REQUIRE(named || c->model.input.count, "model",
            "required key \"input\" is missing: dimensions of one "
            "sample, such as [1, 8, 8] (or inputs, for several)");
    REQUIRE(!named || (named->kind == TR_NODE_MAP && named->count), "model.inputs",
            "found %s, expected a map of dimensions by input name", tr_node_show(named, show));
    for (size_t i = 0; named && i < named->count; i++) {
        tr_ints ignored;
        tr_path_join("model.inputs", named->keys[i]->text, path);
        TR_TRY(tr_field_read_simple(dims, named->values[i], path, &ignored));
    }
    REQUIRE(layers->kind == TR_NODE_LIST && layers->count, "model.layers",
            "found %s, expected a list of layers", tr_node_show(layers, show));
    tr_init_from from;
    TR_TRY(tr_config_init_from(c, &from));
    tr_init_from_free(&from);
    TR_TRY(check_loss(c));
    if (c->model.loss.class_weights.count) {
        double sum = 0;
        for (size_t i = 0; i < c->model.loss.class_weights.count; i++)
            sum += c->model.loss.class_weights.v[i];
        REQUIRE(sum > 0 || tr_config_balances(c), "model.loss", "class_weights are all 0");
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
        REQUIRE(!wanted, "train.eval", "there is no data.eval to evaluate on");
        REQUIRE(!given(c, "train.eval.batch") || !c->train.eval.batch, "train.eval.batch",
                "there is no data.eval to evaluate on");
        REQUIRE(!c->train.checkpoint.best || !given(c, "train.checkpoint.best"),
                "train.checkpoint.best", "there is no data.eval to judge by");
        c->train.eval.every_epochs = 0;
        c->train.checkpoint.best = false;
    }
    resolve_every(c->train.eval.every_steps, &c->train.eval.every_epochs);
    bool evaluates = c->train.eval.every_steps > 0 || c->train.eval.every_epochs > 0;
    REQUIRE(evaluates || !c->train.early_stop.patience, "train.early_stop",
            "without evaluations (data.eval, train.eval) nothing can stop early");
    REQUIRE(evaluates || c->train.schedule.kind.which != TR_SCHEDULE_PLATEAU, "train.schedule",
            "plateau needs evaluations (data.eval, train.eval)");
    if (!evaluates) {
        REQUIRE(!c->train.checkpoint.best || !given(c, "train.checkpoint.best"),
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
    REQUIRE(!c->train.freeze_statistics || c->train.freeze, "train.freeze_statistics",
            "there is no train.freeze to name layers");
out:
    return st;
}

bool tr_config_measures(const tr_config *c, tr_metric metric, int64_t outputs)
{
    const int loss = c->model.loss.kind.which;
    const tr_list *asked = &c->train.metrics;
    if (asked->count == 0)
        return (metric == TR_METRIC_ACCURACY && tr_loss_counts(loss)) ||
               (metric == TR_METRIC_TOP5 && loss == TR_LOSS_CROSS_ENTROPY && outputs > 5);
    for (size_t i = 0; i < asked->count; i++)
        if (asked->items[i].which == (int)metric) return true;
    return false;
}

static tr_status check_metrics(tr_config *c)
{
    tr_status st = TR_OK;
    const int loss = c->model.loss.kind.which;
    const tr_list *asked = &c->train.metrics;
    for (size_t i = 0; i < asked->count; i++) {
        const tr_metric m = (tr_metric)asked->items[i].which;
        const bool values = m == TR_METRIC_MAE || m == TR_METRIC_R2;
        char path[64];
        snprintf(path, sizeof path, "train.metrics.%zu", i);
        if (values == tr_loss_counts(loss) ||
            (m == TR_METRIC_TOP5 && loss != TR_LOSS_CROSS_ENTROPY)) {
            st = tr_node_fail(asked->items[i].at,
                              "%s: %s is not measured of a model with this loss: there are %s",
                              path, tr_metric_name(m),
                              !tr_loss_counts(loss)           ? "mae, r2"
                              : loss == TR_LOSS_CROSS_ENTROPY ? "accuracy, top5, f1, auc"
                                                              : "accuracy, f1, auc");
            goto out;
        }
    }
    REQUIRE(asked->count == 0 || tr_config_evaluates(c), "train.metrics",
            "without evaluations (data.eval, train.eval) nothing is measured");
out:
    return st;
}

static tr_status check_result(tr_config *c)
{
    tr_status st = TR_OK;
    REQUIRE(c->train.result != TR_RESULT_EMA || c->train.ema > 0, "train.result",
            "there is no average of the weights: set train.ema");
    REQUIRE(c->train.result != TR_RESULT_BEST || c->train.checkpoint.best, "train.result",
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
    REQUIRE(c->train.epochs || c->train.steps, "train",
            "required key \"epochs\" is missing: how long to train (or steps)");
    REQUIRE(c->train.micro_batch <= c->train.batch, "train.micro_batch",
            "%lld is more than the global batch of %lld", (long long)c->train.micro_batch,
            (long long)c->train.batch);
    REQUIRE(c->train.accumulate <= c->train.batch, "train.accumulate",
            "%lld micro-batches of a global batch of %lld", (long long)c->train.accumulate,
            (long long)c->train.batch);
    REQUIRE(!c->train.accumulate || !c->train.micro_batch, "train.accumulate",
            "train.micro_batch says already how the batch is cut: give one of them");
    if (c->train.loss_scale == -2)
        c->train.loss_scale = c->train.precision == TR_PRECISION_FP16 ? -1 : 0;
    if (c->train.optimizer.kind.which == TR_OPT_SGD && c->train.optimizer.o.nesterov)
        REQUIRE(c->train.optimizer.o.momentum > 0, "train.optimizer", "nesterov needs momentum");
    if (c->train.schedule.kind.which == TR_SCHEDULE_STEP)
        for (size_t i = 1; i < milestones->count; i++)
            REQUIRE(milestones->v[i].unit != milestones->v[i - 1].unit ||
                        milestones->v[i].value > milestones->v[i - 1].value,
                    "train.schedule", "milestones must ascend, found %g after %g",
                    milestones->v[i].value, milestones->v[i - 1].value);
    TR_TRY(check_groups(c));
    for (size_t i = 1; i < restart->count; i++)
        REQUIRE(restart->v[i].unit != restart->v[i - 1].unit ||
                    restart->v[i].value > restart->v[i - 1].value,
                "train.schedule", "restart must ascend, found %g after %g", restart->v[i].value,
                restart->v[i - 1].value);
    resolve_every(c->train.checkpoint.every_steps, &c->train.checkpoint.every_epochs);
    if (c->train.on_nonfinite == TR_NONFINITE_ROLLBACK)
        REQUIRE(c->train.checkpoint.every_steps || c->train.checkpoint.every_epochs,
                "train.on_nonfinite", "rollback needs train.checkpoint");
    TR_TRY(check_eval(c));
    TR_TRY(check_metrics(c));
    TR_TRY(check_result(c));
    if (c->train.distill.present)
        TR_TRY(tr_distill_check(&c->train.distill, &c->model.loss, c->data.train.weights != NULL,
                                nearest(c, "train.distill", &(bool){false}), "train.distill"));
out:
    return st;
}

/* ---- the whole ----------------------------------------------------------------------------- */

static tr_status check_run(tr_config *c)
{
    tr_status st = TR_OK;
    REQUIRE(!c->run.benchmark || c->run.deterministic != TR_DETERMINISTIC_ON, "run.benchmark",
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
        REQUIRE(isalnum((unsigned char)*p) || (strchr("._-", *p) && p > c->name), "name",
                "%s names files: expected letters, digits, and after the first also . _ -",
                tr_text_show(c->name, show));
    if (!c->output) {
        c->output = tr_sprintf("runs/%s", c->name);
        if (!c->output) return tr_last_status();
    }
    TR_TRY(check_model(c));
    TR_TRY(check_data(c));
    TR_TRY(check_train(c));
    TR_TRY(check_run(c));
out:
    return st;
}
