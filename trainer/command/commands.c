/* The one list of commands, and what is said of them. */
#include "trainer/command/commands.h"

#include <string.h>
#include <unistd.h>

#include "trainer/arguments/arguments.h"
#include "trainer/command/sample.h"
#include "trainer/stages/stages.h"
#include "trainer/sweep/sweep.h"

static int version(int argc, char **argv);

static const tr_command commands[] = {
    {"sweep", tr_cmd_sweep,
     "  mpirun -np N trainer sweep FILE [key=value ...] [--resume] [--force] [--quiet]\n"
     "      [--accept-unverified]\n"
     "                                          a config with other settings each time: grids,\n"
     "                                          lists, searches; sweep --help: what FILE takes\n"
     "  trainer sweep --schema                  JSON schema of FILE, for editors\n",
     tr_sweep_help},
    {"evaluate", tr_cmd_evaluate,
     "  mpirun -np N trainer evaluate MODEL [key=value ...] [--json] [-o FILE.json] [--force]\n"
     "      [--accept-unverified] [--quiet]\n"
     "                                          the model of a run file, or of a run's folder, on\n"
     "                                          data.eval of its config, or on other data\n"
     "                                          (data.eval.path=...): loss, accuracy, confusion,\n"
     "                                          precision, recall, F1, AUC; MAE, MSE, RMSE, R2\n",
     NULL},
    {"predict", tr_cmd_predict,
     "  mpirun -np N trainer predict MODEL [key=value ...] -o OUT.h5|.npy|.csv [--data "
     "predict|eval|train]\n"
     "      [--top K] [--raw] [--force] [--quiet]\n"
     "                                          what the model of a run file, or of a run's "
     "folder,\n"
     "                                          says of each sample of data.predict (else\n"
     "                                          data.eval), which needs no labels: probabilities\n"
     "                                          and the K most probable classes, or values; "
     "--raw:\n"
     "                                          without softmax or sigmoid. A killed one goes on\n"
     "                                          when it is started again\n",
     NULL},
    {"sample", tr_cmd_sample,
     "  trainer sample MODEL --prompt TEXT [--prompt-file FILE] [--prompt-ids 1,2,3] [--tokens N]\n"
     "      [--temperature T] [--top-k K] [--top-p P] [--seed N] [--stop TEXT] [--stop-ids 1,2,3]\n"
     "      [key=value ...] [--quiet] [--accept-unverified]\n"
     "                                          how a language model, of a run file or a run's "
     "folder,\n"
     "                                          goes on with texts, or with ids of tokens; each\n"
     "                                          option of a prompt may be given several times\n",
     tr_sample_help},
    {"check", tr_cmd_check,
     "  trainer check CONFIG [key=value ...]    validate; print the config as resolved; a run\n"
     "                                          file, or folder, in its place: the config in it\n"
     "      [--data]                            read all samples: what is not finite, or no class "
     "or\n"
     "                                          id, is named\n"
     "  trainer check --help-config             every key: type, default, unit, meaning\n"
     "  trainer check --schema                  JSON schema of a config, for editors\n",
     NULL},
    {"plan", tr_cmd_plan,
     "  trainer plan CONFIG [key=value ...] [--ranks N] [--memory 80GB] [--summary | --json]\n"
     "      [--nodes N] [--ranks-per-node M] [--largest]\n"
     "                                          memory, arithmetic and traffic; whether it fits "
     "this\n"
     "                                          machine, or nodes with so much; runs nothing. "
     "--largest:\n"
     "                                          the largest batch and micro-batch that fit. "
     "Status 1:\n"
     "                                          it does not fit, nor a sample of --largest\n",
     NULL},
    {"inspect", tr_cmd_inspect,
     "  trainer inspect FILE [FILE2] [--json] [--accept-unverified]\n"
     "                                          what is in a run file; with two, how they differ\n"
     "                                          a run's folder: its files, and model.h5 or the\n"
     "                                          newest checkpoint\n",
     NULL},
    {"compare", tr_cmd_compare,
     "  trainer compare RUN RUN... [--json] [-o FILE.svg|.csv|.json] [--force] [--metric NAME]\n"
     "                                          run folders, run files, sweeps' folders: the keys "
     "in\n"
     "                                          which their configs differ, and what came of "
     "each;\n"
     "                                          .svg: their curves, of the loss or --metric\n",
     NULL},
    {"import", tr_cmd_import,
     "  trainer import FILE.onnx OUT.h5 [--output NAME] [key=value ...] [--force]\n"
     "  trainer import FILE.safetensors|FILE.npz OUT.h5 --config CONFIG [key=value ...] [--force]\n"
     "                                          a run file of an ONNX file's model; keys are the "
     "config's\n",
     NULL},
    {"demo", tr_cmd_demo,
     "  trainer demo [digits|regression|images] [FOLDER]\n"
     "                                          a small config and its data, to start from\n",
     NULL},
    {"new", tr_cmd_new,
     "  trainer new [--data FILE or FOLDER] [--labels NAME] [-o config.yaml] [--force]\n"
     "                                          a commented config for your data, sized to it, "
     "that\n"
     "                                          trains as it is; --labels: dataset, file, "
     "column or a,b\n",
     NULL},
    {"help", tr_cmd_help,
     "  trainer help [COMMAND | STAGE]          this, or of one; COMMAND --help does the same\n"
     "  trainer help --man                      the manual page trainer(1)\n"
     "  trainer help --completion SHELL         for bash, zsh or fish\n",
     NULL},
    {"version", version, "  trainer -V | --version\n", NULL},
};

static const char run_usage[] =
    "  mpirun -np N trainer CONFIG [key=value ...] [--resume] [--force] [--quiet]\n"
    "                                          run the config's pipeline: train, when it gives\n"
    "                                          none; --quiet: say only what went wrong\n"
    "      [--until STAGE] [--from STAGE]      stop behind a stage; run again from one on\n"
    "      [--accept-unverified]               take arrays of run files that were changed by "
    "hand\n";

static const char stage_usage[] =
    "  mpirun -np N trainer STAGE FILE [key=value ...] [--force] [--quiet]\n"
    "      [--accept-unverified]\n"
    "                                          one stage of the pipeline on a run file, or that of "
    "a\n"
    "                                          run's folder; keys are the stage's options, or the\n"
    "                                          config's in the file\n";

static const char statuses[] =
    "exit status: 0 done, 1 failed, 2 wrong config or command line, 75 stopped on request with a\n"
    "checkpoint saved (start again with --resume)\n";

const tr_command *tr_command_find(const char *name)
{
    for (size_t i = 0; i < TR_COUNT(commands); i++)
        if (strcmp(name, commands[i].name) == 0) return &commands[i];
    return NULL;
}

/* That is run by hand: `train` is what a config is for. */
static const tr_stage *stage_find(const char *name)
{
    for (size_t i = 0; i < TR_STAGES; i++)
        if (tr_stages[i] != &tr_stage_train && strcmp(name, tr_stages[i]->name) == 0)
            return tr_stages[i];
    return NULL;
}

bool tr_command_is_stage(const char *name)
{
    return stage_find(name) != NULL;
}

void tr_commands_help(FILE *to)
{
    fprintf(to, "usage:\n%s%s", run_usage, stage_usage);
    for (size_t i = 0; i < TR_COUNT(commands); i++) fputs(commands[i].usage, to);
    fputs("stages:", to);
    for (size_t i = 0; i < TR_STAGES; i++) fprintf(to, " %s", tr_stages[i]->name);
    fputc('\n', to);
    fputs(statuses, to);
}

const tr_command *tr_command_at(size_t i)
{
    return i < TR_COUNT(commands) ? &commands[i] : NULL;
}

const char *tr_command_usage(const char *name)
{
    const tr_command *c = name ? tr_command_find(name) : NULL;
    return c ? c->usage : name ? stage_usage : run_usage;
}

tr_status tr_command_help(const char *name, FILE *to)
{
    const tr_command *c = tr_command_find(name);
    const tr_stage *s = stage_find(name);
    if (!c && !s) return tr_command_unknown(name, "a command or a stage");
    fprintf(to, "usage:\n%s", c ? c->usage : stage_usage);
    if (c && c->more) c->more(to);
    if (s) fprintf(to, "%s: %s\n", s->name, s->doc);
    if (s && s->fields) tr_fields_help(s->fields, s->name, to);
    return TR_OK;
}

tr_status tr_command_unknown(const char *word, const char *expected)
{
    const char *names[TR_COUNT(commands) + TR_STAGES];
    size_t n = 0;
    for (size_t i = 0; i < TR_COUNT(commands); i++) names[n++] = commands[i].name;
    for (size_t i = 0; i < TR_STAGES; i++) names[n++] = tr_stages[i]->name;
    const char *near = tr_nearest(word, names, n);
    return TR_FAIL(TR_USAGE, "%.100s: expected %s%s%s%s (trainer help)", word, expected,
                   near ? "; did you mean \"" : "", near ? near : "", near ? "\"?" : "");
}

tr_status tr_command_check_file(const char *file)
{
    if (strpbrk(file, "./") || access(file, F_OK) == 0) return TR_OK;
    return tr_command_unknown(file, "a command, a stage or a config file");
}

static int version(int argc, char **argv)
{
    if (argc > 1)
        return tr_command_end(TR_FAIL(TR_USAGE, "%.100s: --version takes no argument", argv[1]));
    puts("trainer " TR_VERSION);
    return tr_command_end(TR_OK);
}
