/* with: trainer/sweep/spec.c optimize/stages/budget.c, links: trireme_sweep
 * libFuzzer: a sweep's file: any bytes end in an error of the config with a text, or in what is
 * asked for, which is written and read again as it was. The first and the last point of a grid or
 * of ranges, and what a list has, are set in a config, which then is one or says what is wrong.
 *   fuzz_sweep NEW_FOLDER tests/fuzz/corpus/sweep -max_len=4096 -max_total_time=600
 * Inputs are changed as trees (yaml_change.h). */
#include <stdlib.h>
#include <string.h>

#include "trainer/sweep/internal.h"
#include "yaml_change.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);
size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t n, size_t most, unsigned seed);

size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t n, size_t most, unsigned seed)
{
    static const tr_field *const more[] = {tr_sweep_fields, tr_sweep_range_fields, NULL};
    yaml_more = more;
    return yaml_mutate(bytes, n, most, seed);
}

enum { AXES = 64 };

static const char CONFIG[] =
    "name: fuzz\n"
    "data: {train: {format: synthetic, samples: 8}, eval: {format: synthetic, samples: 4}}\n"
    "model:\n  input: [3]\n  layers:\n    - linear: {out: 4, name: a}\n    - relu\n"
    "    - linear: {out: 2}\n  loss: cross_entropy\n"
    "train: {batch: 4, steps: 2, optimizer: {sgd: {lr: 0.1}}}\n"
    "pipeline: [train, {prune: {amount: 0.5}}]\n";

static const tr_field prune[] = {
    TR_REAL("amount", 0, "0.5", 0, 1, NULL, "of all channels"),
    TR_END,
};
static const tr_variant_def STAGES[] = {
    {.name = "train", .doc = "Trains"},
    {.name = "prune", .fields = prune, .size = sizeof(double), .doc = "Prunes"},
    {.name = NULL}};

static void need(bool ok, const char *what)
{
    if (ok) return;
    fprintf(stderr, "%s: %s\n", what, tr_last_error()->text);
    abort();
}

/* True: TR_OK; a failure has a text and is the user's to mend. */
static bool worked(tr_status st, const char *what)
{
    need(st == TR_OK ||
             ((tr_status_exit_code(st) == 2 || st == TR_UNSUPPORTED) && *tr_last_error()->text),
         what);
    return st == TR_OK;
}

/* ---- A trial's config ------------------------------------------------------------------------ */

static void resolve(tr_document *d)
{
    tr_config *c = NULL;
    if (worked(tr_config_resolve("config.yaml", d, STAGES, &c), "a trial's config"))
        tr_config_close(c);
    tr_document_close(d);
}

static tr_document base(void)
{
    tr_document d;
    need(tr_document_parse("config.yaml", CONFIG, sizeof CONFIG - 1, &d) == TR_OK, "the config");
    return d;
}

static void try_map(const tr_node *map)
{
    tr_document d = base();
    for (size_t k = 0; map->kind == TR_NODE_MAP && k < map->count; k++)
        worked(tr_document_set(&d, map->keys[k], map->values[k]), "setting");
    resolve(&d);
}

static void try_point(const tr_sweep_space *s, const double *point)
{
    tr_sweep_value values[AXES];
    tr_document d = base();
    for (size_t k = 0; k < s->count; k++) {
        tr_sweep_axis_value(&s->axes[k], point[k], &values[k]);
        worked(tr_document_set(&d, s->axes[k].key, &values[k].node), "setting");
    }
    resolve(&d);
}

static void try_space(const tr_node *map, const char *what, bool ranges)
{
    tr_sweep_space s;
    double first[AXES], last[AXES];
    if (!worked(tr_sweep_space_read(map, what, ranges, &s), what)) return;
    for (size_t k = 0; k < s.count && k < AXES; k++) {
        const tr_sweep_axis *a = &s.axes[k];
        first[k] = a->count ? 0 : a->from;
        last[k] = a->count ? (double)(a->count - 1) : a->to;
    }
    if (s.count <= AXES) {
        try_point(&s, first);
        try_point(&s, last);
    }
    const size_t size = tr_sweep_space_size(&s);
    if (size > 0 && size < SIZE_MAX && s.count <= AXES) {
        tr_sweep_space_at(&s, size - 1, last);
        try_point(&s, last);
    }
    tr_sweep_space_free(&s);
}

/* ---- What was asked for ---------------------------------------------------------------------- */

static char *text_of(const tr_sweep_spec *spec, size_t *n)
{
    char *text = NULL;
    FILE *to = open_memstream(&text, n);
    need(to && tr_fields_write(tr_sweep_fields, spec, 0, to) == TR_OK, "writing");
    fclose(to);
    return text;
}

static void check_text(const tr_sweep_spec *spec)
{
    tr_document d, e;
    tr_sweep_spec again = {0};
    size_t n, m;
    char *one = text_of(spec, &n), *two = NULL;
    if (n < (1 << 20)) { /* aliases may have made it larger than what is read */
        need(tr_document_parse("again", one, n, &d) == TR_OK, "what was asked for");
        need(tr_fields_read(d.root, tr_sweep_fields, "", &again) == TR_OK, "its keys");
        two = text_of(&again, &m);
        need(tr_document_parse("once more", two, m, &e) == TR_OK && yaml_same(d.root, e.root),
             "read again as something else");
        tr_document_close(&e);
        tr_fields_free(tr_sweep_fields, &again);
        tr_document_close(&d);
    }
    free(one);
    free(two);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    const size_t held = tr_mem_held(TR_MEM_OTHER);
    tr_document d;
    tr_sweep_spec spec = {0};
    tr_log_init(0, 1, TR_LOG_ERROR);
    if (!worked(tr_document_parse("f", (const char *)bytes, n, &d), "parse")) return 0;
    if (worked(tr_fields_read(d.root, tr_sweep_fields, "", &spec), "fields")) {
        check_text(&spec);
        if (spec.set) try_map(spec.set);
        for (size_t i = 0; spec.list && spec.list->kind == TR_NODE_LIST && i < spec.list->count;
             i++)
            if (i == 0 || i + 1 == spec.list->count) try_map(spec.list->values[i]);
        if (spec.grid) try_space(spec.grid, "grid", false);
        if (spec.search.present) try_space(spec.search.over, "search.over", true);
    }
    tr_fields_free(tr_sweep_fields, &spec);
    tr_document_close(&d);
    need(tr_mem_held(TR_MEM_OTHER) == held, "leak");
    return 0;
}
