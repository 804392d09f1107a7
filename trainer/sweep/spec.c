/* The sweep's file as a table of fields. */
#include "trainer/sweep/internal.h"

#define OF(member)        offsetof(tr_sweep_spec, member)
#define IN(outer, member) (offsetof(tr_sweep_spec, outer.member) - offsetof(tr_sweep_spec, outer))

const char *const tr_minimize_names[] = {"latency", "size", "multiply_adds", "loss", "error", NULL};

static const char *const on_failures[] = {"continue", "stop", NULL};

static const tr_field search[] = {
    TR_CHOICE("minimize", IN(search, minimize), tr_minimize_names, "latency",
              "of the last stage's model: latency: of one sample, median; size: of its file, "
              "without what a training left beside the model; error: 1 - accuracy"),
    TR_MAP(
        "subject_to", IN(search, subject_to), tr_budget_fields, "",
        "bounds on the last stage's model, against what training made in the first trial that is "
        "done"),
    TR_INT("trials", IN(search, trials), NULL, 1, 100000, NULL,
           "how many; fewer where all settings were tried"),
    TR_INT(
        "together", IN(search, together), "auto", 1, 100000, "trials",
        "chosen at a time, from what came of those before alone. auto: as many as run beside each "
        "other when the search begins, which stays so when it is gone on with on other ranks",
        .auto_text = "auto", .auto_value = 0),
    TR_INT("seed", IN(search, seed), "0", 0, 9.3e18, NULL, "of the search"),
    TR_SHAPED(
        "over", IN(search, over), NULL,
        "a map of keys to lists of values, or to ranges: {from: a, to: b, step: c, scale: log}",
        TR_SCHEMA_MAP),
    TR_END,
};

const tr_field tr_sweep_fields[] = {
    TR_TEXT("config", OF(config), NULL,
            "the config that every trial starts from, relative to this file"),
    TR_TEXT("output", OF(output), "",
            "the sweep's folder, relative to where the job starts; runs/NAME-sweep when not given. "
            "Trials are run folders in it"),
    TR_SHAPED("set", OF(set), "", "a map of keys of the config to the values that all trials have",
              TR_SCHEMA_MAP),
    TR_SHAPED("list", OF(list), "", "trials, each a map of keys of the config to values",
              TR_SCHEMA_LIST),
    TR_NODE(
        "grid", OF(grid), "",
        "a map of keys of the config to lists of values: a trial for each combination, the last "
        "key fastest, after those of `list`"),
    TR_BLOCK("search", OF(search), search, "",
             "instead of a list or a grid: settings are chosen by what came of those before"),
    TR_INT(
        "ranks_per_trial", OF(ranks_per_trial), "0", 0, 1000000, "ranks",
        "ranks that run one trial, while others run other trials beside them; must divide the "
        "number of ranks. 0: all. What goes by the clock (benchmark, bounds on latency) needs all"),
    TR_CHOICE(
        "on_failure", OF(on_failure), on_failures, "continue",
        "when a trial misses a budget, or its loss is no longer finite, or it cannot be run: "
        "continue: it is recorded as failed, and the next one runs; stop: the sweep ends with it"),
    TR_END,
};

void tr_sweep_schema(FILE *to)
{
    fputs("{\"$schema\":\"https://json-schema.org/draft/2020-12/schema\",\"title\":\"A sweep of "
          "Trireme's trainer\",\"allOf\":[\n",
          to);
    tr_fields_schema(tr_sweep_fields, false, to);
    fputs("]}\n", to);
}

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
