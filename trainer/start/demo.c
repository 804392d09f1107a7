/* `trainer demo [NAME] [FOLDER]`: a small config and the data that it trains on, made here, so that
 * it takes neither a network nor a file. A folder that is there is left alone. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/file.h"
#include "runtime/config/config.h"
#include "trainer/arguments/arguments.h"
#include "trainer/command/commands.h"
#include "trainer/start/start.h"

#define USAGE "trainer demo [digits|regression|images] [FOLDER]"

static tr_status find(const char *name, const tr_demo **out)
{
    const char *names[8];
    for (size_t i = 0; i < tr_demo_count && i < TR_COUNT(names); i++) {
        names[i] = tr_demos[i].name;
        *out = &tr_demos[i];
        if (strcmp(name, tr_demos[i].name) == 0) return TR_OK;
    }
    const char *near = tr_nearest(name, names, tr_demo_count);
    return TR_FAIL(TR_USAGE, "%.100s: there is no such demo%s%s%s: " USAGE, name,
                   near ? "; did you mean \"" : "", near ? near : "", near ? "\"?" : "");
}

static tr_status parse(int argc, char **argv, const tr_demo **demo, char **folder)
{
    tr_status st = TR_OK;
    for (int i = 1; i < argc; i++) {
        TR_NEED(argv[i][0] != '-' && i < 3, TR_USAGE, "%.100s: " USAGE, argv[i]);
        TR_NEED(tr_yaml_comment(argv[i]), TR_USAGE,
                "%.100s: expected a name of one line, without control characters: " USAGE, argv[i]);
    }
    TR_TRY(find(argc > 1 ? argv[1] : "digits", demo));
    *folder = argc > 2 ? tr_strdup(argv[2]) : tr_sprintf("demo-%s", (*demo)->name);
    TR_HAVE(*folder);
out:
    return st;
}

static tr_status write_array(const char *folder, const char *name, tr_npy_type type, int ndim,
                             const int64_t *dims, const void *values)
{
    char *path = tr_sprintf("%s/%s.npy", folder, name);
    const tr_status st = path ? tr_npy_write(path, type, ndim, dims, values) : tr_last_status();
    tr_free(path);
    return st;
}

/* Samples [first, first + n) as x_NAME.npy and y_NAME.npy. */
static tr_status write_data(const tr_demo *d, const char *folder, const char *name, uint64_t first,
                            int64_t n)
{
    tr_status st = TR_OK;
    int64_t dims[4] = {n};
    size_t each = 1;
    char file[32];
    for (int i = 0; i < d->ndim; i++) each *= (size_t)(dims[i + 1] = d->dims[i]);
    const size_t outputs = d->outputs ? (size_t)d->outputs : 1;
    float *x = tr_alloc(TR_MEM_OTHER, (size_t)n * each, sizeof *x);
    float *y = tr_alloc(TR_MEM_OTHER, (size_t)n * outputs, sizeof *y);
    unsigned char *labels = tr_alloc(TR_MEM_OTHER, (size_t)n, 1);
    TR_HAVE(x && y && labels);
    for (size_t i = 0; i < (size_t)n; i++) {
        d->make(first + i, x + i * each, y + i * outputs);
        labels[i] = (unsigned char)(d->outputs ? 0 : y[i]);
    }
    snprintf(file, sizeof file, "x_%s", name);
    TR_TRY(write_array(folder, file, TR_NPY_F32, d->ndim + 1, dims, x));
    snprintf(file, sizeof file, "y_%s", name);
    if (d->outputs)
        TR_TRY(write_array(folder, file, TR_NPY_F32, 2, (int64_t[]){n, d->outputs}, y));
    else
        TR_TRY(write_array(folder, file, TR_NPY_U8, 1, &n, labels));
out:
    tr_free(x);
    tr_free(y);
    tr_free(labels);
    return st;
}

static tr_status write_config(const tr_demo *d, const char *folder)
{
    tr_status st;
    tr_text_file f = {0};
    char *output = NULL, *quoted = NULL, *path = tr_sprintf("%s/%s.yaml", folder, d->name);
    TR_HAVE(path);
    TR_HAVE(output = tr_sprintf("%s/run", folder));
    TR_HAVE(quoted = tr_yaml_quoted(output));
    st = tr_text_file_open(&f, path);
    if (st == TR_OK)
        fprintf(f.to,
                "# %s.\n# mpirun -np 2 trainer %s/%s.yaml, or without mpirun on one rank. Every "
                "key: trainer "
                "check --help-config\n"
                "name: %s\n"
                "seed: 1\n"
                "output: %s              # metrics.jsonl, checkpoints/, model.h5\n"
                "\n"
                "data:                         # paths are relative to this file\n"
                "  train: {inputs: x_train.npy, labels: y_train.npy}\n"
                "  eval: {inputs: x_eval.npy, labels: y_eval.npy}\n"
                "\n%s",
                d->doc, folder, d->name, d->name, quoted, d->config);
    st = tr_text_file_close(&f, st);
out:
    tr_free(output);
    tr_free(quoted);
    tr_free(path);
    return st;
}

static tr_status write_all(const tr_demo *d, const char *folder)
{
    tr_status st;
    TR_TRY(write_data(d, folder, "train", 0, d->train));
    TR_TRY(write_data(d, folder, "eval", (uint64_t)d->train, d->eval));
    st = write_config(d, folder);
out:
    return st;
}

/* What write_all may have written, and the folder. The last error stays. */
static void remove_all(const tr_demo *d, const char *folder)
{
    static const char *const arrays[] = {"x_train", "y_train", "x_eval", "y_eval"};
    const tr_error why = *tr_last_error();
    for (size_t i = 0; i <= TR_COUNT(arrays); i++) {
        const bool array = i < TR_COUNT(arrays);
        char *path =
            tr_sprintf("%s/%s.%s", folder, array ? arrays[i] : d->name, array ? "npy" : "yaml");
        if (path) unlink(path);
        tr_free(path);
    }
    rmdir(folder);
    tr_set_error(&why);
}

int tr_cmd_demo(int argc, char **argv)
{
    const tr_demo *d = NULL;
    char *folder = NULL;
    tr_status st;
    TR_TRY(parse(argc, argv, &d, &folder));
    TR_NEED(mkdir(folder, 0777) == 0, errno == EEXIST ? TR_USAGE : TR_IO,
            errno == EEXIST ? "%s is there: name another folder (" USAGE "): %s"
                            : "%s cannot be made: %s",
            folder, strerror(errno));
    st = write_all(d, folder);
    if (st != TR_OK) remove_all(d, folder);
    TR_TRY(st);
    printf("%s: %s\nTo train it:\n  trainer %s/%s.yaml\nThen, for example:\n"
           "  trainer inspect %s/run\n  trainer evaluate %s/run/model.h5\n",
           folder, d->doc, folder, d->name, folder, folder);
out:
    tr_free(folder);
    return tr_command_end(st);
}
