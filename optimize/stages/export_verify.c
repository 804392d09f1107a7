/* What the stage `export` wrote as ONNX, read back and run on data beside the network that it was
 * written of. */
#include "optimize/stages/export_verify.h"

#include "optimize/onnx/onnx.h"
#include "optimize/stages/readback.h"

/* The config of a file that takes values as the data files have them, so with what its own first
 * nodes do to them; NULL: the job's, whose inputs are normalized in front of the graph. */
static tr_status config_of(const tr_stage_job *job, const tr_export_written *w,
                           const tr_onnx_found *found, tr_config **out)
{
    tr_status st = TR_OK;
    char *over[2] = {NULL, NULL};
    size_t n = 0;
    if (!w->normalize && !found->normalize) return TR_OK;
    over[n++] = tr_sprintf("data.normalize=%s", found->normalize ? found->normalize : "{}");
    if (found->normalize_targets || job->parent_config->data.normalize_targets.present)
        over[n++] = tr_sprintf("data.normalize_targets=%s",
                               found->normalize_targets ? found->normalize_targets : "{}");
    TR_HAVE(over[0] && (n == 1 || over[1]));
    const tr_overrides all = {.texts = (const char *const *)over, .count = n};
    st = tr_config_derive(job->parent_config, &all, out);
out:
    tr_free(over[0]);
    tr_free(over[1]);
    return st;
}

/* In float32, as the file has them. */
static bool alike(const tr_reals *a, const tr_reals *b, double absent)
{
    const size_t n = a->count > b->count ? a->count : b->count;
    for (size_t i = 0; i < n; i++) {
        const double x = a->count ? a->v[i % a->count] : absent;
        const double y = b->count ? b->v[i % b->count] : absent;
        if ((float)x != (float)y) return false;
    }
    return true;
}

/* What the file makes of its outputs behind those that are compared must be what the model's own
 * targets are. */
static tr_status check_targets(const tr_stage_job *job, const char *path, const tr_config *c)
{
    const tr_normalize_config *a = &job->parent_config->data.normalize_targets.stats;
    const tr_normalize_config *b = &c->data.normalize_targets.stats;
    return alike(&a->mean, &b->mean, 0) && alike(&a->std, &b->std, 1)
               ? TR_OK
               : TR_FAIL(TR_DATA, "%s: read back, it gives targets in other units than the model's",
                         path);
}

/* *Collective.* */
static tr_status compare(const tr_stage_job *job, const char *path, const tr_export_written *w,
                         const tr_network *back, const tr_config *c, tr_over_source source)
{
    const tr_readback r = {.evaluator = job->evaluator,
                           .source = source,
                           .samples = w->samples,
                           .model = job->parent,
                           .file = back,
                           .model_config = job->parent_config,
                           .file_config = c ? c : job->parent_config,
                           .run = job->config,
                           .weights = w->weights,
                           .path = path};
    tr_status st = TR_OK;
    tr_readback_found found = {0};
    TR_TRY(tr_readback_compare(&r, &found));
    st = tr_attrs_add_real(&job->findings->values, "max_abs_difference", found.apart);
    if (st == TR_OK) st = tr_attrs_add_real(&job->findings->values, "max_abs_output", found.most);
    if (st == TR_OK)
        st = tr_attrs_add_text(&job->findings->values, "compared_on", tr_over_source_name(source));
    TR_TRY(tr_agree(job->comm, st, NULL));
out:
    return st;
}

/* *Collective.* Where no data is at hand it is said that nothing was compared. */
static tr_status compare_on_data(const tr_stage_job *job, const char *path,
                                 const tr_export_written *w, const tr_network *back,
                                 const tr_config *c)
{
    tr_over_source source;
    char why[TR_ERROR_TEXT];
    tr_status st;
    TR_TRY(tr_stage_source(job, &source, why));
    if (!why[0]) return compare(job, path, w, back, c, source);
    if (tr_comm_topology(job->comm)->rank == 0)
        tr_log(TR_LOG_WARN,
               "export: %s was read back, but its answers were compared with the model's on no "
               "data: %s",
               path, why);
    st = tr_agree(job->comm, tr_attrs_add_text(&job->findings->values, "not_compared", why), NULL);
out:
    return st;
}

tr_status tr_export_verify(const tr_stage_job *job, const char *path, const tr_export_written *w)
{
    /* what the data's targets are for */
    const tr_onnx_import in = {.loss = &job->parent->model->loss_config};
    tr_network *back = NULL;
    tr_onnx_found found = {0};
    tr_config *c = NULL;
    tr_status st = tr_onnx_read(path, &in, &back, &found);
    if (st == TR_OK) st = config_of(job, w, &found, &c);
    if (st == TR_OK && c) st = check_targets(job, path, c);
    TR_TRY(tr_agree(job->comm, st, NULL));
    TR_TRY(compare_on_data(job, path, w, back, c));
out:
    tr_config_close(c);
    tr_onnx_found_free(&found);
    tr_network_close(back);
    return st;
}
