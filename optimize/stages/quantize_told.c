/* What the stage `quantize` says: layers that keep floats for what they are, what was found of each
 * layer, and what may surprise. */
#include "optimize/stages/quantize_told.h"

#include <math.h>

#include "optimize/stages/stages.h"
#include "runtime/graph/facts.h"

/* ---- Floats ---------------------------------------------------------------------------------- */

const char *tr_quantize_why_none(const tr_stage_outlook *o, size_t could, char text[TR_ERROR_TEXT])
{
    const tr_model *m = o->model;
    char floats[TR_ERROR_TEXT - 2];
    if (o->left & TR_LEAVES_16_BITS) return ": a stage before keeps weights in 16 bits";
    if (o->left & TR_LEAVES_ALL_INT8) return ": a stage before keeps those that could in 8 bits";
    if (could > 0) return ": a sketch stands before that takes those that could";
    for (size_t i = 0; i < m->nparams; i++) {
        if (m->params[i].stored == TR_I8) return ": those that could are in 8 bits already";
        if (m->params[i].stored != TR_F32) return ": weights are kept in 16 bits";
    }
    if (tr_quantize_floats(m, true, floats, sizeof floats) == 0) return "";
    snprintf(text, TR_ERROR_TEXT, ": %s", floats);
    return text;
}

/* What the choice of layers does not say. */
void tr_quantize_tell_floats(const tr_stage_job *job, bool int8)
{
    char why[TR_ERROR_TEXT - 64];
    const size_t n = tr_quantize_floats(job->parent->model, int8, why, sizeof why);
    if (n > 0 && tr_comm_topology(job->comm)->rank == 0)
        tr_log(TR_LOG_INFO, "quantize: in floats as before: %s", why);
}

/* ---- Findings -------------------------------------------------------------------------------- */

/* The table of layers. */
static tr_status report(const tr_stage_job *job, const tr_quantize_asked *o,
                        const tr_int8_layer *found, bool timed)
{
    tr_status st = TR_OK;
    const tr_model *m = job->parent->model;
    static const char *const names[] = {"int8",
                                        "weight_sqnr_db",
                                        "output_sqnr_db",
                                        "weight_sqnr_nearest_db",
                                        "output_sqnr_nearest_db",
                                        "float_us",
                                        "int8_us",
                                        "input_scale"};
    enum { COLUMNS = TR_COUNT(names) };
    const bool wanted[COLUMNS] = {true,  true,  o->outputs, o->refined, o->refined && o->outputs,
                                  timed, timed, !o->dynamic};
    const char **rows = tr_alloc(TR_MEM_OTHER, m->nlayers, sizeof *rows);
    double *v = tr_alloc(TR_MEM_OTHER, COLUMNS * m->nlayers, sizeof *v);
    TR_HAVE(rows && v);
    size_t n = 0;
    for (size_t i = 0; i < m->nlayers; i++) {
        const tr_layer *l = &m->layers[i];
        const tr_int8_layer *k = &found[i];
        if (!tr_layer_product(l, NULL)) continue;
        const double row[COLUMNS] = {k->is_int8,
                                     k->weight_sqnr,
                                     k->output_sqnr,
                                     k->weight_sqnr_nearest,
                                     k->output_sqnr_nearest,
                                     k->float_us,
                                     k->int8_us,
                                     k->input.scale};
        for (size_t c = 0; c < COLUMNS; c++) v[c * m->nlayers + n] = row[c];
        rows[n++] = l->name;
    }
    TR_TRY(tr_findings_table(job->findings, "layers", n, rows));
    for (size_t c = 0; c < COLUMNS; c++)
        if (wanted[c]) TR_TRY(tr_findings_column(job->findings, names[c], v + c * m->nlayers));
out:
    tr_free(rows);
    tr_free(v);
    return st;
}

static tr_status tell(const tr_stage_job *job, const tr_quantize_asked *o,
                      const tr_int8_story *story, bool made)
{
    tr_status st = TR_OK;
    tr_attrs *a = &job->findings->values;
    if (o->equalize) TR_TRY(tr_attrs_add_count(a, "equalized_pairs", story->pairs));
    if (!isnan(story->float_ms)) TR_TRY(tr_attrs_add_real(a, "float_ms", story->float_ms));
    if (!isnan(story->int8_ms) && made) TR_TRY(tr_attrs_add_real(a, "int8_ms", story->int8_ms));
    if (o->all) goto out;
    TR_TRY(tr_attrs_add_count(a, "choice_comparisons", (uint64_t)story->comparisons));
    TR_TRY(tr_attrs_add_count(a, "choice_evaluations", (uint64_t)story->evaluations));
    TR_TRY(tr_attrs_add_real(a, "choice_seconds", story->seconds));
    TR_TRY(tr_attrs_add_text(a, "choice_ended",
                             story->cut ? "by `seconds`: not all layers were tried apart"
                                        : "all that was worth trying was tried"));
out:
    return st;
}

/* Rank 0. What may surprise: it is slower, as nothing was chosen by time; or nothing is in 8
 * bits. */
static void warn(const tr_stage_job *job, const tr_quantize_asked *o, const tr_int8_story *story,
                 bool made)
{
    const double margin = 1.02; /* what `layers: auto` goes by, too */
    char took[120];
    if (tr_comm_topology(job->comm)->rank != 0) return;
    snprintf(took, sizeof took, "a call of %lld sample%s takes %.4g ms, before %.4g ms",
             (long long)o->batch, o->batch == 1 ? "" : "s", story->int8_ms, story->float_ms);
    if (made && o->all && story->int8_ms > margin * story->float_ms)
        tr_log(TR_LOG_WARN,
               "quantize: in 8 bits %s: with layers: auto those stay floats that make it slower",
               took);
    if (made) return;
    tr_log(TR_LOG_WARN,
           "quantize: no layer is worth 8 bits here (%s%s): the model stays as it is; layers: all "
           "rounds them all the same",
           story->int8_ms < story->float_ms
               ? "loss or accuracy suffer too much; with those tried last "
               : "with those tried last ",
           took);
}

tr_status tr_quantize_tell(const tr_stage_job *job, const tr_quantize_asked *o,
                           const tr_int8_layer *found, const tr_int8_story *story, bool made)
{
    tr_status st = report(job, o, found, !isnan(story->float_ms));
    if (st == TR_OK) st = tell(job, o, story, made);
    warn(job, o, story, made);
    return st;
}
