/* What was measured of a machine, as JSON, which is read as the YAML that it is. */
#include <string.h>

#include "optimize/profile/profile.h"
#include "runtime/base/numbers.h"

const char *const tr_peak_names[TR_PEAKS] = {"fp32", "bf16", "fp16", "int8"};

typedef struct {
    char *device, *by[TR_PEAKS];
    tr_machine m;
} contents;

#define RATE(key, member) TR_REAL(key, offsetof(contents, m.member), NULL, 0, 1e30, NULL, "")
#define BY(key, kind)     TR_TEXT(key "_by", offsetof(contents, by[kind]), "", "")
static const tr_field fields[] = {
    TR_TEXT("device", offsetof(contents, device), NULL, ""),
    TR_INT("threads", offsetof(contents, m.threads), NULL, 1, 1 << 20, NULL, ""),
    RATE("fp32", peak[TR_PEAK_FP32]),
    RATE("bf16", peak[TR_PEAK_BF16]),
    RATE("fp16", peak[TR_PEAK_FP16]),
    RATE("int8", peak[TR_PEAK_INT8]),
    BY("fp32", TR_PEAK_FP32),
    BY("bf16", TR_PEAK_BF16),
    BY("fp16", TR_PEAK_FP16),
    BY("int8", TR_PEAK_INT8),
    RATE("cache", cache),
    RATE("memory", memory),
    RATE("cache_bytes", cache_bytes),
    TR_END,
};

static void write_text(const char *key, const char *text, FILE *to)
{
    fprintf(to, "\"%s\": \"", key);
    for (const char *p = text; *p; p++)
        if ((unsigned char)*p >= ' ' && *p != '"' && *p != '\\') fputc(*p, to);
    fputc('"', to);
}

void tr_machine_write(const tr_machine *m, FILE *to)
{
    char number[32], key[16];
    fputs("{\n", to);
    write_text("device", m->device, to);
    fprintf(to, ",\n\"threads\": %lld", (long long)m->threads);
    for (int i = 0; i < TR_PEAKS; i++) {
        fprintf(to, ",\n\"%s\": %s", tr_peak_names[i], tr_format_real(m->peak[i], number));
        if (!m->by[i][0]) continue;
        snprintf(key, sizeof key, "%s_by", tr_peak_names[i]);
        fputs(",\n", to);
        write_text(key, m->by[i], to);
    }
    fprintf(to, ",\n\"cache\": %s", tr_format_real(m->cache, number));
    fprintf(to, ",\n\"memory\": %s", tr_format_real(m->memory, number));
    fprintf(to, ",\n\"cache_bytes\": %s\n}\n", tr_format_real(m->cache_bytes, number));
}

void tr_machine_read(const char *text, const tr_machine *wanted, tr_machine *out, bool *same)
{
    tr_document d = {0};
    contents c = {0};
    *same = tr_document_parse("machine.json", text, strlen(text), &d) == TR_OK &&
            tr_fields_read(d.root, fields, "", &c) == TR_OK &&
            (!wanted || (strcmp(c.device, wanted->device) == 0 && c.m.threads == wanted->threads &&
                         c.m.peak[TR_PEAK_FP32] > 0 && c.m.cache > 0 && c.m.memory > 0));
    if (*same) {
        *out = c.m;
        snprintf(out->device, sizeof out->device, "%s", c.device);
        for (int k = 0; k < TR_PEAKS; k++) snprintf(out->by[k], sizeof out->by[k], "%s", c.by[k]);
    }
    tr_fields_free(fields, &c);
    tr_document_close(&d);
}
