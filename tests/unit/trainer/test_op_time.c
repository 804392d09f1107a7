/* links: trireme_cpu trireme_plan */
/* How long ops are said to take: without a profile as batches went that were measured once; from a
 * profile of one batch, of two, of a layer with two ops of one name, of ops that run again. Nothing
 * is timed here. */
#include "given.h"

#include <sys/stat.h>
#include <unistd.h>

#include "kernels/cpu/cpu.h"
#include "runtime/store/store.h"
#include "trainer/plan/op_time.h"

#define LSTM                                                                                       \
    "  input: [64, 64]\n  layers:\n    - lstm: {hidden: 256, layers: 2, output: last}\n"           \
    "    - linear: {out: 10}\n  loss: cross_entropy\n"
#define GPT                                                                                        \
    "  input: [256]\n  layers:\n    - embedding: {num: 256, dim: 384}\n"                           \
    "    - transformer: {layers: 2, heads: 6, causal: true}\n    - linear: {out: 256}\n"           \
    "  loss: cross_entropy\n"

/* A model, planned on a CPU, and the run folder that is looked into. */
typedef struct {
    char folder[32];
    tr_config *c;
    tr_model *m;
    void *cpu;
    tr_session *s;
    tr_op_time *time;
    tr_findings *found;
    tr_lineage lineage;
} job;

static void ok(tr_status st)
{
    if (st != TR_OK) fail_msg("%s", tr_last_error()->text);
}

static void begin(job *j, const char *model, int recompute)
{
    enum { N = 8 };
    tr_plan_key keys[N];
    *j = (job){.folder = "/tmp/op-time-XXXXXX"};
    assert_non_null(mkdtemp(j->folder));
    char *text =
        tr_sprintf("name: test\noutput: %s\ndata: {train: {format: synthetic, samples: 100}}\n"
                   "model:\n%strain: {batch: 64, steps: 1}\n",
                   j->folder, model);
    ok(tr_config_open("test.yaml", text, strlen(text), NULL, 0, NULL, &j->c));
    tr_free(text);
    ok(tr_model_open(j->c, 0, &j->m));
    ok(tr_cpu_backend.open(&(tr_backend_options){0}, &j->cpu));
    for (int i = 0; i < N; i++)
        keys[i] = (tr_plan_key){.mode = TR_MODE_TRAIN, .batch = (int64_t)1 << i};
    ok(tr_session_open(&(tr_session_options){.model = j->m,
                                             .trained = true,
                                             .backend = &tr_cpu_backend,
                                             .backend_ctx = j->cpu,
                                             .threads = 1,
                                             .ranks = 1,
                                             .recompute = recompute,
                                             .keys = keys,
                                             .nkeys = N,
                                             .dry = true},
                       &j->s));
    ok(tr_lineage_add(&j->lineage, "01-profile", &j->found));
}

static void look(job *j, tr_time_source source)
{
    tr_op_time_close(j->time);
    ok(tr_op_time_open(j->c, &tr_cpu_backend, j->cpu, 1, &j->time));
    assert_int_equal(tr_op_time_source(j->time), source);
}

static void end(job *j)
{
    char command[64];
    tr_op_time_close(j->time);
    tr_session_close(j->s);
    tr_cpu_backend.close(j->cpu);
    tr_model_close(j->m);
    tr_config_close(j->c);
    tr_lineage_free(&j->lineage);
    snprintf(command, sizeof command, "rm -rf %s", j->folder);
    assert_int_equal(system(command), 0);
}

static tr_plan *plan_of(const job *j, int64_t batch)
{
    return tr_session_plan(j->s, TR_MODE_TRAIN, batch);
}

/* Seconds of a sample, of a step of so many. */
static double sample(const job *j, int64_t batch)
{
    return tr_op_time_all(j->time, plan_of(j, batch)) / (double)batch;
}

/* The op of that layer, the `nth` of its name; `again`: its second run. */
static size_t find(const job *j, const char *layer, const char *name, size_t nth, bool again)
{
    const tr_graph *g = tr_plan_graph(plan_of(j, 1));
    for (size_t i = 0; i < g->nops; i++)
        if (strcmp(g->ops[i].layer, layer) == 0 && strcmp(tr_op_name(&g->ops[i]), name) == 0 &&
            g->ops[i].recomputed == again && nth-- == 0)
            return i;
    fail_msg("no %s of %s", name, layer);
    return 0;
}

static double seconds(const job *j, int64_t batch, size_t op)
{
    return tr_op_time_of(j->time, plan_of(j, batch), op);
}

/* ---- Profiles -------------------------------------------------------------------------------- */

/* A table of a step of so many samples, in which the i-th op took i + 1 ms times `by`. */
static void add_table(job *j, int64_t batch, double by)
{
    enum { MOST = 200 };
    const tr_plan *p = plan_of(j, batch);
    const tr_graph *g = tr_plan_graph(p);
    const char *names[MOST];
    double columns[4][MOST];
    static const char *const titles[] = {"ms", "part", "flops", "bytes"};
    char table[TR_NAME];
    size_t n = 0;
    for (size_t i = 0; i < g->nops; i++) {
        const tr_plan_row row = tr_plan_row_at(p, i);
        if (tr_op_is_view(g, &g->ops[i])) continue;
        assert_true(n < MOST);
        names[n] = tr_sprintf("%s %s", row.layer, row.op);
        columns[0][n] = by * (double)(i + 1);
        columns[1][n] = (double)row.phase;
        columns[2][n] = row.flops;
        columns[3][n++] = row.bytes;
    }
    snprintf(table, sizeof table, "train_%lld", (long long)batch);
    ok(tr_findings_table(j->found, table, n, names));
    for (size_t k = 0; k < TR_COUNT(titles); k++)
        ok(tr_findings_column(j->found, titles[k], columns[k]));
    for (size_t i = 0; i < n; i++) tr_free((char *)names[i]);
}

static void write_profile(job *j)
{
    char path[64];
    float *params = tr_alloc(TR_MEM_OTHER, j->m->flat_count, sizeof *params);
    float *states = tr_alloc(TR_MEM_OTHER, j->m->state_count + 1, sizeof *states);
    snprintf(path, sizeof path, "%s/stages", j->folder);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/stages/01-profile.h5", j->folder);
    ok(tr_store_write(path, j->m,
                      &(tr_snapshot){.config_text = "name: test\n",
                                     .params = params,
                                     .states = states,
                                     .lineage = &j->lineage},
                      NULL));
    tr_free(params);
    tr_free(states);
}

/* ---- Cases ----------------------------------------------------------------------------------- */

static void within(double got, double want, double part)
{
    if (!(fabs(got / want - 1) <= part)) fail_msg("%g, expected %g", got, want);
}

/* Time of a sample over that in a step of many, beside what one core of an EPYC with AVX-512
 * took. */
static void test_counted(void **state)
{
    (void)state;
    static const double lstm[] = {2.08, 1.39, 1.10, 1.09, 1.01, 1.00};
    job j;
    begin(&j, LSTM, TR_RECOMPUTE_NONE);
    look(&j, TR_TIME_COUNTED);
    for (size_t i = 0; i < TR_COUNT(lstm); i++)
        within(sample(&j, (int64_t)1 << i) / sample(&j, 64), lstm[i], 0.15);
    end(&j);
    begin(&j, GPT, TR_RECOMPUTE_NONE); /* 256 rows a sample are enough */
    look(&j, TR_TIME_COUNTED);
    within(sample(&j, 1) / sample(&j, 16), 1.02, 0.03);
    end(&j);
}

/* What it measured at its batch; elsewhere as the model goes from there. */
static void test_one_batch(void **state)
{
    (void)state;
    job j;
    begin(&j, LSTM, TR_RECOMPUTE_NONE);
    look(&j, TR_TIME_COUNTED);
    const tr_graph *g = tr_plan_graph(plan_of(&j, 32));
    double *counted = tr_alloc(TR_MEM_OTHER, 2 * g->nops, sizeof *counted);
    for (size_t i = 0; i < g->nops; i++) {
        counted[2 * i] = seconds(&j, 1, i);
        counted[2 * i + 1] = seconds(&j, 32, i);
    }
    add_table(&j, 32, 1);
    write_profile(&j);
    look(&j, TR_TIME_MEASURED);
    for (size_t i = 0; i < g->nops; i++) {
        if (tr_op_is_view(g, &g->ops[i])) {
            assert_true(seconds(&j, 32, i) == 0);
            continue;
        }
        within(seconds(&j, 32, i), 1e-3 * (double)(i + 1), 1e-9);
        within(seconds(&j, 1, i), 1e-3 * (double)(i + 1) * counted[2 * i] / counted[2 * i + 1],
               1e-9);
    }
    assert_true(sample(&j, 1) > 1.5 * sample(&j, 32));
    tr_free(counted);
    end(&j);
}

/* Between both along a line. */
static void test_two_batches(void **state)
{
    (void)state;
    job j;
    begin(&j, LSTM, TR_RECOMPUTE_NONE);
    add_table(&j, 64, 10);
    add_table(&j, 1, 1);
    write_profile(&j);
    look(&j, TR_TIME_MEASURED);
    const tr_graph *g = tr_plan_graph(plan_of(&j, 1));
    for (size_t i = 0; i < g->nops; i++) {
        if (tr_op_is_view(g, &g->ops[i])) continue;
        const double ms = (double)(i + 1) * 1e-3;
        within(seconds(&j, 1, i), ms, 1e-9);
        within(seconds(&j, 64, i), 10 * ms, 1e-9);
        within(seconds(&j, 16, i), (1 + 9 * 15.0 / 63) * ms, 1e-9);
        assert_true(seconds(&j, 128, i) > 10 * ms);
    }
    end(&j);
}

/* Both products of a recurrent layer have a weight's gradient; what is computed again takes what it
 * took at first. */
static void test_names(void **state)
{
    (void)state;
    job j;
    begin(&j, LSTM, TR_RECOMPUTE_NONE);
    add_table(&j, 8, 1);
    write_profile(&j);
    look(&j, TR_TIME_MEASURED);
    for (size_t nth = 0; nth < 2; nth++) {
        const size_t i = find(&j, "lstm1.l1", "linear.grad_weight", nth, false);
        within(seconds(&j, 8, i), 1e-3 * (double)(i + 1), 1e-9);
    }
    end(&j);
    begin(&j, GPT, TR_RECOMPUTE_BLOCKS);
    add_table(&j, 8, 1);
    write_profile(&j);
    look(&j, TR_TIME_MEASURED);
    const tr_graph *g = tr_plan_graph(plan_of(&j, 8));
    size_t again = 0;
    for (size_t i = 0; i < g->nops; i++) {
        if (!g->ops[i].recomputed || tr_op_is_view(g, &g->ops[i])) continue;
        const size_t first = find(&j, g->ops[i].layer, tr_op_name(&g->ops[i]), 0, false);
        within(seconds(&j, 8, i), 1e-3 * (double)(first + 1), 1e-9);
        again++;
    }
    assert_true(again > 10);
    end(&j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counted),
        cmocka_unit_test(test_one_batch),
        cmocka_unit_test(test_two_batches),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
