/* What was measured of a machine, as JSON, which is read as the YAML that it is; and measured again where it cannot be
 * right. */
#include "optimize/profile/profile.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/file.h"

typedef struct {
    char *device;
    tr_machine m;
} contents;

#define RATE(key, member) TR_REAL(key, offsetof(contents, m.member), NULL, 0, 1e30, NULL, "")
static const tr_field fields[] = {
    TR_TEXT("device", offsetof(contents, device), NULL, ""),
    TR_INT("threads", offsetof(contents, m.threads), NULL, 1, 1 << 20, NULL, ""),
    RATE("fp32", peak[TR_PEAK_FP32]),
    RATE("bf16", peak[TR_PEAK_BF16]),
    RATE("fp16", peak[TR_PEAK_FP16]),
    RATE("int8", peak[TR_PEAK_INT8]),
    RATE("cache", cache),
    RATE("memory", memory),
    RATE("cache_bytes", cache_bytes),
    TR_END,
};

void tr_machine_write(const tr_machine *m, FILE *to)
{
    char number[32];
    fputs("{\n\"device\": \"", to);
    for (const char *p = m->device; *p; p++)
        if ((unsigned char)*p >= ' ' && *p != '"' && *p != '\\') fputc(*p, to);
    fprintf(to, "\",\n\"threads\": %lld", (long long)m->threads);
    for (int i = 0; i < TR_PEAKS; i++)
        fprintf(to, ",\n\"%s\": %s", tr_peak_names[i], tr_format_real(m->peak[i], number));
    fprintf(to, ",\n\"cache\": %s", tr_format_real(m->cache, number));
    fprintf(to, ",\n\"memory\": %s", tr_format_real(m->memory, number));
    fprintf(to, ",\n\"cache_bytes\": %s\n}\n", tr_format_real(m->cache_bytes, number));
}

/* Into `c`, which is freed by its fields, whatever comes back. */
static tr_status parse(const char *text, contents *c)
{
    tr_document d = {0};
    tr_status st;
    TR_TRY(tr_document_parse("machine.json", text, strlen(text), &d));
    st = tr_fields_read(d.root, fields, "", c);
out:
    tr_document_close(&d);
    return st;
}

void tr_machine_read(const char *text, const tr_machine *wanted, tr_machine *out, bool *same)
{
    contents c = {0};
    *same = parse(text, &c) == TR_OK && strcmp(c.device, wanted->device) == 0 &&
            c.m.threads == wanted->threads && c.m.peak[TR_PEAK_FP32] > 0 && c.m.cache > 0 &&
            c.m.memory > 0;
    if (*same) {
        *out = c.m;
        snprintf(out->device, sizeof out->device, "%s", wanted->device);
    }
    tr_fields_free(fields, &c);
}

/* Nothing is there, or such a file: any other is somebody's, where it lies in the folder of no run. */
static tr_status look(const char *file)
{
    tr_status st = TR_OK;
    char *text = NULL;
    size_t n;
    contents c = {0};
    if (!tr_file_there(file)) return TR_OK;
    TR_TRY(tr_read_text(file, &text, &n));
    if (n > 0) st = parse(text, &c);
out:
    tr_fields_free(fields, &c);
    tr_free(text);
    return st;
}

static tr_status keep(const char *file, const tr_machine *m)
{
    tr_text_file f = {0};
    tr_status st = look(file);
    if (st == TR_OK) st = tr_text_file_open(&f, file);
    if (st == TR_OK) tr_machine_write(m, f.to);
    return tr_text_file_close(&f, st);
}

static void keep_or_say(const char *file, const tr_machine *m)
{
    if (file && keep(file, m) != TR_OK)
        tr_log(TR_LOG_WARN, "what this machine can do is not kept: %s", tr_last_error()->text);
}

void tr_machine_raise(tr_machine *m, const tr_machine *other)
{
    for (int k = 0; k < TR_PEAKS; k++) m->peak[k] = fmax(m->peak[k], other->peak[k]);
    m->cache = fmax(m->cache, other->cache);
    m->memory = fmax(m->memory, other->memory);
}

tr_status tr_machine_correct(const char *file, const tr_backend *b, void *ctx, tr_profile *p,
                             size_t n, tr_machine *m)
{
    tr_status st = TR_OK;
    double rate;
    tr_machine again;
    const tr_profile_row *r = tr_profile_above_peak(p, n, m, &rate);
    if (!r) return TR_OK;
    const char *const type = tr_peak_names[r->type];
    const double before = m->peak[r->type];
    TR_TRY(tr_machine_measure(b, ctx, (int)m->threads, &again));
    tr_machine_raise(m, &again);
    tr_log(TR_LOG_INFO,
           "layer %s, op %s, computes at %.0f %% of the peak of %s as it was measured, %.4g "
           "GFLOP/s: measured again, %.4g GFLOP/s; the higher rates are kept",
           r->layer, r->op, rate * 100, type, before * 1e-9, again.peak[r->type] * 1e-9);
    keep_or_say(file, m);
    r = tr_profile_above_peak(p, n, m, &rate);
    if (r)
        tr_log(TR_LOG_WARN,
               "layer %s, op %s, still computes at %.0f %% of the peak of %s: other work slows "
               "the probe, or the op leaves out arithmetic that is counted",
               r->layer, r->op, rate * 100, tr_peak_names[r->type]);
    for (size_t i = 0; i < n; i++) tr_profile_judge(&p[i], m);
out:
    return st;
}

tr_status tr_machine_get(const char *file, const tr_backend *b, void *ctx, int threads,
                         tr_machine *out)
{
    tr_status st = TR_OK;
    char *text = NULL;
    size_t n;
    bool same = false;
    tr_machine wanted;
    tr_machine_name(b, ctx, threads, &wanted);
    if (file && access(file, F_OK) == 0 && tr_read_text(file, &text, &n) == TR_OK)
        tr_machine_read(text, &wanted, out, &same);
    if (same) goto out;
    TR_TRY(tr_machine_measure(b, ctx, threads, out));
    keep_or_say(file, out);
out:
    tr_free(text);
    return st;
}
