/* with: trainer/start/config_for.c trainer/start/config_text.c
 * libFuzzer: a data file as `trainer new --data` looks at it: any bytes end in an error with a
 * text, or in a config that can be opened and whose model can be made, and whose data are then
 * read. The first byte chooses how the file is called, and the labels' name.
 *   fuzz_look NEW_FOLDER tests/fuzz/corpus/look -max_len=20000 -max_total_time=600 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fuzz_data.h"
#include "fuzz_folder.h"
#include "runtime/config/config.h"
#include "runtime/data/look.h"
#include "runtime/graph/model.h"
#include "trainer/start/start.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static const char *const names[] = {"f.csv", "f.npz", "f.npy", "f.txt",
                                    "f.bin", "f",     "f.tsv", "x-images-idx3-ubyte"};

static void give_up(const char *what, const char *text)
{
    fprintf(stderr, "%s: %s\n%s", what, tr_last_error()->text, text ? text : "");
    abort();
}

static void with_text(tr_status st)
{
    if (st != TR_OK && !*tr_last_error()->text) abort();
}

/* As training finds them: a list of texts, which goes into the run's config. */
static void find_categories(const tr_config *c, const char *column)
{
    char *text = NULL;
    size_t n = 0;
    tr_document d;
    FILE *to = open_memstream(&text, &n);
    if (!to) abort();
    const tr_status st = tr_table_categories(c, column, to);
    fclose(to);
    with_text(st);
    if (st == TR_OK) {
        if (tr_document_parse("categories", text, n, &d) != TR_OK) give_up("categories", text);
        tr_document_close(&d);
    }
    free(text);
}

static void read_data(const tr_config *c, const tr_model *m)
{
    const tr_node *categories = c->data.table.categories;
    tr_dataset *d = NULL;
    char *text = NULL;
    size_t n = 0;
    if (categories && categories->count > 0) {
        for (size_t i = 0; i < categories->count; i++)
            find_categories(c, categories->keys[i]->text);
        return;
    }
    FILE *to = open_memstream(&text, &n);
    if (!to) abort();
    const tr_status st = tr_dataset_open(c, &c->data.train, m, &d);
    with_text(st);
    if (st == TR_OK) with_text(tr_dataset_check(d, c, m, to));
    tr_dataset_close(d);
    fclose(to);
    free(text);
}

static void check_config(const tr_look *l)
{
    char *text = NULL, path[FUZZ_PATH];
    size_t n = 0;
    tr_config *c = NULL;
    tr_model *m = NULL;
    FILE *to = open_memstream(&text, &n);
    if (!to) abort();
    const tr_status st = tr_new_config(l, "fuzz", "config.yaml", to);
    fclose(to);
    if (st != TR_OK && !*tr_last_error()->text) give_up("a config", NULL);
    if (st == TR_OK) {
        if (tr_config_open(fuzz_path("config.yaml", path), text, n, NULL, 0, NULL, &c) != TR_OK)
            give_up("opening the config", text);
        if (tr_model_open(c, 0, &m) != TR_OK) give_up("making its model", text);
        read_data(c, m);
    }
    tr_model_close(m);
    tr_config_close(c);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    static const char *const labels[] = {NULL, NULL, NULL, "y", "a,b", "label"};
    char path[FUZZ_PATH];
    tr_look l;
    if (n == 0) return 0;
    fuzz_make_folder();
    tr_log_init(0, 1, TR_LOG_ERROR);
    const size_t held = tr_mem_held(TR_MEM_OTHER) + tr_mem_held(TR_MEM_DATA);
    fuzz_write(names[bytes[0] % 8], bytes + 1, n - 1);
    fuzz_path(names[bytes[0] % 8], path);
    if (tr_look_open(path, labels[bytes[0] / 8 % TR_COUNT(labels)], &l) == TR_OK) {
        check_config(&l);
        tr_look_close(&l);
    } else if (!*tr_last_error()->text) {
        abort();
    }
    unlink(path);
    if (tr_mem_held(TR_MEM_OTHER) + tr_mem_held(TR_MEM_DATA) != held) abort();
    return 0;
}
