/* `trainer check`: validates a config and prints it as resolved; --help-config prints the
 * reference, --schema the same for editors. */
#include <stdlib.h>
#include <string.h>

#include "runtime/base/visible.h"
#include "runtime/config/level.h"
#include "runtime/data/data.h"
#include "runtime/graph/graph.h"
#include "trainer/arguments/arguments.h"
#include "trainer/command/commands.h"
#include "trainer/loop/resolve.h"
#include "trainer/loop/round.h"
#include "trainer/loop/trainer.h"
#include "trainer/models/train_model.h"
#include "trainer/pipeline/teachers.h"
#include "trainer/stages/stages.h"
#include "trainer/sweep/sweep.h"

static tr_status check_source(const tr_config *c, const tr_source_config *s, const tr_model *m,
                              FILE *to)
{
    tr_dataset *d = NULL;
    tr_status st = tr_dataset_open(c, s, m, &d);
    if (st == TR_OK) st = tr_dataset_check(d, c, m, to);
    tr_dataset_close(d);
    return st;
}

/* Before anything is computed of them. */
static tr_status check_files(const tr_config *c, const tr_source_config *s, const tr_model *m,
                             FILE *to)
{
    tr_dataset *d = NULL;
    /* what data.split holds out of data.train has its format */
    const bool held_out = s == &c->data.eval && !s->present;
    if (tr_source_kind(c, held_out ? &c->data.train : s) != TR_FORMAT_FOLDER) return TR_OK;
    tr_status st = tr_dataset_open(c, s, m, &d);
    if (st == TR_OK) st = tr_dataset_check_files(d, to);
    tr_dataset_close(d);
    return st;
}

static tr_status check_samples(const tr_config *c, const tr_model *m, FILE *to)
{
    tr_status st;
    const tr_comm_options alone = {.mpi = false};
    tr_comm *comm = NULL;
    tr_config *resolved = NULL;
    TR_TRY(tr_comm_open(&alone, &comm));
    TR_TRY(check_files(c, &c->data.train, m, to));
    if (tr_config_has_eval(c)) TR_TRY(check_files(c, &c->data.eval, m, to));
    if (c->data.predict.present) TR_TRY(check_files(c, &c->data.predict, m, to));
    TR_TRY(tr_data_resolve(comm, c, m, NULL, &resolved));
    if (resolved) c = resolved;
    TR_TRY(check_source(c, &c->data.train, m, to));
    if (tr_config_has_eval(c)) TR_TRY(check_source(c, &c->data.eval, m, to));
    if (c->data.predict.present) TR_TRY(check_source(c, &c->data.predict, m, to));
out:
    tr_config_close(resolved);
    tr_comm_close(comm);
    return st;
}

/* Whether layers are written as something else than themselves: parameters, blocks of the config's
 * own, repeats, structures, sketches of dense ones. */
static bool is_short(const tr_node *n)
{
    static const char *const keys[] = {"define", "params", "repeat",      "sketch",
                                       "lstm",   "gru",    "transformer", "patch_embedding"};
    if (n->kind == TR_NODE_SCALAR) return strchr(n->text, '$') != NULL;
    for (size_t i = 0; i < n->count; i++) {
        for (size_t k = 0; n->kind == TR_NODE_MAP && k < TR_COUNT(keys); k++)
            if (strcmp(n->keys[i]->text, keys[k]) == 0) return true;
        if (is_short(n->values[i])) return true;
    }
    return false;
}

/* The model's layers one by one, and what `model:` says beside them. */
static tr_status write_layers(const tr_model *m, const tr_node *said, FILE *to)
{
    static const char *const keys[] = {"init", "init_from"};
    tr_status st;
    char *line = NULL;
    TR_TRY(tr_model_write(m, 0, to));
    for (size_t i = 0; i < TR_COUNT(keys); i++) {
        const tr_node *n = tr_node_get(said, keys[i]);
        if (!n) continue;
        TR_TRY(tr_node_line(n, &line));
        fprintf(to, "%s: %s\n", keys[i], line);
        tr_free(line);
        line = NULL;
    }
out:
    return st;
}

/* Resolved: without parameters, blocks and repeats, which are the layers that they make. */
static tr_status write_config(const tr_config *c, const tr_model *m, FILE *to)
{
    tr_status st;
    char *text = NULL, *layers = NULL;
    size_t n = 0;
    tr_document whole = {NULL, NULL}, model = {NULL, NULL};
    FILE *f = NULL;
    TR_TRY(tr_config_text(c, &text));
    TR_TRY(tr_document_parse("resolved", text, strlen(text), &whole));
    const tr_node *said = tr_node_get(whole.root, "model");
    if (!is_short(said)) {
        st = tr_config_write(c, to);
        goto out;
    }
    TR_NEED(f = open_memstream(&layers, &n), TR_MEMORY, "no memory for the model's text");
    st = write_layers(m, said, f);
    if (fclose(f) != 0 && st == TR_OK) st = TR_FAIL(TR_MEMORY, "no memory for the model's text");
    TR_TRY(st);
    TR_TRY(tr_document_parse("model", layers, n, &model));
    st = tr_config_write_with(c, model.root, to);
out:
    tr_document_close(&whole);
    tr_document_close(&model);
    free(text);
    free(layers);
    return st;
}

void tr_reference_write(FILE *to)
{
    tr_variant_def stages[TR_STAGES + 1];
    tr_stages_known(stages);
    tr_config_help(stages, to);
    tr_layers_help(to);
    tr_sweep_help(to);
}

int tr_cmd_check(int argc, char **argv)
{
    tr_arguments a;
    tr_config *config = NULL, *rounded = NULL;
    tr_model *model = NULL;
    FILE *shown = NULL;
    tr_status st = tr_arguments_parse_either(argc, argv, "--help-config --schema --data", &a);
    if (st != TR_OK) return tr_command_end(st);
    if (a.schema) {
        tr_variant_def stages[TR_STAGES + 1];
        tr_stages_known(stages);
        tr_config_schema(stages, stdout);
        tr_layers_schema(stdout);
        fputs("}\n", stdout);
        goto out;
    }
    if (a.help_config) {
        tr_reference_write(stdout);
        goto out;
    }
    TR_TRY(tr_arguments_config(&a, NULL, &config));
    TR_TRY(tr_device_check(config));
    TR_TRY(tr_config_round(NULL, config, NULL, &rounded));
    if (rounded) {
        tr_config_close(config);
        config = rounded;
    }
    /* The layers' attributes and shapes. A model that is there may have nothing to train. */
    st = a.run_file ? tr_model_open(config, 0, &model) : tr_train_model(config, &model);
    TR_TRY(st);
    TR_TRY(tr_data_check(config, model));
    TR_TRY(tr_stages_check_model(config, model));
    shown = tr_visible_stream(stdout);
    TR_HAVE(shown);
    if (!a.run_file) TR_TRY(tr_stages_models_check(config, model));
    if (a.check_data) TR_TRY(check_samples(config, model, shown));
    tr_level_write(config, shown);
    TR_TRY(write_config(config, model, shown));
out:
    if (shown) fclose(shown); /* what did not reach stdout is told at the end */
    tr_model_close(model);
    tr_config_close(config);
    tr_arguments_free(&a);
    return tr_command_end(st);
}
