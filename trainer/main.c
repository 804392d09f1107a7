/* The `trainer` program: picks the command. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "trainer/commands.h"
#include "trainer/stages.h"

static const char usage[] =
    "usage:\n"
    "  mpirun -np N trainer CONFIG [key=value ...] [--resume] [--force] [--quiet]\n"
    "                                          run the config's pipeline: train, when it gives\n"
    "                                          none; --quiet: say only what went wrong\n"
    "      [--until STAGE] [--from STAGE]      stop behind a stage; run again from one on\n"
    "  mpirun -np N trainer STAGE FILE [key=value ...] [--force] [--quiet]\n"
    "                                          one stage of the pipeline on a run file; keys are\n"
    "                                          the stage's options, or the config's in the file\n"
    "  mpirun -np N trainer sweep FILE [key=value ...] [--resume] [--force] [--quiet]\n"
    "                                          a config with other settings each time: grids,\n"
    "                                          lists, searches; sweep --help: what FILE takes\n"
    "  trainer check CONFIG [key=value ...]    validate; print the config as resolved\n"
    "  trainer check --help-config             every key: type, default, unit, meaning\n"
    "  trainer plan CONFIG [key=value ...] [--ranks N]\n"
    "                                          memory, arithmetic and traffic; runs nothing\n"
    "  trainer inspect FILE [FILE2] [--json]   what is in a run file; with two, how they differ\n"
    "  trainer import FILE.onnx OUT.h5 [key=value ...] [--force]\n"
    "  trainer import FILE.safetensors OUT.h5 --config CONFIG [key=value ...] [--force]\n"
    "                                          a run file of an ONNX file's model; keys are the "
    "config's\n"
    "exit status: 0 done, 1 failed, 2 wrong config or command line, 75 stopped on request with a\n"
    "checkpoint saved (start again with --resume)\n";

/* Standard streams that are closed: no file of ours may get their numbers, and what is printed with it. */
static void keep_standard_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 &&
            open("/dev/null", fd == STDIN_FILENO ? O_RDONLY : O_WRONLY) != fd)
            _exit(1);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(int argc, char **argv);
    } commands[] = {{"check", tr_cmd_check},
                    {"plan", tr_cmd_plan},
                    {"sweep", tr_cmd_sweep},
                    {"inspect", tr_cmd_inspect},
                    {"import", tr_cmd_import}};

    keep_standard_streams();

    if (argc < 2) {
        fputs(usage, stderr);
        return 2;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        fputs(usage, stdout);
        return 0;
    }
    if (strcmp(argv[1], "--version") == 0) {
        puts("trainer " TR_VERSION);
        return 0;
    }
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        if (strcmp(argv[1], commands[i].name) == 0) return commands[i].run(argc - 1, argv + 1);
    for (size_t i = 0; i < TR_STAGES; i++) /* `train` is what a config is for */
        if (tr_stages[i] != &tr_stage_train && strcmp(argv[1], tr_stages[i]->name) == 0)
            return tr_cmd_stage(argc - 1, argv + 1);
    return tr_cmd_run(argc, argv);
}
