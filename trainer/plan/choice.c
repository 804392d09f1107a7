/* What was chosen, as overrides of a config and in words. */
#include "runtime/config/memory.h"
#include "trainer/plan/choose.h"

#include <stdlib.h>

/* The key, and what stood there. */
static void put(FILE *to, const char *key, const char *value, const char *was)
{
    fprintf(to, "%s=%s\nrun.chosen.%s=%s\n", key, value, key, was);
}

tr_status tr_choice_overrides(const tr_config *c, const tr_model *m, const tr_choice *of,
                              char **out)
{
    tr_status st = TR_OK;
    const bool max = c->train.micro_batch == TR_MICRO_BATCH_MAX;
    char *names = NULL, *segments = NULL, *text = NULL, number[32];
    size_t n;
    FILE *to = open_memstream(&text, &n);
    TR_NEED(to, TR_MEMORY, "no memory for a choice");
    if (of->micro) {
        snprintf(number, sizeof number, "%lld", (long long)of->at_once);
        put(to, "train.micro_batch", number, max ? "max" : "auto");
    }
    if (of->eval > 0) {
        snprintf(number, sizeof number, "%lld", (long long)of->eval);
        put(to, "train.eval.batch", number, "auto");
    }
    if (of->offload) put(to, "run.offload", "on", "auto");
    if (of->segments) {
        TR_TRY(tr_segments_text(m, of->segments, &names));
        TR_HAVE(segments = tr_sprintf("{segments: %s}", names));
    }
    if (of->recompute)
        put(to, "train.recompute",
            segments                          ? segments
            : of->kind == TR_RECOMPUTE_BLOCKS ? "blocks"
                                              : "none",
            "auto");
    TR_NEED(fflush(to) == 0, TR_MEMORY, "no memory for a choice");
    TR_HAVE(*out = tr_strdup(text));
out:
    if (to) fclose(to);
    free(text);
    tr_free(names);
    tr_free(segments);
    return st;
}

void tr_choice_of(const tr_config *c, char *buf, size_t room)
{
    const bool limit = tr_memory_limit_of(c) > 0;
    snprintf(buf, room, "%s %s", limit ? "run.memory_limit" : "train.micro_batch",
             limit ? c->run.memory_limit : "max");
}

tr_status tr_choice_refuse(const tr_config *c, tr_space space, size_t have)
{
    char size[32];
    const bool limit = tr_memory_limit_of(c) > 0;
    const char *where = space == TR_SPACE_DEVICE ? "a GPU" : "a node";
    const tr_node *section = tr_node_get(c->document.root, limit ? "run" : "train");
    tr_format_bytes((double)have, size, sizeof size);
    if (limit)
        (void)TR_FAIL(TR_MEMORY, "training does not fit %s on %s of run.memory_limit", size, where);
    else
        (void)TR_FAIL(TR_MEMORY, "training does not fit the %s that are left on %s", size, where);
    return tr_node_blame(tr_node_get(section, limit ? "memory_limit" : "micro_batch"), TR_MEMORY);
}

static int count_segments(const tr_model *m, const int *segments, int *layers)
{
    int n = 0;
    *layers = 0;
    for (size_t l = 0; l < m->nlayers; l++) {
        *layers += segments[l] >= 0;
        n += segments[l] >= 0 && (l == 0 || segments[l] != segments[l - 1]);
    }
    return n;
}

/* What it costs beside no choice. */
static void describe_cost(const tr_choice *c, char *buf, size_t room)
{
    char plain[32], time[2][32];
    if (c->need == c->plain_need) return;
    if (c->plain_need == SIZE_MAX) {
        snprintf(buf, room, " (without a choice more samples at once than a kernel takes)");
        return;
    }
    const double more = 100 * (c->seconds / c->plain_seconds - 1);
    size_t n = (size_t)snprintf(buf, room, " (without a choice %s), %+.1f %% arithmetic, ",
                                tr_format_bytes((double)c->plain_need, plain, sizeof plain),
                                100 * (c->flops / c->plain_flops - 1));
    if (n >= room) return;
    if (c->source == TR_TIME_COUNTED)
        snprintf(buf + n, room - n, "about %+.1f %% time by arithmetic and bytes", more);
    else
        snprintf(buf + n, room - n, "a step's passes %s instead of %s (%+.1f %%) by %s",
                 tr_format_seconds(c->seconds, time[0], sizeof time[0]),
                 tr_format_seconds(c->plain_seconds, time[1], sizeof time[1]), more,
                 c->source == TR_TIME_MEASURED ? "the profile in the run folder"
                                               : "its machine.json");
}

void tr_choice_describe(const tr_model *m, const tr_choice *c, char *buf, size_t room)
{
    char need[32], offload[160];
    int layers;
    size_t n = 0;
    buf[0] = 0;
#define SAY(...)                                                                                   \
    do {                                                                                           \
        if (n < room) n += (size_t)snprintf(buf + n, room - n, __VA_ARGS__);                       \
    } while (0)
    if (c->micro)
        SAY("micro-batches of %lld sample%s a rank (%d a step), ", (long long)c->at_once,
            c->at_once == 1 ? "" : "s", c->micro_batches);
    if (c->segments) {
        const int k = count_segments(m, c->segments, &layers);
        SAY("%d of %zu layers in %d segment%s recomputed, ", layers, m->nlayers, k,
            k == 1 ? "" : "s");
    } else if (c->recompute)
        SAY("%s recomputed, ", c->kind == TR_RECOMPUTE_BLOCKS ? "blocks" : "nothing");
    if (c->offload) {
        tr_offload_describe(&c->offloaded, offload, sizeof offload);
        SAY("%s, ", offload);
    }
    if (c->eval > 0) SAY("evaluations in batches of %lld, ", (long long)c->eval);
    SAY("%s planned", tr_format_bytes((double)c->need, need, sizeof need));
    if (n < room) describe_cost(c, buf + n, room - n);
#undef SAY
}
