/* From data.train or data.eval of the config to open arrays. Mistakes here are mistakes in the
 * config (status 2); what the files hold is checked after. */
#include "runtime/data/csv.h"

#include <stdarg.h>
#include <string.h>

#include "runtime/config/files.h"

tr_status tr_opening_fail(const tr_opening *o, const char *key, const char *fmt, ...)
{
    char path[64], text[TR_ERROR_TEXT];
    va_list args;
    snprintf(path, sizeof path, "%s.%s", o->block, key);
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return tr_config_fail(o->c, path, "%s", text);
}

tr_status tr_opening_blame(const tr_opening *o, const char *key, tr_status st)
{
    char path[64];
    snprintf(path, sizeof path, "%s.%s", o->block, key);
    return tr_config_blame(o->c, path, st);
}

/* What the config names for each input of the model. */
static tr_status input_names(const tr_opening *o, const char *out[TR_MAX_IN])
{
    const char *names[TR_MAX_IN];
    for (size_t i = 0; i < o->m->ninputs; i++) names[i] = o->m->inputs[i].name;
    return tr_source_inputs(o->s, o->block, names, o->m->ninputs, out);
}

/* ---- IDX and NPY: a file an array ----------------------------------------------------------- */

static tr_status open_file(const tr_opening *o, const char *key, const char *name, uint64_t *budget,
                           tr_array **out)
{
    int format = o->s->format == TR_FORMAT_AUTO ? tr_source_format(name) : o->s->format;
    if (format != TR_FORMAT_IDX && format != TR_FORMAT_NPY) {
        return tr_opening_fail(o, key,
                               "\"%s\" has no extension that tells its format: give %s.format "
                               "(hdf5, npz, csv, idx, npy, cifar10, cifar100, folder, synthetic, "
                               "text, tokens)",
                               name, o->block);
    }
    char *path = tr_config_path(o->c, name);
    if (!path) return tr_last_status();
    tr_status st =
        format == TR_FORMAT_IDX ? tr_idx_open(path, *budget, out) : tr_npy_open(path, out);
    tr_free(path);
    if (st == TR_OK && (*out)->held) *budget -= (*out)->samples * (*out)->nbytes;
    return st;
}

static tr_status open_files(const tr_opening *o, uint64_t budget, tr_array **inputs,
                            tr_array **targets, tr_array **weights)
{
    const tr_source_config *s = o->s;
    const char *names[TR_MAX_IN];
    tr_status st = TR_OK;
    if (s->path && s->inputs)
        return tr_opening_fail(o, "path", "IDX and NPY files are named by inputs and labels alone");
    if (s->path && o->m->ninputs > 1)
        return tr_opening_fail(
            o, "path", "one file, expected a map in inputs: a file for each input of the model");
    if (!s->labels && !o->unlabeled)
        return tr_opening_fail(o, "labels", "expected the file of the labels");
    TR_TRY(input_names(o, names));
    if (!o->unlabeled) TR_TRY(open_file(o, "labels", s->labels, &budget, targets));
    if (!o->unlabeled && s->weights) TR_TRY(open_file(o, "weights", s->weights, &budget, weights));
    for (size_t k = 0; k < o->m->ninputs; k++) {
        const char *name = s->path ? s->path : names[k];
        if (!name) return tr_opening_fail(o, "inputs", "expected the file of the inputs");
        TR_TRY(open_file(o, s->path ? "path" : "inputs", name, &budget, &inputs[k]));
    }
out:
    return st;
}

/* ---- HDF5, NPZ: a dataset an array ----------------------------------------------------------- */

#define SETS (TR_MAX_IN + 2) /* inputs, targets, weights */

/* Whether an archive, whole otherwise, has no such array. The list cuts long names. */
static bool not_in_npz(const char *path, const char *name)
{
    tr_hdf5_listed *there = NULL;
    size_t n = 0, k = 0;
    if (tr_npz_list(path, &there, &n) != TR_OK) return false;
    while (k < n && strncmp(there[k].name, name, sizeof there[k].name - 1) != 0) k++;
    tr_free(there);
    return k == n;
}

/* Of an NPZ file one after the other: what is held of it comes off what may be. *failed: the one
 * that a failure is about. */
static tr_status open_members(const char *path, const char *const *names, size_t count,
                              uint64_t budget, tr_array **out, tr_failed_set *failed)
{
    tr_status st = TR_OK;
    size_t n = 0;
    for (; n < count; n++) {
        TR_TRY(tr_npz_open(path, names[n], budget, &out[n]));
        if (out[n]->held) budget -= out[n]->samples * out[n]->nbytes;
    }
    n = 0;
out:;
    const tr_error why = *tr_last_error();
    *failed = (tr_failed_set){n, st == TR_DATA && not_in_npz(path, names[n])};
    tr_set_error(&why);
    while (n > 0) tr_array_close(out[--n]);
    return st;
}

/* Training opens data.eval after data.train: where both lie in one HDF5 file, one process looks at
 * all. Adds its names to the n there are; what is wrong with them is told when it is opened. */
static size_t add_eval(const tr_opening *o, const char **sets, size_t n)
{
    const tr_source_config *s = &o->c->data.eval;
    const char *more[SETS] = {s->labels, s->weights};
    if (o->s != &o->c->data.train || !tr_config_evaluates(o->c) || !s->present || !s->path ||
        strcmp(s->path, o->s->path) != 0 || tr_source_kind(o->c, s) != TR_FORMAT_HDF5)
        return n;
    const char *names[TR_MAX_IN];
    for (size_t i = 0; i < o->m->ninputs; i++) names[i] = o->m->inputs[i].name;
    if (tr_source_inputs(s, "data.eval", names, o->m->ninputs, more + 2) != TR_OK) return n;
    const size_t count = o->m->ninputs + 2;
    for (size_t i = 0, k; i < count; i++) {
        for (k = 0; more[i] && k < n && strcmp(sets[k], more[i]) != 0;) k++;
        if (more[i] && k == n) sets[n++] = more[i];
    }
    return n;
}

static tr_status open_sets(const tr_opening *o, bool npz, uint64_t budget, tr_array **inputs,
                           tr_array **targets, tr_array **weights)
{
    const tr_source_config *s = o->s;
    const char *names[TR_MAX_IN], *sets[2 * SETS], *keys[SETS];
    tr_array *found[SETS], **to[SETS];
    tr_failed_set failed = {0};
    size_t n = 0;
    char *path = NULL;
    tr_status st = TR_OK;
    if (!s->path)
        return tr_opening_fail(o, "path", npz ? "expected an NPZ file" : "expected an HDF5 file");
    if (!s->labels && !o->unlabeled)
        return tr_opening_fail(o, "labels", "expected the name of the dataset of labels");
    TR_TRY(input_names(o, names));
    if (!o->unlabeled) keys[n] = "labels", sets[n] = s->labels, to[n++] = targets;
    if (!o->unlabeled && s->weights) keys[n] = "weights", sets[n] = s->weights, to[n++] = weights;
    for (size_t k = 0; k < o->m->ninputs; k++) {
        if (!names[k])
            return tr_opening_fail(o, "inputs", "expected the name of the dataset of inputs");
        keys[n] = "inputs", sets[n] = names[k], to[n++] = &inputs[k];
    }
    TR_HAVE(path = tr_config_path(o->c, s->path));
    const size_t all = npz ? n : add_eval(o, sets, n);
    if (o->looks || all > n) st = tr_hdf5_arrays_look(path, sets, n, all, &failed);
    if (st == TR_OK && !o->looks)
        st = npz ? open_members(path, sets, n, budget, found, &failed)
                 : tr_hdf5_arrays_open(path, sets, n, found, &failed);
    if (st != TR_OK && failed.missing) st = tr_opening_blame(o, keys[failed.at], st);
    TR_TRY(st);
    for (size_t i = 0; i < n && !o->looks; i++) *to[i] = found[i];
out:
    tr_free(path);
    return st;
}

/* ---- CIFAR: files that hold both ------------------------------------------------------------ */

#define CIFAR_FILES 64

static tr_status open_cifar(const tr_opening *o, int format, tr_array **inputs, tr_array **targets)
{
    const tr_source_config *s = o->s;
    tr_status st = TR_OK;
    char *paths[CIFAR_FILES];
    size_t count = 0;
    bool hundred = format == TR_FORMAT_CIFAR100;
    if (!s->path)
        return tr_opening_fail(o, "path", "expected one or more CIFAR files, separated by commas");
    if (s->inputs)
        return tr_node_fail(s->inputs, "%s.inputs: CIFAR files have none to name", o->block);
    if (o->m->ninputs > 1)
        return tr_opening_fail(o, "path", "CIFAR files have one input, the model has more");
    char *list = tr_strdup(s->path), *next = list;
    if (!list) return tr_last_status();
    for (char *word; (word = strsep(&next, ",")) != NULL;) {
        while (*word == ' ') word++;
        for (size_t n = strlen(word); n > 0 && word[n - 1] == ' '; n--) word[n - 1] = '\0';
        if (!*word || count == CIFAR_FILES) {
            st = tr_opening_fail(
                o, "path", *word ? "more than 64 files" : "a file name between commas is missing");
            goto out;
        }
        paths[count] = tr_config_path(o->c, word);
        TR_HAVE(paths[count]);
        count++;
    }
    if (s->format == TR_FORMAT_AUTO) TR_TRY(tr_cifar_kind(paths[0], &hundred));
    if (s->labels &&
        !(hundred && (strcmp(s->labels, "fine") == 0 || strcmp(s->labels, "coarse") == 0))) {
        st = tr_opening_fail(
            o, "labels", hundred ? "expected fine or coarse" : "CIFAR-10 files have none to name");
        goto out;
    }
    TR_TRY(tr_cifar_open(paths, count, hundred, s->labels, &inputs[0], targets));
    if (o->unlabeled) {
        tr_array_close(*targets);
        *targets = NULL;
    }
out:
    while (count > 0) tr_free(paths[--count]);
    tr_free(list);
    return st;
}

/* ---- Synthetic ------------------------------------------------------------------------------ */

static tr_status open_synthetic(const tr_opening *o, tr_array **inputs, tr_array **targets)
{
    const tr_source_config *s = o->s;
    tr_status st = TR_OK;
    if (s->path || s->labels || s->inputs)
        return tr_opening_fail(o,
                               s->path     ? "path"
                               : s->labels ? "labels"
                                           : "inputs",
                               "synthetic samples come from no file");
    if (s->samples < 1) return tr_opening_fail(o, "samples", "expected how many samples to make");
    const bool classes = o->m->labels || tr_loss_soft(&o->c->model.loss);
    if (s->classes > 0 && !classes)
        return tr_opening_fail(o, "classes", "given, but the loss takes values, not classes");
    if (classes && s->classes > o->m->classes)
        return tr_opening_fail(o, "classes", "more than the model has outputs");
    tr_synthetic y = {.seed = (uint64_t)o->c->seed,
                      .samples = (uint64_t)s->samples,
                      .set = s != &o->c->data.train,
                      .classes = !classes         ? 0
                                 : s->classes > 0 ? s->classes
                                                  : o->m->classes,
                      .binary = tr_loss_binary(o->c->model.loss.kind.which)};
    for (size_t k = 0; k < o->m->ninputs; k++) TR_TRY(tr_synthetic_input(&y, o->m, k, &inputs[k]));
    if (!o->unlabeled) TR_TRY(tr_synthetic_target(&y, o->m, targets));
out:
    return st;
}

/* ---- Opening --------------------------------------------------------------------------------- */

tr_status tr_source_failed(const tr_config *c, const tr_source_config *s, const char *block,
                           tr_status st)
{
    char path[64];
    if (st != TR_DATA || !c->document.root || tr_last_error()->place > 0) return st;
    const char *key = tr_unreadable_key(c, s);
    if (!key) return st;
    snprintf(path, sizeof path, "%s.%s", block, key);
    return tr_config_blame(c, path, st);
}

tr_status tr_source_open(const tr_opening *o, uint64_t budget, tr_array **inputs,
                         tr_array **targets, tr_array **weights)
{
    const int format = tr_source_kind(o->c, o->s);
    if (o->looks && format != TR_FORMAT_HDF5) return TR_OK;
    switch (format) {
    case TR_FORMAT_FOLDER:
        if (o->s->inputs || o->s->labels)
            return tr_opening_fail(o, o->s->inputs ? "inputs" : "labels",
                                   "a folder of images has none to name");
        return tr_images_open(o, inputs, targets);
    case TR_FORMAT_HDF5:
    case TR_FORMAT_NPZ:
        return open_sets(o, format == TR_FORMAT_NPZ, budget, inputs, targets, weights);
    case TR_FORMAT_CSV:
        return tr_table_open(o, budget, inputs, targets, weights);
    case TR_FORMAT_CIFAR10:
    case TR_FORMAT_CIFAR100:
        return open_cifar(o, format, inputs, targets);
    case TR_FORMAT_TEXT:
        return tr_tokens_open(o, -1, inputs, targets);
    case TR_FORMAT_TOKENS:
        return tr_tokens_open(o, o->s->dtype, inputs, targets);
    case TR_FORMAT_SYNTHETIC:
        return open_synthetic(o, inputs, targets);
    default:
        return open_files(o, budget, inputs, targets, weights);
    }
}
