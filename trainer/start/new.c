/* `trainer new [--data FILE or FOLDER] [-o config.yaml]`: a commented config, for the data that is
 * named or for none in particular. Asks nothing, and replaces nothing unasked. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/file.h"
#include "runtime/config/config.h"
#include "runtime/data/reads.h"
#include "trainer/arguments/arguments.h"
#include "trainer/command/by_hand.h"
#include "trainer/command/commands.h"
#include "trainer/start/start.h"

#define USAGE                                                                                      \
    "usage: trainer new [--data FILE or FOLDER] [--labels NAME] [-o config.yaml] [--force]"

static tr_status parse(int argc, char **argv, tr_arguments *a, const char **labels)
{
    tr_status st = TR_OK;
    *a = (tr_arguments){.output = "config.yaml"};
    *labels = NULL;
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(argv[i], "--force") == 0) {
            a->force = true;
            continue;
        }
        const char **to = strcmp(argv[i], "--data") == 0     ? &a->data
                          : strcmp(argv[i], "--labels") == 0 ? labels
                          : strcmp(argv[i], "-o") == 0       ? &a->output
                                                             : NULL;
        TR_NEED(to, TR_USAGE, "%.100s: " USAGE, argv[i]);
        TR_NEED(value && *value && tr_yaml_comment(value), TR_USAGE,
                "%s: expected a name of one line, without control characters; " USAGE, argv[i]);
        *to = value;
        i++;
    }
    TR_NEED(!*labels || a->data, TR_USAGE, "--labels says what is in --data FILE: give that");
    TR_TRY(tr_output_is_free(a, NULL));
out:
    return st;
}

/* The whole path of the folder that `config` is in. */
static tr_status folder_of(const char *config, char whole[PATH_MAX])
{
    tr_status st = TR_OK;
    const char *end = strrchr(config, '/');
    char *folder = tr_sprintf("%.*s", (int)(end - config + 1), config);
    TR_HAVE(folder);
    TR_NEED(realpath(folder, whole), TR_IO, "%s: there is no such folder", folder);
out:
    tr_free(folder);
    return st;
}

/* Paths in a config are relative to its folder: as they are given where that is this one; from
 * there on where they lie below it, so that the folder can be moved; else whole. */
static tr_status place(char **path, bool several, const char *config)
{
    tr_status st = TR_OK;
    char whole[PATH_MAX], folder[PATH_MAX], *list = NULL, *out = NULL, *rest;
    if (!*path || **path == '/' || !strchr(config, '/')) return TR_OK;
    TR_TRY(folder_of(config, folder));
    const size_t n = strlen(folder);
    TR_HAVE(list = rest = tr_strdup(*path));
    for (char *word; (word = strsep(&rest, several ? "," : "")) != NULL;) {
        TR_NEED(realpath(word, whole), TR_DATA, "%s: its place cannot be found", word);
        const bool below = strncmp(whole, folder, n) == 0 && whole[n] == '/';
        char *longer =
            tr_sprintf("%s%s%s", out ? out : "", out ? "," : "", below ? whole + n + 1 : whole);
        TR_HAVE(longer);
        tr_free(out);
        out = longer;
    }
    tr_free(*path);
    *path = out;
    out = NULL;
out:
    tr_free(list);
    tr_free(out);
    return st;
}

/* The config would take the place of its data, which --force does not mean. */
static tr_status keep(const char *path, bool several, const char *config)
{
    tr_status st = TR_OK;
    char *list = NULL, *rest;
    if (!path) return TR_OK;
    TR_HAVE(list = rest = tr_strdup(path));
    for (char *word; (word = strsep(&rest, several ? "," : "")) != NULL;)
        TR_NEED(!tr_is_data_file(word, config), TR_USAGE,
                "-o %s is the data file, or one in the folder, %s: write the config elsewhere",
                config, word);
out:
    tr_free(list);
    return st;
}

static tr_status place_source(tr_look_source *s, int format, const char *config)
{
    tr_status st = TR_OK;
    const bool several = format == TR_FORMAT_CIFAR10 || format == TR_FORMAT_CIFAR100;
    char **const paths[] = {&s->path, &s->inputs, &s->labels};
    const size_t n = format == TR_FORMAT_IDX || format == TR_FORMAT_NPY ? 3 : 1;
    for (size_t i = 0; i < n; i++) {
        TR_TRY(keep(*paths[i], several, config));
        TR_TRY(place(paths[i], several, config));
    }
out:
    return st;
}

/* Whatever the locale. */
static bool is_alphanumeric(char c)
{
    return (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z');
}

/* The data file's own name, as far as it can name an experiment. */
static void name_of(const char *data, char *name, size_t room)
{
    const char *base = data ? strrchr(data, '/') : NULL;
    base = base ? base + 1 : data ? data : "mine";
    size_t n = 0;
    while (*base && !is_alphanumeric(*base)) base++;
    for (; base[n] && n + 1 < room && strchr(".,", base[n]) == NULL; n++)
        name[n] = is_alphanumeric(base[n]) || base[n] == '_' ? base[n] : '-';
    name[n] = 0;
    if (n == 0) snprintf(name, room, "mine");
}

int tr_cmd_new(int argc, char **argv)
{
    tr_arguments a;
    const char *labels;
    char name[64];
    tr_look look = {0};
    tr_text_file f = {0};
    tr_status st;
    TR_TRY(parse(argc, argv, &a, &labels));
    if (a.data) {
        TR_TRY(tr_look_open(a.data, labels, &look));
        TR_TRY(place_source(&look.train, look.format, a.output));
        TR_TRY(place_source(&look.eval, look.format, a.output));
    }
    name_of(a.data, name, sizeof name);
    st = tr_text_file_open(&f, a.output);
    if (st == TR_OK) st = tr_new_config(a.data ? &look : NULL, name, a.output, f.to);
    TR_TRY(tr_text_file_close(&f, st));
    for (size_t i = 0; i < look.nnotes; i++) printf("%s: %s\n", a.data, look.notes[i]);
    printf("%s: written. To look at it, then to train it:\n  trainer check %s\n  trainer plan %s "
           "--summary\n  mpirun -np 2 trainer %s\n",
           a.output, a.output, a.output, a.output);
out:
    tr_look_close(&look);
    return tr_command_end(st);
}
