/* The sweep's file as a table of fields. */
#include "trainer/sweep/internal.h"

#define OF(member)        offsetof(tr_sweep_spec, member)
#define IN(outer, member) (offsetof(tr_sweep_spec, outer.member) - offsetof(tr_sweep_spec, outer))

const char *const tr_minimize_names[] = {"latency", "size", "multiply_adds", "loss", "error", NULL};

static const char *const on_failures[] = {"continue", "stop", NULL};

static const tr_field search[] = {
    TR_CHOICE(
        "minimize", IN(search, minimize), tr_minimize_names, "latency",
        "of the last stage's model: latency: of one sample, median; size: of its file; error: 1 - "
        "accuracy"),
    TR_MAP(
        "subject_to", IN(search, subject_to), tr_budget_fields, "",
        "bounds on the last stage's model, against what training made in the first trial that is "
        "done"),
    TR_INT("trials", IN(search, trials), NULL, 1, 100000, NULL,
           "how many; fewer where all settings were tried"),
    TR_INT("seed", IN(search, seed), "0", 0, 9.3e18, NULL, "of the search"),
    TR_NODE(
        "over", IN(search, over), NULL,
        "a map of keys to lists of values, or to ranges: {from: a, to: b, step: c, scale: log}"),
    TR_END,
};

const tr_field tr_sweep_fields[] = {
    TR_TEXT("config", OF(config), NULL,
            "the config that every trial starts from, relative to this file"),
    TR_TEXT("output", OF(output), "",
            "the sweep's folder, relative to where the job starts; runs/NAME-sweep when not given. "
            "Trials are run folders in it"),
    TR_NODE("set", OF(set), "", "a map of keys of the config to the values that all trials have"),
    TR_NODE("list", OF(list), "", "trials, each a map of keys of the config to values"),
    TR_NODE(
        "grid", OF(grid), "",
        "a map of keys of the config to lists of values: a trial for each combination, the last "
        "key fastest, after those of `list`"),
    TR_BLOCK("search", OF(search), search, "",
             "instead of a list or a grid: settings are chosen by what came of those before"),
    TR_CHOICE(
        "on_failure", OF(on_failure), on_failures, "continue",
        "when a trial misses a budget, or its loss is no longer finite, or it cannot be run: "
        "continue: it is recorded as failed, and the next one runs; stop: the sweep ends with it"),
    TR_END,
};

void tr_sweep_help(FILE *to)
{
    fputs("\n# The sweep's file\n\nWhat `trainer sweep FILE` takes. Overrides on the command line: "
          "`search.trials=40` for "
          "these keys, any other path for the config's, in all trials.\n",
          to);
    tr_fields_help(tr_sweep_fields, "", to);
    fputs("\n### Ranges in `search.over`\n", to);
    tr_fields_help(tr_sweep_range_fields, NULL, to);
}
