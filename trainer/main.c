/* The `trainer` program: picks the command. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "trainer/arguments/arguments.h"
#include "trainer/command/commands.h"

/* Standard streams that are closed: no file of ours may get their numbers, and what is printed with
 * it. Output cannot be written to what stands in its place, so that who checks learns that nobody
 * reads it; messages may be lost. */
static void keep_standard_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 &&
            open("/dev/null", fd == STDERR_FILENO ? O_WRONLY : O_RDONLY) != fd)
            _exit(1);
}

/* How an option in the place of a command is called. */
static const char *command_of(const char *word)
{
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) return "help";
    if (strcmp(word, "--version") == 0 || strcmp(word, "-V") == 0) return "version";
    return word;
}

/* Whether help with the command is asked for, among its arguments. */
static bool asks_for_help(int argc, char **argv)
{
    for (int i = 2; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) return true;
    return false;
}

int main(int argc, char **argv)
{
    keep_standard_streams();
    if (argc < 2) {
        tr_commands_help(stderr);
        return 2;
    }
    const char *name = command_of(argv[1]);
    const tr_command *command = tr_command_find(name);
    const bool stage = tr_command_is_stage(name);
    if (asks_for_help(argc, argv)) {
        tr_status st = TR_OK;
        if (command || stage)
            st = tr_command_help(name, stdout);
        else
            tr_commands_help(stdout);
        return tr_command_end(st);
    }
    if (command) return command->run(argc - 1, argv + 1);
    return stage ? tr_cmd_stage(argc - 1, argv + 1) : tr_cmd_run(argc, argv);
}
