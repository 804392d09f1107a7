/* Files that a config names. */
#include "runtime/config/files.h"

#include <string.h>
#include <unistd.h>

#include "runtime/base/file.h"

bool tr_config_file_readable(const tr_config *c, const char *file)
{
    char *path = tr_config_path(c, file);
    const bool can = !path || access(path, R_OK) == 0;
    tr_free(path);
    return can;
}

/* Leaves the thread's error record. */
static bool is_like_any(const tr_config *c, const char *pattern)
{
    glob_t found = {0};
    const tr_error before = *tr_last_error();
    char *folder = *pattern == '/' ? tr_strdup("") : tr_config_path(c, "");
    const bool any =
        !folder || (tr_files_like(folder, pattern, &found) == TR_OK && found.gl_pathc > 0);
    globfree(&found);
    tr_free(folder);
    tr_set_error(&before);
    return any;
}

static char *trim(char *word)
{
    word += strspn(word, " \t");
    size_t n = strlen(word);
    while (n > 0 && strchr(" \t", word[n - 1])) n--;
    word[n] = 0;
    return word;
}

/* `names`: one, or several with commas. */
static bool can_be_read(const tr_config *c, const char *names, bool several, bool patterns)
{
    bool can = true;
    char *list = tr_strdup(names), *rest = list;
    for (char *word; can && (word = strsep(&rest, several ? "," : "")) != NULL;) {
        word = trim(word);
        can = patterns && strpbrk(word, "*?[") ? is_like_any(c, word)
                                               : tr_config_file_readable(c, word);
    }
    tr_free(list);
    return can;
}

const char *tr_unreadable_key(const tr_config *c, const tr_source_config *s)
{
    const int format = tr_source_kind(c, s);
    const bool patterns =
        format == TR_FORMAT_TOKENS && s->path && !tr_config_file_readable(c, s->path);
    const bool several = patterns || format == TR_FORMAT_CIFAR10 || format == TR_FORMAT_CIFAR100;
    const tr_node *n = s->inputs;
    if (s->path) return can_be_read(c, s->path, several, patterns) ? NULL : "path";
    if (s->labels && !can_be_read(c, s->labels, false, false)) return "labels";
    if (s->weights && !can_be_read(c, s->weights, false, false)) return "weights";
    if (n && n->kind == TR_NODE_SCALAR)
        return can_be_read(c, n->text, false, false) ? NULL : "inputs";
    for (size_t i = 0; n && i < n->count; i++)
        if (!can_be_read(c, n->values[i]->text, false, false)) return "inputs";
    return NULL;
}
