/* `trainer check`: validates a config and prints it as resolved; --help-config prints the
 * reference. */
#include "runtime/base/visible.h"
#include "runtime/data/data.h"
#include "trainer/arguments.h"
#include "trainer/commands.h"
#include "trainer/stages.h"
#include "trainer/sweep/sweep.h"
#include "trainer/trainer.h"

int tr_cmd_check(int argc, char **argv)
{
    tr_arguments a;
    tr_config *config = NULL;
    tr_model *model = NULL;
    FILE *shown = NULL;
    tr_status st = tr_arguments_parse(argc, argv, "--help-config", &a);
    if (st != TR_OK) return tr_command_end(st);
    if (a.help_config) {
        tr_variant_def stages[TR_STAGES + 1];
        tr_stages_known(stages);
        tr_config_help(stages, stdout);
        tr_layers_help(stdout);
        tr_sweep_help(stdout);
        goto out;
    }
    TR_TRY(tr_arguments_config(&a, NULL, &config));
    TR_TRY(tr_device_check(config));
    TR_TRY(tr_train_model(config, &model)); /* the layers' attributes and shapes */
    TR_TRY(tr_data_check(config, model));
    shown = tr_visible_stream(stdout);
    TR_HAVE(shown);
    TR_TRY(tr_config_write(config, shown));
out:
    if (shown) fclose(shown); /* what did not reach stdout is told at the end */
    tr_model_close(model);
    tr_config_close(config);
    tr_arguments_free(&a);
    return tr_command_end(st);
}
