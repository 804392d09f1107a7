/* Sizes of memory as texts, and the keys that take them. */
#include "runtime/config/memory.h"
#include "runtime/config/internal.h"

#include <stdlib.h>
#include <string.h>

bool tr_parse_size(const char *text, size_t *nbytes)
{
    static const struct {
        const char *name;
        double bytes;
    } units[] = {{"B", 1},        {"kB", 1e3},     {"MB", 1e6},     {"GB", 1e9},    {"TB", 1e12},
                 {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}};
    if (!strchr("0123456789.", *text)) return false;
    char *end;
    const double n = strtod(text, &end);
    while (end != text && *end == ' ') end++;
    for (size_t i = 0; end != text && i < TR_COUNT(units); i++) {
        if (strcmp(end, units[i].name) != 0 || !(n * units[i].bytes >= 1)) continue;
        if (!(n * units[i].bytes <= 1e18)) return false;
        *nbytes = (size_t)(n * units[i].bytes);
        return true;
    }
    return false;
}

size_t tr_memory_limit_of(const tr_config *c)
{
    size_t nbytes = 0;
    if (strcmp(c->run.memory_limit, "auto") == 0) return TR_MEMORY_AUTO;
    return tr_parse_size(c->run.memory_limit, &nbytes) ? nbytes : 0;
}

tr_status tr_memory_check(const tr_config *c)
{
    size_t nbytes;
    char show[TR_SHOW];
    const char *text = c->run.memory_limit;
    if (strcmp(text, "none") == 0 || strcmp(text, "auto") == 0 || tr_parse_size(text, &nbytes))
        return TR_OK;
    const tr_node *run = tr_node_get(c->document.root, "run");
    return tr_node_fail(tr_node_get(run, "memory_limit"),
                        "run.memory_limit: found %s, expected none, auto, or a size such as 8GiB, "
                        "512MB",
                        tr_text_show(text, show));
}
