/* What a dataset holds, in words that ranks can compare: each opens its files by itself, and those
 * of another host may be other files. A checksum stands for the values: CRC-32C over all of an
 * array up to WHOLE bytes, beyond it over samples at keyed places, so that the cost does not grow
 * with the data. What is not looked at is not known to be the same. */
#include "runtime/base/crc32c.h"
#include "runtime/base/numbers.h"
#include "runtime/data/internal.h"

#include <inttypes.h>
#include <string.h>

#define WHOLE     ((uint64_t)32 << 20) /* bytes of an array that are read */
#define MOST_READ 256                  /* samples, each read by itself from a file */
#define MOST_HELD 4096                 /* from memory */
#define LEAST     4
#define BLOCK     ((uint64_t)1 << 20)

/* Samples [first, first + n). scratch: n * a->nbytes bytes. */
static tr_status add(tr_array *a, uint64_t first, uint64_t n, void *scratch, uint32_t *crc)
{
    const void *raw = scratch;
    if (a->held)
        raw = (const char *)a->held + first * a->nbytes;
    else {
        const tr_status st = a->read(a, first, n, scratch);
        if (st != TR_OK) return st;
    }
    *crc = tr_crc32c(*crc, raw, (size_t)n * a->nbytes);
    return TR_OK;
}

/* How many samples to look at of those that would take too long as a whole. */
static uint64_t looks(const tr_array *a)
{
    const uint64_t each = a->unit > a->nbytes ? a->unit : a->nbytes;
    const uint64_t fit = WHOLE / each, most = a->held ? MOST_HELD : MOST_READ;
    return fit > most ? most : fit > LEAST ? fit : LEAST;
}

static tr_status checksum(tr_array *a, uint64_t samples, uint64_t seed, uint32_t *crc)
{
    const bool whole = samples * a->nbytes <= WHOLE || looks(a) >= samples;
    const uint64_t block = whole ? BLOCK / a->nbytes + 1 : 1;
    tr_status st = TR_OK;
    char *scratch = tr_alloc(TR_MEM_OTHER, a->held ? 1 : (size_t)block, a->nbytes);
    TR_HAVE(scratch);
    *crc = 0;
    for (uint64_t i = 0; whole && i < samples; i += block)
        TR_TRY(add(a, i, samples - i < block ? samples - i : block, scratch, crc));
    if (whole) goto out;
    TR_TRY(add(a, 0, 1, scratch, crc));
    TR_TRY(add(a, samples - 1, 1, scratch, crc));
    for (uint64_t k = 0; k < looks(a); k++)
        TR_TRY(add(a, tr_permute(seed, 0, samples, k), 1, scratch, crc));
out:
    tr_free(scratch);
    return st;
}

uint64_t tr_dataset_names(const tr_dataset *d)
{
    const tr_array *a = d->inputs[0];
    uint32_t crc = 0;
    if (!a->file) return 0;
    for (uint64_t i = 0; i < d->samples; i++) {
        const char *name = a->file(a, i);
        crc = tr_crc32c(crc, name, strlen(name) + 1);
    }
    return (uint64_t)1 << 32 | crc;
}

static tr_status describe(const tr_dataset *d, tr_array *a, const char *block, const char *what,
                          uint64_t seed, FILE *to)
{
    char shape[128];
    uint32_t crc = 0;
    tr_status st = TR_OK;
    if (!a->computed) TR_TRY(checksum(a, d->samples, seed, &crc));
    fprintf(to, "%s: %s: %" PRIu64 " samples, %s %s", block, what, d->samples,
            tr_elem_name(a->elem), tr_format_dims(a->ndim, a->dims, shape, sizeof shape));
    if (!a->computed) fprintf(to, ", checksum %08" PRIx32, crc);
    if (a == d->inputs[0] && a->file)
        fprintf(to, ", names %08" PRIx32, (uint32_t)tr_dataset_names(d));
    fprintf(to, "\n");
out:
    return st;
}

tr_status tr_dataset_describe(tr_dataset *d, const char *block, uint64_t seed, FILE *to)
{
    char what[32];
    tr_status st = TR_OK;
    for (size_t k = 0; k < d->ninputs; k++) {
        snprintf(what, sizeof what, d->ninputs > 1 ? "input %zu" : "inputs", k + 1);
        TR_TRY(describe(d, d->inputs[k], block, what, seed, to));
    }
    if (d->targets)
        TR_TRY(describe(d, d->targets, block, d->labels ? "labels" : "targets", seed, to));
    if (d->weights) TR_TRY(describe(d, d->weights, block, "weights", seed, to));
out:
    return st;
}
