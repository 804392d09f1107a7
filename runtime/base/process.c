/* How a process of this machine is doing. */
#include "runtime/base/base.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

char tr_process_state(long pid)
{
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    FILE *f = fopen(path, "re");
    if (!f) return 0;
    const size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = 0;
    const char *end = strrchr(text, ')'); /* of its name; the state follows */
    return end && end[1] == ' ' ? end[2] : (char)0;
}

bool tr_process_gone(long pid)
{
    if (kill((pid_t)pid, 0) != 0) return errno == ESRCH;
    const char state = tr_process_state(pid);
    return state == 'Z' || state == 'X';
}
