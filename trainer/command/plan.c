/* `trainer plan`: what a run will take, on this machine or on others. */
#include "runtime/base/visible.h"
#include "runtime/data/data.h"
#include "trainer/arguments/arguments.h"
#include "trainer/command/commands.h"
#include "trainer/loop/round.h"
#include "trainer/loop/trainer.h"
#include "trainer/models/train_model.h"
#include "trainer/plan/plan.h"
#include "trainer/stages/stages.h"

/* Two of ranks, nodes and ranks a node say the third. */
static tr_status ranks_of(const tr_arguments *a, tr_plan_request *q)
{
    tr_status st = TR_OK;
    const int64_t nodes = a->nodes > 0                            ? a->nodes
                          : a->ranks > 0 && a->ranks_per_node > 0 ? a->ranks / a->ranks_per_node
                                                                  : 1;
    const int64_t local = a->ranks_per_node > 0 ? a->ranks_per_node
                          : a->ranks > 0        ? a->ranks / nodes
                                                : 1;
    const int64_t ranks = nodes * local;
    TR_NEED(ranks >= 1 && (a->ranks == 0 || a->ranks == ranks), TR_USAGE,
            "--ranks %lld: expected as many on each node, the product of --nodes and "
            "--ranks-per-node",
            (long long)a->ranks);
    TR_NEED(ranks <= 1000000, TR_USAGE, "--nodes %lld --ranks-per-node %lld: at most 1000000 ranks",
            (long long)nodes, (long long)local);
    TR_NEED(!(a->summary && a->json), TR_USAGE, "--summary or --json: give one of them");
    *q = (tr_plan_request){.ranks = (int)ranks,
                           .nodes = (int)nodes,
                           .memory = a->memory,
                           .largest = a->largest,
                           .form = a->json      ? TR_PLAN_JSON
                                   : a->summary ? TR_PLAN_SUMMARY
                                                : TR_PLAN_TEXT};
out:
    return st;
}

int tr_cmd_plan(int argc, char **argv)
{
    tr_arguments a;
    tr_config *config = NULL, *rounded = NULL;
    tr_model *model = NULL;
    FILE *shown = NULL;
    tr_plan_request request;
    tr_status st = tr_arguments_parse_either(
        argc, argv, "--ranks --nodes --ranks-per-node --memory --largest --summary --json", &a);
    if (st != TR_OK) return tr_command_end(st);
    TR_TRY(ranks_of(&a, &request));
    TR_TRY(tr_arguments_config(&a, NULL, &config));
    TR_TRY(tr_device_check(config));
    TR_TRY(tr_config_round(NULL, config, NULL, &rounded));
    if (rounded) {
        tr_config_close(config);
        config = rounded;
    }
    TR_TRY(tr_train_model(config, &model));
    TR_TRY(tr_data_check(config, model));
    TR_TRY(tr_stages_check_model(config, model));
    shown = tr_visible_stream(stdout);
    TR_HAVE(shown);
    TR_TRY(tr_plan_report(config, model, &request, shown));
out:
    if (shown) fclose(shown); /* what did not reach stdout is told at the end */
    tr_model_close(model);
    tr_config_close(config);
    tr_arguments_free(&a);
    return tr_command_end(st);
}
