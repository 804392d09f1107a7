/* The commands of the command line: each takes its own arguments (argv[0] is the command's name)
 * and returns the exit status. */
#ifndef TR_COMMANDS_H
#define TR_COMMANDS_H

#include "runtime/base/base.h"

int tr_cmd_run(int argc, char **argv);   /* CONFIG [key=value ...] [--resume] [--force] [--quiet]
                                            [--from STAGE] [--until STAGE] */
int tr_cmd_stage(int argc, char **argv); /* FILE [key=value ...]; argv[0]: the stage's name */
int tr_cmd_sweep(int argc, char **argv); /* FILE [key=value ...] [--resume] [--force] [--quiet] */
int tr_cmd_evaluate(int argc, char **argv); /* MODEL [key=value ...] [--json] [-o FILE.json] */
int tr_cmd_predict(int argc, char **argv);  /* MODEL [key=value ...] -o FILE [--top K] [--raw] */
int tr_cmd_sample(int argc, char **argv);   /* MODEL --prompt TEXT [key=value ...] */
int tr_cmd_check(int argc, char **argv);    /* CONFIG [key=value ...] | --help-config */
int tr_cmd_plan(int argc, char **argv);     /* CONFIG [key=value ...] [--ranks N] [--json] ... */
int tr_cmd_inspect(int argc, char **argv);  /* FILE [FILE2] [--json] */
int tr_cmd_compare(int argc, char **argv);  /* RUN RUN... [--json] [-o FILE] */
int tr_cmd_import(int argc, char **argv);   /* FILE.onnx OUT.h5 [key=value ...] [--force] */
int tr_cmd_demo(int argc, char **argv);     /* [NAME] [FOLDER] */
int tr_cmd_new(int argc, char **argv);      /* [--data FILE] [-o FILE] */
int tr_cmd_help(int argc, char **argv);     /* [COMMAND | STAGE] | --man | --completion SHELL */

typedef struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *usage;      /* lines that say what it takes and does */
    void (*more)(FILE *to); /* what else its help says; NULL: nothing */
} tr_command;

/* All *Local.* */
const tr_command *tr_command_find(const char *name); /* NULL: there is none */
bool tr_command_is_stage(const char *name);          /* one that is run by hand */
const tr_command *tr_command_at(size_t i);           /* NULL: behind the last */
/* Of a command or stage; NULL: of a config that is run. */
const char *tr_command_usage(const char *name);
void tr_commands_help(FILE *to);
/* TR_USAGE where `name` is neither a command nor a stage. */
tr_status tr_command_help(const char *name, FILE *to);
/* TR_USAGE "WORD: expected ...", with the command or stage that is nearest. */
tr_status tr_command_unknown(const char *word, const char *expected);
/* That, where a config file is meant to be, and a word is that is no file's name. */
tr_status tr_command_check_file(const char *file);
/* The reference in Markdown, which `check --help-config` prints: every key of a config, layer and
 * sweep. */
void tr_reference_write(FILE *to);

#endif
