/* Which trials there are: of a list, a grid, a point of a search; and that each is one that can
 * run. */
#include <stdlib.h>
#include <string.h>

#include "runtime/data/data.h"
#include "trainer/loop/trainer.h"
#include "trainer/stages/stages.h"
#include "trainer/sweep/internal.h"

#define MOST_TRIALS 100000

/* ---- Columns --------------------------------------------------------------------------------- */

/* Settings may be anything but what the sweep itself or the command line decides. */
static tr_status check_key(const tr_sweep *s, const tr_node *key)
{
    const size_t n = strlen(key->text);
    if (strcmp(key->text, "output") == 0) return tr_node_fail(key, "output: " TR_TRIAL_OUTPUT);
    for (size_t i = 0; i < s->noverrides; i++)
        if (strncmp(s->overrides[i], key->text, n) == 0 && s->overrides[i][n] == '=')
            return tr_node_fail(key, "%s is given on the command line, too: %s", key->text,
                                s->overrides[i]);
    return TR_OK;
}

static tr_status add_column(tr_sweep *s, const tr_node *key, size_t *column)
{
    tr_status st;
    for (*column = 0; *column < s->ncolumns; ++*column)
        if (strcmp(s->columns[*column]->text, key->text) == 0) return TR_OK;
    TR_TRY(check_key(s, key));
    const tr_node **wider =
        tr_realloc(TR_MEM_OTHER, (void *)s->columns, s->ncolumns + 1, sizeof *wider);
    TR_HAVE(wider);
    s->columns = wider;
    s->columns[s->ncolumns++] = key;
out:
    return st;
}

static tr_status find_columns(tr_sweep *s)
{
    tr_status st = TR_OK;
    const tr_node *list = s->spec.list;
    size_t column;
    for (size_t i = 0; list && i < list->count; i++)
        for (size_t k = 0; k < list->values[i]->count; k++)
            TR_TRY(add_column(s, list->values[i]->keys[k], &column));
    for (size_t k = 0; k < s->space.count; k++)
        TR_TRY(add_column(s, s->space.axes[k].key, &column));
out:
    return st;
}

/* ---- Trials ---------------------------------------------------------------------------------- */

/* Its folder is the one with its place's number, as long as none was found for it. */
static tr_status begin_trial(const tr_sweep *s, size_t place, tr_trial *t)
{
    *t = (tr_trial){
        .place = place, .number = place, .first = place, .source = place, .lender = TR_NO_TRIAL};
    t->folder = tr_sweep_folder(s, place);
    t->settings = tr_alloc(TR_MEM_OTHER, s->ncolumns + 1, sizeof *t->settings);
    if (t->folder && t->settings) return TR_OK;
    tr_free(t->folder);
    tr_free(t->settings);
    return tr_last_status();
}

static tr_setting *setting_of(const tr_sweep *s, const tr_trial *t, const tr_node *key)
{
    size_t k = 0;
    while (strcmp(s->columns[k]->text, key->text) != 0) k++;
    t->settings[k].key = key;
    return &t->settings[k];
}

static void set_point(const tr_sweep *s, const tr_trial *t, const double *point)
{
    for (size_t k = 0; k < s->space.count; k++)
        tr_sweep_axis_value(&s->space.axes[k], point[k],
                            &setting_of(s, t, s->space.axes[k].key)->value);
}

static tr_status add_listed(tr_sweep *s, const tr_node *item)
{
    tr_trial *t = &s->trials[s->ntrials];
    const tr_status st = begin_trial(s, s->ntrials, t);
    if (st != TR_OK) return st;
    s->ntrials++;
    for (size_t k = 0; k < item->count; k++)
        setting_of(s, t, item->keys[k])->value.node = *item->values[k];
    return TR_OK;
}

tr_status tr_trials_add(tr_sweep *s, const double *point)
{
    tr_trial *t = &s->trials[s->ntrials];
    const tr_status st = begin_trial(s, s->ntrials, t);
    if (st != TR_OK) return st;
    s->ntrials++;
    set_point(s, t, point);
    return TR_OK;
}

static tr_status check_list(const tr_node *list)
{
    if (list->kind != TR_NODE_LIST || list->count == 0)
        return tr_node_fail(list, "list: expected a list of maps of keys to values");
    for (size_t i = 0; i < list->count; i++)
        if (list->values[i]->kind != TR_NODE_MAP)
            return tr_node_fail(list->values[i], "list.%zu: expected a map of keys to values", i);
    return TR_OK;
}

tr_status tr_trials_plan(tr_sweep *s)
{
    tr_status st = TR_OK;
    const tr_sweep_spec *p = &s->spec;
    double *point = NULL;
    const tr_node *map = p->search.present ? p->search.over : p->grid;
    size_t size = 0;
    if (p->list) TR_TRY(check_list(p->list));
    if (map)
        TR_TRY(tr_sweep_space_read(map, p->search.present ? "search.over" : "grid",
                                   p->search.present, &s->space));
    TR_TRY(find_columns(s));
    if (p->grid) size = tr_sweep_space_size(&s->space);
    const size_t listed = p->list ? p->list->count : 0;
    if (listed > MOST_TRIALS || size > MOST_TRIALS - listed)
        return tr_node_fail(listed > MOST_TRIALS ? p->list : p->grid, "more than %d trials",
                            MOST_TRIALS);
    s->planned = p->search.present ? (size_t)p->search.trials : listed + size;
    s->trials = tr_alloc(TR_MEM_OTHER, s->planned, sizeof *s->trials);
    s->points = tr_alloc(TR_MEM_OTHER, s->planned * s->space.count, sizeof *s->points);
    point = tr_alloc(TR_MEM_OTHER, s->space.count, sizeof *point);
    TR_HAVE(s->trials && s->points && point);
    for (size_t i = 0; i < listed; i++) TR_TRY(add_listed(s, p->list->values[i]));
    for (size_t i = 0; i < size; i++) {
        tr_sweep_space_at(&s->space, i, point);
        TR_TRY(tr_trials_add(s, point));
    }
out:
    tr_free(point);
    return st;
}

char *tr_trial_text(const tr_sweep *s, const tr_trial *t)
{
    char *all = tr_strdup("");
    for (size_t k = 0; k < s->ncolumns && all; k++) {
        if (!t->settings[k].key) continue;
        char *value = NULL, *longer = NULL;
        if (tr_node_line(&t->settings[k].value.node, &value) == TR_OK)
            longer = tr_sprintf("%s%s%s=%s", all, *all ? ", " : "", s->columns[k]->text, value);
        tr_free(value);
        tr_free(all);
        all = longer;
    }
    return all && !*all ? (tr_free(all), tr_strdup("the config as it is")) : all;
}

/* ---- Checks ---------------------------------------------------------------------------------- */

/* Whether the last error has its place in the sweep's file. */
static bool is_placed(const tr_sweep *s)
{
    const tr_error *e = tr_last_error();
    const char *file = s->arguments->config;
    const size_t n = strlen(file);
    return n < (size_t)e->place && memcmp(e->text, file, n) == 0 && e->text[n] == ':';
}

/* Where it is not, the trial is said. */
static tr_status blame(const tr_sweep *s, const tr_trial *t, tr_status st)
{
    if (s->ncolumns == 0 || is_placed(s)) return st;
    const tr_error why = *tr_last_error();
    char *text = tr_trial_text(s, t);
    tr_set_error(&why);
    if (text) (void)tr_fail_behind(st, " (with %s)", text);
    tr_free(text);
    return st;
}

/* A model is looked at once for all trials that train it, and do nothing else with it. */
static tr_status check_trial(tr_sweep *s, tr_trial *t)
{
    tr_status st;
    tr_config *c = NULL;
    tr_model *m = NULL;
    TR_TRY(tr_trial_config(s, t, &c));
    TR_TRY(tr_trial_identify(s, t, c));
    if (t->source != t->place && c->pipeline.count == 1) goto out;
    TR_TRY(tr_train_model(c, &m));
    TR_TRY(tr_stages_check_model(c, m));
    if (t->source != t->place) goto out;
    TR_TRY(tr_device_check(c));
    TR_TRY(tr_data_check(c, m));
out:
    if (st != TR_OK) st = blame(s, t, st);
    const tr_error why = *tr_last_error();
    tr_model_close(m);
    tr_config_close(c);
    tr_set_error(&why);
    return st;
}

/* One axis at a time, the others at their first values: each choice, both ends of a range. */
static tr_status check_space(tr_sweep *s)
{
    tr_status st = TR_OK;
    tr_trial t = {0};
    double *point = tr_alloc(TR_MEM_OTHER, s->space.count, sizeof *point);
    TR_HAVE(point);
    TR_TRY(begin_trial(s, 0, &t));
    for (size_t k = 0; k < s->space.count; k++) {
        const tr_sweep_axis *a = &s->space.axes[k];
        const size_t values = a->choices ? a->count : 2;
        for (size_t i = 0; i < values; i++) {
            for (size_t j = 0; j < s->space.count; j++)
                point[j] = s->space.axes[j].count ? 0 : s->space.axes[j].from;
            point[k] = a->choices ? (double)i
                       : !i       ? point[k]
                       : a->count ? (double)(a->count - 1)
                                  : a->to;
            set_point(s, &t, point);
            TR_TRY(check_trial(s, &t));
        }
    }
out:
    tr_free(t.settings);
    tr_free(t.folder);
    tr_free(point);
    return st;
}

tr_status tr_trials_check(tr_sweep *s)
{
    tr_status st = TR_OK;
    if (s->spec.search.present) return check_space(s);
    for (size_t i = 0; i < s->ntrials; i++) TR_TRY(check_trial(s, &s->trials[i]));
out:
    return st;
}
