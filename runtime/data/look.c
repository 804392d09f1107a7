/* Looking at data files: which arrays are inputs and which labels, by the names that they usually
 * have, and what labels are: classes where they are whole numbers from 0 on, one a sample; else
 * values. */
#include "runtime/data/look.h"

#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/numbers.h"
#include "runtime/config/config.h"
#include "runtime/data/look_table.h"

enum { CLASSES = 100000 };    /* more are values */
enum { FLOAT_CLASSES = 100 }; /* in a type of fractions */
enum { FEW_CLASSES = 20 };    /* that may be counted from below 0 */

static tr_status take_input(const tr_array *a, tr_look *l)
{
    char text[128];
    l->samples = a->samples;
    l->ndim = a->ndim;
    memcpy(l->dims, a->dims, sizeof l->dims);
    l->bytes = a->elem == TR_ELEM_U8;
    if (a->ndim == TR_LOOK_IMAGE && a->dims[2] <= 4 && a->dims[0] > 4)
        return TR_FAIL(
            TR_DATA,
            "%s: a sample's shape is %s, which looks like height, width, channels: store "
            "images channels first",
            a->name, tr_format_dims(a->ndim, a->dims, text, sizeof text));
    return TR_OK;
}

/* Whether all values are whole numbers, the least, or 0, and the largest, or 0. */
static tr_status scan_labels(tr_array *a, bool *whole, double *least, double *most)
{
    tr_status st = TR_OK;
    const uint64_t some = a->nbytes < 65536 ? 65536 / a->nbytes : 1;
    char *raw = tr_alloc(TR_MEM_OTHER, (size_t)some, a->nbytes);
    TR_HAVE(raw);
    *whole = true;
    *least = *most = 0;
    for (uint64_t i = 0; i < a->samples && *whole; i += some) {
        const uint64_t n = a->samples - i < some ? a->samples - i : some;
        const void *from = raw;
        if (a->held)
            from = (const char *)a->held + i * a->nbytes;
        else
            TR_TRY(a->read(a, i, n, raw));
        for (uint64_t k = 0; k < n * a->count && *whole; k++) {
            const double v = tr_elem_value(a->elem, from, (size_t)k);
            *whole = v == floor(v) && fabs(v) < CLASSES;
            if (v < *least) *least = v;
            if (v > *most) *most = v;
        }
    }
out:
    tr_free(raw);
    return st;
}

static tr_status count_classes(tr_array *a, tr_look *l)
{
    tr_status st = TR_OK;
    uint64_t *n = tr_alloc(TR_MEM_OTHER, (size_t)l->classes, sizeof *n);
    char *raw = tr_alloc(TR_MEM_OTHER, 1, a->nbytes);
    TR_HAVE(n && raw);
    for (uint64_t i = 0; i < a->samples; i++) {
        const void *at;
        TR_TRY(tr_array_at(a, i, raw, &at));
        const double v = tr_elem_value(a->elem, at, 0);
        TR_NEED(v >= 0 && v < (double)l->classes, TR_DATA,
                "%s: sample %llu has the label %g, expected 0 to %lld", a->name,
                (unsigned long long)i, v, (long long)l->classes - 1);
        n[(size_t)v]++;
    }
    l->fewest = a->samples;
    for (int64_t k = 0; k < l->classes; k++)
        if (n[k] < l->fewest) l->fewest = n[k];
out:
    tr_free(n);
    tr_free(raw);
    return st;
}

/* -1 and 1 are classes to many. */
static tr_status note_negative(const tr_array *a, double least, double most, tr_look *l)
{
    if (most - least >= FEW_CLASSES || 4 * (most - least + 1) > (double)a->samples) return TR_OK;
    return tr_look_note(l, tr_sprintf("the labels are whole numbers from %g to %g, and taken as "
                                      "values, for classes count from 0: where they are classes, "
                                      "store numpy.unique(y, return_inverse=True)[1]",
                                      least, most));
}

static tr_status take_labels(tr_array *a, tr_look *l)
{
    tr_status st = TR_OK;
    bool whole = false;
    double least = 0, most = 0;
    TR_NEED(a->samples == l->samples, TR_DATA,
            "%s: has %llu sample%s, the inputs have %llu: name the labels (--labels)", a->name,
            (unsigned long long)a->samples, tr_plural(a->samples), (unsigned long long)l->samples);
    l->outputs = (int64_t)a->count;
    if (a->count == 1) TR_TRY(scan_labels(a, &whole, &least, &most));
    if (whole && least < 0) return note_negative(a, least, most, l);
    const bool fractions =
        a->elem == TR_ELEM_F16 || a->elem == TR_ELEM_F32 || a->elem == TR_ELEM_F64;
    if (!whole || (fractions && most >= FLOAT_CLASSES) || most + 1 > (double)a->samples) goto out;
    l->classes = most < 1 ? 2 : (int64_t)most + 1;
    st = count_classes(a, l);
out:
    return st;
}

static tr_status take(tr_array *x, tr_array *y, tr_look *l)
{
    const tr_status st = take_input(x, l);
    return st == TR_OK ? take_labels(y, l) : st;
}

/* ---- Names that go together ------------------------------------------------------------------ */

/* What stands for inputs, and for their labels in the same place. */
static const char *const pairs[][2] = {{"images-idx3", "labels-idx1"},
                                       {"images", "labels"},
                                       {"inputs", "labels"},
                                       {"inputs", "targets"},
                                       {"data", "labels"},
                                       {"features", "labels"},
                                       {"x", "y"},
                                       {"X", "Y"},
                                       {"X", "y"}};
/* What stands for the set to evaluate on, in the place of the training set's word: inputs, and
 * labels that go with them. */
static const struct {
    const char *x[2], *y[2];
} sets[] = {
#define BOTH(word)                                                                                 \
    {                                                                                              \
        {"train", word},                                                                           \
        {                                                                                          \
            "train", word                                                                          \
        }                                                                                          \
    }
    BOTH("t10k"),
    BOTH("test"),
    BOTH("eval"),
    BOTH("val"),
    BOTH("valid"),
#undef BOTH
#define XY(x, y)                                                                                   \
    {{x, x "_test"}, {y, y "_test"}}, {{x, x "_eval"}, {y, y "_eval"}},                            \
        {{x, x "_val"}, {y, y "_val"}},                                                            \
    {                                                                                              \
        {x, x "e"},                                                                                \
        {                                                                                          \
            y, y "e"                                                                               \
        }                                                                                          \
    }
    XY("x", "y"),
    XY("X", "Y"),
    XY("X", "y"),
#undef XY
    {{"images", "test_images"}, {"labels", "test_labels"}}};

/* `name` with the last `from` in its base name, as a word's beginning, replaced; NULL: it has
 * none. */
static char *replaced(const char *name, const char *from, const char *to)
{
    const char *base = strrchr(name, '/'), *at = NULL;
    base = base ? base + 1 : name;
    for (const char *s = base; (s = strstr(s, from)) != NULL; s++) {
        const char before = s == base ? '_' : s[-1], after = s[strlen(from)];
        if (strchr("_-. ", before) && (strlen(from) > 1 || strchr("_-. ", after))) at = s;
    }
    return at ? tr_sprintf("%.*s%s%s", (int)(at - name), name, to, at + strlen(from)) : NULL;
}

typedef bool is_there(void *ctx, const char *name);
typedef uint64_t samples_in(void *ctx, const char *name); /* 0: it cannot be read */

/* The name that stands for it by one of these pairs, and is there; NULL: none. */
static char *partner(const char *name, const char *const (*table)[2], size_t n, is_there *there,
                     void *ctx)
{
    for (size_t i = 0; i < n; i++) {
        char *other = replaced(name, table[i][0], table[i][1]);
        if (other && strcmp(other, name) != 0 && there(ctx, other)) return other;
        tr_free(other);
    }
    return NULL;
}

/* Set *eval where its inputs and labels are both there, and as many. */
static void find_eval(tr_look *l, is_there *there, samples_in *samples, void *ctx)
{
    tr_look_source *e = &l->eval;
    for (size_t i = 0; i < TR_COUNT(sets) && !e->inputs; i++) {
        char *x = replaced(l->train.inputs, sets[i].x[0], sets[i].x[1]),
             *y = replaced(l->train.labels, sets[i].y[0], sets[i].y[1]);
        const bool found = x && y && strcmp(x, l->train.inputs) != 0 &&
                           strcmp(y, l->train.labels) != 0 && there(ctx, x) && there(ctx, y);
        const uint64_t n = found ? samples(ctx, x) : 0;
        if (n > 0 && n == samples(ctx, y)) {
            e->inputs = x;
            e->labels = y;
            e->path = l->train.path ? tr_strdup(l->train.path) : NULL;
        } else {
            tr_free(x);
            tr_free(y);
        }
    }
}

/* ---- Formats --------------------------------------------------------------------------------- */

static bool is_file(void *ctx, const char *name)
{
    (void)ctx;
    return access(name, F_OK) == 0;
}

static tr_status open_file(const char *path, tr_array **out)
{
    return tr_source_format(path) == TR_FORMAT_IDX ? tr_idx_open(path, TR_LOOK_BYTES, out)
                                                   : tr_npy_open(path, out);
}

static uint64_t samples_in_file(void *ctx, const char *path)
{
    tr_array *a = NULL;
    (void)ctx;
    const uint64_t n = open_file(path, &a) == TR_OK ? a->samples : 0;
    tr_array_close(a);
    return n;
}

static tr_status look_at_files(const char *path, const char *labels, tr_look *l)
{
    tr_status st = TR_OK;
    tr_array *x = NULL, *y = NULL;
    char *found = labels ? tr_strdup(labels) : partner(path, pairs, TR_COUNT(pairs), is_file, NULL);
    TR_NEED(found, TR_DATA,
            "%s: no file of its labels was found beside it (y for x, labels for images): name it "
            "(--labels FILE)",
            path);
    l->train.labels = found;
    TR_HAVE(l->train.inputs = tr_strdup(path));
    TR_TRY(open_file(path, &x));
    const int format = tr_source_format(found);
    TR_NEED(format == TR_FORMAT_IDX || format == TR_FORMAT_NPY, TR_DATA,
            "%s: expected an IDX or NPY file of labels", found);
    TR_TRY(open_file(found, &y));
    TR_TRY(take(x, y, l));
    find_eval(l, is_file, samples_in_file, NULL);
out:
    tr_array_close(x);
    tr_array_close(y);
    return st;
}

typedef struct {
    tr_hdf5_listed *v;
    size_t count;
    bool faulty; /* those count, too, that cannot be read */
} listing;

static bool counts(const listing *all, size_t i)
{
    return all->faulty || !all->v[i].fault[0];
}

static const tr_hdf5_listed *listed(const listing *all, const char *name)
{
    for (size_t i = 0; i < all->count; i++)
        if (strcmp(all->v[i].name, name) == 0 && counts(all, i)) return &all->v[i];
    return NULL;
}

static bool is_listed(void *ctx, const char *name)
{
    return listed(ctx, name) != NULL;
}

static uint64_t samples_in_dataset(void *ctx, const char *name)
{
    const tr_hdf5_listed *d = listed(ctx, name);
    return d ? (uint64_t)d->sight.dims[0] : 0;
}

/* The dataset whose partner is there: a training set's first; else, where the labels are named, the
 * largest other one with as many samples. */
static const char *find_inputs(const listing *all, const char *labels, char **partner_of)
{
    const char *best = NULL;
    size_t most = 0;
    for (int train = 1; train >= 0 && !labels; train--)
        for (size_t i = 0; i < all->count; i++) {
            const char *name = all->v[i].name;
            if (!counts(all, i) || (train && !strstr(name, "train"))) continue;
            *partner_of = partner(name, pairs, TR_COUNT(pairs), is_listed, (void *)all);
            if (*partner_of) return name;
        }
    const tr_hdf5_listed *y = labels ? listed(all, labels) : NULL;
    for (size_t i = 0; y && i < all->count; i++) {
        const tr_hdf5_sight *s = &all->v[i].sight;
        size_t n = 1;
        if (!counts(all, i) || &all->v[i] == y || s->dims[0] != y->sight.dims[0]) continue;
        for (int d = 1; d < s->ndim; d++) n *= (size_t)s->dims[d];
        if (n <= most) continue;
        most = n;
        best = all->v[i].name;
    }
    return best;
}

/* What a file has, and why what cannot be read cannot. */
static void say_all(const listing *all, char text[600])
{
    size_t n = (size_t)snprintf(text, 600, all->count ? "it has " : "it has no datasets");
    for (size_t i = 0; i < all->count && n < 600; i++) {
        const tr_hdf5_listed *l = &all->v[i];
        n += (size_t)snprintf(text + n, 600 - n, "%s%s", i ? ", " : "", l->name);
        if (l->fault[0] && n < 600)
            n += (size_t)snprintf(text + n, 600 - n, " (not to be read: %s)", l->fault);
    }
}

/* Whether this one is what cannot be read: then why. */
static tr_status readable(const char *path, const tr_hdf5_listed *l)
{
    if (!l || !l->fault[0]) return TR_OK;
    return TR_FAIL(TR_DATA, "%s: dataset %s: %s", path, l->name, l->fault);
}

/* Why none are the inputs, or their labels. */
static tr_status no_inputs(const char *path, const char *labels, const listing *all)
{
    tr_status st = TR_OK;
    char text[600], *found = NULL;
    const listing any = {.v = all->v, .count = all->count, .faulty = true};
    const char *inputs = find_inputs(&any, labels, &found);
    const tr_hdf5_listed *y = labels || found ? listed(&any, labels ? labels : found) : NULL;
    TR_TRY(readable(path, y));
    TR_TRY(readable(path, inputs && !labels ? listed(&any, inputs) : NULL));
    say_all(all, text);
    TR_NEED(!labels || y, TR_DATA, "%s: has no dataset \"%.100s\" (--labels): %s", path, labels,
            text);
    TR_NEED(!labels, TR_DATA,
            "%s: no dataset has as many samples as the labels %.100s, %llu, to be their inputs: %s",
            path, labels, (unsigned long long)y->sight.dims[0], text);
    st = TR_FAIL(TR_DATA,
                 "%s: which dataset holds the labels? (--labels NAME; by their names x and y, "
                 "images and labels, inputs and targets would be taken): %s",
                 path, text);
out:
    tr_free(found);
    return st;
}

static tr_status open_set(bool npz, const char *path, const char *name, tr_array **out)
{
    return npz ? tr_npz_open(path, name, TR_LOOK_BYTES, out)
               : tr_hdf5_arrays_open(path, &name, 1, out, NULL);
}

static tr_status look_at_sets(const char *path, const char *labels, bool npz, tr_look *l)
{
    tr_status st;
    listing all = {0};
    char *found = NULL;
    tr_array *x = NULL, *y = NULL;
    TR_TRY((npz ? tr_npz_list : tr_hdf5_list)(path, &all.v, &all.count));
    const char *inputs = find_inputs(&all, labels, &found);
    if (labels && inputs) TR_HAVE(found = tr_strdup(labels));
    if (!inputs) TR_TRY(no_inputs(path, labels, &all));
    TR_HAVE(l->train.path = tr_strdup(path));
    TR_HAVE(l->train.inputs = tr_strdup(inputs));
    l->train.labels = found;
    found = NULL;
    TR_TRY(open_set(npz, path, l->train.inputs, &x));
    TR_TRY(open_set(npz, path, l->train.labels, &y));
    TR_TRY(take(x, y, l));
    find_eval(l, is_listed, samples_in_dataset, &all);
out:
    tr_array_close(x);
    tr_array_close(y);
    tr_free(found);
    tr_free(all.v);
    return st;
}

static tr_status look_at_cifar(const char *path, const char *labels, tr_look *l)
{
    tr_status st = TR_OK;
    enum { MOST = 64 };
    char *paths[MOST], *list = tr_strdup(path), *next = list;
    size_t n = 0;
    bool hundred;
    tr_array *x = NULL, *y = NULL;
    TR_HAVE(list);
    for (char *word; (word = strsep(&next, ",")) != NULL && n < MOST;) paths[n++] = word;
    TR_TRY(tr_cifar_kind(paths[0], &hundred));
    l->format = hundred ? TR_FORMAT_CIFAR100 : TR_FORMAT_CIFAR10;
    const bool coarse = labels && hundred && strcmp(labels, "coarse") == 0;
    TR_NEED(!labels || coarse || (hundred && strcmp(labels, "fine") == 0), TR_DATA,
            "%s: --labels %s: %s", path, labels,
            hundred ? "expected fine or coarse" : "CIFAR-10 files have none to name");
    TR_HAVE(l->train.path = tr_strdup(path));
    if (labels) TR_HAVE(l->train.labels = tr_strdup(labels));
    TR_TRY(tr_cifar_open(paths, n, hundred, labels, &x, &y));
    TR_TRY(take(x, y, l));
    l->classes = coarse ? 20 : hundred ? 100 : 10; /* whichever are there */
    st = count_classes(y, l);
out:
    tr_array_close(x);
    tr_array_close(y);
    tr_free(list);
    return st;
}

/* Of a .bin: by its size, unless it says that it holds tokens. A list of files is CIFAR's. */
static bool is_cifar(const char *path)
{
    bool hundred;
    return strchr(path, ',') || access(path, R_OK) != 0 ||
           (!tr_tokens_known(path) && tr_cifar_kind(path, &hundred) == TR_OK);
}

tr_status tr_look_open(const char *path, const char *labels, tr_look *out)
{
    tr_status st = TR_OK;
    struct stat info;
    *out = (tr_look){.format = tr_source_format(path)};
    if (out->format == TR_FORMAT_AUTO && stat(path, &info) == 0 && S_ISDIR(info.st_mode))
        out->format = TR_FORMAT_FOLDER;
    switch (out->format) {
    case TR_FORMAT_HDF5:
    case TR_FORMAT_NPZ:
        st = look_at_sets(path, labels, out->format == TR_FORMAT_NPZ, out);
        break;
    case TR_FORMAT_IDX:
    case TR_FORMAT_NPY:
        st = look_at_files(path, labels, out);
        break;
    case TR_FORMAT_CIFAR10:
        if (!is_cifar(path)) {
            out->format = TR_FORMAT_TOKENS;
            st = tr_look_at_tokens(path, labels, out);
        } else {
            st = look_at_cifar(path, labels, out);
        }
        break;
    case TR_FORMAT_TEXT:
        st = tr_look_at_tokens(path, labels, out);
        break;
    case TR_FORMAT_CSV:
        st = tr_look_at_table(path, labels, out);
        break;
    case TR_FORMAT_FOLDER:
        st = tr_look_at_folder(path, labels, out);
        break;
    default:
        st = TR_FAIL(
            TR_DATA,
            "%s: its name does not tell a format: expected .h5, .hdf5, .npy, .npz, .csv, .tsv, "
            ".bin (CIFAR, tokens), .idx, -ubyte or .gz (IDX), .txt, or a folder of images",
            path);
    }
    if (st != TR_OK) tr_look_close(out);
    return st;
}

static void close_source(tr_look_source *s)
{
    tr_free(s->path);
    tr_free(s->inputs);
    tr_free(s->labels);
}

void tr_look_close(tr_look *l)
{
    close_source(&l->train);
    close_source(&l->eval);
    for (size_t i = 0; i < l->ncolumns; i++) tr_free(l->columns[i].name);
    for (size_t i = 0; i < l->nnotes; i++) tr_free(l->notes[i]);
    for (size_t i = 0; i < l->ntargets; i++) tr_free(l->targets[i]);
    tr_free(l->targets);
    tr_free(l->columns);
    tr_free(l->notes);
    *l = (tr_look){0};
}
