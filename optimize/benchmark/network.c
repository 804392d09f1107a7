/* Networks over batch sizes: an engine each, so that what is measured is what a program gets that
 * opens one for that batch. */
#include "optimize/benchmark/benchmark.h"

#include <math.h>
#include <string.h>

typedef struct {
    tr_inference *engine;
    int64_t batch;
    void *inputs[TR_MAX_IN];
    float *output;
    double rss_sum, rss_peak;
    size_t samples;
    const tr_backend *backend; /* whose counters are looked at */
    void *backend_ctx;
    double gpu_sum, gpu_peak;
    size_t gpu_samples, gpu_looks; /* in which its use was known; of its memory */
} subject;

/* Normal values; ids in their range. */
static tr_status make_input(const tr_network *n, subject *s, size_t which)
{
    const tr_inference_value v = tr_inference_input(s->engine, which);
    const size_t count = v.count * (size_t)s->batch;
    float *x = tr_alloc(TR_MEM_IO, count, sizeof *x), pair[2];
    if (!x) return tr_last_status();
    s->inputs[which] = x;
    for (size_t i = 0; i < count; i++) {
        const tr_philox r = tr_philox_at(0, TR_RNG_SYNTHETIC, (uint32_t)which, i, 0);
        const int32_t id = v.ids ? (int32_t)(r.v[0] % (uint64_t)n->model->inputs[which].ids) : 0;
        tr_normal2(r.v[0], r.v[1], pair);
        if (v.ids)
            memcpy(&x[i], &id, sizeof id);
        else
            x[i] = pair[0];
    }
    return TR_OK;
}

static tr_status answer(void *ctx)
{
    subject *s = ctx;
    return tr_inference_run(s->engine, (const void *const *)s->inputs, s->batch, &s->output);
}

static void look_at_device(subject *s)
{
    tr_device_load l;
    if (!s->backend->load || !s->backend->load(s->backend_ctx, &l)) return;
    s->gpu_looks++;
    if ((double)l.used > s->gpu_peak) s->gpu_peak = (double)l.used;
    if (isnan(l.utilization)) return;
    s->gpu_samples++;
    s->gpu_sum += l.utilization;
}

static void look(void *ctx)
{
    subject *s = ctx;
    look_at_device(s);
    const double rss = (double)tr_mem_rss();
    s->rss_sum += rss;
    s->samples++;
    if (rss > s->rss_peak) s->rss_peak = rss;
}

static void subject_close(subject *s)
{
    tr_inference_close(s->engine);
    for (size_t k = 0; k < TR_COUNT(s->inputs); k++) tr_free(s->inputs[k]);
    tr_free(s->output);
}

static tr_inference_options engine_of(const tr_benchmark_options *o, const tr_bench_place *p,
                                      int64_t batch)
{
    return (tr_inference_options){.backend = p->backend,
                                  .backend_ctx = p->ctx,
                                  .threads = p->threads,
                                  .max_batch = batch,
                                  .precision = p->precision,
                                  .skip_passes = o->skip_passes};
}

static tr_status subject_open(const tr_benchmark_options *o, const tr_bench_model *m, int64_t batch,
                              subject *s, double *seconds)
{
    tr_status st = TR_OK;
    const tr_bench_place *p = m->place;
    const tr_inference_options e = engine_of(o, p, batch);
    *s = (subject){.batch = batch, .backend = p->backend, .backend_ctx = p->ctx};
    const double begin = tr_now();
    TR_TRY(tr_inference_open(m->network, &e, &s->engine));
    *seconds = tr_now() - begin;
    for (size_t k = 0; k < tr_inference_inputs(s->engine); k++)
        TR_TRY(make_input(m->network, s, k));
    s->output = tr_alloc(TR_MEM_IO, tr_inference_output(s->engine, 0).count * (size_t)batch,
                         sizeof *s->output);
    TR_HAVE(s->output);
out:
    return st;
}

static void fill_row(const subject *s, tr_bench_row *row)
{
    tr_memory_plan memory;
    tr_inference_memory(s->engine, &memory);
    for (size_t k = 0; k < TR_MEM_KINDS; k++) row->memory += (double)memory.bytes[k];
    row->rss_peak = s->rss_peak;
    row->rss_mean = s->samples ? s->rss_sum / (double)s->samples : 0;
    row->gpu_percent = s->gpu_samples ? s->gpu_sum / (double)s->gpu_samples : NAN;
    row->gpu_memory = s->gpu_looks ? s->gpu_peak : NAN;
    row->batches_per_s = 1 / row->timing.spread.percent[50];
    row->samples_per_s = row->batches_per_s * (double)s->batch;
}

/* Values of a sample that the engine is given, and gives. */
static size_t values_of(const tr_model *m)
{
    const tr_shape *out = &m->layers[m->nlayers - 1].output;
    size_t n = 1;
    for (int d = 0; d < out->ndim; d++) n *= (size_t)out->dims[d];
    for (size_t i = 0; i < m->ninputs; i++) {
        size_t count = 1;
        for (int d = 0; d < m->inputs[i].ndim; d++) count *= (size_t)m->inputs[i].dims[d];
        n += count;
    }
    return n;
}

tr_status tr_benchmark_needs(const tr_benchmark_options *o, int64_t batch, size_t *nbytes)
{
    tr_status st = TR_OK;
    *nbytes = 0;
    for (size_t k = 0; k < o->nmodels; k++) {
        const tr_network *n = o->models[k].network;
        const tr_inference_options e = engine_of(o, o->models[k].place, batch);
        size_t engine;
        TR_TRY(tr_inference_needs(n, &e, &engine));
        *nbytes += engine + values_of(n->model) * (size_t)batch * sizeof(float);
    }
out:
    return st;
}

static tr_bench_options calls_of(const tr_benchmark_options *o)
{
    return (tr_bench_options){.seconds = o->seconds,
                              .runs = o->runs,
                              .seed = o->seed,
                              .stop = o->stop,
                              .stop_ctx = o->stop_ctx};
}

/* All models at one batch, in turns. */
static tr_status measure(const tr_benchmark_options *o, size_t which, tr_benchmark *b)
{
    tr_status st = TR_OK;
    subject *s = tr_alloc(TR_MEM_OTHER, o->nmodels, sizeof *s);
    tr_bench_subject *subjects = tr_alloc(TR_MEM_OTHER, o->nmodels, sizeof *subjects);
    const tr_bench_options bo = calls_of(o);
    TR_HAVE(s && subjects);
    for (size_t k = 0; k < o->nmodels; k++) {
        tr_bench_row *row = &b->rows[k * o->nbatches + which];
        subjects[k] = (tr_bench_subject){
            .call = answer, .sample = look, .ctx = &s[k], .timing = &row->timing};
        TR_TRY(subject_open(o, &o->models[k], o->batches[which], &s[k], &row->load));
    }
    TR_TRY(tr_bench_calls(&bo, subjects, o->nmodels));
    for (size_t k = 0; k < o->nmodels; k++) fill_row(&s[k], &b->rows[k * o->nbatches + which]);
out:
    for (size_t k = 0; s && k < o->nmodels; k++) subject_close(&s[k]);
    tr_free(s);
    tr_free(subjects);
    return st;
}

static tr_status load(const tr_benchmark_options *o, const tr_bench_model *m, double rate,
                      tr_load *out)
{
    tr_status st = TR_OK;
    subject s;
    double seconds;
    tr_timing warm;
    const tr_bench_options b = calls_of(o);
    const tr_bench_options none = {.seed = o->seed, .stop = o->stop, .stop_ctx = o->stop_ctx};
    TR_TRY(subject_open(o, m, 1, &s, &seconds));
    const tr_bench_subject one = {.call = answer, .ctx = &s, .timing = &warm};
    TR_TRY(tr_bench_calls(&none, &one, 1));
    TR_TRY(tr_bench_load(&b, rate, answer, &s, out));
out:
    subject_close(&s);
    return st;
}

tr_status tr_benchmark_open(const tr_benchmark_options *o, tr_benchmark **out)
{
    tr_status st = TR_OK;
    tr_benchmark *b = TR_NEW(TR_MEM_OTHER, tr_benchmark);
    if (!b) return tr_last_status();
    b->nrows = o->nmodels * o->nbatches;
    b->nloads = o->nmodels * o->nrates;
    b->nbest = o->target > 0 ? o->nmodels : 0;
    b->target = o->target;
    b->missing = o->missing;
    b->nmissing = o->nmissing;
    b->rows = tr_alloc(TR_MEM_OTHER, b->nrows, sizeof *b->rows);
    b->loads = tr_alloc(TR_MEM_OTHER, b->nloads, sizeof *b->loads);
    b->best = tr_alloc(TR_MEM_OTHER, b->nbest, sizeof *b->best);
    TR_HAVE(b->rows && b->loads && b->best);
    *out = b;
out:
    if (st != TR_OK) tr_benchmark_close(b);
    return st;
}

void tr_benchmark_close(tr_benchmark *b)
{
    if (!b) return;
    tr_free(b->rows);
    tr_free(b->loads);
    tr_free(b->best);
    tr_free(b);
}

void tr_benchmark_find_best(const tr_benchmark_options *o, tr_benchmark *b, size_t model)
{
    tr_bench_best *best = &b->best[model];
    const tr_bench_row *rows = &b->rows[model * o->nbatches];
    double most = 0;
    snprintf(best->name, sizeof best->name, "%s", o->models[model].name);
    snprintf(best->place, sizeof best->place, "%s", o->models[model].place->name);
    best->precision = o->models[model].place->precision;
    for (size_t i = 0; i < o->nbatches; i++) {
        if (rows[i].timing.spread.percent[50] > o->target || rows[i].samples_per_s <= most)
            continue;
        most = rows[i].samples_per_s;
        best->batch = rows[i].batch;
    }
}

static void name_row(const tr_bench_model *m, int64_t batch, tr_bench_row *row)
{
    snprintf(row->name, sizeof row->name, "%s", m->name);
    snprintf(row->place, sizeof row->place, "%s", m->place->name);
    row->precision = m->place->precision;
    row->batch = batch;
    row->size = m->size;
    row->accuracy = m->accuracy;
}

tr_status tr_benchmark_run(const tr_benchmark_options *o, tr_benchmark *b)
{
    tr_status st = TR_OK;
    for (size_t i = 0; i < o->nbatches; i++) {
        for (size_t k = 0; k < o->nmodels; k++)
            name_row(&o->models[k], o->batches[i], &b->rows[k * o->nbatches + i]);
        TR_TRY(measure(o, i, b));
        for (size_t k = 0; k < o->nmodels; k++) {
            tr_bench_row *row = &b->rows[k * o->nbatches + i];
            row->speedup = row->samples_per_s / b->rows[i].samples_per_s;
        }
    }
    for (size_t k = 0; k < o->nmodels; k++) {
        const tr_bench_model *m = &o->models[k];
        for (size_t i = 0; i < o->nrates; i++) {
            tr_bench_load_row *row = &b->loads[k * o->nrates + i];
            snprintf(row->name, sizeof row->name, "%s", m->name);
            snprintf(row->place, sizeof row->place, "%s", m->place->name);
            row->precision = m->place->precision;
            TR_TRY(load(o, m, o->rates[i], &row->load));
        }
        if (o->target > 0) tr_benchmark_find_best(o, b, k);
    }
out:
    return st;
}
