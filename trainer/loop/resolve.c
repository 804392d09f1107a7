#include "trainer/loop/resolve.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "optimize/evaluation/evaluation.h"
#include "runtime/base/numbers.h"

#define BLOCKS 256 /* that a dataset is cut into, however many ranks there are */

typedef struct {
    tr_comm *comm;
    const char *kept; /* a run's folder, or NULL */
    const tr_config *c;
    const tr_model *m;
    tr_dataset *data;
    tr_found_keys *found;
} resolving;

/* ---- As the run has it ----------------------------------------------------------------------- */

tr_status tr_config_kept(const char *folder, const char *path, char **out)
{
    tr_status st = TR_OK;
    tr_document doc = {0};
    char *file = tr_sprintf("%s/config.yaml", folder), *text = NULL, *line = NULL;
    char *words = tr_strdup(path), *next = words;
    size_t nbytes;
    TR_HAVE(file && words);
    if (access(file, F_OK) != 0) goto out;
    TR_TRY(tr_read_text(file, &text, &nbytes));
    TR_TRY(tr_document_parse(file, text, nbytes, &doc));
    const tr_node *n = doc.root;
    for (char *word; n && (word = strsep(&next, ".")) != NULL;) n = tr_node_get(n, word);
    if (!n || (n->kind == TR_NODE_SCALAR && !*n->text)) goto out;
    TR_TRY(tr_node_line(n, &line));
    TR_HAVE(*out = tr_sprintf("%s=%s", path, line));
    tr_log(TR_LOG_INFO, "%s: as %s has it", path, file);
out:
    tr_free(line);
    tr_document_close(&doc);
    tr_free(text);
    tr_free(words);
    tr_free(file);
    return st;
}

/* *Collective.* Whether the override of `path` came from there. */
static tr_status take_kept(resolving *r, const char *path, bool *found)
{
    char *text = NULL;
    const bool root = tr_comm_topology(r->comm)->rank == 0;
    tr_status st = root ? tr_config_kept(r->kept, path, &text) : TR_OK;
    TR_TRY(tr_agree(r->comm, st, NULL));
    TR_TRY(tr_comm_share_text(r->comm, &text));
    *found = text != NULL;
    if (text) r->found->v[r->found->count++] = text;
    text = NULL;
out:
    tr_free(text);
    return st;
}

/* ---- From the data --------------------------------------------------------------------------- */

/* *Collective.* Blocks are dealt to ranks, and merged in their order. all: [places], of input k, or
 * -1: the targets. */
static tr_status moments(const resolving *r, int input, size_t places, tr_moments *all)
{
    const tr_topology *t = tr_comm_topology(r->comm);
    const uint64_t n = tr_dataset_samples(r->data);
    tr_status st = TR_OK;
    tr_moments *of = tr_alloc(TR_MEM_OTHER, BLOCKS * places, sizeof *of);
    TR_TRY(tr_agree(r->comm, of ? TR_OK : tr_last_status(), NULL));
    tr_comm_busy(r->comm, TR_BUSY_READS);
    for (uint64_t b = (uint64_t)t->rank; b < BLOCKS && st == TR_OK; b += (uint64_t)t->size) {
        const tr_range part = {n * b / BLOCKS, n * (b + 1) / BLOCKS};
        st = tr_dataset_moments(r->data, r->m, input, part, of + b * places);
    }
    tr_comm_busy(r->comm, TR_BUSY_NOT);
    TR_TRY(tr_agree(r->comm, st, NULL));
    /* zeros on all ranks but one: sums of words are its bits */
    TR_TRY(tr_comm_all_reduce(r->comm, of, BLOCKS * places * sizeof *of / sizeof(int64_t), TR_I64));
    memset(all, 0, places * sizeof *all);
    for (uint64_t b = 0; b < BLOCKS; b++)
        for (size_t p = 0; p < places; p++) tr_moments_merge(&all[p], &of[b * places + p]);
out:
    tr_free(of);
    return st;
}

/* "{mean: [1, 2], std: [3, 4]}" of moments; a constant's std is 1. */
static void write_stats(const tr_moments *all, size_t places, FILE *to)
{
    char number[32];
    for (int which = 0; which < 2; which++) {
        fputs(which ? "], std: [" : "{mean: [", to);
        for (size_t p = 0; p < places; p++) {
            const double std = sqrt(all[p].m2 / all[p].count);
            const double v = !which ? all[p].mean : std > 1e-30 ? std : 1;
            fprintf(to, "%s%s", p ? ", " : "", tr_format_real(v, number));
        }
    }
    fputs("]}", to);
}

/* *Collective.* `input`: as above. What is too long for a list has one mean and std. */
static tr_status add_stats(const resolving *r, int input, size_t places, FILE *to)
{
    tr_status st;
    tr_moments *all = tr_alloc(TR_MEM_OTHER, places, sizeof *all);
    TR_TRY(tr_agree(r->comm, all ? TR_OK : tr_last_status(), NULL));
    TR_TRY(moments(r, input, places, all));
    if (places > TR_REALS_MAX) {
        for (size_t p = 1; p < places; p++) tr_moments_merge(&all[0], &all[p]);
        places = 1;
    }
    write_stats(all, places, to);
out:
    tr_free(all);
    return st;
}

/* *Collective.* */
static tr_status normalize_inputs(const resolving *r, FILE *to)
{
    const tr_config *c = r->c;
    tr_status st = TR_OK;
    bool any = false;
    fputs("data.normalize=", to);
    if (r->m->ninputs > 1) fputc('{', to);
    for (size_t k = 0; k < r->m->ninputs; k++) {
        if (r->m->inputs[k].ids > 0) continue;
        if (r->m->ninputs > 1) fprintf(to, "%s%s: ", any ? ", " : "", r->m->inputs[k].name);
        TR_TRY(add_stats(r, (int)k, tr_dataset_places(r->m, k), to));
        any = true;
    }
    TR_REQUIRE(any, "data.normalize",
               "auto: all inputs of the model are ids, which embeddings look up");
    if (r->m->ninputs > 1) fputc('}', to);
out:
    return st;
}

static tr_status normalize_targets(const resolving *r, FILE *to)
{
    fputs("data.normalize_targets=", to);
    return add_stats(r, -1, tr_dataset_target_places(r->m), to);
}

/* n / (classes * count), as scikit-learn's "balanced"; n: labels that count, of which a sample may
 * have several. A class that is ignored is none of them. */
static tr_status balance(const resolving *r, FILE *to)
{
    tr_status st = TR_OK;
    const tr_config *c = r->c;
    static const char path[] = "model.loss.cross_entropy.class_weights";
    const size_t classes = (size_t)r->m->classes;
    const int64_t ignored = c->model.loss.ignore_index;
    const double counted = (double)classes - (ignored >= 0 && ignored < (int64_t)classes);
    double n = 0;
    char number[32];
    uint64_t *counts = tr_alloc(TR_MEM_OTHER, classes, sizeof *counts);
    TR_HAVE(counts);
    TR_TRY(tr_dataset_class_counts(r->data, counts));
    for (size_t k = 0; k < classes; k++) n += (double)counts[k];
    fprintf(to, "%s=[", path);
    for (size_t k = 0; k < classes; k++) {
        const bool none = (int64_t)k == ignored;
        TR_REQUIRE(none || counts[k] > 0, path,
                   "balanced: data.train has no sample of class %zu: give the weights as a list",
                   k);
        const double weight = none ? 0 : n / (counted * (double)counts[k]);
        fprintf(to, "%s%s", k ? ", " : "", tr_format_real(weight, number));
    }
    fputc(']', to);
out:
    tr_free(counts);
    return tr_agree(r->comm, st, NULL);
}

/* The whole map, with the texts of data.train in the place of auto. */
static tr_status list_categories(const resolving *r, FILE *to)
{
    tr_status st = TR_OK;
    const tr_node *n = r->c->data.table.categories;
    char *key = NULL, *list = NULL;
    fputs("data.table.categories=", to);
    for (size_t i = 0; i < n->count && st == TR_OK; i++) {
        key = tr_yaml_quoted(n->keys[i]->text);
        st = key ? TR_OK : tr_last_status();
        if (st == TR_OK) fprintf(to, "%s%s: ", i ? ", " : "{", key);
        if (st == TR_OK && n->values[i]->kind == TR_NODE_SCALAR)
            st = tr_table_categories(r->c, n->keys[i]->text, to);
        else if (st == TR_OK && (st = tr_node_line(n->values[i], &list)) == TR_OK)
            fputs(list, to);
        tr_free(key);
        tr_free(list);
        key = list = NULL;
    }
    fputc('}', to);
    return tr_agree(r->comm, st, NULL);
}

/* The folders of data.train. */
static tr_status list_classes(const resolving *r, FILE *to)
{
    fputs("data.class_names=", to);
    return tr_agree(r->comm, tr_folder_class_names(r->c, to), NULL);
}

/* *Collective.* One open key. */
static tr_status resolve(resolving *r, const char *path,
                         tr_status (*compute)(const resolving *r, FILE *to))
{
    tr_status st = TR_OK;
    bool found = false;
    char *text = NULL, *own = NULL;
    size_t n;
    FILE *to = NULL;
    if (r->kept) TR_TRY(take_kept(r, path, &found));
    if (found) goto out;
    if (!r->data && compute != list_categories && compute != list_classes)
        TR_TRY(tr_same_data_open(r->comm, r->c, TR_OVER_TRAIN, r->m, &r->data));
    to = open_memstream(&text, &n);
    TR_TRY(tr_agree(r->comm, to ? TR_OK : TR_FAIL(TR_MEMORY, "no memory for %s", path), NULL));
    TR_TRY(compute(r, to));
    const bool failed = fclose(to) != 0;
    to = NULL;
    if (!failed) own = tr_strdup(text);
    TR_TRY(tr_agree(r->comm, own ? TR_OK : TR_FAIL(TR_MEMORY, "no memory for %s", path), NULL));
    TR_TRY(tr_same_text(r->comm, TR_DIFFERENT, "the data", own)); /* lists are each rank's own */
    if (tr_comm_topology(r->comm)->rank == 0)
        tr_log(TR_LOG_INFO, "of the training data: %.400s%s", own, strlen(own) > 400 ? "..." : "");
    r->found->v[r->found->count++] = own;
    own = NULL;
out:
    if (to) fclose(to);
    tr_free(own);
    free(text);
    return st;
}

/* A format that the folder itself told: a model is used where that is gone. */
static tr_status keep_format(resolving *r)
{
    char *text = tr_strdup("data.train.format=folder");
    if (text) r->found->v[r->found->count++] = text;
    return tr_agree(r->comm, text ? TR_OK : tr_last_status(), NULL);
}

/* *Collective.* *out: the config with what was found so far; NULL: nothing was. */
static tr_status derive(tr_comm *comm, const tr_config *c, const tr_found_keys *found,
                        tr_config **out)
{
    *out = NULL;
    if (found->count == 0) return TR_OK;
    const tr_overrides o = {.texts = (const char *const *)found->v, .count = found->count};
    const tr_status st = tr_agree(comm, tr_config_derive(c, &o, out), NULL);
    if (st != TR_OK) { /* on another rank, perhaps */
        const tr_error why = *tr_last_error();
        tr_config_close(*out);
        *out = NULL;
        tr_set_error(&why);
    }
    return st;
}

/* *Collective.* The texts of columns and the names of classes. */
static tr_status resolve_names(resolving *r)
{
    tr_status st = TR_OK;
    const tr_node *n = r->c->data.table.categories;
    bool open = false;
    for (size_t i = 0; n && i < n->count; i++) open |= n->values[i]->kind == TR_NODE_SCALAR;
    if (open) TR_TRY(resolve(r, "data.table.categories", list_categories));
    const bool folder = tr_source_kind(r->c, &r->c->data.train) == TR_FORMAT_FOLDER;
    if (folder && r->c->data.train.format == TR_FORMAT_AUTO) TR_TRY(keep_format(r));
    if (folder && !r->c->data.class_names) TR_TRY(resolve(r, "data.class_names", list_classes));
out:
    return st;
}

tr_status tr_data_find(tr_comm *comm, const tr_config *c, const tr_model *m, const char *kept,
                       tr_found_keys *out)
{
    tr_status st = TR_OK;
    resolving r = {.comm = comm, .kept = kept, .c = c, .m = m, .found = out};
    tr_config *named = NULL;
    *out = (tr_found_keys){.count = 0};
    TR_TRY(resolve_names(&r));
    TR_TRY(derive(comm, c, out, &named)); /* before anything reads the data */
    if (named) r.c = named;
    if (c->data.normalize.automatic) TR_TRY(resolve(&r, "data.normalize", normalize_inputs));
    if (c->data.normalize_targets.automatic)
        TR_TRY(resolve(&r, "data.normalize_targets", normalize_targets));
    if (tr_config_balances(c))
        TR_TRY(resolve(&r, "model.loss.cross_entropy.class_weights", balance));
out:
    tr_config_close(named);
    tr_dataset_close(r.data);
    return st;
}

void tr_found_keys_free(tr_found_keys *f)
{
    for (size_t i = 0; i < f->count; i++) tr_free(f->v[i]);
    f->count = 0;
}

tr_status tr_data_resolve(tr_comm *comm, const tr_config *c, const tr_model *m, const char *kept,
                          tr_config **out)
{
    tr_found_keys found;
    tr_status st;
    *out = NULL;
    TR_TRY(tr_data_find(comm, c, m, kept, &found));
    TR_TRY(derive(comm, c, &found, out));
out:
    tr_found_keys_free(&found);
    return st;
}
