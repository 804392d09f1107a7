/* The options of `trainer sample`, which no other command has. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/file.h"
#include "runtime/config/config.h"
#include "trainer/command/sample.h"

typedef struct {
    const char *name;
    tr_status (*take)(tr_sample_options *o, const char *name, const char *value);
    const char *doc;
} option;

static tr_status add_prompt(tr_sample_options *o, const char *name, const char *value)
{
    o->prompts[o->nprompts++] = (tr_text){name, value, strlen(value), false};
    return TR_OK;
}

static tr_status add_prompt_ids(tr_sample_options *o, const char *name, const char *value)
{
    o->prompts[o->nprompts++] = (tr_text){name, value, strlen(value), true};
    return TR_OK;
}

/* A file, or a pipe: `-`, /dev/stdin, what a shell makes of <(...). */
static tr_status read_prompt(const char *file, char **text, size_t *nbytes)
{
    struct stat s;
    if (strcmp(file, "-") == 0)
        return tr_file_read_all(STDIN_FILENO, "standard input", TR_USAGE, text, nbytes);
    if (stat(file, &s) != 0 || !(S_ISFIFO(s.st_mode) || S_ISCHR(s.st_mode)))
        return tr_read_text(file, text, nbytes);
    const int fd = open(file, O_RDONLY | O_NOCTTY | O_CLOEXEC);
    if (fd < 0) return TR_FAIL(TR_USAGE, "%s: cannot be opened: %s", file, strerror(errno));
    const tr_status st = tr_file_read_all(fd, file, TR_USAGE, text, nbytes);
    close(fd);
    return st;
}

static tr_status add_prompt_file(tr_sample_options *o, const char *name, const char *value)
{
    char *text = NULL;
    size_t nbytes;
    tr_status st = TR_OK;
    (void)name;
    TR_TRY(read_prompt(value, &text, &nbytes));
    o->files[o->nfiles++] = text;
    o->prompts[o->nprompts++] = (tr_text){value, text, nbytes, false};
out:
    return st;
}

static tr_status add_stop(tr_sample_options *o, const char *name, const char *value)
{
    o->stops[o->nstops++] = (tr_text){name, value, strlen(value), false};
    return TR_OK;
}

static tr_status add_stop_ids(tr_sample_options *o, const char *name, const char *value)
{
    o->stops[o->nstops++] = (tr_text){name, value, strlen(value), true};
    return TR_OK;
}

static tr_status whole(const char *name, const char *value, int64_t least, int64_t most,
                       int64_t *out)
{
    char *end;
    errno = 0;
    const long long n = strtoll(value, &end, 10);
    if (errno || *end || end == value || n < least || n > most)
        return TR_FAIL(TR_USAGE, "%s %.100s: expected a whole number from %" PRId64 " to %" PRId64,
                       name, value, least, most);
    *out = n;
    return TR_OK;
}

static tr_status number(const char *name, const char *value, double most, double *out)
{
    char *end;
    const double v = strtod(value, &end);
    if (*end || end == value || !(v >= 0 && v <= most))
        return TR_FAIL(TR_USAGE, "%s %.100s: expected a number from 0 to %g", name, value, most);
    *out = v;
    return TR_OK;
}

static tr_status take_tokens(tr_sample_options *o, const char *name, const char *value)
{
    return whole(name, value, 1, 1 << 30, &o->tokens);
}

static tr_status take_temperature(tr_sample_options *o, const char *name, const char *value)
{
    return number(name, value, 1000, &o->choice.temperature);
}

static tr_status take_top_k(tr_sample_options *o, const char *name, const char *value)
{
    return whole(name, value, 0, INT32_MAX, &o->choice.top_k);
}

static tr_status take_top_p(tr_sample_options *o, const char *name, const char *value)
{
    return number(name, value, 1, &o->choice.top_p);
}

static tr_status take_seed(tr_sample_options *o, const char *name, const char *value)
{
    int64_t seed = 0;
    const tr_status st = whole(name, value, 0, INT64_MAX, &seed);
    o->seed = (uint64_t)seed;
    o->seeded = true;
    return st;
}

static const option options[] = {
    {"--prompt", add_prompt, "a text to go on with; its bytes are the ids of a model of texts"},
    {"--prompt-file", add_prompt_file,
     "the same, what a file or a pipe holds, up to 64 MiB; -: standard input"},
    {"--prompt-ids", add_prompt_ids, "ids to go on with, of a model of tokens: 464,3290"},
    {"--tokens", take_tokens, "ids that are made at most of each prompt (100)"},
    {"--temperature", take_temperature,
     "logits are divided by it (1); 0: the most probable id is taken"},
    {"--top-k", take_top_k, "ids are drawn from the K most probable ones (0: all)"},
    {"--top-p", take_top_p,
     "and of these from the fewest that together have probability P (1: all)"},
    {"--seed", take_seed, "of what is drawn (the config's); the same seed gives the same text"},
    {"--stop", add_stop, "a text that ends what is made, and is not written"},
    {"--stop-ids", add_stop_ids, "the same, ids: 50256"}};

void tr_sample_help(FILE *to)
{
    for (size_t i = 0; i < TR_COUNT(options); i++)
        fprintf(to, "  %-14s %s\n", options[i].name, options[i].doc);
}

void tr_sample_flags(char *to, size_t size)
{
    size_t used = strlen(to);
    for (size_t i = 0; i < TR_COUNT(options) && used < size; i++)
        used += (size_t)snprintf(to + used, size - used, " %s", options[i].name);
}

/* The option that an argument is, with its value behind `=` or in the next one. */
static const option *find(const char *arg)
{
    const size_t n = strcspn(arg, "=");
    for (size_t i = 0; i < TR_COUNT(options); i++)
        if (strlen(options[i].name) == n && memcmp(options[i].name, arg, n) == 0)
            return &options[i];
    return NULL;
}

tr_status tr_sample_options_parse(int *argc, char **argv, tr_sample_options *out)
{
    const size_t most = (size_t)*argc;
    tr_sample_options o = {.tokens = 100, .choice = {.temperature = 1, .top_p = 1}};
    int left = 1;
    tr_status st = TR_OK;
    TR_HAVE(o.prompts = tr_alloc(TR_MEM_OTHER, most, sizeof *o.prompts));
    TR_HAVE(o.stops = tr_alloc(TR_MEM_OTHER, most, sizeof *o.stops));
    TR_HAVE(o.files = tr_alloc(TR_MEM_OTHER, most, sizeof *o.files));
    for (int i = 1; i < *argc; i++) {
        const option *is = find(argv[i]);
        if (!is) {
            argv[left++] = argv[i];
            continue;
        }
        const char *equals = strchr(argv[i], '=');
        TR_NEED(equals || i + 1 < *argc, TR_USAGE, "%s: expected a value behind it", is->name);
        TR_TRY(is->take(&o, is->name, equals ? equals + 1 : argv[++i]));
    }
    *argc = left;
    TR_NEED(o.nprompts > 0, TR_USAGE,
            "nothing to go on with: expected --prompt TEXT, --prompt-file FILE or --prompt-ids "
            "1,2,3");
out:
    if (st != TR_OK) {
        tr_sample_options_free(&o);
        return st;
    }
    *out = o;
    return TR_OK;
}

void tr_sample_options_free(tr_sample_options *o)
{
    for (size_t i = 0; i < o->nfiles; i++) tr_free(o->files[i]);
    tr_free(o->files);
    tr_free(o->prompts);
    tr_free(o->stops);
    *o = (tr_sample_options){0};
}
