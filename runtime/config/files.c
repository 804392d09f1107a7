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

typedef struct {
    const tr_config *c;
    tr_file_test *is;
    void *ctx;
} search;

static bool is_there(const search *s, const char *name)
{
    char *path = tr_config_path(s->c, name);
    const bool is = path && s->is(s->ctx, path);
    tr_free(path);
    return is;
}

/* Any file that is like it. Leaves the thread's error record. */
static bool is_like(const search *s, const char *pattern)
{
    glob_t found = {0};
    const tr_error before = *tr_last_error();
    char *folder = *pattern == '/' ? tr_strdup("") : tr_config_path(s->c, "");
    bool is = false;
    if (folder && (tr_files_like(folder, pattern, &found) != TR_OK || found.gl_pathc == 0))
        is = s->is(s->ctx, NULL);
    for (size_t i = 0; i < found.gl_pathc && !is; i++) is = s->is(s->ctx, found.gl_pathv[i]);
    globfree(&found);
    tr_free(folder);
    tr_set_error(&before);
    return is;
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
static bool is_any(const search *s, const char *names, bool several, bool patterns)
{
    bool is = false;
    char *list = tr_strdup(names), *rest = list;
    for (char *word; !is && (word = strsep(&rest, several ? "," : "")) != NULL;) {
        word = trim(word);
        is = patterns && strpbrk(word, "*?[") ? is_like(s, word) : is_there(s, word);
    }
    tr_free(list);
    return is;
}

/* The inputs by name, where each is a file. */
static bool is_input(const search *s, const tr_node *n)
{
    if (n && n->kind == TR_NODE_SCALAR) return is_there(s, n->text);
    for (size_t i = 0; n && i < n->count; i++)
        if (n->values[i]->kind == TR_NODE_SCALAR && is_there(s, n->values[i]->text)) return true;
    return false;
}

const char *tr_source_find(const tr_config *c, const tr_source_config *of, tr_file_test *is,
                           void *ctx)
{
    const search s = {c, is, ctx};
    const int format = tr_source_kind(c, of);
    const bool patterns =
        format == TR_FORMAT_TOKENS && of->path && !tr_config_file_readable(c, of->path);
    const bool several = patterns || format == TR_FORMAT_CIFAR10 || format == TR_FORMAT_CIFAR100;
    if (of->path && is_any(&s, of->path, several, patterns)) return "path";
    /* with a path they name what is in that file, but where each array is a file */
    if (of->path && format != TR_FORMAT_IDX && format != TR_FORMAT_NPY) return NULL;
    if (of->labels && is_there(&s, of->labels)) return "labels";
    if (of->weights && is_there(&s, of->weights)) return "weights";
    return !of->path && is_input(&s, of->inputs) ? "inputs" : NULL;
}

static bool is_unreadable(void *ctx, const char *path)
{
    (void)ctx;
    return !path || access(path, R_OK) != 0;
}

const char *tr_unreadable_key(const tr_config *c, const tr_source_config *s)
{
    return tr_source_find(c, s, is_unreadable, NULL);
}
