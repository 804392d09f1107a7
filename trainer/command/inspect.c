/* `trainer inspect FILE [FILE2] [--json] [--accept-unverified]`: what is in a run file, or in a
 * run's folder: its files, and the run's own; with two, how they differ (status
 * 1 when they do, as diff(1), or when something in a file is damaged). Needs no config and no
 * MPI. */
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "runtime/base/visible.h"
#include "runtime/store/store.h"
#include "trainer/arguments/arguments.h"
#include "trainer/command/commands.h"
#include "trainer/run/run_list.h"

#define USAGE "usage: trainer inspect FILE [FILE2] [--json] [--accept-unverified]"

/* The terminal's width; 80 where there is none, 120 at most: a wider plot tells no more. */
static int width(void)
{
    struct winsize size;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col < 40) return 80;
    return size.ws_col < 120 ? size.ws_col : 120;
}

static tr_status parse(int argc, char **argv, const char *files[2], bool *json)
{
    int n = 0;
    bool flags = true;
    for (int i = 1; i < argc; i++) {
        if (flags && strcmp(argv[i], "--") == 0)
            flags = false;
        else if (flags && strcmp(argv[i], "--json") == 0)
            *json = true;
        else if (flags && strcmp(argv[i], "--accept-unverified") == 0)
            tr_store_accept_unverified(true);
        else if (flags && argv[i][0] == '-')
            return TR_FAIL(TR_USAGE, "%s: no such option; " USAGE, argv[i]);
        else if (n == 2)
            return TR_FAIL(TR_USAGE, "%s: a third file; " USAGE, argv[i]);
        else
            files[n++] = argv[i];
    }
    if (n == 0) return TR_FAIL(TR_USAGE, "which file? " USAGE);
    return TR_OK;
}

int tr_cmd_inspect(int argc, char **argv)
{
    const char *files[2] = {NULL, NULL};
    char *in[2] = {NULL, NULL}; /* of folders */
    bool json = false, same = true;
    FILE *shown = NULL;
    tr_status st = TR_OK;
    TR_TRY(parse(argc, argv, files, &json));
    shown = tr_visible_stream(stdout);
    TR_HAVE(shown);
    for (int i = 0; i < 2; i++) {
        if (!files[i] || !tr_is_folder(files[i])) continue;
        TR_TRY(tr_run_list(files[i], json || files[1] ? NULL : shown, &in[i]));
        files[i] = in[i];
    }
    if (files[1])
        TR_TRY(tr_store_diff(files[0], files[1], json, shown, &same));
    else
        TR_TRY(tr_store_inspect(files[0], json, width(), shown));
out:
    if (shown) fclose(shown); /* what did not reach stdout is told at the end */
    const int status = tr_command_end(st);
    tr_free(in[0]);
    tr_free(in[1]);
    return status == EXIT_SUCCESS && !same ? EXIT_FAILURE : status;
}
