/* Arguments of the commands that take a config. */
#include "trainer/arguments/arguments.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/config/memory.h"
#include "runtime/store/store.h"
#include "trainer/device/advice.h"
#include "trainer/run/run_list.h"
#include "trainer/stages/stages.h"

static bool takes(const char *flags, const char *flag)
{
    const char *p = strstr(flags, flag);
    size_t n = strlen(flag);
    return p && (p == flags || p[-1] == ' ') && (p[n] == ' ' || p[n] == 0);
}

/* What stands behind `=`, or is the next argument; "" where there is none. */
static const char *value_of(char **argv, int argc, int *i)
{
    const char *equals = strchr(argv[*i], '=');
    return equals ? equals + 1 : *i + 1 < argc ? argv[++*i] : "";
}

static tr_status parse_bytes(const char *value, size_t *out)
{
    if (tr_parse_size(value, out)) return TR_OK;
    return TR_FAIL(TR_USAGE, "--memory %s: expected a size such as 80GB, 512MB or 16GiB", value);
}

static tr_status parse_count(const char *flag, const char *what, const char *value, int64_t *out)
{
    char *end;
    errno = 0;
    const long long n = strtoll(value, &end, 10);
    if (errno || *end || end == value || n < 1 || n > 1000000)
        return TR_FAIL(TR_USAGE, "%s %s: expected a number of %s from 1 to 1000000", flag, value,
                       what);
    *out = n;
    return TR_OK;
}

static tr_status parse_flag(const char *flags, char **argv, int argc, int *i, tr_arguments *out)
{
    const char *arg = argv[*i];
    char name[32];
    size_t n = strcspn(arg, "=");
    if (n >= sizeof name) n = sizeof name - 1;
    memcpy(name, arg, n);
    name[n] = 0;
    if (!takes(flags, name))
        return TR_FAIL(TR_USAGE, "unknown option %s (expected: %s)", arg, flags);
    if (strcmp(name, "--ranks") == 0)
        return parse_count(name, "ranks", value_of(argv, argc, i), &out->ranks);
    if (strcmp(name, "--nodes") == 0)
        return parse_count(name, "nodes", value_of(argv, argc, i), &out->nodes);
    if (strcmp(name, "--ranks-per-node") == 0)
        return parse_count(name, "ranks", value_of(argv, argc, i), &out->ranks_per_node);
    if (strcmp(name, "--memory") == 0) return parse_bytes(value_of(argv, argc, i), &out->memory);
    if (strcmp(name, "--top") == 0)
        return parse_count(name, "classes", value_of(argv, argc, i), &out->top);
    if (strcmp(name, "--data") == 0 && takes(flags, "--help-config")) {
        out->check_data = true;
        return arg[n] != '=' ? TR_OK : TR_FAIL(TR_USAGE, "--data takes no value");
    }
    if (strcmp(name, "--data") == 0) {
        const char *value = out->data = value_of(argv, argc, i);
        return strcmp(value, "predict") == 0 || strcmp(value, "eval") == 0 ||
                       strcmp(value, "train") == 0
                   ? TR_OK
                   : TR_FAIL(TR_USAGE, "--data %s: expected predict, eval or train", value);
    }
    if (strcmp(name, "--from") == 0 || strcmp(name, "--until") == 0) {
        const char *value = value_of(argv, argc, i);
        if (!*value) return TR_FAIL(TR_USAGE, "%s: expected a stage of the pipeline", name);
        *(name[2] == 'f' ? &out->from : &out->until) = value;
        return TR_OK;
    }
    if (strcmp(name, "-o") == 0) {
        out->output = value_of(argv, argc, i);
        return *out->output ? TR_OK : TR_FAIL(TR_USAGE, "-o: expected a file");
    }
    if (arg[n] == '=') return TR_FAIL(TR_USAGE, "%s takes no value", name);
    if (strcmp(name, "--resume") == 0) out->resume = true;
    if (strcmp(name, "--force") == 0) out->force = true;
    if (strcmp(name, "--quiet") == 0) out->quiet = true;
    if (strcmp(name, "--help-config") == 0) out->help_config = true;
    if (strcmp(name, "--schema") == 0) out->schema = true;
    if (strcmp(name, "--json") == 0) out->json = true;
    if (strcmp(name, "--raw") == 0) out->raw = true;
    if (strcmp(name, "--summary") == 0) out->summary = true;
    if (strcmp(name, "--largest") == 0) out->largest = true;
    if (strcmp(name, "--accept-unverified") == 0) out->accept_unverified = true;
    return TR_OK;
}

tr_status tr_arguments_parse(int argc, char **argv, const char *flags, tr_arguments *out)
{
    tr_status st = TR_OK;
    *out = (tr_arguments){0};
    out->overrides = tr_alloc(TR_MEM_OTHER, (size_t)argc, sizeof *out->overrides);
    if (!out->overrides) return tr_last_status();
    for (int i = 1; i < argc; i++) {
        if (argv[i][0] == '-' && argv[i][1])
            TR_TRY(parse_flag(flags, argv, argc, &i, out));
        else if (!out->config)
            out->config = argv[i];
        else if (strchr(argv[i], '='))
            out->overrides[out->noverrides++] = argv[i];
        else
            TR_NEED(false, TR_USAGE, "%s: expected key=value or an option (%s)", argv[i], flags);
    }
    TR_NEED(out->config || out->help_config || out->schema, TR_USAGE, "no config file given");
    TR_NEED(!(out->resume && out->force), TR_USAGE,
            "--resume goes on with a run, --force replaces it: give one of them");
out:
    if (st != TR_OK) tr_arguments_free(out);
    return st;
}

/* Whether the first name of key=value is one of the stage's options. */
static bool is_option(const tr_stage *s, const char *assignment)
{
    const size_t n = strcspn(assignment, ".=");
    for (const tr_field *f = s->fields; f && f->key; f++)
        if (strlen(f->key) == n && memcmp(f->key, assignment, n) == 0) return true;
    return false;
}

/* Room for one more override, in front, and for those that are not argv's. */
static tr_status make_room(tr_arguments *out)
{
    tr_status st = TR_OK;
    const char **all = tr_alloc(TR_MEM_OTHER, out->noverrides + 1, sizeof *all);
    TR_HAVE(all);
    memcpy(all + 1, out->overrides, out->noverrides * sizeof *all);
    tr_free(out->overrides);
    out->overrides = all;
    out->noverrides++;
    out->owned = tr_alloc(TR_MEM_OTHER, out->noverrides + 1, sizeof *out->owned);
    TR_HAVE(out->owned);
out:
    return st;
}

tr_status tr_arguments_parse_stage(int argc, char **argv, tr_arguments *out)
{
    tr_status st = TR_OK;
    const tr_stage *s = NULL;
    TR_TRY(tr_arguments_parse(argc, argv, "--force --quiet --accept-unverified", out));
    for (size_t i = 0; i < TR_STAGES; i++)
        if (strcmp(tr_stages[i]->name, argv[0]) == 0) s = tr_stages[i];
    out->stage = argv[0];
    out->run_file = true;
    TR_TRY(tr_run_file_of(&out->config, &out->found));
    TR_TRY(make_room(out));
    size_t n = 0;
    for (size_t i = 0; i < out->noverrides; i++) {
        if (i > 0 && !is_option(s, out->overrides[i])) continue;
        char *own = i == 0 ? tr_sprintf("pipeline=[%s]", s->name)
                           : tr_sprintf("pipeline.0.%s.%s", s->name, out->overrides[i]);
        TR_HAVE(own);
        out->overrides[i] = out->owned[n++] = own;
    }
out:
    if (st != TR_OK) tr_arguments_free(out);
    return st;
}

/* What the file's pipeline asks for is of the models before, and not looked at. */
static tr_status of_run_file(tr_arguments *out)
{
    tr_status st;
    out->run_file = true;
    TR_TRY(tr_run_file_of(&out->config, &out->found));
    TR_TRY(make_room(out));
    out->overrides[0] = "pipeline=[train]";
out:
    if (st != TR_OK) tr_arguments_free(out);
    return st;
}

tr_status tr_arguments_parse_run_file(int argc, char **argv, const char *flags, tr_arguments *out)
{
    const tr_status st = tr_arguments_parse(argc, argv, flags, out);
    return st == TR_OK ? of_run_file(out) : st;
}

tr_status tr_arguments_parse_either(int argc, char **argv, const char *flags, tr_arguments *out)
{
    const tr_status st = tr_arguments_parse(argc, argv, flags, out);
    const bool run_file =
        st == TR_OK && out->config && (tr_is_folder(out->config) || tr_store_is_hdf5(out->config));
    return run_file ? of_run_file(out) : st;
}

void tr_arguments_free(tr_arguments *a)
{
    for (size_t i = 0; a->owned && a->owned[i]; i++) tr_free(a->owned[i]);
    tr_free(a->owned);
    a->owned = NULL;
    tr_free(a->found);
    a->found = NULL;
    tr_free(a->overrides);
    a->overrides = NULL;
}

/* One a line: the caller's. */
static char *words_of(const tr_arguments *a)
{
    const char *const words[] = {a->resume ? "--resume" : NULL,
                                 a->force ? "--force" : NULL,
                                 a->accept_unverified ? "--accept-unverified" : NULL,
                                 a->data ? "--data" : NULL,
                                 a->data,
                                 a->from ? "--from" : NULL,
                                 a->from,
                                 a->until ? "--until" : NULL,
                                 a->until};
    size_t nbytes = 1;
    for (size_t i = 0; i < TR_COUNT(words); i++) nbytes += words[i] ? strlen(words[i]) + 1 : 0;
    for (size_t i = 0; i < a->noverrides; i++) nbytes += strlen(a->overrides[i]) + 1;
    char *all = tr_alloc(TR_MEM_OTHER, nbytes, 1), *p = all;
    if (!all) return NULL;
    for (size_t i = 0; i < TR_COUNT(words); i++)
        if (words[i]) p = stpcpy(stpcpy(p, words[i]), "\n");
    for (size_t i = 0; i < a->noverrides; i++) p = stpcpy(stpcpy(p, a->overrides[i]), "\n");
    *p = 0;
    return all;
}

tr_status tr_arguments_agree(const tr_arguments *a, tr_comm *comm)
{
    char *words = words_of(a);
    tr_status st;
    TR_TRY(tr_agree(comm, words ? TR_OK : tr_last_status(), NULL));
    TR_TRY(tr_same_text(comm, TR_USAGE, "the command line", words));
out:
    tr_free(words);
    return st;
}

tr_status tr_read_config(const char *file, bool run_file, char **text, size_t *nbytes)
{
    tr_status st = TR_OK;
    TR_NEED(run_file || !tr_store_is_hdf5(file), TR_USAGE,
            "%s: is no config but HDF5, as run files are: trainer STAGE FILE works on such a model "
            "(trainer finetune trains it on), trainer check FILE prints the config in it",
            file);
    if (!run_file) return tr_read_text(file, text, nbytes);
    TR_TRY(tr_store_config(file, text));
    *nbytes = strlen(*text);
out:
    return st;
}

tr_status tr_read_shared(const char *file, bool run_file, tr_comm *comm, char **text,
                         size_t *nbytes)
{
    const bool root = tr_comm_topology(comm)->rank == 0;
    char *got = NULL;
    size_t n = 0;
    tr_status st = root ? tr_read_config(file, run_file, &got, &n) : TR_OK;
    TR_TRY(tr_agree(comm, st, NULL));
    TR_TRY(tr_comm_broadcast(comm, &n, sizeof n, 0));
    if (!root) got = tr_alloc(TR_MEM_OTHER, n + 1, 1);
    TR_TRY(tr_agree(comm, got ? TR_OK : tr_last_status(), NULL));
    TR_TRY(tr_comm_broadcast(comm, got, n, 0));
    *text = got;
    *nbytes = n;
    got = NULL;
out:
    tr_free(got);
    return st;
}

tr_status tr_read_config_shared(const char *file, tr_comm *comm, char **text, size_t *nbytes)
{
    const bool root = tr_comm_topology(comm)->rank == 0;
    const tr_error before = *tr_last_error();
    char *shared = NULL, *own = NULL;
    size_t n, own_n;
    tr_status st = TR_OK;
    TR_TRY(tr_read_shared(file, false, comm, &shared, &n));
    if (!root && tr_read_config(file, false, &own, &own_n) != TR_OK) tr_set_error(&before);
    TR_TRY(tr_same_text(comm, TR_USAGE, "the config", own ? own : shared));
    *text = shared;
    *nbytes = n;
    shared = NULL;
out:
    tr_free(shared);
    tr_free(own);
    return st;
}

tr_status tr_check_run(const tr_config *c)
{
    /* models that are there may be evaluated on other data than what was held out */
    if (c->data.split.present && c->data.eval.present)
        return tr_config_fail(c, "data.split",
                              "data.eval is given too: expected one of them, to evaluate on");
    return tr_stages_check_first(c);
}

tr_status tr_arguments_config(const tr_arguments *a, tr_comm *comm, tr_config **out)
{
    char *text = NULL;
    tr_config *c = NULL;
    size_t nbytes = 0;
    tr_status st = TR_OK;
    if (comm && a->run_file)
        TR_TRY(tr_read_shared(a->config, true, comm, &text, &nbytes));
    else if (comm)
        TR_TRY(tr_read_config_shared(a->config, comm, &text, &nbytes));
    else
        st = tr_read_config(a->config, a->run_file, &text, &nbytes);
    tr_variant_def stages[TR_STAGES + 1];
    unsigned skip;
    tr_stages_known(stages);
    if (st == TR_OK)
        st = tr_config_open(a->config, text, nbytes, a->overrides, a->noverrides, stages, &c);
    if (st == TR_OK && !a->run_file) st = tr_check_run(c);
    if (st == TR_OK) st = tr_stages_check(c);
    if (st == TR_OK) st = tr_graph_passes_skipped(c, &skip);
    if (st == TR_OK)
        *out = c;
    else
        tr_config_close(c);
    if (comm) st = tr_agree(comm, st, NULL);
out:
    tr_free(text);
    return st;
}

double tr_arguments_start_timeout(const tr_arguments *a)
{
    static const char key[] = "run.start_timeout=";
    double seconds = strtod(TR_START_TIMEOUT, NULL);
    for (size_t i = 0; i < a->noverrides; i++) { /* one that is wrong is said with the config */
        char *end;
        if (strncmp(a->overrides[i], key, sizeof key - 1) != 0) continue;
        const double v = strtod(a->overrides[i] + sizeof key - 1, &end);
        if (!*end && v >= 1 && v <= 1e7) seconds = v;
    }
    return seconds;
}

int tr_launched_rank(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK",
                                        "SLURM_PROCID"};
    for (size_t i = 0; i < TR_COUNT(names); i++) {
        const char *rank = getenv(names[i]);
        if (rank) return atoi(rank);
    }
    return 0;
}

int tr_command_end(tr_status st)
{
    /* a report that did not reach its reader is not done */
    if (st == TR_OK && (fflush(stdout) != 0 || ferror(stdout)))
        st = TR_FAIL(TR_IO, "standard output could not be written: %s", strerror(errno));
    if (st != TR_OK && tr_launched_rank() == 0) tr_log_failure(TR_LOG_ERROR);
    return tr_status_exit_code(st);
}
