/* Profiles as text, as tables of findings, and as files. */
#include "optimize/profile/profile.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/file.h"

/* ---- The table ------------------------------------------------------------------------------- */

static int by_seconds(const void *a, const void *b)
{
    const tr_profile_row *x = *(const tr_profile_row *const *)a,
                         *y = *(const tr_profile_row *const *)b;
    if (x->seconds != y->seconds) return x->seconds < y->seconds ? 1 : -1;
    return x < y ? -1 : x > y;
}

static void print_row(const tr_profile_row *r, bool judged, FILE *to)
{
    fprintf(to, "  %-24.24s %-22.22s %9.4f %6.1f %9.4g %9.4g %9.4g %8.4g", r->layer, r->op,
            r->seconds * 1e3, r->share * 100, r->flops * 1e-6, r->bytes * 1e-6,
            r->seconds > 0 ? tr_profile_computed(r) / r->seconds * 1e-9 : 0,
            r->seconds > 0 ? r->bytes / r->seconds * 1e-9 : 0);
    if (judged)
        fprintf(to, " %6.1f  %s%s", r->roof * 100, tr_bound_names[r->bound],
                r->bottleneck ? "  <- bottleneck" : "");
    else if (r->bottleneck)
        fputs("  <- bottleneck", to);
    fputc('\n', to);
}

static void print_parts(const tr_profile *p, FILE *to)
{
    double sums[TR_PARTS] = {0}, counters[TR_COUNTERS] = {0}, all = 0;
    for (size_t i = 0; i < p->nrows; i++) {
        sums[p->rows[i].part] += p->rows[i].seconds;
        all += p->rows[i].seconds;
        for (int k = 0; k < TR_COUNTERS; k++)
            if (!isnan(p->rows[i].counters[k])) counters[k] += p->rows[i].counters[k];
    }
    fputs("  sums:", to);
    for (int i = 0; i < TR_PARTS; i++)
        if (sums[i] > 0)
            fprintf(to, " %s %.4f ms (%.1f %%)", tr_part_names[i], sums[i] * 1e3,
                    sums[i] / all * 100);
    fputc('\n', to);
    if (p->counted)
        fprintf(to, "  counters: %.4g cycles, %.4g instructions, %.4g cache misses\n",
                counters[TR_COUNTER_CYCLES], counters[TR_COUNTER_INSTRUCTIONS],
                counters[TR_COUNTER_MISSES]);
    else
        fprintf(to, "  no hardware counters: %s\n", p->not_counted);
}

static void print_memory(const tr_profile *p, FILE *to)
{
    enum { MOST = 6 };
    char a[32], b[32];
    fprintf(to, "  arena %s; most in use at once %s", tr_format_bytes(p->arena, a, sizeof a),
            tr_format_bytes(p->peak, b, sizeof b));
    if (p->peak_row < p->nrows)
        fprintf(to, ", in %s %s", p->rows[p->peak_row].layer, p->rows[p->peak_row].op);
    fputs(p->ntensors > 0 ? ":" : "", to);
    for (size_t i = 0; i < p->ntensors && i < MOST; i++)
        fprintf(to, "%s %s %s", i ? "," : "", p->tensors[i].name,
                tr_format_bytes(p->tensors[i].nbytes, a, sizeof a));
    if (p->ntensors > MOST) fprintf(to, " and %zu more", p->ntensors - MOST);
    fputc('\n', to);
}

void tr_profile_table(const tr_profile *p, const tr_machine *m, size_t most, FILE *to)
{
    char title[64];
    const tr_profile_row **sorted = tr_alloc(TR_MEM_OTHER, p->nrows, sizeof(tr_profile_row *));
    fprintf(to, "%s: %.4f ms ", tr_profile_title(p, title, sizeof title), p->seconds * 1e3);
    if (p->mean)
        fprintf(to, "(mean of %d steps)\n", p->runs);
    else
        fprintf(to, "(median of %d runs; the first %.4f ms)\n", p->runs, p->first * 1e3);
    fprintf(to, "  %-24s %-22s %9s %6s %9s %9s %9s %8s%s\n", "layer", "op", "ms", "%", "MFLOP",
            "MB", "GFLOP/s", "GB/s", m ? "   roof  bound by" : "");
    for (size_t i = 0; sorted && i < p->nrows; i++) sorted[i] = &p->rows[i];
    if (sorted && p->nrows > 0) qsort(sorted, p->nrows, sizeof *sorted, by_seconds);
    for (size_t i = 0; sorted && i < p->nrows && i < most; i++) print_row(sorted[i], m != NULL, to);
    if (p->nrows > most) fprintf(to, "  and %zu more\n", p->nrows - most);
    print_parts(p, to);
    print_memory(p, to);
    tr_free(sorted);
}

/* ---- Findings -------------------------------------------------------------------------------- */

static double ms_of(const tr_profile_row *r)
{
    return r->seconds * 1e3;
}
static double share_of(const tr_profile_row *r)
{
    return r->share;
}
static double part_of(const tr_profile_row *r)
{
    return (double)r->part;
}
static double flops_of(const tr_profile_row *r)
{
    return r->flops;
}
static double bytes_of(const tr_profile_row *r)
{
    return r->bytes;
}
static double rate_of(const tr_profile_row *r)
{
    return r->seconds > 0 ? tr_profile_computed(r) / r->seconds * 1e-9 : 0;
}
static double bandwidth_of(const tr_profile_row *r)
{
    return r->seconds > 0 ? r->bytes / r->seconds * 1e-9 : 0;
}
static double roof_of(const tr_profile_row *r)
{
    return r->roof;
}
static double bound_of(const tr_profile_row *r)
{
    return (double)r->bound;
}
static double bottleneck_of(const tr_profile_row *r)
{
    return r->bottleneck;
}
static double live_of(const tr_profile_row *r)
{
    return r->live;
}

static tr_status add_columns(const tr_profile *p, double *v, tr_findings *f)
{
    static const struct {
        const char *name;
        double (*of)(const tr_profile_row *r);
    } columns[] = {{"ms", ms_of},
                   {"share", share_of},
                   {"part", part_of},
                   {"flops", flops_of},
                   {"bytes", bytes_of},
                   {"gflops_per_s", rate_of},
                   {"gbytes_per_s", bandwidth_of},
                   {"roof", roof_of},
                   {"bound", bound_of},
                   {"bottleneck", bottleneck_of},
                   {"live_bytes", live_of}};
    tr_status st = TR_OK;
    for (size_t c = 0; c < TR_COUNT(columns); c++) {
        for (size_t i = 0; i < p->nrows; i++) v[i] = columns[c].of(&p->rows[i]);
        TR_TRY(tr_findings_column(f, columns[c].name, v));
    }
    for (int c = 0; p->counted && c < TR_COUNTERS; c++) {
        for (size_t i = 0; i < p->nrows; i++) v[i] = p->rows[i].counters[c];
        TR_TRY(tr_findings_column(f, tr_counter_names[c], v));
    }
out:
    return st;
}

static tr_status add_peak(const tr_profile *p, const char *name, double *v, tr_findings *f)
{
    tr_status st = TR_OK;
    char table[TR_NAME];
    const char **names = tr_alloc(TR_MEM_OTHER, p->ntensors, sizeof(char *));
    TR_HAVE(names);
    for (size_t i = 0; i < p->ntensors; i++) names[i] = p->tensors[i].name;
    snprintf(table, sizeof table, "%.40s_memory_peak", name);
    TR_TRY(tr_findings_table(f, table, p->ntensors, names));
    for (size_t i = 0; i < p->ntensors; i++) v[i] = p->tensors[i].nbytes;
    TR_TRY(tr_findings_column(f, "bytes", v));
    for (size_t i = 0; i < p->ntensors; i++) v[i] = (double)p->tensors[i].first;
    TR_TRY(tr_findings_column(f, "first_op", v));
    for (size_t i = 0; i < p->ntensors; i++) v[i] = (double)p->tensors[i].last;
    TR_TRY(tr_findings_column(f, "last_op", v));
out:
    tr_free(names);
    return st;
}

tr_status tr_profile_findings(const tr_profile *p, const char *name, tr_findings *f)
{
    tr_status st = TR_OK;
    char **names = tr_alloc(TR_MEM_OTHER, p->nrows, sizeof(char *));
    const size_t most = p->nrows > p->ntensors ? p->nrows : p->ntensors;
    double *v = tr_alloc(TR_MEM_OTHER, most, sizeof *v);
    TR_HAVE(names && v);
    for (size_t i = 0; i < p->nrows; i++)
        TR_HAVE(names[i] = tr_sprintf("%s %s", p->rows[i].layer, p->rows[i].op));
    TR_TRY(tr_findings_table(f, name, p->nrows, (const char *const *)names));
    TR_TRY(add_columns(p, v, f));
    if (p->ntensors > 0) TR_TRY(add_peak(p, name, v, f));
out:
    for (size_t i = 0; names && i < p->nrows; i++) tr_free(names[i]);
    tr_free(names);
    tr_free(v);
    return st;
}

/* ---- Files ----------------------------------------------------------------------------------- */

typedef struct {
    const tr_profile *p;
    size_t n;
    const tr_machine *m;
} all;

static void write_table(const all *a, FILE *to)
{
    for (size_t i = 0; i < a->n; i++) tr_profile_table(&a->p[i], a->m, SIZE_MAX, to);
}

static void write_folded(const all *a, FILE *to)
{
    tr_profile_folded(a->p, a->n, to);
}

static void write_flame(const all *a, FILE *to)
{
    tr_profile_flame(a->p, a->n, to);
}

static void write_roofline(const all *a, FILE *to)
{
    tr_profile_roofline(a->p, a->n, a->m, to);
}

tr_status tr_profile_files(const char *prefix, const tr_profile *p, size_t n, const tr_machine *m,
                           tr_status (*wrote)(const void *ctx, const char *path), const void *ctx)
{
    static const struct {
        const char *extension;
        void (*write)(const all *a, FILE *to);
        bool roofs;
    } files[] = {{".txt", write_table, false},
                 {".folded", write_folded, false},
                 {".flame.svg", write_flame, false},
                 {".roofline.svg", write_roofline, true}};
    const all a = {p, n, m};
    tr_status st = TR_OK;
    for (size_t i = 0; st == TR_OK && i < TR_COUNT(files); i++) {
        tr_text_file f;
        if (files[i].roofs && !m) continue;
        char *path = tr_sprintf("%s%s", prefix, files[i].extension);
        if (!path) return tr_last_status();
        st = tr_text_file_open(&f, path);
        if (st == TR_OK) files[i].write(&a, f.to);
        st = tr_text_file_close(&f, st);
        if (st == TR_OK && wrote) st = wrote(ctx, path);
        tr_free(path);
    }
    return st;
}
