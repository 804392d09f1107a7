/* `trainer inspect FILE [FILE2] [--json]`: what is in a run file; with two, how they differ (status
 * 1 when they do, as diff(1), or when something in a file is damaged). Needs no config and no MPI. */
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "runtime/base/visible.h"
#include "runtime/store/store.h"
#include "trainer/arguments.h"
#include "trainer/commands.h"

#define USAGE "usage: trainer inspect FILE [FILE2] [--json]"

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
    bool json = false, same = true;
    FILE *shown = NULL;
    tr_status st = TR_OK;
    TR_TRY(parse(argc, argv, files, &json));
    shown = tr_visible_stream(stdout);
    TR_HAVE(shown);
    if (files[1])
        TR_TRY(tr_store_diff(files[0], files[1], json, shown, &same));
    else
        TR_TRY(tr_store_inspect(files[0], json, width(), shown));
out:
    if (shown) fclose(shown); /* what did not reach stdout is told at the end */
    const int status = tr_command_end(st);
    return status == EXIT_SUCCESS && !same ? EXIT_FAILURE : status;
}
