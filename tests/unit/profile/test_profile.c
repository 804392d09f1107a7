/* links: trireme_cpu trireme_plan */
/* Profiles of small networks: that their numbers are the plan's, and that what is written of them
 * can be read. No case depends on how long anything takes. */
#include "optimize/profile/profile.h"
#include "optimize/profile/trace.h"
#include "runtime/base/file.h"
#include "tests/unit/networks.h"

#include <unistd.h>

#include <linux/perf_event.h>
#include <sys/mman.h>

#define CNN                                                                                        \
    "  input: [3, 8, 8]\n  layers:\n    - conv2d: {out: 8, kernel: 3, padding: 1, bias: false}\n"  \
    "    - batchnorm\n    - relu\n    - flatten\n    - linear: {out: 5}\n  loss: cross_entropy\n"

static const tr_machine machine = {.device = "a machine",
                                   .threads = 1,
                                   .peak = {1e11, 0, 0, 4e11},
                                   .cache = 1e11,
                                   .memory = 1e10,
                                   .cache_bytes = 1e6};

static tr_profile measured(const tr_network *n, tr_mode mode, const tr_config *training)
{
    tr_profile p;
    ok(tr_profile_measure(&(tr_profile_options){.network = n,
                                                .backend = &tr_cpu_backend,
                                                .backend_ctx = cpu,
                                                .threads = 1,
                                                .mode = mode,
                                                .batch = 4,
                                                .runs = 3,
                                                .counters = true,
                                                .training = training},
                          &machine, &p));
    return p;
}

/* Shares add up to 1, and what an op computes is what the graph says. */
static void check_rows(const tr_profile *p, const tr_model *m)
{
    tr_graph *g;
    double shares = 0;
    size_t row = 0;
    ok(tr_graph_open(
        m, &(tr_graph_options){.batch = 4, .mode = p->mode, .ranks = 1, .passes = TR_PASSES_ALL},
        &g));
    for (size_t i = 0; i < g->nops; i++) {
        if (tr_op_is_view(g, &g->ops[i])) continue;
        const tr_profile_row *r = &p->rows[row++];
        assert_string_equal(r->op, tr_op_name(&g->ops[i]));
        assert_string_equal(r->layer, g->ops[i].layer);
        assert_true(r->flops == tr_op_flops(g, &g->ops[i]));
        assert_true(r->bytes > 0 && r->seconds >= 0);
        assert_int_equal(r->part, (int)g->ops[i].phase);
    }
    for (size_t i = 0; i < p->nrows; i++) shares += p->rows[i].share;
    assert_true(fabs(shares - 1) < 1e-9);
    assert_true(row == p->nrows || (row + 1 == p->nrows && p->rows[row].part == TR_PART_UPDATE));
    tr_graph_close(g);
}

/* What lives when most does adds up to the peak, and no row has more. */
static void check_memory(const tr_profile *p)
{
    double sum = 0;
    for (size_t i = 0; i < p->ntensors; i++) {
        sum += p->tensors[i].nbytes;
        assert_true(i == 0 || p->tensors[i].nbytes <= p->tensors[i - 1].nbytes);
    }
    assert_true(p->ntensors > 0 && sum == p->peak && p->peak <= p->arena);
    for (size_t i = 0; i < p->nrows; i++) assert_true(p->rows[i].live <= p->peak);
    assert_true(p->rows[p->peak_row].live == p->peak);
}

static tr_config *training(const char *keys)
{
    tr_config *c = NULL;
    char *text =
        tr_sprintf("name: m\ndata: {train: {format: synthetic, samples: 100}}\nmodel:\n" CNN
                   "train: {batch: 8, epochs: 1, %s}\n",
                   keys);
    ok(tr_config_open("m.yaml", text, strlen(text), NULL, 0, NULL, &c));
    tr_free(text);
    return c;
}

static void test_measured(void **state)
{
    (void)state;
    tr_network *n = network_of(CNN, 3);
    const tr_model *m = n->model;
    float *before = malloc(m->flat_count * sizeof *before);
    tr_config *c = training("optimizer: adamw");
    memcpy(before, n->params, m->flat_count * sizeof *before);
    tr_profile infer = measured(n, TR_MODE_INFER, NULL), train = measured(n, TR_MODE_TRAIN, c);
    check_rows(&infer, m);
    check_rows(&train, m);
    check_memory(&infer);
    check_memory(&train);
    for (size_t i = 0; i < train.nrows; i++) { /* 8 x 8, windows of 3 x 3 */
        const bool pads = strcmp(train.rows[i].layer, "conv2d1") == 0;
        assert_true(fabs(train.rows[i].padding - (pads ? 1 - 22.0 * 22 / (24 * 24) : 0)) < 1e-12);
    }
    assert_true(infer.counted || infer.not_counted[0]);
    assert_memory_equal(before, n->params, m->flat_count * sizeof *before);
    free(before);
    tr_profile_free(&infer);
    tr_profile_free(&train);
    tr_config_close(c);
    tr_network_close(n);
}

/* A step ends with the training's own update, whichever it is; of groups with what this model has
 * of them. */
static void test_updates(void **state)
{
    (void)state;
    static const struct {
        const char *keys, *op;
        double elements; /* read and written of each weight */
    } cases[] = {
        {"optimizer: {sgd: {lr: 0.1}}", "sgd", 3},
        {"optimizer: {sgd: {lr: 0.1, momentum: 0.9}}", "sgd", 5},
        {"optimizer: adamw", "adamw", 7},
        {"optimizer: adamw, ema: 0.9", "adamw", 9},
        {"optimizer: adamw, groups: [{match: \"linear1.*\", beta1: 0.5}, {match: \"gone.*\", lr: "
         "0.1}]",
         "adamw", 7},
        {"optimizer: lion", "lion", 5},
        {"optimizer: adam", "adam", 7},
        {"optimizer: rmsprop", "rmsprop", 5},
        {"optimizer: {rmsprop: {momentum: 0.5, centered: true}}", "rmsprop", 9},
        {"optimizer: {lars: {lr: 0.1}}", "lars", 7},
        {"optimizer: lamb", "lamb", 10},
    };
    tr_network *n = network_of(CNN, 3);
    for (size_t i = 0; i < TR_COUNT(cases); i++) {
        tr_config *c = training(cases[i].keys);
        tr_profile p = measured(n, TR_MODE_TRAIN, c);
        const tr_profile_row *last = &p.rows[p.nrows - 1];
        check_rows(&p, n->model);
        assert_int_equal(last->part, TR_PART_UPDATE);
        assert_string_equal(last->op, cases[i].op);
        assert_true(last->bytes ==
                    sizeof(float) * cases[i].elements * (double)n->model->learned_count);
        tr_profile_free(&p);
        tr_config_close(c);
    }
    tr_network_close(n);
}

/* The bytes that are told beforehand are those that are taken: of a batch beside which all else
 * here is small. */
static void test_needs(void **state)
{
    (void)state;
    enum { BATCH = 8192 };
    tr_network *n = network_of(CNN, 3);
    tr_config *c = training("optimizer: adamw");
    const tr_profile_options o = {.network = n,
                                  .backend = &tr_cpu_backend,
                                  .backend_ctx = cpu,
                                  .threads = 1,
                                  .mode = TR_MODE_TRAIN,
                                  .batch = BATCH,
                                  .runs = 1,
                                  .training = c};
    tr_profile p;
    size_t needed, taken = 0;
    ok(tr_profile_needs(&o, &needed));
    ok(tr_profile_measure(&o, NULL, &p));
    for (int k = 0; k < TR_MEM_KINDS; k++)
        taken += k != TR_MEM_OTHER ? tr_mem_peak((tr_mem_kind)k) : 0;
    assert_in_range(needed, taken - taken / 100, taken + taken / 100);
    tr_profile_free(&p);
    tr_config_close(c);
    tr_network_close(n);
}

/* What is read are the events since the counters were opened: of the kernel's own, which any
 * machine has. */
static void test_counters(void **state)
{
    (void)state;
    enum { PAGES = 300 };
    static const uint64_t what[TR_COUNTERS] = {PERF_COUNT_SW_PAGE_FAULTS, PERF_COUNT_SW_TASK_CLOCK,
                                               UINT64_MAX /* there is none */};
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    tr_counters c;
    double before[TR_COUNTERS], after[TR_COUNTERS];
    if (!tr_counters_open_as(&c, PERF_TYPE_SOFTWARE, what)) {
        assert_non_null(strstr(c.why, "perf_event_open: "));
        print_message("skipped: %s\n", c.why);
        skip();
    }
    char *fresh =
        mmap(NULL, PAGES * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(fresh != MAP_FAILED);
    madvise(fresh, PAGES * page, MADV_NOHUGEPAGE);
    tr_counters_read(&c, before);
    for (size_t i = 0; i < PAGES; i++) ((volatile char *)fresh)[i * page] = 1;
    tr_counters_read(&c, after);
    assert_true(after[0] - before[0] >= PAGES && after[1] > before[1] && before[1] > 0);
    assert_true(isnan(after[2]) && strstr(c.why, "perf_event_open: "));
    tr_counters_close(&c);
    munmap(fresh, PAGES * page);
}

static tr_profile made_up(tr_profile_row *rows)
{
    rows[0] = (tr_profile_row){
        .layer = "a;<&\"", .op = "product", .seconds = 6e-4, .flops = 6e7, .bytes = 5e5};
    rows[1] =
        (tr_profile_row){.layer = "b", .op = "copy", .seconds = 3e-4, .flops = 1e3, .bytes = 2e6};
    rows[2] = (tr_profile_row){.layer = "c",
                               .op = "tiny",
                               .seconds = 1e-4,
                               .flops = 1e3,
                               .bytes = 1e3,
                               .part = TR_PART_LOSS};
    tr_profile p = {
        .batch = 2, .runs = 1, .seconds = 1e-3, .mode = TR_MODE_INFER, .nrows = 3, .rows = rows};
    tr_profile_judge(&p, &machine);
    return p;
}

static void test_judged(void **state)
{
    (void)state;
    tr_profile_row rows[3];
    made_up(rows);
    assert_int_equal(rows[0].bound, TR_BOUND_COMPUTE); /* 6e7 at 1e11: all of 6e-4 */
    assert_true(fabs(rows[0].roof - 1) < 1e-9 && rows[0].bottleneck);
    assert_int_equal(rows[1].bound, TR_BOUND_MEMORY); /* beyond the cache: 2e6 at 1e10 of 3e-4 */
    assert_true(fabs(rows[1].roof - 2.0 / 3) < 1e-9 && rows[1].bottleneck);
    assert_int_equal(rows[2].bound, TR_BOUND_OVERHEAD);
    assert_false(rows[2].bottleneck);
}

static char *written(void (*write)(const tr_profile *p, size_t n, FILE *to), const tr_profile *p)
{
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    write(p, 1, f);
    fclose(f);
    return text;
}

static void roofline(const tr_profile *p, size_t n, FILE *to)
{
    tr_profile_roofline(p, n, &machine, to);
}

static void close_peaks(const tr_profile *p, size_t n, FILE *to)
{
    tr_machine m = machine;
    for (int k = 0; k < TR_PEAKS; k++) m.peak[k] = 150.28e9 + 14.2766e9 * (k % 2) + 1e-6 * k;
    tr_profile_roofline(p, n, &m, to);
}

static void table(const tr_profile *p, size_t n, FILE *to)
{
    (void)n;
    tr_profile_table(p, &machine, 2, to);
}

static void test_written(void **state)
{
    (void)state;
    tr_profile_row rows[3];
    const tr_profile p = made_up(rows);
    char *text = written(tr_profile_folded, &p);
    assert_string_equal(text, "inference, batch 2;forward;a_<&\";product 600000\n"
                              "inference, batch 2;forward;b;copy 300000\n"
                              "inference, batch 2;loss;c;tiny 100000\n");
    free(text);
    text = written(tr_profile_flame, &p);
    assert_non_null(strstr(text, "a;&lt;&amp;&quot;: 0.6000 ms, 60.0 %"));
    assert_null(strstr(text, "<&"));
    assert_non_null(strstr(text, "</svg>\n"));
    free(text);
    text = written(roofline, &p);
    assert_non_null(strstr(text, "int8 400 GFLOP/s"));
    assert_non_null(strstr(text, "bound by memory"));
    assert_null(strstr(text, "nan"));
    free(text);
    text = written(close_peaks, &p); /* a label each */
    for (int k = 0; k < TR_PEAKS; k++) assert_non_null(strstr(text, tr_peak_names[k]));
    free(text);
    text = written(table, &p);
    assert_non_null(strstr(text, "compute  <- bottleneck"));
    assert_non_null(strstr(text, "and 1 more"));
    free(text);
}

/* Widths of the rectangles whose titles begin so, added up. */
static double width_of(const char *svg, const char *title)
{
    char mark[80];
    double sum = 0;
    snprintf(mark, sizeof mark, "<title>%s", title);
    for (const char *at = svg; (at = strstr(at, mark)); at++)
        sum += atof(strstr(at, "width=\"") + strlen("width=\""));
    return sum;
}

/* A run of microseconds beside one of seconds: each has the whole width, its parts theirs of it,
 * and the picture is high enough for both. */
static void test_flames(void **state)
{
    (void)state;
    tr_profile_row rows[3], other[3];
    char *text = NULL;
    size_t n;
    int wide, high, lowest = 0;
    tr_profile p[] = {made_up(rows), made_up(other)};
    p[1].mode = TR_MODE_TRAIN;
    for (size_t i = 0; i < 3; i++) {
        other[i].seconds *= 1e6;
        snprintf(other[i].op, sizeof other[i].op, "slow%zu", i);
    }
    FILE *f = open_memstream(&text, &n);
    tr_profile_flame(p, 2, f);
    fclose(f);
    assert_true(fabs(width_of(text, "inference, batch 2: ") - 1180) < 1);
    assert_true(fabs(width_of(text, "training step, batch 2: ") - 1180) < 1);
    assert_true(fabs(width_of(text, "product: ") - 0.6 * 1180) < 1);
    assert_true(fabs(width_of(text, "tiny: ") - 0.1 * 1180) < 1);
    assert_true(fabs(width_of(text, "slow0: ") - 0.6 * 1180) < 1);
    assert_non_null(strstr(text, ">training step, batch 2: 1e+06 ms<"));
    assert_int_equal(sscanf(strstr(text, "viewBox=\"0 0 "), "viewBox=\"0 0 %d %d", &wide, &high),
                     2);
    for (const char *at = text; (at = strstr(at, "</title><rect ")); at++) {
        const int y = (int)atof(strstr(at, " y=\"") + 4);
        if (y > lowest) lowest = y;
    }
    assert_int_equal(wide, 1200);
    assert_true(lowest + 22 <= high && lowest > 5 * 22 + 36);
    free(text);
}

static void test_findings(void **state)
{
    (void)state;
    tr_profile_row rows[3];
    tr_profile_tensor tensors[] = {{.name = "x", .nbytes = 512, .first = -1, .last = 2}};
    tr_profile p = made_up(rows);
    tr_findings f = {0};
    p.tensors = tensors;
    p.ntensors = 1;
    ok(tr_profile_findings(&p, "inference_2", &f));
    const tr_table *t = tr_findings_get(&f, "inference_2");
    assert_int_equal(t->nrows, 3);
    assert_string_equal(t->columns[0].name, "ms");
    assert_true(fabs(t->columns[0].v[1] - 0.3) < 1e-12);
    t = tr_findings_get(&f, "inference_2_memory_peak");
    assert_true(t && t->nrows == 1 && t->columns[0].v[0] == 512 && t->columns[1].v[0] == -1);
    tr_findings_free(&f);
}

static void test_machine(void **state)
{
    (void)state;
    char *text = NULL;
    size_t n;
    bool same;
    tr_machine got, other = machine;
    FILE *f = open_memstream(&text, &n);
    tr_machine_write(&machine, f);
    fclose(f);
    tr_machine_read(text, &machine, &got, &same);
    assert_true(same);
    assert_true(got.peak[TR_PEAK_INT8] == 4e11 && got.memory == 1e10 && got.cache_bytes == 1e6);
    other.threads = 2;
    tr_machine_read(text, &other, &got, &same);
    assert_false(same);
    snprintf(other.device, sizeof other.device, "another");
    other.threads = 1;
    tr_machine_read(text, &other, &got, &same);
    assert_false(same);
    text[n / 2] = 0;
    tr_machine_read(text, &machine, &got, &same);
    assert_false(same);
    free(text);
}

/* Where the file is of this machine nothing is measured: what stands in it comes back. */
static void test_kept(void **state)
{
    (void)state;
    char path[] = "/tmp/machine-XXXXXX";
    tr_machine known, got;
    close(mkstemp(path));
    tr_machine_name(&tr_cpu_backend, cpu, 1, &known);
    assert_true(known.device[0]);
    known.peak[TR_PEAK_FP32] = 12345;
    known.cache = known.memory = 2;
    FILE *f = fopen(path, "w");
    tr_machine_write(&known, f);
    fclose(f);
    ok(tr_machine_get(path, &tr_cpu_backend, cpu, 1, &got));
    assert_true(got.peak[TR_PEAK_FP32] == 12345);
    unlink(path);
}

/* A peak that an op is above by no more than the slack stands; one that it is further above is
 * measured again: the higher rates go to the file, what was higher before stays, and rows are
 * judged by what came out. */
static void test_corrected(void **state)
{
    (void)state;
    char path[] = "/tmp/machine-XXXXXX", *text;
    size_t n;
    bool same;
    double rate;
    tr_profile_row rows[3];
    tr_profile p = made_up(rows);
    tr_machine m = {.peak = {1e11 / 1.04, 0, 0, 1e30},
                    .cache = 1e30,
                    .memory = 1,
                    .cache_bytes = 1e6},
               got;
    tr_machine_name(&tr_cpu_backend, cpu, 1, &got);
    snprintf(m.device, sizeof m.device, "%s", got.device);
    m.threads = 1;
    assert_null(tr_profile_above_peak(&p, 1, &m, &rate));
    rows[1].type = TR_PEAK_BF16; /* of a type that there is no peak of */
    m.peak[TR_PEAK_FP32] = 1e11 / 1.06;
    assert_ptr_equal(tr_profile_above_peak(&p, 1, &m, &rate), &rows[0]);
    assert_true(fabs(rate - 1.06) < 1e-9);
    rows[0].padding = 0.05; /* what is left out is no arithmetic that was done */
    assert_null(tr_profile_above_peak(&p, 1, &m, &rate));
    rows[0].padding = 0;
    close(mkstemp(path));
    m.peak[TR_PEAK_FP32] = 1000;
    ok(tr_machine_correct(path, &tr_cpu_backend, cpu, &p, 1, &m));
    assert_true(m.peak[TR_PEAK_FP32] > 1000 && m.peak[TR_PEAK_INT8] == 1e30 && m.cache == 1e30 &&
                m.memory > 1);
    assert_true(fabs(rows[0].roof - rows[0].flops / m.peak[TR_PEAK_FP32] / rows[0].seconds) < 1e-9);
    ok(tr_read_text(path, &text, &n));
    tr_machine_read(text, &m, &got, &same);
    assert_true(same && got.peak[TR_PEAK_FP32] == m.peak[TR_PEAK_FP32]);
    assert_memory_equal(got.by[TR_PEAK_FP32], "a ", 2);
    assert_string_equal(got.by[TR_PEAK_FP32], m.by[TR_PEAK_FP32]);
    tr_free(text);
    m.peak[TR_PEAK_FP32] = 1e30; /* nothing is above it: nothing is measured, nothing written */
    unlink(path);
    ok(tr_machine_correct(path, &tr_cpu_backend, cpu, &p, 1, &m));
    assert_true(access(path, F_OK) != 0 && m.peak[TR_PEAK_FP32] == 1e30);
}

static void test_trace(void **state)
{
    (void)state;
    tr_trace t[2];
    char *text = NULL;
    size_t n;
    ok(tr_trace_open(&t[0], 2));
    ok(tr_trace_open(&t[1], 1));
    assert_non_null(tr_trace_add(&t[0], TR_TRACK_OPS, "conv \"1\"", 10, 1e-3));
    tr_trace_event *e = tr_trace_add(&t[0], TR_TRACK_BUCKETS, "bucket 1", 10.001, 2e-3);
    e->id = 1;
    e->step = 7;
    assert_null(tr_trace_add(&t[0], TR_TRACK_OPS, "too many", 0, 0));
    assert_int_equal(t[0].dropped, 1);
    assert_non_null(tr_trace_add(&t[1], TR_TRACK_STEP, "step", 9.5, 1));
    FILE *f = open_memstream(&text, &n);
    tr_trace_print(t, 2, f);
    fclose(f);
    assert_non_null(strstr(text, "\"name\": \"conv \\\"1\\\"\""));
    assert_non_null(strstr(
        text, "\"ph\": \"X\", \"pid\": 0, \"tid\": 1, \"ts\": 500000.000, \"dur\": 1000.000"));
    assert_non_null(strstr(
        text, "\"ph\": \"b\", \"pid\": 0, \"tid\": 2, \"ts\": 501000.000, \"id\": \"0.7.1\""));
    assert_non_null(strstr(text, "\"ph\": \"e\", \"pid\": 0, \"tid\": 2, \"ts\": 503000.000"));
    assert_non_null(strstr(text, "\"pid\": 1, \"tid\": 0, \"ts\": 0.000, \"dur\": 1000000.000"));
    free(text);
    tr_trace_free(&t[0]);
    tr_trace_free(&t[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_measured),  cmocka_unit_test(test_updates),
        cmocka_unit_test(test_needs),     cmocka_unit_test(test_counters),
        cmocka_unit_test(test_judged),    cmocka_unit_test(test_written),
        cmocka_unit_test(test_findings),  cmocka_unit_test(test_flames),
        cmocka_unit_test(test_machine),   cmocka_unit_test(test_kept),
        cmocka_unit_test(test_corrected), cmocka_unit_test(test_trace),
    };
    return cmocka_run_group_tests(tests, cpu_open, cpu_close);
}
