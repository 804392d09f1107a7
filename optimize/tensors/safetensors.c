/* safetensors: the length of a header, the header as JSON (name, type, shape, place), then all
 * arrays without gaps. Names need no quoting. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "optimize/tensors/rows.h"
#include "runtime/base/file.h"

enum { ALIGN = 8, PIECE = 1 << 14 };

static const char *type_name(tr_dtype t)
{
    return t == TR_F16 ? "F16" : t == TR_BF16 ? "BF16" : "F32";
}

/* What the signs of sketched rows are made from, in their order: "wide.s1 2 4 77,wide.s2 2 4
 * 77,". */
static void write_sketches(const tr_row *rows, size_t count, FILE *f)
{
    bool any = false;
    for (size_t i = 0; i < count; i++) {
        const tr_sketch *s = &rows[i].sketch;
        if (s->side == TR_SKETCH_NONE) continue;
        if (!any) fputs(",\"sketches\":\"", f);
        any = true;
        fprintf(f, "%s %lld %lld %lld,", rows[i].name, (long long)s->terms, (long long)s->rank,
                (long long)s->seed);
    }
    if (any) fputc('"', f);
}

static tr_status write_header(const tr_row *rows, size_t count, tr_dtype type, const char *sha256,
                              char **text, size_t *size, uint64_t *nbytes)
{
    uint64_t at = 0;
    FILE *f = open_memstream(text, size);
    if (!f) return TR_FAIL(TR_MEMORY, "out of memory for a header");
    fprintf(f, "{\"__metadata__\":{\"format\":\"pt\",\"trireme_version\":\"%s\"%s%s%s", TR_VERSION,
            sha256 ? ",\"source_sha256\":\"" : "", sha256 ? sha256 : "", sha256 ? "\"" : "");
    write_sketches(rows, count, f);
    fputc('}', f);
    for (const tr_row *r = rows; r < rows + count; r++) {
        const tr_dtype t = r->state ? TR_F32 : type;
        const uint64_t end = at + r->count * tr_dtype_size(t);
        fprintf(f, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", r->name, type_name(t));
        for (int d = 0; d < r->ndim; d++) fprintf(f, "%s%lld", d ? "," : "", (long long)r->dims[d]);
        fprintf(f, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)at,
                (unsigned long long)end);
        at = end;
    }
    fputc('}', f);
    for (long written = ftell(f); written % ALIGN != 0; written++) fputc(' ', f);
    *nbytes = at;
    return fclose(f) == 0 ? TR_OK : TR_FAIL(TR_MEMORY, "out of memory for a header");
}

static tr_status write_values(tr_commit *file, uint64_t at, const tr_row *r, const float *v,
                              tr_dtype type)
{
    uint16_t half[PIECE];
    tr_status st = TR_OK;
    if (type == TR_F32) return tr_commit_write(file, at, v, r->count * sizeof *v);
    for (size_t i = 0; i < r->count; i += PIECE) {
        const size_t some = r->count - i < PIECE ? r->count - i : PIECE;
        for (size_t k = 0; k < some; k++) {
            const float was = v[i + k];
            half[k] = type == TR_F16 ? tr_f32_to_f16(was) : tr_f32_to_bf16(was);
            const float is = type == TR_F16 ? tr_f16_to_f32(half[k]) : tr_bf16_to_f32(half[k]);
            TR_NEED(isfinite(is) || !isfinite(was), TR_DATA, "%s: a value of %g does not fit %s",
                    r->name, (double)was, tr_dtype_name(type));
        }
        TR_TRY(tr_commit_write(file, at + i * sizeof *half, half, some * sizeof *half));
    }
out:
    return st;
}

static tr_status write_row(tr_commit *file, uint64_t at, const tr_row *r, tr_dtype type)
{
    const float *v;
    float *own;
    tr_status st = tr_row_values(r, &v, &own);
    if (st == TR_OK) st = write_values(file, at, r, v, type);
    tr_free(own);
    return st;
}

tr_status tr_safetensors_write(const char *path, const tr_network *n, const tr_renames *names,
                               tr_dtype type, const char *sha256)
{
    tr_status st = TR_OK;
    tr_commit file = {.fd = -1};
    const size_t count = tr_row_count(n);
    tr_row *rows = NULL;
    char *header = NULL;
    size_t size = 0;
    uint64_t nbytes = 0;
    TR_TRY(tr_rows_of_file(n, names, &rows));
    TR_TRY(write_header(rows, count, type, sha256, &header, &size, &nbytes));
    const uint64_t length = size;
    TR_TRY(tr_commit_open(&file, path, sizeof length + size + nbytes));
    TR_TRY(tr_commit_write(&file, 0, &length, sizeof length));
    TR_TRY(tr_commit_write(&file, sizeof length, header, size));
    uint64_t at = sizeof length + size;
    for (const tr_row *r = rows; r < rows + count; r++) {
        const tr_dtype t = r->state ? TR_F32 : type;
        TR_TRY(write_row(&file, at, r, t));
        at += r->count * tr_dtype_size(t);
    }
    st = tr_commit_finish(&file);
out:
    tr_commit_close(&file);
    tr_free(rows);
    free(header);
    return st;
}
