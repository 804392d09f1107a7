/* As check.c, of data: what sources need by their format, tables, images and what is drawn of
 * them. */
#include "runtime/config/internal.h"

#include <inttypes.h>
#include <string.h>

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
    TR_REQUIRE(map || count == 1, path,
               "expected a map with columns for each of the model's inputs");
    for (size_t i = 0; n && i < (map ? n->count : 1); i++) {
        const tr_node *v = map ? n->values[i] : n;
        if (map) TR_TRY(tr_input_check(n->keys[i], path, names, count));
        for (size_t k = 0; v->kind == TR_NODE_LIST && k < v->count; k++)
            TR_REQUIRE(v->values[k]->kind == TR_NODE_SCALAR, path,
                       "found %s, expected a column's name", tr_node_show(v->values[k], show));
        TR_REQUIRE(v->kind != TR_NODE_MAP, path, "found %s, expected names of columns",
                   tr_node_show(v, show));
    }
    for (size_t k = 0; map && k < count; k++)
        TR_REQUIRE(tr_node_get(n, names[k]), path, "the model's input %s is missing",
                   tr_text_show(names[k], show));
out:
    return st;
}

/* By the name of data.train's file. */
static tr_status choose_delimiter(tr_config *c)
{
    const char *path = c->data.train.path;
    char *text = tr_strdup(path ? tr_source_delimiter(path) : ",");
    if (!text) return tr_last_status();
    c->data.table.delimiter = text;
    return TR_OK;
}

static tr_status check_table(tr_config *c)
{
    tr_status st = TR_OK;
    char path[TR_PATH], show[TR_SHOW];
    if (tr_node_empty(c->data.table.categories)) c->data.table.categories = NULL;
    const tr_node *n = c->data.table.categories;
    if (!c->data.table.delimiter) TR_TRY(choose_delimiter(c));
    TR_REQUIRE(strlen(c->data.table.delimiter) == 1 && !strchr("\"\r\n", *c->data.table.delimiter),
               "data.table.delimiter",
               "expected one character that is neither a quote nor a line's end");
    TR_REQUIRE(!n || n->kind == TR_NODE_MAP, "data.table.categories",
               "found %s, expected a map of lists by column", tr_node_show(n, show));
    for (size_t i = 0; n && i < n->count; i++) {
        const tr_node *v = n->values[i];
        tr_path_join("data.table.categories", n->keys[i]->text, path);
        if (v->kind == TR_NODE_SCALAR && strcmp(v->text, "auto") == 0) continue;
        TR_REQUIRE(v->kind == TR_NODE_LIST && v->count > 0, path,
                   "found %s, expected a list of texts, or auto", tr_node_show(v, show));
        for (size_t k = 0; k < v->count; k++)
            TR_REQUIRE(v->values[k]->kind == TR_NODE_SCALAR, path, "found %s, expected a text",
                       tr_node_show(v->values[k], show));
    }
out:
    return st;
}

/* Columns of a table, in the place of one of labels. */
static tr_status check_targets(const tr_config *c, const tr_source_config *s, const char *block,
                               bool table)
{
    tr_status st = TR_OK;
    char path[TR_PATH], show[TR_SHOW];
    const tr_node *n = s->targets;
    const bool values = c->model.loss.kind.which != TR_LOSS_CROSS_ENTROPY;
    if (!n) return TR_OK;
    tr_path_join(block, "targets", path);
    TR_REQUIRE(table, path, "only format csv takes it: several values a sample are one array");
    TR_REQUIRE(!s->labels, path, "labels is given too: expected one");
    TR_REQUIRE(n->kind == TR_NODE_LIST && n->count > 0, path,
               "found %s, expected a list of columns", tr_node_show(n, show));
    TR_REQUIRE(values || tr_loss_soft(&c->model.loss), path,
               "the loss takes one class label a sample: name its column in labels");
    for (size_t i = 0; i < n->count; i++) {
        TR_REQUIRE(n->values[i]->kind == TR_NODE_SCALAR, path, "found %s, expected a column's name",
                   tr_node_show(n->values[i], show));
        for (size_t k = 0; k < i; k++)
            TR_REQUIRE(strcmp(n->values[i]->text, n->values[k]->text) != 0, path,
                       "%s stands there twice", tr_node_show(n->values[i], show));
    }
out:
    return st;
}

/* A separator is one of the ids, as far as the config tells their type; what the file says is
 * checked with it. */
static tr_status check_separator(const tr_config *c, const tr_source_config *s, int format,
                                 const char *path)
{
    const bool text = format == TR_FORMAT_TEXT;
    const int64_t most = text || s->dtype == TR_TOKENS_U8 ? UINT8_MAX
                         : s->dtype == TR_TOKENS_U16      ? UINT16_MAX
                                                          : INT32_MAX;
    tr_status st = TR_OK;
    TR_REQUIRE(s->documents <= most, path,
               "found %" PRId64 ", expected an id from 0 to %" PRId64 ", as %s have", s->documents,
               most,
               text                       ? "bytes"
               : s->dtype == TR_TOKENS_U8 ? "tokens of uint8"
                                          : "tokens of uint16");
out:
    return st;
}

/* What is said of windows of tokens. */
static tr_status check_windows(const tr_config *c, const tr_source_config *s, int format,
                               const char *path)
{
    tr_status st = TR_OK;
    char at[4][TR_PATH];
    const bool windows = format == TR_FORMAT_TEXT || format == TR_FORMAT_TOKENS;
    tr_path_join(path, "stride", at[0]);
    tr_path_join(path, "documents", at[1]);
    tr_path_join(path, "dtype", at[2]);
    TR_REQUIRE(windows || !s->stride, at[0], "only formats text and tokens take it");
    TR_REQUIRE(windows || s->documents < 0, at[1], "only formats text and tokens take it");
    TR_REQUIRE(format == TR_FORMAT_TOKENS || !s->dtype, at[2], "only format tokens takes it");
    tr_path_join(path, "bytes_per_token", at[3]);
    TR_REQUIRE(format == TR_FORMAT_TOKENS || s->bytes_per_token <= 0, at[3],
               "only format tokens takes it");
    TR_REQUIRE(!s->stride || s->documents < 0, at[0],
               "documents are cut into pieces of the window's length: give stride or documents");
    st = check_separator(c, s, format, at[1]);
out:
    return st;
}

/* `labeled`: it must have labels. */
static tr_status check_source(const tr_config *c, const tr_source_config *s, const char *path,
                              bool labeled)
{
    static const char *const names[] = {"auto",      "hdf5", "idx",    "npy", "cifar10", "cifar100",
                                        "synthetic", "csv",  "folder", "npz", "text",    "tokens"};
    tr_status st = TR_OK;
    char at[5][TR_PATH], show[TR_SHOW];
    tr_path_join(path, "path", at[0]);
    tr_path_join(path, "inputs", at[1]);
    tr_path_join(path, "labels", at[2]);
    tr_path_join(path, "classes", at[3]);
    tr_path_join(path, "weights", at[4]);
    if (tr_node_empty(s->inputs)) ((tr_source_config *)s)->inputs = NULL;
    if (tr_node_empty(s->targets)) ((tr_source_config *)s)->targets = NULL;
    const char *file = s->path ? s->path : first_text(s->inputs);
    int format = tr_source_kind(c, s);
    if (format == TR_FORMAT_AUTO) {
        TR_REQUIRE(file, at[0], "no file is given, nor format: synthetic");
        format = tr_source_format(file);
        TR_REQUIRE(
            format != TR_FORMAT_AUTO, s->path ? at[0] : at[1],
            "%s does not tell its format (nor is there such a folder of images): add format: "
            "hdf5, npz, csv, idx, npy, cifar10, cifar100, folder, text or tokens",
            tr_text_show(file, show));
    }
    const char *name = names[format];
    bool two_files = format == TR_FORMAT_IDX || format == TR_FORMAT_NPY;
    const bool table = format == TR_FORMAT_CSV;
    TR_TRY(check_targets(c, s, path, table));
    bool one_file = table || format == TR_FORMAT_CIFAR10 || format == TR_FORMAT_CIFAR100 ||
                    format == TR_FORMAT_FOLDER || format == TR_FORMAT_TEXT ||
                    format == TR_FORMAT_TOKENS;
    TR_TRY(check_windows(c, s, format, path));
    if (format == TR_FORMAT_SYNTHETIC) {
        TR_REQUIRE(!s->path, at[0], "format synthetic reads no file");
        TR_REQUIRE(s->samples > 0, path, "format synthetic needs samples");
        TR_REQUIRE(!s->offset, path, "offset: format synthetic has none");
    } else {
        TR_REQUIRE(!s->classes, at[3], "only format synthetic takes it");
    }
    TR_REQUIRE(!two_files || !s->path, at[0], "format %s takes its files as inputs and labels",
               name);
    const bool datasets = format == TR_FORMAT_HDF5 || format == TR_FORMAT_NPZ;
    if (datasets || one_file)
        TR_REQUIRE(s->path, at[0], "format %s needs the %s", name,
                   format == TR_FORMAT_FOLDER ? "folder" : "file");
    if (datasets || two_files) {
        TR_REQUIRE(s->inputs, at[1], "format %s needs the %s of the inputs", name,
                   two_files ? "file" : "dataset");
        TR_REQUIRE(s->labels || !labeled, at[2], "format %s needs the %s of the labels", name,
                   two_files ? "file" : "dataset");
        TR_TRY(check_inputs(c, s, path));
    } else if (table) {
        TR_REQUIRE(s->labels || s->targets || !labeled, at[2],
                   "format csv needs the column of the labels");
        TR_TRY(check_columns(c, s, path));
    } else {
        TR_REQUIRE(!s->inputs, at[1], "format %s takes no names", name);
        TR_REQUIRE(!s->labels || format == TR_FORMAT_CIFAR100, at[2], "format %s takes no names",
                   name);
        TR_REQUIRE(!s->weights, at[4], "format %s takes no names", name);
    }
out:
    return st;
}

/* Two numbers, the second one no less. */
static tr_status check_span(const tr_config *c, const tr_reals *r, const char *path)
{
    tr_status st = TR_OK;
    TR_REQUIRE(r->count == 2 && r->v[0] <= r->v[1], path, "expected two numbers, [least, most]");
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
    TR_REQUIRE(resize->count <= 2, "data.image.resize",
               "%zu numbers, expected one (the shorter side) or two: [height, width]",
               resize->count);
    TR_REQUIRE((resize->count == 0 && !c->data.image.center_crop) || has_folder(c), "data.image",
               "only folders of images are resized and cropped");
    if (c->data.augment.scale.count > 0)
        TR_TRY(check_span(c, &c->data.augment.scale, "data.augment.scale"));
    TR_REQUIRE(c->data.augment.translate.count <= 2, "data.augment.translate",
               "expected one number, or two: [width, height]");
    if (c->data.augment.erasing.present) {
        TR_TRY(check_span(c, &c->data.augment.erasing.scale, "data.augment.random_erasing.scale"));
        TR_TRY(check_span(c, &c->data.augment.erasing.ratio, "data.augment.random_erasing.ratio"));
    }
    if (!r->present) goto out;
    TR_TRY(check_span(c, &r->scale, "data.augment.random_resized_crop.scale"));
    TR_TRY(check_span(c, &r->ratio, "data.augment.random_resized_crop.ratio"));
    TR_REQUIRE(tr_source_kind(c, &c->data.train) == TR_FORMAT_FOLDER,
               "data.augment.random_resized_crop", "data.train is no folder of images");
    TR_REQUIRE(c->data.augment.crop == 0, "data.augment.random_resized_crop",
               "data.augment.crop is given too: expected one of the two");
out:
    return st;
}

/* Labels are mixed as probabilities: what those cannot do is refused. */
static tr_status check_mix(const tr_config *c)
{
    tr_status st = TR_OK;
    const char *key = c->data.augment.mixup.present ? "data.augment.mixup" : "data.augment.cutmix";
    const tr_loss_config *l = &c->model.loss;
    if (!tr_config_mixes(c)) return TR_OK;
    TR_REQUIRE(l->kind.which == TR_LOSS_CROSS_ENTROPY, key,
               "the loss takes no classes to mix labels of: expected loss: cross_entropy");
    TR_REQUIRE(l->ignore_index == TR_NO_LABEL, key,
               "model.loss has ignore_index: a sample without a class cannot be mixed");
    TR_REQUIRE(l->gamma == 0, key,
               "model.loss has gamma: mixed samples have no one class to be right about");
    TR_REQUIRE(!c->data.train.weights, key,
               "data.train.weights is given: a mixed sample has no weight of its own");
    TR_REQUIRE(!c->train.distill.present || !c->train.distill.teacher || !*c->train.distill.teacher,
               key, "train.distill is given: a teacher is asked for samples as they are");
out:
    return st;
}

static tr_status check_class_names(tr_config *c)
{
    tr_status st = TR_OK;
    char show[TR_SHOW];
    if (tr_node_empty(c->data.class_names)) c->data.class_names = NULL;
    const tr_node *n = c->data.class_names;
    TR_REQUIRE(!n || n->kind == TR_NODE_LIST, "data.class_names",
               "found %s, expected a list of texts", tr_node_show(n, show));
    for (size_t i = 0; n && i < n->count; i++)
        TR_REQUIRE(n->values[i]->kind == TR_NODE_SCALAR, "data.class_names",
                   "found %s, expected the name of class %zu", tr_node_show(n->values[i], show), i);
out:
    return st;
}

static tr_status take_text(char **to, const char *from)
{
    if (*to || !from) return TR_OK;
    *to = tr_strdup(from);
    return *to ? TR_OK : tr_last_status();
}

/* By its name, as data.train by its own; beside texts and tokens a .bin is no CIFAR, nor a name
 * that says nothing another format. */
static int format_beside(const tr_config *c, const tr_source_config *s)
{
    const tr_source_config *train = &c->data.train;
    const int named = tr_source_format(s->path), kind = tr_source_kind(c, train);
    if (named == tr_source_format(train->path)) return train->format;
    return (named == TR_FORMAT_AUTO || named == TR_FORMAT_CIFAR10) &&
                   (kind == TR_FORMAT_TEXT || kind == TR_FORMAT_TOKENS)
               ? kind
               : TR_FORMAT_AUTO;
}

/* What a source beside data.train leaves unsaid of its file's layout is as there, in a file of the
 * same format. `labeled`: it must have labels. */
static tr_status take_layout(const tr_config *c, tr_source_config *s, bool labeled)
{
    tr_status st = TR_OK;
    const tr_source_config *from = &c->data.train;
    if (!s->present || !s->path || !from->path) return TR_OK;
    if (s->format == TR_FORMAT_AUTO) s->format = format_beside(c, s);
    const int format = tr_source_kind(c, s);
    if (format != tr_source_kind(c, from)) return TR_OK;
    if ((format == TR_FORMAT_HDF5 || format == TR_FORMAT_NPZ) && tr_node_empty(s->inputs))
        s->inputs = from->inputs;
    if (s->dtype == TR_TOKENS_AUTO) s->dtype = from->dtype;
    if (s->documents < 0 && !s->stride) s->documents = from->documents;
    if (!labeled || s->labels || !tr_node_empty(s->targets)) return TR_OK;
    s->targets = from->targets;
    TR_TRY(take_text(&s->labels, from->labels));
    st = take_text(&s->weights, from->weights);
out:
    return st;
}

tr_status tr_config_check_data(tr_config *c)
{
    tr_status st = TR_OK;
    TR_TRY(check_source(c, &c->data.train, "data.train", true));
    TR_TRY(take_layout(c, &c->data.eval, true));
    TR_TRY(take_layout(c, &c->data.predict, false));
    if (c->data.eval.present) TR_TRY(check_source(c, &c->data.eval, "data.eval", true));
    if (c->data.predict.present) TR_TRY(check_source(c, &c->data.predict, "data.predict", false));
    TR_TRY(check_class_names(c));
    TR_TRY(check_table(c));
    TR_TRY(check_images(c));
    TR_TRY(check_mix(c));
    TR_TRY(tr_normalize_read(c));
    TR_TRY(tr_normalize_targets_read(c));
    TR_REQUIRE(
        !c->data.normalize_targets.present || (c->model.loss.kind.which != TR_LOSS_CROSS_ENTROPY &&
                                               !tr_loss_binary(c->model.loss.kind.which)),
        "data.normalize_targets", "the loss takes no values: expected mse, l1, huber or smooth_l1");
    TR_REQUIRE(!c->data.split.present || !c->data.split.stratify ||
                   c->model.loss.kind.which == TR_LOSS_CROSS_ENTROPY,
               "data.split.stratify", "the loss takes no classes: expected loss: cross_entropy");
    if (!c->data.split.stride) goto out;
    const int format = tr_source_kind(c, &c->data.train);
    TR_REQUIRE(format == TR_FORMAT_TEXT || format == TR_FORMAT_TOKENS, "data.split.stride",
               "only formats text and tokens take it");
    TR_REQUIRE(c->data.train.documents < 0, "data.split.stride",
               "documents are cut into pieces of the window's length");
out:
    return st;
}
