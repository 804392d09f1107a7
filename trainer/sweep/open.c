/* From files and the command line to trials that are all known to be right. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/graph/graph.h"
#include "trainer/models/chain.h"
#include "trainer/pipeline/essence.h"
#include "trainer/stages/stages.h"
#include "trainer/sweep/internal.h"

/* ---- The sweep's file ------------------------------------------------------------------------ */

/* Whether the first name of key=value is the sweep's; all others are the config's. */
static bool is_own(const char *assignment)
{
    const size_t n = strcspn(assignment, ".=");
    for (const tr_field *f = tr_sweep_fields; f->key; f++)
        if (strlen(f->key) == n && memcmp(f->key, assignment, n) == 0) return true;
    return false;
}

static tr_status apply_overrides(tr_sweep *s)
{
    tr_status st = TR_OK;
    const tr_arguments *a = s->arguments;
    s->overrides = tr_alloc(TR_MEM_OTHER, a->noverrides + 1, sizeof *s->overrides);
    TR_HAVE(s->overrides);
    for (size_t i = 0; i < a->noverrides; i++)
        if (is_own(a->overrides[i]))
            TR_TRY(tr_document_override(&s->document, a->overrides[i]));
        else
            s->overrides[s->noverrides++] = a->overrides[i];
out:
    return st;
}

/* The config's path, relative to the sweep's file. */
static char *beside(const char *file, const char *path)
{
    const char *slash = strrchr(file, '/');
    if (*path == '/' || !slash) return tr_strdup(path);
    return tr_sprintf("%.*s/%s", (int)(slash - file), file, path);
}

static tr_status read_spec(tr_sweep *s, const char *text, size_t nbytes)
{
    tr_status st;
    const tr_sweep_spec *p = &s->spec;
    TR_TRY(tr_document_parse(s->arguments->config, text, nbytes, &s->document));
    TR_TRY(apply_overrides(s));
    const tr_node *root = s->document.root;
    if (root->kind != TR_NODE_MAP)
        return tr_node_fail(root, "expected a map of keys such as config, grid, search");
    TR_TRY(tr_fields_read(root, tr_sweep_fields, "", &s->spec));
    if (!p->grid && !p->list && !p->search.present)
        return tr_node_fail(root, "what shall trials try? Give a grid, a list or a search");
    if ((p->grid || p->list) && p->search.present)
        return tr_node_fail(p->grid ? p->grid : p->list,
                            "a search chooses its trials itself: give either that, or a grid and a "
                            "list");
    if (p->set && p->set->kind != TR_NODE_MAP)
        return tr_node_fail(p->set, "set: expected a map of keys to values");
    for (size_t i = 0; p->set && i < p->set->count; i++)
        if (strcmp(p->set->keys[i]->text, "output") == 0)
            return tr_node_fail(p->set->keys[i], "set.output: " TR_TRIAL_OUTPUT);
    s->file = beside(s->arguments->config, p->config);
    TR_HAVE(s->file);
out:
    return st;
}

/* ---- Configs --------------------------------------------------------------------------------- */

/* With the settings of a trial, NULL: none, in a folder of its own. */
static tr_status make_config(const tr_sweep *s, const tr_trial *t, tr_config **out)
{
    tr_status st;
    tr_document doc = {NULL, NULL};
    tr_variant_def stages[TR_STAGES + 1];
    const tr_node *set = s->spec.set;
    TR_TRY(tr_document_parse(s->file, s->text, s->nbytes, &doc));
    for (size_t i = 0; set && i < set->count; i++)
        TR_TRY(tr_document_set(&doc, set->keys[i], set->values[i]));
    for (size_t i = 0; i < s->noverrides; i++) TR_TRY(tr_document_override(&doc, s->overrides[i]));
    for (size_t k = 0; t && k < s->ncolumns; k++)
        if (t->settings[k].key)
            TR_TRY(tr_document_set(&doc, t->settings[k].key, &t->settings[k].value.node));
    if (t) {
        tr_node key = {.source = "sweep", .line = 1, .column = 1, .text = (char *)"output"};
        tr_node folder = key;
        folder.text = t->folder;
        folder.quoted = true;
        TR_TRY(tr_document_set(&doc, &key, &folder));
    }
    tr_stages_known(stages);
    TR_TRY(tr_config_resolve(s->file, &doc, stages, out));
out:
    tr_document_close(&doc);
    return st;
}

/* What ranks agreed on when they were connected is no trial's to change. */
static tr_status check_connection(const tr_sweep *s, const tr_trial *t, const tr_config *c)
{
    const tr_config *b = s->base;
    if (c->run.collectives == b->run.collectives && c->run.timeout == b->run.timeout &&
        c->run.start_timeout == b->run.start_timeout)
        return TR_OK;
    const tr_node *at = s->document.root;
    for (size_t k = 0; k < s->ncolumns; k++)
        if (t->settings[k].key && strncmp(t->settings[k].key->text, "run", 3) == 0)
            at = t->settings[k].key;
    return tr_node_fail(at, "run.collectives, run.timeout and run.start_timeout are the same for "
                            "all trials: ranks are connected once; give them in `set`");
}

tr_status tr_trial_config(const tr_sweep *s, const tr_trial *t, tr_config **out)
{
    tr_status st;
    tr_config *c = NULL;
    unsigned skip;
    TR_TRY(make_config(s, t, &c));
    TR_TRY(check_connection(s, t, c));
    TR_TRY(tr_check_run(c));
    TR_TRY(tr_stages_check(c));
    TR_TRY(tr_sweep_groups_check_timed(s, c));
    TR_TRY(tr_graph_passes_skipped(c, &skip));
    *out = c;
out:
    if (st != TR_OK) {
        const tr_error why = *tr_last_error();
        tr_config_close(c);
        tr_set_error(&why);
    }
    return st;
}

/* ---- What depends on what -------------------------------------------------------------------- */

tr_status tr_training_key(const tr_config *c, char out[65])
{
    tr_status st;
    char *essence = NULL, *all = NULL;
    TR_TRY(tr_config_essence(c, true, &essence));
    /* gradients rounded between nodes, another device's kernels, and ops that are not fused are
     * other results */
    all = tr_sprintf("%s# device %d wire %d skip %x\n", essence, c->device, c->run.wire,
                     tr_graph_skip(c));
    TR_HAVE(all);
    tr_sha256_hex(all, strlen(all), out);
out:
    tr_free(essence);
    tr_free(all);
    return st;
}

/* The config as it stands, with all that it leaves to defaults: but for where it lies and where its
 * results go. What files hold, ranks and the program are no part of it. */
tr_status tr_trial_key(const tr_config *c, char out[65])
{
    tr_status st;
    char *text = NULL;
    tr_config other = *c;
    other.directory = (char *)"/";
    other.output = (char *)"-";
    TR_TRY(tr_config_text(&other, &text));
    tr_sha256_hex(text, strlen(text), out);
out:
    free(text);
    return st;
}

tr_status tr_trial_identify(tr_sweep *s, tr_trial *t, const tr_config *c)
{
    tr_status st;
    TR_TRY(tr_trial_key(c, t->key));
    TR_TRY(tr_training_key(c, t->training));
    t->first = t->place;
    for (size_t i = t->place; i-- > 0;)
        if (strcmp(s->trials[i].training, t->training) == 0) t->first = i;
    t->source = t->first;
out:
    return st;
}

/* ---- Opening --------------------------------------------------------------------------------- */

/* A search asks for what can be measured. */
static tr_status check_search(const tr_sweep *s)
{
    const tr_sweep_spec *p = &s->spec;
    const tr_budget *b = &p->search.subject_to;
    const tr_node *at = tr_node_get(s->document.root, "search");
    if (!p->search.present) return TR_OK;
    const bool data = tr_config_has_eval(s->base);
    const bool classes = tr_loss_counts(s->base->model.loss.kind.which);
    const bool loss = p->search.minimize == TR_MINIMIZE_LOSS || b->loss_rise >= 0 || b->loss >= 0;
    const bool accuracy =
        p->search.minimize == TR_MINIMIZE_ERROR || b->accuracy_drop >= 0 || b->accuracy >= 0;
    if ((loss || accuracy) && !data)
        return tr_node_fail(at,
                            "search: accuracy and loss are those on data.eval, which the config "
                            "does not have");
    if (accuracy && !classes)
        return tr_node_fail(at, "search: accuracy is asked for, which the loss does not have");
    return TR_OK;
}

static tr_status plan(tr_sweep *s)
{
    tr_status st;
    TR_TRY(make_config(s, NULL, &s->base));
    TR_TRY(tr_check_run(s->base));
    TR_TRY(tr_stages_check(s->base));
    TR_TRY(check_search(s));
    if (!s->spec.output) s->spec.output = tr_sprintf("runs/%s-sweep", s->base->name);
    TR_HAVE(s->spec.output);
    TR_TRY(tr_trials_plan(s));
    TR_TRY(tr_trials_check(s));
out:
    return st;
}

tr_status tr_sweep_open(const tr_arguments *a, tr_comm *comm, tr_sweep **out)
{
    tr_status st;
    char *text = NULL;
    size_t nbytes;
    tr_sweep *s = TR_NEW(TR_MEM_OTHER, tr_sweep);
    TR_TRY(tr_agree(comm, s ? TR_OK : tr_last_status(), NULL));
    s->arguments = a;
    s->lock = -1;
    TR_TRY(tr_arguments_agree(a, comm));
    TR_TRY(tr_read_config_shared(a->config, comm, &text, &nbytes));
    TR_TRY(tr_agree(comm, read_spec(s, text, nbytes), NULL));
    TR_TRY(tr_sweep_groups_check(s, tr_comm_topology(comm)->size));
    s->side_by_side =
        s->spec.ranks_per_trial > 0 && s->spec.ranks_per_trial < tr_comm_topology(comm)->size;
    TR_TRY(tr_read_shared(s->file, false, comm, &s->text, &s->nbytes));
    TR_TRY(tr_agree(comm, plan(s), NULL));
    *out = s;
out:
    tr_free(text);
    if (st != TR_OK) {
        const tr_error why = *tr_last_error();
        tr_sweep_close(s);
        tr_set_error(&why);
    }
    return st;
}

void tr_sweep_close(tr_sweep *s)
{
    if (!s) return;
    if (s->lock >= 0) close(s->lock);
    for (size_t i = 0; i < s->ntrials; i++) {
        tr_free(s->trials[i].settings);
        tr_free(s->trials[i].folder);
    }
    tr_free(s->trials);
    tr_free(s->points);
    tr_sweep_free_known(s);
    tr_free((void *)s->columns);
    tr_sweep_space_free(&s->space);
    tr_config_close(s->base);
    tr_free(s->text);
    tr_free(s->file);
    tr_fields_free(tr_sweep_fields, &s->spec);
    tr_document_close(&s->document);
    tr_free((void *)s->overrides);
    tr_free(s);
}

const tr_config *tr_sweep_base(const tr_sweep *s)
{
    return s->base;
}
