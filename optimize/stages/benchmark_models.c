/* What is measured side by side: run files, each on every device and in every precision that was
 * asked for. */
#include "optimize/stages/benchmark_models.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Places ---------------------------------------------------------------------------------- */

static const char *const devices[] = {"cpu", "cuda"};
static const char *const precisions[] = {"fp32", "bf16", "fp16"};

/* "cuda-fp16"; *precision: TR_BENCHMARK_AUTO where none is named. */
static bool parse_place(const char *text, tr_device *device, int *precision)
{
    const size_t n = strcspn(text, "-");
    bool known = false;
    for (size_t i = 0; i < TR_COUNT(devices); i++)
        if (strlen(devices[i]) == n && memcmp(devices[i], text, n) == 0) {
            *device = i ? TR_DEVICE_CUDA : TR_DEVICE_CPU;
            known = true;
        }
    *precision = TR_BENCHMARK_AUTO;
    if (!known || !text[n]) return known;
    for (int i = 0; i < (int)TR_COUNT(precisions); i++)
        if (strcmp(precisions[i], text + n + 1) == 0) *precision = i;
    return *precision != TR_BENCHMARK_AUTO;
}

static int resolve(const tr_stage_job *job, int precision, bool host)
{
    if (precision != TR_BENCHMARK_AUTO) return precision;
    const int trained = job->config->train.precision;
    return host && trained == TR_PRECISION_FP16 ? TR_PRECISION_FP32 : trained;
}

/* *Collective.* The evaluator's own. */
static void add_own(const tr_stage_job *job, int precision, tr_benchmark_models *m)
{
    tr_bench_place *p = &m->places[m->nplaces++];
    tr_evaluator_place(job->evaluator, &p->backend, &p->ctx, &p->threads);
    p->name = p->backend->name;
    p->precision = (tr_precision)resolve(job, precision, p->backend->host);
}

/* *Collective*, where a place could not be opened. It is written down, and gone on without, also
 * where a GPU is short of memory, which others may hold; but a rank that has none for CPUs ends the
 * job, for that says nothing of the place. */
static tr_status cannot_run(const tr_stage_job *job, const char *text, tr_device device,
                            tr_status st, tr_benchmark_models *m)
{
    tr_bench_missing *missing = &m->missing[m->nmissing];
    if (tr_comm_broken(job->comm)) return st;
    if (m->nmissing == 0) m->first = *tr_last_error();
    snprintf(missing->place, sizeof missing->place, "%s", text);
    snprintf(missing->why, sizeof missing->why, "%s", tr_last_error()->text);
    TR_TRY(tr_agree(job->comm, device == TR_DEVICE_CPU && st == TR_MEMORY ? st : TR_OK, NULL));
    m->nmissing++;
    if (tr_comm_topology(job->comm)->rank == 0)
        tr_log(TR_LOG_WARN, "benchmark: %s cannot run here: %s", text, missing->why);
out:
    return st;
}

/* *Collective.* */
static tr_status add_place(const tr_stage_job *job, const char *text, int precision,
                           tr_benchmark_models *m)
{
    tr_device device;
    int named;
    tr_stage_device d;
    parse_place(text, &device, &named);
    const tr_precision p = (tr_precision)resolve(
        job, named == TR_BENCHMARK_AUTO ? precision : named, device == TR_DEVICE_CPU);
    const tr_status st = job->open_device(job, device, p, &d);
    if (st != TR_OK) return cannot_run(job, text, device, st, m);
    const size_t i = m->nplaces++;
    snprintf(m->place_names[i], sizeof m->place_names[i], "%s", text);
    m->places[i] = (tr_bench_place){m->place_names[i], d.backend, d.ctx, d.threads, p};
    m->own[i] = true;
    return TR_OK;
}

static tr_status open_places(const tr_stage_job *job, const tr_node *places, int precision,
                             tr_benchmark_models *m)
{
    tr_status st = TR_OK;
    if (!places) add_own(job, precision, m);
    for (size_t i = 0; places && i < places->count; i++)
        TR_TRY(add_place(job, places->values[i]->text, precision, m));
    if (m->nplaces == 0) {
        tr_set_error(&m->first);
        return tr_fail_before(TR_KERNEL,
                              "none of `backends` can run here: %s: ", m->missing[0].place);
    }
out:
    return st;
}

/* ---- Models ---------------------------------------------------------------------------------- */

static tr_status find_size(const char *file, double *size)
{
    uint64_t n = 0;
    const tr_status st = tr_store_model_nbytes(file, &n);
    *size = (double)n;
    return st;
}

/* `to`: a line that ranks compare. */
static tr_status read_model(const tr_stage_job *job, const char *path, tr_benchmark_models *m,
                            FILE *to)
{
    tr_status st = TR_OK;
    char sha256[65];
    const size_t i = m->nmodels;
    char *there = tr_stage_file(job->folder, path);
    TR_HAVE(there);
    TR_HAVE(m->names[i] = tr_strdup(path));
    m->nmodels++;
    TR_TRY(tr_network_read(there, NULL, 0, job->config->stages, &m->read[i], &m->configs[i]));
    TR_TRY(find_size(there, &m->sizes[i]));
    TR_TRY(tr_store_sha256(there, sha256));
    fprintf(to, "%s: SHA-256 %s\n", path, sha256);
out:
    tr_free(there);
    return st;
}

static tr_status read_all(const tr_stage_job *job, const tr_node *files, tr_benchmark_models *m,
                          char **text)
{
    tr_status st = TR_OK;
    size_t n;
    FILE *to = open_memstream(text, &n);
    if (!to) return TR_FAIL(TR_MEMORY, "no memory to compare models");
    for (size_t i = 0; i < files->count && st == TR_OK; i++)
        st = read_model(job, files->values[i]->text, m, to);
    if (fclose(to) != 0 && st == TR_OK) st = TR_FAIL(TR_MEMORY, "no memory to compare models");
    return st;
}

/* *Collective.* Each rank reads files of its own, and evaluates with them: they must be the
 * same. */
static tr_status read_models(const tr_stage_job *job, const tr_node *files, tr_benchmark_models *m)
{
    tr_status st = TR_OK;
    char *text = NULL;
    if (files) {
        TR_TRY(tr_agree(job->comm, read_all(job, files, m, &text), NULL));
        TR_TRY(tr_same_text(job->comm, TR_DIFFERENT, "the model", text));
    }
    if (tr_comm_topology(job->comm)->rank == 0)
        st = find_size(job->file, &m->sizes[m->nmodels]); /* others may not see it */
    TR_TRY(tr_agree(job->comm, st, NULL));
    m->nmodels++;
out:
    free(text);
    return st;
}

/* Whether that is how the pipeline evaluated the parent. */
static bool evaluated_before(const tr_stage_job *job, const tr_benchmark_models *m,
                             const tr_bench_model *v)
{
    return !m->own[v->place - m->places] && v->network == job->parent;
}

/* *Collective.* Accuracy of each on its place, where the config evaluates at all. */
static tr_status evaluate(const tr_stage_job *job, tr_benchmark_models *m)
{
    tr_status st = TR_OK;
    const tr_backend *backend;
    void *ctx;
    int threads;
    tr_evaluator *e = job->evaluator;
    const tr_precision before = tr_evaluator_compute(e, TR_PRECISION_FP32);
    tr_evaluator_place(e, &backend, &ctx, &threads);
    for (size_t i = 0; job->before && i < m->count; i++) {
        tr_bench_model *v = &m->v[i];
        tr_evaluation of = *job->before;
        const tr_config *c = m->configs[i / m->nplaces];
        if (m->own[v->place - m->places]) {
            tr_evaluator_move(e, v->place->backend, v->place->ctx, v->place->threads);
            tr_evaluator_compute(e, v->place->precision);
        } else
            tr_evaluator_compute(e, before);
        if (!evaluated_before(job, m, v))
            TR_TRY(tr_evaluate(e, v->network, c ? c : job->parent_config, &of));
        v->accuracy = of.accuracy;
    }
out:
    tr_evaluator_move(e, backend, ctx, threads);
    tr_evaluator_compute(e, before);
    return st;
}

/* ---- All ------------------------------------------------------------------------------------- */

static tr_status check_list(const tr_node *list, const char *key, const char *what, size_t most)
{
    if (list->kind != TR_NODE_LIST || list->count > most)
        return tr_node_fail(list, "%s: expected a list of at most %zu %ss", key, most, what);
    for (size_t i = 0; i < list->count; i++)
        if (list->values[i]->kind != TR_NODE_SCALAR)
            return tr_node_fail(list->values[i], "%s: expected a %s", key, what);
    return TR_OK;
}

tr_status tr_benchmark_models_check(const tr_config *c, size_t place, const tr_node *files,
                                    const tr_node *places)
{
    tr_status st = TR_OK;
    tr_device device;
    int precision;
    char key[TR_STAGE_KEY];
    tr_stage_key(c, place, "models", key);
    if (files) TR_TRY(check_list(files, key, "run file", TR_BENCHMARK_MODELS - 1));
    if (!places) goto out;
    tr_stage_key(c, place, "backends", key);
    TR_TRY(check_list(places, key, "backend", TR_BENCHMARK_PLACES));
    if (places->count == 0) return tr_node_fail(places, "%s: none to measure", key);
    for (size_t i = 0; i < places->count; i++) {
        const tr_node *n = places->values[i];
        if (!parse_place(n->text, &device, &precision))
            return tr_node_fail(n,
                                "%s: found \"%s\"; expected cpu or cuda, "
                                "alone or with a precision: cpu-fp32, cpu-bf16, cuda-fp16",
                                key, n->text);
        for (size_t k = 0; k < i; k++)
            if (strcmp(places->values[k]->text, n->text) == 0)
                return tr_node_fail(n, "%s: %s stands twice", key, n->text);
    }
out:
    return st;
}

tr_status tr_benchmark_models_open(const tr_stage_job *job, const tr_node *files,
                                   const tr_node *places, int precision, tr_benchmark_models *m)
{
    tr_status st;
    *m = (tr_benchmark_models){0};
    TR_TRY(read_models(job, files, m));
    TR_TRY(open_places(job, places, precision, m));
    for (size_t i = 0; i < m->nmodels; i++)
        for (size_t k = 0; k < m->nplaces; k++)
            m->v[m->count++] = (tr_bench_model){.name = m->read[i] ? m->names[i] : "this",
                                                .network = m->read[i] ? m->read[i] : job->parent,
                                                .place = &m->places[k],
                                                .size = m->sizes[i],
                                                .accuracy = NAN};
    TR_TRY(evaluate(job, m));
out:
    return st;
}

void tr_benchmark_models_close(tr_benchmark_models *m)
{
    const tr_error why = *tr_last_error();
    for (size_t i = 0; i < TR_BENCHMARK_MODELS; i++) {
        tr_network_close(m->read[i]);
        tr_config_close(m->configs[i]);
        tr_free(m->names[i]);
    }
    for (size_t i = 0; i < m->nplaces; i++)
        if (m->own[i]) m->places[i].backend->close(m->places[i].ctx);
    tr_set_error(&why);
}
