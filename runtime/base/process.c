/* Whether a process of this machine still runs. */
#include "runtime/base/base.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

bool tr_process_gone(long pid)
{
    char path[64], text[512];
    if (kill((pid_t)pid, 0) != 0) return errno == ESRCH;
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    FILE *f = fopen(path, "re");
    if (!f) return false;
    const size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = 0;
    const char *end = strrchr(text, ')'); /* of its name; the state follows */
    return end && end[1] == ' ' && (end[2] == 'Z' || end[2] == 'X');
}
