/* `trainer compare RUN...`: in what the configs of runs differ, and what came of each: as a table,
 * or as the kind of file that -o names. Needs no config and no MPI. */
#include "trainer/compare/compare.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "runtime/base/file.h"
#include "runtime/base/visible.h"
#include "runtime/config/config.h"
#include "runtime/data/reads.h"
#include "trainer/arguments/arguments.h"
#include "trainer/command/by_hand.h"
#include "trainer/command/commands.h"

#define USAGE                                                                                      \
    "usage: trainer compare RUN RUN... [--json] [--metric NAME] [-o FILE.svg|.csv|.json] "         \
    "[--force]"

typedef struct {
    size_t npaths;
    char **paths; /* [npaths], of argv */
    tr_arguments out;
    tr_compared_metric metric;
    bool metric_given;
} request;

static tr_status find_metric(const char *name, request *q)
{
    const char *names[TR_COMPARED_COUNT];
    char all[128];
    size_t n = 0;
    for (int m = 0; m < TR_COMPARED_COUNT; m++) {
        names[m] = tr_compared_metrics[m].name;
        n += (size_t)snprintf(all + n, sizeof all - n, "%s%s", m ? ", " : "", names[m]);
        q->metric = (tr_compared_metric)m;
        q->metric_given = true;
        if (strcmp(names[m], name) == 0) return TR_OK;
    }
    const char *near = tr_nearest(name, names, TR_COMPARED_COUNT);
    return TR_FAIL(TR_USAGE, "--metric %.60s: expected one of %s%s%s%s", name, all,
                   near ? "; did you mean \"" : "", near ? near : "", near ? "\"?" : "");
}

static bool ends(const char *path, const char *with)
{
    const size_t n = strlen(path), k = strlen(with);
    return n > k && strcmp(path + n - k, with) == 0;
}

static tr_status parse(int argc, char **argv, request *q)
{
    tr_status st = TR_OK;
    bool flags = true;
    *q = (request){.paths = tr_alloc(TR_MEM_OTHER, (size_t)argc, sizeof(char *))};
    TR_HAVE(q->paths);
    for (int i = 1; i < argc; i++) {
        const bool last = i + 1 == argc;
        if (!flags || argv[i][0] != '-')
            q->paths[q->npaths++] = argv[i];
        else if (strcmp(argv[i], "--") == 0)
            flags = false;
        else if (strcmp(argv[i], "--json") == 0)
            q->out.json = true;
        else if (strcmp(argv[i], "--force") == 0)
            q->out.force = true;
        else if (strcmp(argv[i], "--metric") == 0 && !last)
            TR_TRY(find_metric(argv[++i], q));
        else if (strcmp(argv[i], "-o") == 0 && !last)
            q->out.output = argv[++i];
        else
            TR_NEED(false, TR_USAGE, "%.100s: " USAGE, argv[i]);
    }
    const char *o = q->out.output;
    TR_NEED(q->npaths > 0, TR_USAGE, "which runs? " USAGE);
    TR_NEED(!o || ends(o, ".svg") || ends(o, ".csv") || ends(o, ".json"), TR_USAGE,
            "-o %.200s: expected a name that ends in .svg, .csv or .json", o);
    TR_NEED(!q->metric_given || (o && ends(o, ".svg")), TR_USAGE,
            "--metric says what -o FILE.svg draws: give that as well");
    for (size_t i = 0; o && i < q->npaths; i++)
        TR_NEED(!tr_file_same(q->paths[i], o), TR_USAGE, TR_READ_ALREADY, o);
    TR_TRY(tr_output_is_free(&q->out, NULL));
out:
    return st;
}

static tr_status write_file(const request *q, const tr_comparison *c, const tr_differences *d)
{
    tr_text_file f;
    const char *path = q->out.output;
    tr_status st = tr_text_file_open(&f, path);
    if (st == TR_OK)
        st = ends(path, ".svg")   ? tr_comparison_write_svg(c, q->metric, f.to)
             : ends(path, ".csv") ? tr_comparison_write_csv(c, d, f.to)
                                  : tr_comparison_write_json(c, d, f.to);
    return tr_text_file_close(&f, st);
}

static int width(void)
{
    struct winsize size;
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= 40 ? size.ws_col : 120;
}

int tr_cmd_compare(int argc, char **argv)
{
    request q;
    tr_comparison c = {0};
    tr_differences d = {0};
    FILE *shown = NULL;
    tr_status st = parse(argc, argv, &q);
    if (st == TR_OK) st = tr_comparison_open(q.npaths, q.paths, &c);
    if (st == TR_OK) st = tr_differences_find(&c, &d);
    TR_TRY(st);
    if (q.out.output) TR_TRY(write_file(&q, &c, &d));
    shown = tr_visible_stream(stdout);
    TR_HAVE(shown);
    if (q.out.json)
        TR_TRY(tr_comparison_write_json(&c, &d, shown));
    else
        TR_TRY(tr_comparison_write_text(&c, &d, width(), shown));
out:
    if (shown) fclose(shown); /* what did not reach stdout is told at the end */
    const int status = tr_command_end(st);
    tr_differences_free(&d);
    tr_comparison_close(&c);
    tr_free(q.paths);
    return status;
}
