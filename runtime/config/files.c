/* Files that a config names. */
#include "runtime/config/files.h"

#include <unistd.h>

bool tr_config_file_readable(const tr_config *c, const char *file)
{
    char *path = tr_config_path(c, file);
    const bool can = !path || access(path, R_OK) == 0;
    tr_free(path);
    return can;
}
