/* What train.freeze and train.groups say of each parameter. They belong to a training, not to the
 * model: a file that is written of it does not know them. */
#include "runtime/optimizer/groups.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/numbers.h"
#include "runtime/config/patterns.h"

typedef struct {
    char name[2 * TR_NAME];
} full_name;

/* Of parameters, then of states: as `trainer inspect` lists them. `pointers`: [nparams +
 * nstates]. */
static full_name *list_names(const tr_model *m, const char **pointers)
{
    full_name *n = tr_alloc(TR_MEM_OTHER, m->nparams + m->nstates, sizeof *n);
    for (size_t i = 0; n && i < m->nparams; i++)
        snprintf(n[i].name, sizeof n[i].name, "%s.%s", m->params[i].layer, m->params[i].name);
    for (size_t i = 0; n && i < m->nstates; i++)
        snprintf(n[m->nparams + i].name, sizeof n->name, "%s.%s", m->states[i].layer,
                 m->states[i].name);
    for (size_t i = 0; n && i < m->nparams + m->nstates; i++) pointers[i] = n[i].name;
    return n;
}

/* ---- Freezing -------------------------------------------------------------------------------- */

/* Layers that normalize by batches, as the config writes them. */
static bool has_statistics(const tr_model *m, const tr_layer *l)
{
    return l->nstates > 0 && strcmp(m->states[l->first_state].name, "running_mean") == 0;
}

static tr_status hold_statistics(void *ctx, tr_maker *mk, const tr_layer *l, const int *in,
                                 int *value)
{
    static const char *const options[] = {"statistics=running"};
    static const tr_layer_changes changes = {.options = options, .noptions = 1};
    char name[2 * TR_NAME];
    const tr_config *c = ((const void **)ctx)[0];
    const tr_model *m = ((const void **)ctx)[1];
    if (!has_statistics(m, l)) return TR_OK;
    snprintf(name, sizeof name, "%s.running_mean", l->name);
    if (!tr_patterns_match(c->train.freeze, name)) return TR_OK;
    return tr_maker_copy(mk, l, &changes, l->nin, in, value);
}

static tr_status freeze_rows(const tr_config *c, tr_model *m, const char *const *names)
{
    bool *frozen = tr_alloc(TR_MEM_OTHER, m->nparams + 1, sizeof *frozen);
    if (!frozen) return tr_last_status();
    for (size_t i = 0; i < m->nparams; i++)
        frozen[i] = tr_patterns_match(c->train.freeze, names[i]);
    const tr_status st = tr_model_freeze(m, frozen, 0);
    tr_free(frozen);
    return st;
}

tr_status tr_groups_freeze(const tr_config *c, tr_model **model)
{
    tr_status st = TR_OK;
    tr_model *m = *model, *held = NULL;
    const char **names = NULL;
    full_name *storage = NULL;
    if (!c->train.freeze) return TR_OK;
    TR_HAVE(names = tr_alloc(TR_MEM_OTHER, m->nparams + m->nstates + 1, sizeof *names));
    TR_HAVE(storage = list_names(m, names));
    TR_TRY(tr_patterns_find(c->train.freeze, "train.freeze",
                            c->train.freeze_statistics ? "parameter or state" : "parameter", names,
                            m->nparams + (c->train.freeze_statistics ? m->nstates : 0)));
    if (c->train.freeze_statistics) {
        TR_TRY(tr_model_copy(m, hold_statistics, (const void *[]){c, m}, 0, &held));
        tr_model_close(m);
        m = *model = held;
    }
    TR_TRY(freeze_rows(c, m, names)); /* a copy has the same rows */
out:
    tr_free(storage);
    tr_free(names);
    return st;
}

/* ---- Patterns whose layers are gone ---------------------------------------------------------- */

/* A group as it is written, but for patterns that match nothing; whether any is left. */
static bool write_group(const tr_node *group, const char *const *names, size_t count,
                        const char *between, FILE *to, FILE *gone)
{
    char *match = NULL;
    size_t size = 0;
    FILE *left = open_memstream(&match, &size);
    if (!left) return false;
    tr_patterns_left(tr_node_get(group, "match"), names, count, left, gone);
    const bool any = fclose(left) == 0 && strcmp(match, "[]") != 0;
    if (any) fprintf(to, "%s{match: %s", between, match);
    for (size_t i = 0; any && i < group->count; i++) {
        char *value = NULL;
        if (strcmp(group->keys[i]->text, "match") == 0) continue;
        if (tr_node_line(group->values[i], &value) == TR_OK)
            fprintf(to, ", %s: %s", group->keys[i]->text, value);
        tr_free(value);
    }
    if (any) fputc('}', to);
    free(match);
    return any;
}

static void write_left(const tr_config *c, bool freeze, const char *const *names, size_t nparams,
                       size_t nstates, FILE *to, FILE *gone)
{
    const tr_node *groups = c->train.groups;
    bool any = false;
    if (freeze) {
        fputs("train.freeze=", to);
        tr_patterns_left(c->train.freeze, names,
                         nparams + (c->train.freeze_statistics ? nstates : 0), to, gone);
        return;
    }
    fputs("train.groups=[", to);
    for (size_t i = 0; groups && groups->kind == TR_NODE_LIST && i < groups->count; i++)
        any |= write_group(groups->values[i], names, nparams, any ? ", " : "", to, gone);
    fputc(']', to);
}

tr_status tr_groups_forget(const tr_config *c, const tr_model *m, bool freeze, char **override,
                           char **gone)
{
    tr_status st = TR_OK;
    size_t size[2];
    FILE *to = NULL, *rest = NULL;
    full_name *storage = NULL;
    const char **names = tr_alloc(TR_MEM_OTHER, m->nparams + m->nstates + 1, sizeof *names);
    *override = *gone = NULL;
    TR_HAVE(names);
    TR_HAVE(storage = list_names(m, names));
    to = open_memstream(override, &size[0]);
    rest = open_memstream(gone, &size[1]);
    TR_NEED(to && rest, TR_MEMORY, "out of memory");
    write_left(c, freeze, names, m->nparams, m->nstates, to, rest);
out:
    if (to) fclose(to);
    if (rest) fclose(rest);
    if (st != TR_OK || !*gone || !**gone) {
        free(*override);
        free(*gone);
        *override = *gone = NULL;
    }
    tr_free(storage);
    tr_free(names);
    return st;
}

/* ---- Groups ---------------------------------------------------------------------------------- */

static tr_row_rule usual(const tr_config *c, const tr_param *p)
{
    const tr_optimizer_config *o = &c->train.optimizer.o;
    return (tr_row_rule){
        .group = -1,
        .lr_factor = p->lr_factor,
        .decay = p->decay || o->decay_all ? o->weight_decay * p->decay_factor : 0,
        .rates = {o->beta1, o->beta2, o->eps, o->momentum},
    };
}

static void take_group(const tr_config *c, const tr_group_config *g, int i, const tr_param *p,
                       tr_row_rule *r)
{
    const tr_optimizer_config *o = &c->train.optimizer.o;
    const bool all = g->decay_all == TR_GROUP_AUTO ? o->decay_all : g->decay_all == TR_GROUP_TRUE;
    const double decay = g->weight_decay < 0 ? o->weight_decay : g->weight_decay;
    r->group = i;
    if (g->lr >= 0) r->lr_factor = g->lr / o->lr * p->lr_factor;
    r->decay = p->decay || all ? decay * p->decay_factor : 0;
    if (g->beta1 >= 0) r->rates.beta1 = g->beta1;
    if (g->beta2 >= 0) r->rates.beta2 = g->beta2;
    if (g->eps >= 0) r->rates.eps = g->eps;
    if (g->momentum >= 0) r->rates.momentum = g->momentum;
    r->own = g->beta1 >= 0 || g->beta2 >= 0 || g->eps >= 0 || g->momentum >= 0;
}

tr_status tr_groups_rules(const tr_config *c, const tr_model *m, tr_row_rule **out)
{
    tr_status st = TR_OK;
    tr_group_config *groups = NULL;
    const char **names = NULL;
    full_name *storage = NULL;
    size_t count;
    tr_row_rule *rules = tr_alloc(TR_MEM_OTHER, m->nparams + 1, sizeof *rules);
    TR_HAVE(rules);
    TR_TRY(tr_config_groups(c, &groups, &count));
    TR_HAVE(names = tr_alloc(TR_MEM_OTHER, m->nparams + m->nstates + 1, sizeof *names));
    TR_HAVE(storage = list_names(m, names));
    for (size_t i = 0; i < m->nparams; i++) {
        rules[i] = usual(c, &m->params[i]);
        for (size_t k = 0; k < count && rules[i].group < 0; k++)
            if (tr_patterns_match(groups[k].match, names[i]))
                take_group(c, &groups[k], (int)k, &m->params[i], &rules[i]);
    }
    *out = rules;
    rules = NULL;
out:
    tr_free(rules);
    tr_free(groups);
    tr_free(storage);
    tr_free(names);
    return st;
}

static tr_status check_group(const tr_group_config *g, size_t k, const tr_model *m,
                             const tr_row_rule *rules, const char *const *names)
{
    char key[64];
    bool taken = false, matched = false;
    snprintf(key, sizeof key, "train.groups.%zu.match", k);
    const tr_status st = tr_patterns_find(g->match, key, "parameter", names, m->nparams);
    if (st != TR_OK) return st;
    for (size_t i = 0; i < m->nparams; i++) {
        taken |= rules[i].group == (int)k && !m->params[i].frozen;
        matched |= tr_patterns_match(g->match, names[i]) && !m->params[i].frozen;
    }
    if (taken) return TR_OK;
    return tr_node_fail(g->at, "%s: every parameter that it matches %s", key,
                        matched ? "is in an earlier group" : "is frozen");
}

tr_status tr_groups_check(const tr_config *c, const tr_model *m)
{
    tr_status st;
    tr_group_config *groups = NULL;
    tr_row_rule *rules = NULL;
    const char **names = NULL;
    full_name *storage = NULL;
    size_t count;
    TR_TRY(tr_config_groups(c, &groups, &count));
    TR_TRY(tr_groups_rules(c, m, &rules));
    TR_HAVE(names = tr_alloc(TR_MEM_OTHER, m->nparams + m->nstates + 1, sizeof *names));
    TR_HAVE(storage = list_names(m, names));
    for (size_t k = 0; k < count; k++) TR_TRY(check_group(&groups[k], k, m, rules, names));
out:
    tr_free(storage);
    tr_free(names);
    tr_free(rules);
    tr_free(groups);
    return st;
}

tr_status tr_groups_describe(const tr_config *c, const tr_model *m, FILE *to)
{
    tr_status st;
    tr_row_rule *rules = NULL;
    tr_group_config *groups = NULL;
    size_t count, frozen = 0;
    char text[32];
    TR_TRY(tr_config_groups(c, &groups, &count));
    TR_TRY(tr_groups_rules(c, m, &rules));
    for (size_t i = 0; i < m->nparams; i++) frozen += m->params[i].frozen ? m->params[i].count : 0;
    if (frozen)
        fprintf(to, "  frozen         %s parameters: no gradients, no moments\n",
                tr_format_count((double)frozen, text, sizeof text));
    for (size_t k = 0; k < count; k++) {
        size_t n = 0, arrays = 0;
        for (size_t i = 0; i < m->nparams; i++)
            if (rules[i].group == (int)k && !m->params[i].frozen) {
                n += m->params[i].count;
                arrays++;
            }
        fprintf(to, "  group %-8zu %s parameters in %zu array%s", k,
                tr_format_count((double)n, text, sizeof text), arrays, tr_plural(arrays));
        if (groups[k].lr >= 0) fprintf(to, ", lr %g", groups[k].lr);
        const double given[] = {groups[k].weight_decay, groups[k].momentum, groups[k].beta1,
                                groups[k].beta2, groups[k].eps};
        static const char *const names[] = {"weight_decay", "momentum", "beta1", "beta2", "eps"};
        for (size_t i = 0; i < TR_COUNT(given); i++)
            if (given[i] >= 0) fprintf(to, ", %s %g", names[i], given[i]);
        fputc('\n', to);
    }
out:
    tr_free(rules);
    tr_free(groups);
    return st;
}
