/* What a report says, section by section, of what it finds: the run, its curves, its stages. */
#include "optimize/report/report.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "optimize/plot/plot.h"
#include "optimize/report/curves.h"
#include "optimize/report/page.h"
#include "runtime/base/file.h"

typedef struct {
    const tr_report_options *o;
    tr_page page;
    tr_history history;
    tr_records start, steps, ends, memory; /* of metrics.jsonl */
    char *config_text;
} report;

static const char *number(double v, char buf[32])
{
    snprintf(buf, 32, isfinite(v) ? "%.6g" : "-", v);
    return buf;
}

/* ---- The run --------------------------------------------------------------------------------- */

static void pair(const tr_page *p, const char *name, const char *v)
{
    if (v[0]) tr_page_row(p, 2, (const char *[]){name, v});
}

static void pair_number(const tr_page *p, const char *name, double v)
{
    char text[32];
    if (isfinite(v)) pair(p, name, number(v, text));
}

/* A key of a record, and what it is called. */
typedef struct {
    const char *name, *key;
} item;

static const tr_document *last_of(const tr_records *r)
{
    return r->count ? &r->records[r->count - 1] : NULL;
}

static void texts(const tr_page *p, const tr_document *d, const item *v, size_t n)
{
    for (size_t i = 0; d && i < n; i++) pair(p, v[i].name, tr_records_text(d, v[i].key));
}

static void numbers(const tr_page *p, const tr_document *d, const item *v, size_t n)
{
    for (size_t i = 0; d && i < n; i++) pair_number(p, v[i].name, tr_records_real(d, v[i].key));
}

static void run_section(const report *r)
{
    const tr_page *p = &r->page;
    static const item starts[] = {{"parameters", "parameters"}, {"batch", "batch"}};
    static const item ends[] = {{"steps", "steps"},
                                {"seconds", "seconds"},
                                {"samples a second", "samples_per_s"},
                                {"first step after, seconds", "first_step_s"},
                                {"last loss", "final_loss"}};
    tr_page_heading(p, 2, "Run");
    tr_page_table_begin(p, 2, (const char *[]){"", ""});
    numbers(p, last_of(&r->start), starts, TR_COUNT(starts));
    numbers(p, last_of(&r->ends), ends, TR_COUNT(ends));
    tr_page_table_end(p);
}

/* As the run itself wrote it down: the machine that makes the report may be another. */
static void environment_section(const report *r)
{
    const tr_page *p = &r->page;
    static const item words[] = {{"trireme", "version"},
                                 {"host", "host"},
                                 {"CPU", "cpu"},
                                 {"kernel", "kernel"},
                                 {"MPI", "mpi"},
                                 {"HDF5", "hdf5"},
                                 {"device", "device"},
                                 {"computed by", "backend"},
                                 {"ranks talk by", "collectives"},
                                 {"gradients added by", "reducer"}};
    static const item counts[] = {{"cores", "cores"},
                                  {"memory of the host, MB", "memory_mb"},
                                  {"ranks", "ranks"},
                                  {"nodes", "nodes"},
                                  {"threads of a rank", "threads"}};
    if (r->start.count == 0) return;
    tr_page_heading(p, 2, "Environment");
    tr_page_table_begin(p, 2, (const char *[]){"", ""});
    texts(p, last_of(&r->start), words, TR_COUNT(words));
    numbers(p, last_of(&r->start), counts, TR_COUNT(counts));
    tr_page_table_end(p);
}

/* Rank 0's, what was predicted beside what it came to. */
static void memory_section(const report *r)
{
    const tr_page *p = &r->page;
    static const item ends[] = {{"predicted, MB", "predicted_mb"},
                                {"held, MB", "held_mb"},
                                {"predicted of the GPU's, MB", "predicted_device_mb"},
                                {"held of the GPU's, MB", "held_device_mb"},
                                {"the GPU's in use by all processes, MB", "gpu_memory_mb"},
                                {"process at its peak, MB", "peak_rss_mb"},
                                {"process before the first plan, MB", "program_rss_mb"},
                                {"highest peak of all ranks, MB", "highest_peak_rss_mb"}};
    static const item kinds[] = {{"weights", "weights"},
                                 {"gradients", "gradients"},
                                 {"moments", "moments"},
                                 {"packed weights", "packed"},
                                 {"arena: activations", "activations"},
                                 {"arena: workspace", "workspace"},
                                 {"batches", "io"},
                                 {"data", "data"},
                                 {"checkpoints", "snapshot"}};
    const tr_document *m = last_of(&r->memory);
    if (r->ends.count == 0) return;
    tr_page_heading(p, 2, "Memory of rank 0");
    tr_page_table_begin(p, 2, (const char *[]){"", ""});
    numbers(p, last_of(&r->ends), ends, TR_COUNT(ends));
    tr_page_table_end(p);
    if (!m) return;
    tr_page_table_begin(p, 3, (const char *[]){"MB", "predicted", "held"});
    for (size_t i = 0; i < TR_COUNT(kinds); i++) {
        static const char *const which[] = {"predicted", "held"};
        char key[64], text[2][32];
        double mb[2];
        for (int k = 0; k < 2; k++) {
            snprintf(key, sizeof key, "%s_%s_mb", which[k], kinds[i].key);
            mb[k] = tr_records_real(m, key);
            number(mb[k], text[k]);
        }
        if (!(mb[0] > 0) && !(mb[1] > 0)) continue; /* a kind that this run has not */
        tr_page_row(p, 3, (const char *[]){kinds[i].name, text[0], text[1]});
    }
    tr_page_table_end(p);
}

/* ---- Stages ---------------------------------------------------------------------------------- */

static tr_status stage_row(const report *r, size_t i)
{
    tr_status st = TR_OK;
    const tr_lineage *l = r->o->lineage;
    const tr_findings *f = &l->v[i];
    char parameters[32], size[32], adds[32], latency[32], loss[32], accuracy[32];
    uint64_t last = 0;
    const bool is_last = i + 1 == l->count;
    if (is_last) TR_TRY(tr_store_model_nbytes(r->o->last, &last));
    const double bytes =
        is_last ? (double)last : tr_attrs_number(&l->v[i + 1].values, "parent_bytes");
    number(tr_attrs_number(&f->values, "parameters"), parameters);
    snprintf(size, sizeof size, "-");
    if (isfinite(bytes)) tr_format_bytes(bytes, size, sizeof size);
    number(tr_attrs_number(&f->values, "multiply_adds"), adds);
    number(tr_attrs_number(&f->values, "latency_ms"), latency);
    number(tr_attrs_number(&f->values, "loss"), loss);
    number(100 * tr_attrs_number(&f->values, "accuracy"), accuracy);
    tr_page_row(&r->page, 7,
                (const char *[]){f->stage, parameters, size, adds, latency, loss, accuracy});
out:
    return st;
}

static tr_status latency_bars(const report *r)
{
    tr_status st = TR_OK;
    const tr_lineage *l = r->o->lineage;
    const char **names = tr_alloc(TR_MEM_OTHER, l->count, sizeof *names);
    double *ms = tr_alloc(TR_MEM_OTHER, l->count, sizeof *ms);
    TR_HAVE(names && ms);
    for (size_t i = 0; i < l->count; i++) {
        names[i] = l->v[i].stage;
        ms[i] = tr_attrs_number(&l->v[i].values, "latency_ms");
    }
    st = tr_svg_bars(&(tr_plot_bars){.title = "One sample, median",
                                     .unit = "ms",
                                     .n = l->count,
                                     .names = names,
                                     .values = ms},
                     r->page.to);
out:
    tr_free(names);
    tr_free(ms);
    return st;
}

static tr_status findings_table(const report *r, const tr_table *t)
{
    tr_status st = TR_OK;
    const size_t n = t->ncolumns + 1;
    const char **cells = tr_alloc(TR_MEM_OTHER, n, sizeof *cells);
    char *rows = tr_strdup(t->rows), (*numbers)[32] = tr_alloc(TR_MEM_OTHER, n, sizeof *numbers);
    TR_HAVE(cells && rows && numbers);
    tr_page_heading(&r->page, 3, t->name);
    cells[0] = "";
    for (size_t k = 0; k < t->ncolumns; k++) cells[k + 1] = t->columns[k].name;
    tr_page_table_begin(&r->page, n, cells);
    char *row = rows;
    for (size_t i = 0; i < t->nrows; i++) {
        char *end = strchr(row, '\n');
        *end = 0;
        cells[0] = row;
        for (size_t k = 0; k < t->ncolumns; k++)
            cells[k + 1] = number(t->columns[k].v[i], numbers[k]);
        tr_page_row(&r->page, n, cells);
        row = end + 1;
    }
    tr_page_table_end(&r->page);
out:
    tr_free(cells);
    tr_free(rows);
    tr_free(numbers);
    return st;
}

/* Plots NAME.*.svg of a folder below the run's, "stages/", or "". */
static tr_status plots(const report *r, const char *below, const char *of)
{
    tr_status st = TR_OK;
    struct dirent **found = NULL;
    char *folder = tr_sprintf("%s/%s", r->o->folder, below);
    TR_HAVE(folder);
    const int n = scandir(folder, &found, NULL, alphasort);
    if (n < 0 && errno != ENOENT)
        st = TR_FAIL(errno == ENOMEM ? TR_MEMORY : TR_IO, "%s: %s", folder, strerror(errno));
    for (int i = 0; i < n; i++) {
        const char *name = found[i]->d_name;
        const size_t length = strlen(of), all = strlen(name);
        const bool svg = all > length + 4 && strncmp(name, of, length) == 0 &&
                         name[length] == '.' && strcmp(name + all - 4, ".svg") == 0;
        if (svg && st == TR_OK && r->page.html) {
            size_t nbytes;
            char *text = NULL, *path = tr_sprintf("%s%s", folder, name);
            st = path ? tr_read_text(path, &text, &nbytes) : tr_last_status();
            const char *root = text ? strstr(text, "<svg") : NULL;
            if (root) fputs(root, r->page.to);
            tr_free(text);
            tr_free(path);
        } else if (svg) {
            fprintf(r->page.to, "![%s](%s%s)\n\n", name, below, name);
        }
        free(found[i]);
    }
    free(found);
out:
    tr_free(folder);
    return st;
}

static tr_status stage_section(const report *r, const tr_findings *f)
{
    tr_status st = TR_OK;
    char text[32];
    tr_page_heading(&r->page, 2, f->stage);
    tr_page_table_begin(&r->page, 2, (const char *[]){"", ""});
    for (size_t i = 0; i < f->values.count; i++) {
        const tr_attr *a = &f->values.v[i];
        if (a->kind == TR_ATTR_TEXT && strchr(a->text, '\n')) continue;
        if (a->kind == TR_ATTR_COUNT) snprintf(text, sizeof text, "%llu", (unsigned long long)a->u);
        pair(&r->page, a->name,
             a->kind == TR_ATTR_TEXT   ? a->text
             : a->kind == TR_ATTR_REAL ? number(a->f, text)
                                       : text);
    }
    tr_page_table_end(&r->page);
    for (size_t i = 0; i < f->ntables; i++) TR_TRY(findings_table(r, &f->tables[i]));
    TR_TRY(plots(r, "stages/", f->stage));
    const tr_attr *options = tr_attrs_get(&f->values, "options");
    if (options && options->kind == TR_ATTR_TEXT)
        tr_page_verbatim(&r->page, "Options", options->text);
out:
    return st;
}

static tr_status stages_section(const report *r)
{
    tr_status st = TR_OK;
    const tr_lineage *l = r->o->lineage;
    static const char *const columns[] = {
        "stage", "parameters", "file", "multiply-adds", "ms a sample", "loss", "accuracy, %"};
    if (l->count == 0) return TR_OK;
    tr_page_heading(&r->page, 2, "Stages");
    tr_page_table_begin(&r->page, TR_COUNT(columns), columns);
    for (size_t i = 0; i < l->count; i++) TR_TRY(stage_row(r, i));
    tr_page_table_end(&r->page);
    if (tr_page_plots(&r->page)) TR_TRY(latency_bars(r));
    for (size_t i = 1; i < l->count; i++) TR_TRY(stage_section(r, &l->v[i]));
out:
    return st;
}

/* What run.profile left of the training. */
static tr_status profile_section(const report *r)
{
    tr_status st = TR_OK;
    char *text = NULL, *table = tr_sprintf("%s/profile.txt", r->o->folder);
    size_t nbytes;
    TR_HAVE(table);
    if (!tr_file_there(table)) goto out;
    TR_TRY(tr_read_text(table, &text, &nbytes));
    tr_page_heading(&r->page, 2, "Where the time of a step went");
    TR_TRY(plots(r, "", "profile"));
    tr_page_verbatim(&r->page, "Rank 0, op by op", text);
out:
    tr_free(text);
    tr_free(table);
    return st;
}

/* ---- The page -------------------------------------------------------------------------------- */

static tr_status write_page(report *r, const char *path, bool html)
{
    tr_text_file f;
    tr_status st = tr_text_file_open(&f, path);
    if (st != TR_OK) return st;
    r->page = (tr_page){.to = f.to, .html = html};
    tr_page_begin(&r->page, r->o->config->name);
    run_section(r);
    environment_section(r);
    memory_section(r);
    st = tr_report_curves(&r->page, &r->history, &r->steps);
    if (st == TR_OK) st = profile_section(r);
    if (st == TR_OK) st = stages_section(r);
    tr_page_heading(&r->page, 2, "Config");
    tr_page_verbatim(&r->page, "As resolved", r->config_text);
    tr_page_end(&r->page);
    return tr_text_file_close(&f, st);
}

/* A report can do without them, and says so. */
static tr_status gather_records(report *r)
{
    tr_status st = TR_OK;
    const struct {
        const char *event;
        tr_records *to;
    } all[] = {
        {"start", &r->start}, {"step", &r->steps}, {"end", &r->ends}, {"memory", &r->memory}};
    char *metrics = tr_sprintf("%s/metrics.jsonl", r->o->folder);
    TR_HAVE(metrics);
    for (size_t i = 0; st == TR_OK && i < TR_COUNT(all); i++)
        st = tr_records_read(metrics, all[i].event, all[i].to);
    if (st == TR_DATA) {
        tr_log(TR_LOG_WARN, "report: without what the run recorded: %s", tr_last_error()->text);
        st = TR_OK;
    }
out:
    tr_free(metrics);
    return st;
}

static tr_status gather(report *r)
{
    tr_status st;
    TR_TRY(gather_records(r));
    TR_TRY(tr_store_history(r->o->model, &r->history));
    TR_TRY(tr_config_text(r->o->config, &r->config_text));
out:
    return st;
}

tr_status tr_report_write(const tr_report_options *o)
{
    report r = {.o = o};
    tr_status st = gather(&r);
    if (st == TR_OK && o->html) st = write_page(&r, o->html, true);
    if (st == TR_OK && o->markdown) st = write_page(&r, o->markdown, false);
    tr_history_free(&r.history);
    tr_records_free(&r.start);
    tr_records_free(&r.steps);
    tr_records_free(&r.ends);
    tr_records_free(&r.memory);
    free(r.config_text);
    return st;
}
