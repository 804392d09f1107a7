/* `trainer import FILE.onnx OUT.h5 [--output NAME] [key=value ...] [--force]`: a run file of an
 * ONNX file's model, so that every command and stage takes it. NAME: the value of the graph that
 * the model answers, where it has several outputs. Keys are the config's: data that it is to be
 * evaluated or trained on. `trainer import FILE.safetensors|FILE.npz OUT.h5 --config CONFIG ...`:
 * of the config's model, with the file's values, by the rules of its model.init_from. Needs no
 * MPI. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "optimize/onnx/onnx.h"
#include "runtime/base/file.h"
#include "runtime/base/numbers.h"
#include "runtime/data/reads.h"
#include "runtime/store/store.h"
#include "trainer/command/by_hand.h"
#include "trainer/command/commands.h"
#include "trainer/loop/resolve.h"
#include "trainer/models/init_from.h"
#include "trainer/stages/stages.h"
#include "trainer/run/run_list.h"

#define USAGE                                                                                      \
    "usage: trainer import FILE.onnx OUT.h5 [--output NAME] [key=value ...] [--force], or "        \
    "trainer import FILE.safetensors|FILE.npz OUT.h5 --config CONFIG ..."

/* Of a file that brings no config. */
static const char DATA[] = "data: {train: {format: synthetic, samples: 1}}\n"
                           "train: {batch: 32, epochs: 1}\n";

typedef struct {
    const char *files[2]; /* the graph or values, the run file */
    const char *config;   /* NULL: not given */
    const char *output;   /* likewise */
    const char **overrides;
    size_t noverrides;
    bool force;
} arguments;

static bool is_values(const char *file)
{
    const char *dot = strrchr(file, '.');
    return dot && (strcmp(dot, ".safetensors") == 0 || strcmp(dot, ".npz") == 0);
}

/* What stands where OUT.h5 is expected and assigns a key means that OUT.h5 was forgotten. */
static tr_status parse(int argc, char **argv, arguments *a)
{
    tr_status st = TR_OK;
    int n = 0;
    a->overrides = tr_alloc(TR_MEM_OTHER, (size_t)argc, sizeof *a->overrides);
    TR_HAVE(a->overrides);
    for (int i = 1; i < argc; i++) {
        const bool assigns = strchr(argv[i], '=') != NULL;
        if (strcmp(argv[i], "--force") == 0) {
            a->force = true;
        } else if (strcmp(argv[i], "--config") == 0) {
            TR_NEED(i + 1 < argc, TR_USAGE, "--config: expected a file; " USAGE);
            a->config = argv[++i];
        } else if (strcmp(argv[i], "--output") == 0) {
            TR_NEED(i + 1 < argc, TR_USAGE, "--output: expected a name in the graph; " USAGE);
            a->output = argv[++i];
        } else if (n < 2) {
            TR_NEED(argv[i][0] != '-' && !(n == 1 && assigns), TR_USAGE,
                    "%s: expected a file; " USAGE, argv[i]);
            a->files[n++] = argv[i];
        } else {
            TR_NEED(argv[i][0] != '-' && assigns, TR_USAGE, "%s: expected key=value; " USAGE,
                    argv[i]);
            a->overrides[a->noverrides++] = argv[i];
        }
    }
    TR_NEED(n == 2, TR_USAGE, "which files? " USAGE);
    TR_NEED(is_values(a->files[0]) == (a->config != NULL), TR_USAGE, "%s: %s; " USAGE, a->files[0],
            a->config ? "--config goes with safetensors and NPZ, which hold no model"
                      : "such a file holds no model: which config has it (--config)?");
    TR_NEED(!a->output || !a->config, TR_USAGE,
            "--output %s: names a value of an ONNX graph, and %s has none; " USAGE, a->output,
            a->files[0]);
out:
    return st;
}

/* A config of this model, with synthetic data until the overrides name other. */
static tr_status base_text(const tr_network *n, char **text)
{
    size_t size;
    FILE *f = open_memstream(text, &size);
    if (!f) return TR_FAIL(TR_MEMORY, "out of memory for a config");
    fputs("name: imported\nmodel:\n", f);
    tr_status st = tr_model_write(n->model, 2, f);
    fputs(DATA, f);
    if (fclose(f) != 0 && st == TR_OK) st = TR_FAIL(TR_MEMORY, "out of memory for a config");
    return st;
}

/* What the graph does to its inputs first comes before what the user says. */
static tr_status open_config(const char *file, const char *text, const tr_onnx_found *found,
                             const arguments *a, tr_config **out)
{
    tr_status st = TR_OK;
    tr_variant_def stages[TR_STAGES + 1];
    char *normalize = NULL, *targets = NULL;
    const char **all = tr_alloc(TR_MEM_OTHER, a->noverrides + 2, sizeof *all);
    size_t n = 0;
    TR_HAVE(all);
    tr_stages_known(stages);
    if (found->normalize) {
        normalize = tr_sprintf("data.normalize=%s", found->normalize);
        TR_HAVE(normalize);
        all[n++] = normalize;
    }
    if (found->normalize_targets) {
        targets = tr_sprintf("data.normalize_targets=%s", found->normalize_targets);
        TR_HAVE(targets);
        all[n++] = targets;
    }
    for (size_t i = 0; i < a->noverrides; i++) all[n++] = a->overrides[i];
    TR_TRY(tr_config_open(file, text, strlen(text), all, n, stages, out));
    const tr_arguments of = {.config = a->files[0], .output = a->files[1], .force = a->force};
    st = tr_output_is_free(&of, *out);
out:
    tr_free(normalize);
    tr_free(targets);
    tr_free((void *)all);
    return st;
}

/* What was read of a graph, as stages say what they found. */
static tr_status describe(const char *file, const tr_network *n, const tr_onnx_found *found,
                          tr_lineage *to)
{
    tr_status st;
    tr_findings *f;
    char sha256[65];
    const char *layers[TR_ONNX_TOGETHER_MAX];
    double counts[TR_ONNX_TOGETHER_MAX], multiply_adds;
    TR_TRY(tr_lineage_add(to, "00-import", &f));
    TR_TRY(tr_file_sha256(file, sha256));
    TR_TRY(tr_model_multiply_adds(n->model, &multiply_adds));
    TR_TRY(tr_attrs_add_text(&f->values, "name", "import"));
    TR_TRY(tr_attrs_add_text(&f->values, "source", file));
    TR_TRY(tr_attrs_add_text(&f->values, "source_sha256", sha256));
    TR_TRY(tr_attrs_add_count(&f->values, "nodes", found->nodes));
    TR_TRY(tr_attrs_add_count(&f->values, "constant_nodes", found->constants));
    TR_TRY(tr_attrs_add_count(&f->values, "parameters", n->model->nparameters));
    TR_TRY(tr_attrs_add_real(&f->values, "multiply_adds", multiply_adds));
    for (size_t i = 0; i < found->ntogether; i++) {
        layers[i] = found->together[i].layer;
        counts[i] = (double)found->together[i].count;
    }
    TR_TRY(tr_findings_table(f, "patterns", found->ntogether, layers));
    TR_TRY(tr_findings_column(f, "count", counts));
out:
    return st;
}

/* The config: of an ONNX file with the model that its graph is; else as it was given, whose model
 * it is, so that model.init_from still says how the values are called outside (export: {map:
 * init_from}). */
static tr_status write_run_file(const arguments *a, const tr_network *n, const tr_config *c,
                                const tr_origin *origin, const tr_lineage *lineage)
{
    tr_status st = TR_OK;
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    TR_NEED(f, TR_MEMORY, "out of memory for a config");
    st = a->config ? tr_config_write(c, f) : tr_model_write_config(n->model, c, f);
    if (fclose(f) != 0 && st == TR_OK) st = TR_FAIL(TR_MEMORY, "out of memory for a config");
    if (st == TR_OK) {
        const tr_snapshot s = {.config_text = text,
                               .params = n->params,
                               .states = n->states,
                               .origin = *origin,
                               .lineage = lineage->count ? lineage : NULL,
                               /* as before the first step */
                               .train = {.loss_scale = 1,
                                         .lr_factor = 1,
                                         .best = NAN,
                                         .stop_best = NAN,
                                         .plateau_best = NAN}};
        st = tr_store_write(a->files[1], n->model, &s, NULL);
    }
out:
    free(text);
    return st;
}

/* Whether the user or the file says what the model is trained towards, which a graph does not. */
static bool says_loss(const arguments *a, const tr_onnx_found *found)
{
    static const char key[] = "model.loss";
    bool says = found->config != NULL;
    for (size_t i = 0; i < a->noverrides; i++)
        says = says || strncmp(a->overrides[i], key, sizeof key - 1) == 0;
    return says;
}

/* An ONNX file: its graph is the model. With a loss that is said it is read once more. */
static tr_status read_graph(const arguments *a, tr_onnx_found *found, tr_network **n, tr_config **c)
{
    tr_onnx_import o = {.output = a->output};
    tr_status st;
    char *text = NULL;
    TR_TRY(tr_onnx_read(a->files[0], &o, n, found));
    if (!found->config) TR_TRY(base_text(*n, &text));
    TR_TRY(open_config(a->files[0], found->config ? found->config : text, found, a, c));
    if (!says_loss(a, found)) goto out;
    o.loss = &(*c)->model.loss;
    tr_network_close(*n);
    *n = NULL;
    tr_onnx_found_free(found);
    TR_TRY(tr_onnx_read(a->files[0], &o, n, found));
out:
    free(text);
    return st;
}

/* What the config leaves to its data is found there, as training would find it. */
static tr_status settle(tr_config **c)
{
    const tr_comm_options alone = {.mpi = false};
    tr_comm *comm = NULL;
    tr_model *m = NULL;
    tr_config *settled = NULL;
    tr_status st;
    if (tr_config_settled(*c) == TR_OK) return TR_OK;
    TR_TRY(tr_model_open(*c, 0, &m));
    TR_TRY(tr_comm_open(&alone, &comm));
    st = tr_data_resolve(comm, *c, m, NULL, &settled);
    if (st != TR_OK) {
        const tr_error why = *tr_last_error();
        (void)tr_config_settled(*c);
        st = tr_fail_behind(st, "; its data: %.500s", why.text);
        goto out;
    }
    tr_config_close(*c);
    *c = settled;
out:
    tr_comm_close(comm);
    tr_model_close(m);
    return st;
}

/* Values alone: the model is the config's. */
static tr_status read_values(const arguments *a, const tr_onnx_found *found, tr_network **n,
                             tr_config **c, tr_origin *origin)
{
    tr_status st;
    const char *file = a->config;
    char *text = NULL, *in = NULL; /* in: of a folder */
    size_t nbytes;
    tr_model *m = NULL;
    TR_TRY(tr_run_file_of(&file, &in));
    TR_NEED(!tr_file_same(file, a->files[1]), TR_USAGE, TR_READ_ALREADY, a->files[1]);
    TR_TRY(tr_read_config(file, tr_store_is_hdf5(file), &text, &nbytes));
    TR_TRY(open_config(file, text, found, a, c));
    TR_TRY(settle(c));
    TR_TRY(tr_model_open(*c, 0, &m));
    TR_TRY(tr_network_open(m, n));
    tr_model_init_params(m, (uint64_t)(*c)->seed, (*n)->params, 0, m->flat_count);
    tr_model_init_states(m, (*n)->states);
    TR_TRY(tr_init_from_read(*c, a->files[0], *n, origin));
    TR_TRY(tr_network_hold(*n, true));
    tr_log(TR_LOG_INFO, "%s", origin->text);
out:
    tr_free(text);
    tr_free(in);
    return st;
}

static void say(const arguments *a, const tr_network *n, const tr_onnx_found *found)
{
    tr_log(TR_LOG_INFO, "%s: %zu layer%s, %zu parameter%s%s%s", a->files[1], n->model->nlayers,
           tr_plural(n->model->nlayers), n->model->nparameters, tr_plural(n->model->nparameters),
           found->normalize ? "; data.normalize: " : "", found->normalize ? found->normalize : "");
    char text[TR_ERROR_TEXT] = "";
    size_t length = 0;
    for (size_t i = 0; i < found->ntogether && length < sizeof text; i++)
        length += (size_t)snprintf(text + length, sizeof text - length, "%s%zu %s", i ? ", " : "",
                                   found->together[i].count, found->together[i].layer);
    if (found->ntogether)
        tr_log(TR_LOG_INFO, "%s: layers that it says with several of its %zu nodes each: %s",
               a->files[0], found->nodes, text);
}

int tr_cmd_import(int argc, char **argv)
{
    arguments a = {.force = false};
    tr_onnx_found found = {0};
    tr_origin origin = {.text = ""};
    tr_lineage lineage = {0};
    tr_network *n = NULL;
    tr_config *c = NULL;
    tr_status st = TR_OK;
    TR_TRY(parse(argc, argv, &a));
    st = a.config ? read_values(&a, &found, &n, &c, &origin) : read_graph(&a, &found, &n, &c);
    TR_TRY(st);
    TR_TRY(tr_config_settled(c));
    if (!a.config) TR_TRY(describe(a.files[0], n, &found, &lineage));
    TR_TRY(write_run_file(&a, n, c, &origin, &lineage));
    say(&a, n, &found);
out:
    tr_lineage_free(&lineage);
    tr_config_close(c);
    tr_network_close(n);
    tr_onnx_found_free(&found);
    tr_free((void *)a.overrides);
    return tr_command_end(st);
}
