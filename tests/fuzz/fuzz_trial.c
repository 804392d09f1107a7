/* with: trainer/sweep/record.c
 * libFuzzer: trial.yaml in a trial's folder, as a sweep left it, or somebody wrote it: any bytes
 * are no record, which is said and belongs to no trial, or one whose key, settings and result are
 * written and read again as they were.
 *   fuzz_trial NEW_FOLDER tests/fuzz/corpus/trial -max_len=4096 -max_total_time=600
 * Inputs are changed as trees, too (yaml_change.h). */
#include <string.h>

#include "fuzz_folder.h"
#include "trainer/sweep/internal.h"
#include "yaml_change.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);
size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t n, size_t most, unsigned seed);

size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t n, size_t most, unsigned seed)
{
    return seed % 2 ? LLVMFuzzerMutate(bytes, n, most) : yaml_mutate(bytes, n, most, seed / 2);
}

/* The settings that the sweep asks for. */
enum { COLUMNS = 3 };
static const tr_node keys[COLUMNS] = {
    {.kind = TR_NODE_SCALAR, .source = "", .text = (char *)"train.optimizer.lr"},
    {.kind = TR_NODE_SCALAR, .source = "", .text = (char *)"pipeline.prune.keep"},
    {.kind = TR_NODE_SCALAR, .source = "", .text = (char *)"seed"}};
static const tr_node *columns[COLUMNS] = {&keys[0], &keys[1], &keys[2]};

typedef struct {
    tr_known_trial known;
    tr_trial_result result;
    char *values[COLUMNS];
} told;

/* False: it is no record. */
static bool read_record(const tr_sweep *s, told *x)
{
    bool there, found, ended;
    tr_trial_result r;
    *x = (told){0};
    if (tr_record_look(fuzz_folder, &x->known, &there) != TR_OK || !there) abort();
    if (tr_record_values(s, fuzz_folder, &x->result, x->values, &found) != TR_OK) abort();
    if (found != (strlen(x->known.key) > 0) || (found && x->result.state != x->known.state))
        abort();
    if (!found && x->known.state != TR_TRIAL_OPEN && x->known.state != TR_TRIAL_REPLACED) abort();
    if (tr_record_read(fuzz_folder, "no key", &r, &ended) != TR_OK) abort();
    if (ended && strcmp(x->known.key, "no key") != 0) abort();
    return found;
}

static void forget(told *x)
{
    for (int k = 0; k < COLUMNS; k++) tr_free(x->values[k]);
}

/* The trial with these settings and this result. */
static void write_record(const tr_sweep *s, const told *x)
{
    tr_setting settings[COLUMNS] = {0};
    tr_document docs[COLUMNS] = {{NULL, NULL}};
    tr_trial t = {.folder = fuzz_folder, .settings = settings, .result = x->result};
    snprintf(t.key, sizeof t.key, "%s", x->known.key);
    snprintf(t.training, sizeof t.training, "%s", x->known.training);
    for (int k = 0; k < COLUMNS; k++) {
        if (!x->values[k]) continue;
        if (tr_document_parse("value", x->values[k], strlen(x->values[k]), &docs[k]) != TR_OK)
            abort();
        settings[k].key = columns[k];
        settings[k].value.node = *docs[k].root;
    }
    if (tr_record_write(s, &t) != TR_OK) abort();
    for (int k = 0; k < COLUMNS; k++) tr_document_close(&docs[k]);
}

static size_t record_text(char *text, size_t most)
{
    char path[FUZZ_PATH];
    FILE *f = fopen(fuzz_path("trial.yaml", path), "rb");
    if (!f) abort();
    const size_t n = fread(text, 1, most, f);
    fclose(f);
    return n;
}

/* What is longer than a record keeps, it does not. A plain text may come back in quotes, but stays
 * as it is then. */
static bool same_values(const told *a, const told *b, bool text)
{
    bool same = true, none = true;
    size_t length = 0;
    for (int k = 0; k < COLUMNS; k++) {
        const char *x = a->values[k], *y = b->values[k];
        same = same && (x && y && text ? strcmp(x, y) == 0 : !x == !y);
        none = none && !y;
        length += x ? strlen(x) : 0;
    }
    return same || (none && !text && length > 30000);
}

/* What `from` says, written and read again. */
static size_t again(const tr_sweep *s, const told *from, told *to, char *text, size_t most)
{
    write_record(s, from);
    if (!read_record(s, to)) abort();
    if (strcmp(from->known.key, to->known.key) != 0) abort();
    if (strcmp(from->known.training, to->known.training) != 0) abort();
    return record_text(text, most);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    static char one[1 << 17], two[1 << 17];
    fuzz_make_folder();
    tr_log_init(0, 1, TR_LOG_ERROR);
    const size_t held = tr_mem_held(TR_MEM_OTHER);
    const tr_sweep s = {.ncolumns = COLUMNS, .columns = columns};
    told a, b, c, d;
    fuzz_write("trial.yaml", bytes, n);
    if (read_record(&s, &a)) {
        (void)again(&s, &a, &b, one, sizeof one);
        const size_t m = again(&s, &b, &c, one, sizeof one);
        if (!same_values(&a, &b, false) || !same_values(&b, &c, true)) abort();
        if (again(&s, &c, &d, two, sizeof two) != m || memcmp(one, two, m) != 0) abort();
        forget(&b);
        forget(&c);
        forget(&d);
    }
    forget(&a);
    if (tr_mem_held(TR_MEM_OTHER) != held) abort();
    return 0;
}
