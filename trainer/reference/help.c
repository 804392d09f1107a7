/* `trainer help`: of all commands, of one, or for the programs that show it. */
#include <stdlib.h>
#include <string.h>

#include "trainer/arguments/arguments.h"
#include "trainer/command/commands.h"
#include "trainer/reference/reference.h"

char *tr_text_of(void (*write)(FILE *to))
{
    char *text = NULL, *kept = NULL;
    size_t n = 0;
    FILE *to = open_memstream(&text, &n);
    if (!to) return NULL;
    write(to);
    if (fclose(to) == 0 && (kept = tr_alloc(TR_MEM_OTHER, n + 1, 1))) memcpy(kept, text, n);
    free(text);
    return kept;
}

int tr_cmd_help(int argc, char **argv)
{
    tr_status st = TR_OK;
    if (argc == 3 && strcmp(argv[1], "--completion") == 0)
        st = tr_completion_write(argv[2], stdout);
    else if (argc > 2)
        st = TR_FAIL(TR_USAGE, "%.100s: expected one command or stage", argv[2]);
    else if (argc == 2 && strcmp(argv[1], "--man") == 0)
        st = tr_manual_write(stdout);
    else if (argc == 2)
        st = tr_command_help(argv[1], stdout);
    else
        tr_commands_help(stdout);
    return tr_command_end(st);
}
