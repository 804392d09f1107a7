/* The stage `export`: the network as a file that others read. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "optimize/onnx/onnx.h"
#include "optimize/stages/export_verify.h"
#include "optimize/stages/stages.h"
#include "optimize/tensors/tensors.h"
#include "runtime/config/init_from.h"

enum { ONNX, SAFETENSORS, NPZ, HDF5 };
static const char *const formats[] = {"onnx", "safetensors", "npz", "hdf5", NULL};
static const char *const types[] = {"float32", "float16", "bfloat16", NULL};
enum { AUTO, DYNAMIC, FIXED };
enum { SEQUENCE_TEXT = 256 };
static const char *const sequences[] = {"auto", "dynamic", "fixed", NULL};
static const tr_dtype dtypes[] = {TR_F32, TR_F16, TR_BF16};

typedef struct {
    tr_stage_common common;
    int format, weights, sequence;
    int64_t opset, samples;
    double external_mb;
    bool normalize;
    tr_renames_written names;
} export_options;

static const tr_field fields[] = {
    TR_STAGE_COMMON(export_options),
    TR_CHOICE("format", offsetof(export_options, format), formats, "onnx",
              "of the file beside the stage's own: .onnx; or the values alone: .safetensors, .npz, "
              ".hdf5, "
              "with a .load_model.py whose load() returns them by name"),
    TR_INT("opset", offsetof(export_options, opset), "17", TR_ONNX_OPSET_MIN, TR_ONNX_OPSET_MAX,
           NULL, "of ONNX's operators"),
    TR_CHOICE("weights", offsetof(export_options, weights), types, "float32",
              "type of stored weights: onnx has float32 and float16, safetensors bfloat16 too"),
    TR_CHOICE("sequence", offsetof(export_options, sequence), sequences, "auto",
              "the length of sequences in an ONNX graph: dynamic: 1 to the model's, as torch's "
              "dynamic_axes; "
              "fixed: the model's; auto: dynamic wherever all layers take any length"),
    TR_BOOL(
        "normalize", offsetof(export_options, normalize), "true",
        "an ONNX graph begins with data.normalize, and takes values as data files have them, and "
        "ends with the inverse of data.normalize_targets; "
        "false: it takes values that are normalized already, and gives such targets"),
    TR_REAL("external_mb", offsetof(export_options, external_mb), "0", 0, 2000, "MB",
            "from so much on, an ONNX graph's values are in a file of their own, FILE.data; 0: "
            "where the "
            "format demands it, from 2 GB on"),
    TR_NODE(
        "map", offsetof(export_options, names.map), "",
        "of values alone: what the arrays are called in the file, written as model.init_from "
        "takes it, patterns of the file's names and what they are called in the model: "
        "{\"backbone.*\": \"*\"}; arrays that no right side names keep their names. Or init_from: "
        "map, transpose and ndim of the config's model.init_from, so that values go out as "
        "they came in"),
    TR_NODE("transpose", offsetof(export_options, names.transpose), "",
            "of values alone: patterns of the file's names, matrices that it is to have as (in, "
            "out)"),
    TR_NODE("ndim", offsetof(export_options, names.ndim), "",
            "of values alone: patterns of the file's names, and how many dimensions it is to have, "
            "those of 1 in front: {\"*.cls_token\": 3}"),
    TR_INT("samples", offsetof(export_options, samples), "1024", 1, INT32_MAX, "samples",
           "of data.eval, else of data.train, on which an ONNX file that was read back is compared "
           "with the model"),
    TR_END,
};

/* ---- Names ----------------------------------------------------------------------------------- */

/* map: init_from */
static bool as_taken(const tr_renames_written *w)
{
    return w->map && w->map->kind == TR_NODE_SCALAR && strcmp(w->map->text, "init_from") == 0;
}

static tr_status check_names(const tr_list_item *item, size_t place)
{
    char key[48];
    tr_renames names;
    const export_options *o = item->options;
    snprintf(key, sizeof key, "pipeline.%zu.export", place);
    if (o->format == ONNX && (o->names.map || o->names.transpose || o->names.ndim))
        return tr_node_fail(
            item->at, "%s: map, transpose and ndim go with format: safetensors, npz or hdf5", key);
    if (as_taken(&o->names))
        return o->names.transpose || o->names.ndim
                   ? tr_node_fail(o->names.map,
                                  "%s.map: init_from brings transpose and ndim: expected "
                                  "none beside it",
                                  key)
                   : TR_OK;
    const tr_status st = tr_renames_read(&o->names, key, &names);
    if (st == TR_OK) tr_renames_free(&names);
    return st;
}

static tr_status check(const tr_config *c, size_t place)
{
    const tr_list_item *item = &c->pipeline.items[place];
    const export_options *o = item->options;
    if ((o->format == ONNX && dtypes[o->weights] == TR_BF16) ||
        ((o->format == NPZ || o->format == HDF5) && dtypes[o->weights] != TR_F32))
        return tr_stage_fail(c, place, "weights", "%s does not store %s", formats[o->format],
                             types[o->weights]);
    if (o->format != ONNX && o->sequence != AUTO)
        return tr_stage_fail(c, place, "sequence", "%s: only with format: onnx",
                             sequences[o->sequence]);
    return check_names(item, place);
}

/* Those of the config's own start, which files of stages do not say. */
static tr_status names_of_start(const tr_config *c, const export_options *o, const char *key,
                                tr_renames *out)
{
    tr_init_from from;
    tr_status st = tr_config_init_from(c, &from);
    if (st != TR_OK) return st;
    if (!from.file)
        return tr_node_fail(o->names.map,
                            "%s.map: init_from: %s has no model.init_from: expected a map of "
                            "patterns",
                            key, c->file);
    *out = from.names;
    from.names = (tr_renames){.rules = NULL};
    if (!out->at.map) { /* nor has it a map that could be at fault */
        out->at.map = o->names.map;
        snprintf(out->map_key, sizeof out->map_key, "%.47s", key);
    }
    tr_init_from_free(&from);
    return TR_OK;
}

static tr_status names_of(const tr_config *c, const export_options *o, const char *key,
                          tr_renames *out)
{
    return as_taken(&o->names) ? names_of_start(c, o, key, out)
                               : tr_renames_read(&o->names, key, out);
}

static tr_tensors_format tensors_format(const export_options *o)
{
    return (tr_tensors_format)(o->format - SAFETENSORS + TR_TENSORS_SAFETENSORS);
}

/* ---- The model, before it is trained --------------------------------------------------------- */

/* What the last error says is so for certain; or, where stages before may still change it, it is
 * only told. */
static tr_status found_out(const tr_stage_outlook *o)
{
    if (o->runs || !(o->left & TR_LEAVES_NAMES)) return TR_CONFIG;
    tr_log(TR_LOG_INFO,
           "%s (of the model as it is now; stages before may change that, and it is looked at "
           "again when the stage begins)",
           tr_last_error()->text);
    return TR_OK;
}

static tr_status find_sequence(const tr_model *m, const export_options *o, const char *key,
                               tr_onnx_sequence *s, char *fixed, size_t size)
{
    tr_status st = TR_OK;
    *fixed = 0;
    TR_TRY(tr_onnx_find_sequence(m, s));
    if (s->layer)
        snprintf(fixed, size, "layer \"%s\" (%s): %s", s->layer->name,
                 tr_op_def_name(s->layer->def), s->why);
    TR_NEED(o->sequence != DYNAMIC || (s->rows > 0 && !s->layer), TR_UNSUPPORTED,
            "%s.sequence: dynamic: %s", key,
            s->layer ? fixed : "no input of the model is a sequence");
out:
    return st;
}

static tr_status check_model(const tr_stage_outlook *o)
{
    const tr_list_item *item = &o->config->pipeline.items[o->place];
    const export_options *e = item->options;
    tr_status st;
    char key[TR_STAGE_KEY], fixed[SEQUENCE_TEXT];
    tr_onnx_sequence s;
    tr_renames names;
    snprintf(key, sizeof key, "pipeline.%zu.export", o->place);
    if (e->format == ONNX) {
        st = find_sequence(o->model, e, key, &s, fixed, sizeof fixed);
        if (st != TR_UNSUPPORTED) return st;
        (void)tr_node_blame(tr_node_get(tr_node_get(item->at, "export"), "sequence"), TR_CONFIG);
        return found_out(o);
    }
    if (!e->names.map && !e->names.transpose && !e->names.ndim) return TR_OK;
    TR_TRY(names_of(o->config, e, key, &names));
    st = tr_tensors_check(o->model, &names, tensors_format(e));
    tr_renames_free(&names);
    if (st == TR_CONFIG) st = found_out(o);
out:
    return st;
}

/* ---- The file -------------------------------------------------------------------------------- */

static tr_status write_values(const tr_stage_job *job, const char *path)
{
    const export_options *o = job->options;
    const tr_network *n = job->parent;
    tr_renames names;
    tr_status st = names_of(job->config, o, "export", &names);
    if (st != TR_OK) return st;
    st = o->format == SAFETENSORS
             ? tr_safetensors_write(path, n, &names, dtypes[o->weights], job->sha256)
         : o->format == NPZ ? tr_npz_write(path, n, &names)
                            : tr_hdf5_write(path, n, &names);
    tr_renames_free(&names);
    return st;
}

static tr_onnx_options onnx_options(const tr_stage_job *job)
{
    const export_options *o = job->options;
    return (tr_onnx_options){.opset = o->opset,
                             .weights = dtypes[o->weights],
                             .config = job->parent_config,
                             .fixed_sequence = o->sequence == FIXED,
                             .normalize = o->normalize,
                             .source_sha256 = job->sha256,
                             .external_over = (uint64_t)(o->external_mb * 1e6)};
}

static tr_status write_file(const tr_stage_job *job, const char *path)
{
    const export_options *o = job->options;
    const tr_onnx_options onnx = onnx_options(job);
    return o->format == ONNX ? tr_onnx_write(path, job->parent, &onnx) : write_values(job, path);
}

/* What is to be fed to the graph, and what it gives. */
static tr_status find_values(const tr_stage_job *job)
{
    const tr_onnx_options onnx = onnx_options(job);
    const bool root = tr_comm_topology(job->comm)->rank == 0;
    char *takes = NULL, *gives = NULL;
    tr_status st;
    TR_TRY(tr_onnx_inputs_text(job->parent->model, &onnx, &takes));
    TR_TRY(tr_attrs_add_text(&job->findings->values, "takes", takes));
    if (root) tr_log(TR_LOG_INFO, "export: the graph takes inputs %s", takes);
    TR_TRY(tr_onnx_outputs_text(&onnx, &gives));
    if (gives) TR_TRY(tr_attrs_add_text(&job->findings->values, "gives", gives));
    if (gives && root) tr_log(TR_LOG_INFO, "export: the graph gives %s", gives);
out:
    tr_free(takes);
    tr_free(gives);
    return st;
}

/* Which dimensions of the graph are any number, and why not the sequences'. */
static tr_status find_dimensions(const tr_stage_job *job)
{
    const export_options *o = job->options;
    tr_attrs *to = &job->findings->values;
    tr_onnx_sequence s;
    char text[SEQUENCE_TEXT];
    tr_status st = TR_OK;
    TR_TRY(find_sequence(job->parent->model, o, "export", &s, text, sizeof text));
    const bool any = s.rows > 0 && !s.layer;
    TR_TRY(tr_attrs_add_text(to, "dynamic",
                             any && o->sequence != FIXED ? "batch, sequence" : "batch"));
    if (!s.layer || o->sequence != AUTO) goto out;
    tr_log(TR_LOG_INFO, "export: sequences keep the model's length: %s", text);
    st = tr_attrs_add_text(to, "sequence_fixed_by", text);
out:
    return st;
}

static char *loader_path(const tr_stage_job *job)
{
    return tr_sprintf("%s.load_model.py", job->path);
}

/* Beside files of values alone. */
static tr_status write_loader(const tr_stage_job *job, const char *path)
{
    const export_options *o = job->options;
    if (o->format == ONNX) return TR_OK;
    char *loader = loader_path(job);
    if (!loader) return tr_last_status();
    tr_status st = tr_tensors_loader(loader, tensors_format(o), path);
    if (st == TR_OK) st = tr_stage_wrote(job, loader);
    tr_free(loader);
    return st;
}

/* Rank 0. *written: the file is there, in the place of an older one. */
static tr_status write_all(const tr_stage_job *job, const char *path, bool *written)
{
    tr_status st = TR_OK;
    char *data = tr_sprintf("%s.data", path); /* of values outside the graph */
    TR_HAVE(data);
    TR_TRY(write_file(job, path));
    *written = true;
    TR_TRY(tr_stage_wrote(job, path));
    if (access(data, F_OK) == 0) TR_TRY(tr_stage_wrote(job, data));
    TR_TRY(write_loader(job, path));
out:
    tr_free(data);
    return st;
}

/* ---- The stage ------------------------------------------------------------------------------- */

/* Of the file, and of the one with an ONNX graph's values beside it; each rank must see what was
 * written. */
static tr_status find_size(const tr_stage_job *job, const char *path, uint64_t *nbytes)
{
    const export_options *o = job->options;
    tr_attrs *to = &job->findings->values;
    struct stat graph, values;
    tr_status st = TR_OK;
    char *data = tr_sprintf("%s.data", path);
    TR_HAVE(data);
    TR_NEED(stat(path, &graph) == 0, TR_IO, "%s: not there once it was written", path);
    const bool apart = o->format == ONNX && stat(data, &values) == 0;
    TR_TRY(tr_attrs_add_text(to, "format", formats[o->format]));
    *nbytes = (uint64_t)graph.st_size + (apart ? (uint64_t)values.st_size : 0);
    TR_TRY(tr_attrs_add_count(to, "bytes", *nbytes));
out:
    tr_free(data);
    return st;
}

static void remove_file(const char *path)
{
    if (path && unlink(path) != 0 && errno != ENOENT)
        tr_log(TR_LOG_WARN, "export: %s could not be removed, and is not to be used: %s", path,
               strerror(errno));
}

/* Rank 0. What was not found to be the model on all ranks goes. */
static void remove_files(const tr_stage_job *job, const char *path)
{
    const export_options *o = job->options;
    const tr_error why = *tr_last_error();
    char *beside = o->format == ONNX ? tr_sprintf("%s.data", path) : loader_path(job);
    remove_file(path);
    remove_file(beside);
    tr_free(beside);
    tr_set_error(&why);
}

/* normalize: false, of a model that takes and gives what the data has. */
static void warn_of_nothing(const tr_stage_job *job)
{
    const tr_config *c = job->parent_config;
    if (c->data.normalize.count > 0 || c->data.normalize_targets.present ||
        tr_comm_topology(job->comm)->rank != 0)
        return;
    tr_log(TR_LOG_WARN,
           "export: normalize: false changes nothing: the model's config has no data.normalize (a "
           "fold with normalize: true puts it into the first layers)");
}

static tr_status run(const tr_stage_job *job, tr_stage_result *out, bool *agreed)
{
    const export_options *o = job->options;
    tr_status st = TR_OK;
    bool written = false;
    char *path = tr_sprintf("%s.%s", job->path, formats[o->format]);
    (void)agreed;
    if (!path)
        st = tr_last_status();
    else if (o->format == ONNX &&
             ((st = find_values(job)) != TR_OK || (st = find_dimensions(job)) != TR_OK))
        ; /* told below */
    else if (tr_comm_topology(job->comm)->rank == 0)
        st = write_all(job, path, &written);
    TR_TRY(tr_agree(job->comm, st, NULL));
    if (o->format == ONNX && !o->normalize) warn_of_nothing(job);
    TR_TRY(tr_agree(job->comm, find_size(job, path, &out->nbytes), NULL));
    if (o->format == ONNX)
        st = tr_export_verify(job, path,
                              &(tr_export_written){.normalize = o->normalize,
                                                   .weights = dtypes[o->weights],
                                                   .samples = (uint64_t)o->samples});
out:
    if (st != TR_OK && written) remove_files(job, path);
    tr_free(path);
    return st;
}

const tr_stage tr_stage_export = {
    .name = "export",
    .doc = "Writes the model as `stages/NN-export.onnx` (or its values as .safetensors, .npz or "
           ".hdf5), "
           "reads an "
           "ONNX file back and compares its answers with the model's",
    .fields = fields,
    .options_size = sizeof(export_options),
    .check = check,
    .check_model = check_model,
    .run = run,
};
