/* A failure at a file, told by the key that names it. */
#include "runtime/config/files.h"

#include <unistd.h>

bool tr_config_file_readable(const tr_config *c, const char *file)
{
    char *path = tr_config_path(c, file);
    const bool can = !path || access(path, R_OK) == 0;
    tr_free(path);
    return can;
}

tr_status tr_config_file_failed(const tr_config *c, const char *key, tr_status st)
{
    const tr_error why = *tr_last_error();
    (void)tr_config_fail(c, key, "%s", why.text);
    const tr_error placed = *tr_last_error();
    return TR_FAIL(st, "%s", placed.text);
}
