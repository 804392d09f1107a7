/* The commands of the command line: each takes its own arguments (argv[0] is the command's name)
 * and returns the exit status. */
#ifndef TR_COMMANDS_H
#define TR_COMMANDS_H

int tr_cmd_run(
    int argc,
    char **
        argv); /* CONFIG [key=value ...] [--resume] [--force] [--quiet] [--from STAGE] [--until STAGE] */
int tr_cmd_stage(int argc, char **argv);   /* FILE [key=value ...]; argv[0]: the stage's name */
int tr_cmd_sweep(int argc, char **argv);   /* FILE [key=value ...] [--resume] [--force] [--quiet] */
int tr_cmd_check(int argc, char **argv);   /* CONFIG [key=value ...] | --help-config */
int tr_cmd_plan(int argc, char **argv);    /* CONFIG [key=value ...] [--ranks N] */
int tr_cmd_inspect(int argc, char **argv); /* FILE [FILE2] [--json] */
int tr_cmd_import(int argc, char **argv);  /* FILE.onnx OUT.h5 [key=value ...] [--force] */

#endif
