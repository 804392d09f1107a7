/* libFuzzer target for all that reads config text: any bytes end in a config or in a TR_CONFIG
 * error with a text, and whatever parses is written to YAML that parses to the same tree again.
 *   fuzz_config NEW_FOLDER tests/fuzz/corpus/config -max_len=4096 -max_total_time=60
 * A first line that starts with `#!` is taken as an override of the rest. Inputs are changed as
 * trees, too (yaml_change.h). */
#include "runtime/config/config.h"
#include "tests/fuzz/yaml_change.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t nbytes);
size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t n, size_t most, unsigned seed);

/* Every other time as bytes: what is no tree is to be found, too. */
size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t n, size_t most, unsigned seed)
{
    return seed % 2 ? LLVMFuzzerMutate(bytes, n, most) : yaml_mutate(bytes, n, most, seed / 2);
}

static void need(bool ok, const char *what)
{
    if (ok) return;
    fprintf(stderr, "%s: %s\n", what, tr_last_error()->text);
    abort();
}

static const tr_field bits[] = {
    TR_INT("bits", 0, "8", 1, 16, NULL, "of a weight"),
    TR_END,
};
static const tr_variant_def STAGES[] = {
    {.name = "train", .doc = "Trains"},
    {.name = "quantize", .fields = bits, .size = sizeof(int64_t), .doc = "Rounds"},
    {.name = NULL}};

static void check_tree(const tr_node *root)
{
    tr_document again;
    char *text = NULL;
    size_t n = 0;
    FILE *to = open_memstream(&text, &n);
    need(tr_node_write(root, to) == TR_OK, "writing");
    fclose(to);
    if (n < (1 << 20)) { /* aliases may have made it larger than what is read */
        need(tr_document_parse("again", text, n, &again) == TR_OK, "reading back");
        need(yaml_same(root, again.root), "another tree");
        tr_document_close(&again);
    }
    free(text);
}

static void check_config(const tr_config *c)
{
    tr_config *again = NULL;
    char *text = NULL;
    size_t n = 0;
    FILE *to = open_memstream(&text, &n);
    need(tr_config_write(c, to) == TR_OK, "writing the config");
    fclose(to);
    if (n < (1 << 20))
        need(tr_config_open("again", text, n, NULL, 0, STAGES, &again) == TR_OK,
             "the resolved config");
    tr_config_close(again);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t nbytes)
{
    const char *text = (const char *)bytes, *override = NULL;
    char line[256];
    const char *end = nbytes > 2 && memcmp(text, "#!", 2) == 0 ? memchr(text, '\n', nbytes) : NULL;
    if (end && end - text < (ptrdiff_t)sizeof(line)) {
        memcpy(line, text + 2, (size_t)(end - text) - 2);
        line[end - text - 2] = 0;
        override = line;
    }
    size_t held = tr_mem_held(TR_MEM_OTHER);
    tr_document doc;
    tr_config *c = NULL;
    tr_status st = tr_document_parse("f", text, nbytes, &doc);
    if (st == TR_OK) {
        if (override) tr_document_override(&doc, override);
        check_tree(doc.root);
        tr_document_close(&doc);
    } else {
        need(st == TR_CONFIG && *tr_last_error()->text, "parse");
    }
    st = tr_config_open("f", text, nbytes, &override, override != NULL, STAGES, &c);
    if (st == TR_OK)
        check_config(c);
    else
        need(tr_status_exit_code(st) == 2 && *tr_last_error()->text, "open");
    tr_config_close(c);
    need(tr_mem_held(TR_MEM_OTHER) == held, "leak");
    return 0;
}
