/* The passes over the graph of what a stage made, proven on data: what it finds of each, and what
 * it says of those that the model is to do without. */
#include "optimize/evaluation/graph_proof.h"
#include "optimize/stages/stages.h"

static bool is_undone(const tr_graph_proven *r, int i)
{
    return (r->undone & TR_PASS_IS(i)) != 0;
}

/* Rows are of those that find something; there may be none. */
static tr_status say(tr_findings *f, const tr_graph_proven *r, double bound)
{
    tr_status st = TR_OK;
    const char *names[TR_GRAPH_PASSES];
    double count[TR_GRAPH_PASSES], difference[TR_GRAPH_PASSES], undone[TR_GRAPH_PASSES];
    size_t n = 0;
    for (int i = 0; i < TR_GRAPH_PASSES; i++) {
        if (r->found[i] == 0 && !is_undone(r, i)) continue;
        names[n] = tr_graph_pass_at((tr_graph_pass_id)i)->name;
        count[n] = (double)r->found[i];
        difference[n] = r->difference[i];
        undone[n++] = is_undone(r, i);
    }
    if (n == 0) return TR_OK;
    TR_TRY(tr_findings_table(f, "graph_passes", n, names));
    TR_TRY(tr_findings_column(f, "count", count));
    TR_TRY(tr_findings_column(f, "difference", difference));
    TR_TRY(tr_findings_column(f, "undone", undone));
    for (size_t k = 0; k < n; k++) {
        char name[TR_NAME], text[128];
        if (undone[k] == 0) continue;
        snprintf(name, sizeof name, "note_graph_%s", names[k]);
        snprintf(text, sizeof text, "outputs differ by %.3g, the bound is %.3g", difference[k],
                 bound);
        TR_TRY(tr_attrs_add_text(&f->values, name, text));
    }
out:
    return st;
}

static void warn(const tr_stage_job *job, const tr_graph_proven *r, double bound)
{
    for (int i = 0; i < TR_GRAPH_PASSES && tr_comm_topology(job->comm)->rank == 0; i++)
        if (is_undone(r, i))
            tr_log(TR_LOG_WARN,
                   "%s: with the pass over the graph \"%s\" outputs differ by %.3g, the bound is "
                   "%.3g: from here on the model is computed without it (model.skip_passes)",
                   tr_stage_name(job->config, job->place),
                   tr_graph_pass_at((tr_graph_pass_id)i)->name, r->difference[i], bound);
}

tr_status tr_stage_prove_graph(const tr_stage_job *job, const tr_config *c, uint64_t samples,
                               double bound, tr_network *made)
{
    tr_status st;
    tr_graph_proven r;
    tr_graph_proof p = {.network = made,
                        .config = c,
                        .samples = samples,
                        .skip = tr_graph_skip(job->config),
                        .bound = bound};
    char why[TR_ERROR_TEXT];
    TR_TRY(tr_stage_source(job, &p.source, why));
    if (why[0]) {
        if (tr_comm_topology(job->comm)->rank == 0)
            tr_log(TR_LOG_WARN, "%s: the passes over the graph were proven on no data: %s",
                   tr_stage_name(job->config, job->place), why);
        return TR_OK;
    }
    TR_TRY(tr_graph_prove(job->evaluator, &p, &r));
    made->model->skip_passes |= r.undone;
    warn(job, &r, bound);
    st = tr_agree(job->comm, say(job->findings, &r, bound), NULL);
out:
    return st;
}
