/* `trainer sample MODEL [--prompt TEXT ...] [key=value ...]`: a language model goes on with
 * prompts, id by id, and what it makes is written as it is made. Bytes are the ids of models of
 * texts; of models of tokens, which this program has no words for, ids are read and written as
 * numbers. */
#include "trainer/command/sample.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/visible.h"
#include "runtime/config/memory.h"
#include "trainer/command/by_hand.h"
#include "trainer/loop/signals.h"
#include "trainer/pipeline/frame.h"
#include "trainer/plan/limit.h"

enum {
    GROUP = 8,   /* prompts beside each other */
    CHUNK = 128, /* ids of each that are put in at once */
    WHICH = 256  /* bytes of what names a prompt */
};

typedef struct {
    const tr_arguments *a;
    const tr_sample_options *o;
    tr_comm *comm;
    bool bytes; /* ids are bytes of a text */
    tr_frame frame;
    tr_decoder *decoder;
    tr_ids *prompts, *stops;
    size_t nprompts;
    tr_shown *shown;
    size_t most; /* ids of the longest prompt */
} sample;

/* ---- Ids ------------------------------------------------------------------------------------- */

static int64_t vocabulary(const tr_network *n)
{
    return n->model->inputs[0].ids;
}

/* The bytes of a text as ids. */
static tr_status ids_of_bytes(const char *what, const tr_text *t, int64_t limit, tr_ids *out)
{
    tr_status st = TR_OK;
    int32_t *ids = tr_alloc(TR_MEM_OTHER, t->nbytes + 1, sizeof *ids);
    TR_HAVE(ids);
    *out = (tr_ids){ids, t->nbytes};
    for (size_t i = 0; i < t->nbytes; i++) {
        ids[i] = (unsigned char)t->text[i];
        TR_NEED(ids[i] < limit, TR_USAGE,
                "%s: byte %d at %zu, but the model knows ids from 0 to %" PRId64, what, ids[i], i,
                limit - 1);
    }
out:
    return st;
}

/* Numbers between commas and blanks. */
static tr_status ids_of_numbers(const char *what, const tr_text *t, int64_t limit, tr_ids *out)
{
    tr_status st = TR_OK;
    const char *p = t->text, *end = p + t->nbytes;
    size_t n = 0;
    int32_t *ids = tr_alloc(TR_MEM_OTHER, t->nbytes / 2 + 1, sizeof *ids);
    TR_HAVE(ids);
    *out = (tr_ids){ids, 0};
    for (;;) {
        int64_t id = 0;
        size_t digits = 0;
        while (p < end && strchr(" \t\r\n", *p)) p++;
        if (p == end && n == 0) break;
        for (; p < end && *p >= '0' && *p <= '9' && digits < 10; p++, digits++)
            id = id * 10 + (*p - '0');
        TR_NEED(digits > 0 && digits < 10, TR_USAGE,
                "%s: expected ids, whole numbers with commas between them, at character %zu", what,
                (size_t)(p - t->text) + 1);
        TR_NEED(id < limit, TR_USAGE,
                "%s: id %" PRId64 ", but the model knows ids from 0 to %" PRId64, what, id,
                limit - 1);
        ids[n++] = (int32_t)id;
        while (p < end && strchr(" \t\r\n", *p)) p++;
        if (p == end) break;
        if (*p == ',') p++;
    }
    out->count = n;
out:
    return st;
}

/* The i-th of n: by its number, too, where there are several. */
static const char *which(const tr_text *all, const char *kind, size_t i, size_t n, char buf[WHICH])
{
    if (n > 1)
        snprintf(buf, WHICH, "%s %zu (%.200s)", kind, i + 1, all[i].what);
    else
        snprintf(buf, WHICH, "%.200s", all[i].what);
    return buf;
}

static tr_status read_ids(const sample *s, const char *what, const tr_text *t, tr_ids *out)
{
    const int64_t limit = vocabulary(s->frame.chain.network);
    tr_status st = TR_OK;
    TR_NEED(t->numbers || s->bytes, TR_USAGE,
            "%s: the model is one of tokens, which this program has no words for: give ids "
            "(--prompt-ids, --stop-ids)",
            what);
    st = t->numbers ? ids_of_numbers(what, t, limit, out) : ids_of_bytes(what, t, limit, out);
out:
    return st;
}

static tr_status read_all_ids(sample *s)
{
    const tr_sample_options *o = s->o;
    tr_status st = TR_OK;
    char what[WHICH];
    TR_HAVE(s->prompts = tr_alloc(TR_MEM_OTHER, o->nprompts, sizeof *s->prompts));
    TR_HAVE(s->stops = tr_alloc(TR_MEM_OTHER, o->nstops + 1, sizeof *s->stops));
    for (size_t i = 0; i < o->nprompts; i++) {
        which(o->prompts, "prompt", i, o->nprompts, what);
        TR_TRY(read_ids(s, what, &o->prompts[i], &s->prompts[i]));
        TR_NEED(s->prompts[i].count > 0, TR_USAGE,
                "%s: it is empty, and a model goes on with something", what);
        if (s->prompts[i].count > s->most) s->most = s->prompts[i].count;
    }
    for (size_t i = 0; i < o->nstops; i++) {
        which(o->stops, "stop", i, o->nstops, what);
        TR_TRY(read_ids(s, what, &o->stops[i], &s->stops[i]));
        TR_NEED(s->stops[i].count > 0, TR_USAGE,
                "%s: it is empty: expected what is to end the text, or no such option", what);
    }
out:
    return st;
}

static void free_ids(tr_ids *of, size_t n)
{
    for (size_t i = 0; of && i < n; i++) tr_free((void *)of[i].ids);
    tr_free(of);
}

/* ---- Generation ------------------------------------------------------------------------------ */

static tr_status check_prompts(const sample *s, int64_t limit, const char *layer)
{
    char what[WHICH];
    for (size_t i = 0; limit > 0 && i < s->o->nprompts; i++)
        if (s->prompts[i].count > (size_t)limit)
            return TR_FAIL(TR_USAGE,
                           "%s: %zu ids, but layer \"%s\" of the model tells %" PRId64
                           " positions apart: expected at most so many",
                           which(s->o->prompts, "prompt", i, s->o->nprompts, what),
                           s->prompts[i].count, layer, limit);
    return TR_OK;
}

/* What is held of the ids before has its room from the beginning: whether the host has it is known
 * before anything large is made. */
static tr_status check_memory(const sample *s, const tr_decoder_options *o)
{
    const size_t left = tr_mem_available();
    char held[32], each[32], have[32];
    size_t nbytes = 0;
    tr_status st = TR_OK;
    if (!o->backend->host) return TR_OK;
    TR_TRY(tr_decoder_holds(s->frame.chain.network->model, o, &nbytes));
    TR_NEED(
        nbytes <= left, TR_MEMORY,
        "--tokens %" PRId64 ": %" PRId64 " prompts at a time, with %" PRId64
        " ids each at most, take %s for the ids before, %s an id, and %s of memory are left: "
        "expected fewer tokens or prompts",
        s->o->tokens, o->sequences, o->rows, tr_format_bytes((double)nbytes, held, sizeof held),
        tr_format_bytes((double)nbytes / (double)o->rows / (double)o->sequences, each, sizeof each),
        tr_format_bytes((double)left, have, sizeof have));
out:
    return st;
}

/* What run.memory_limit leaves it: the process as it is now is counted, with room to work; 0: there
 * is no limit. */
static size_t limit_of(const sample *s, size_t *programs)
{
    const tr_config *c = s->frame.config;
    const tr_space space = tr_space_of(s->frame.backend);
    tr_device_load load = {0};
    size_t have = tr_mem_available();
    *programs = tr_memory_programs(c, space, NULL, tr_program_start(tr_mem_rss()), 1);
    if (tr_memory_limit_of(c) == 0) return 0;
    if (space == TR_SPACE_DEVICE)
        have = s->frame.backend->load && s->frame.backend->load(s->frame.backend_ctx, &load)
                   ? load.total - load.used
                   : SIZE_MAX;
    return tr_memory_limit(c, space, have);
}

/* Before it is made. */
static tr_status check_limit(const sample *s, const tr_decoder_options *o)
{
    tr_status st = TR_OK;
    size_t nbytes, programs;
    char need[32], own[32], limit[32];
    const size_t have = limit_of(s, &programs), mib = (size_t)1 << 20;
    if (have == 0) return TR_OK;
    TR_TRY(tr_decoder_needs(s->frame.chain.network->model, o, &nbytes));
    TR_NEED(
        nbytes + programs <= have, TR_MEMORY,
        "sample does not fit %s of run.memory_limit: %" PRId64 " prompt%s at a time, with %" PRId64
        " ids each at most, take %s planned, the program%s %s: the smallest limit that would do "
        "is %s%zuMiB; fewer --tokens or prompts take less",
        tr_format_bytes((double)have, limit, sizeof limit), o->sequences,
        o->sequences == 1 ? "" : "s", o->rows, tr_format_bytes((double)nbytes, need, sizeof need),
        o->backend->host ? " with the weights" : "",
        tr_format_bytes((double)programs, own, sizeof own), tr_about(tr_space_of(o->backend)),
        tr_align_up(nbytes + programs, mib) / mib);
out:
    return st;
}

static tr_status open_decoder(sample *s)
{
    tr_network *n = s->frame.chain.network;
    const char *layer = "";
    const int64_t limit = tr_graph_most_rows(n->model, &layer);
    tr_status st = TR_OK;
    TR_TRY(tr_decoder_takes(n->model));
    TR_TRY(read_all_ids(s));
    TR_TRY(check_prompts(s, limit, layer));
    const int64_t all = (int64_t)s->most + s->o->tokens, before = (int64_t)s->most - 1;
    const tr_decoder_options o = {.backend = s->frame.backend,
                                  .backend_ctx = s->frame.backend_ctx,
                                  .threads = s->frame.threads,
                                  .precision = (tr_precision)s->frame.config->train.precision,
                                  .skip_passes = tr_graph_skip(s->frame.config),
                                  .sequences =
                                      (int64_t)(s->o->nprompts < GROUP ? s->o->nprompts : GROUP),
                                  .rows = limit > 0 && limit < all ? limit : all,
                                  .chunk = before < CHUNK ? before : CHUNK};
    TR_TRY(check_memory(s, &o));
    TR_TRY(check_limit(s, &o));
    st = tr_decoder_open(n, &o, &s->decoder);
out:
    return st;
}

static tr_status emit(void *ctx, size_t prompt, int32_t id)
{
    const sample *s = ctx;
    return tr_shown_add(s->shown, prompt, id);
}

/* What is said comes behind the line that ended. */
static tr_status end(void *ctx, size_t prompt, tr_end why)
{
    const sample *s = ctx;
    const tr_status st = tr_shown_end(s->shown, prompt);
    if (st != TR_OK) return st;
    if (why == TR_END_POSITIONS && !s->a->quiet)
        tr_log(TR_LOG_WARN,
               "sample: prompt %zu ends at the %" PRId64
               " positions that the model tells apart, before --tokens %" PRId64,
               prompt + 1, tr_decoder_rows(s->decoder), s->o->tokens);
    if (why == TR_END_NONFINITE && s->o->nprompts > 1)
        tr_log(TR_LOG_WARN, "sample: prompt %zu ends: what the model gives is not finite",
               prompt + 1);
    return st;
}

static bool stop_asked(void *ctx)
{
    const sample *s = ctx;
    return tr_signals_ask_stop(s->comm);
}

static void say(const sample *s, const tr_generated *g)
{
    tr_memory_plan m;
    size_t held, all = 0;
    char total[32], cache[32];
    if (s->a->quiet) return;
    tr_decoder_memory(s->decoder, &m, &held);
    for (int i = 0; i < TR_MEM_KINDS; i++) all += m.bytes[i];
    tr_log(TR_LOG_INFO,
           "sample: %" PRIu64 " id%s of prompts in %.3f s (%.1f/s), %" PRIu64
           " id%s made in %.3f s (%.1f/s); %s of memory, %s of it for the ids before",
           g->prompt_ids, g->prompt_ids == 1 ? "" : "s", g->prompt_seconds,
           g->prompt_seconds > 0 ? (double)g->prompt_ids / g->prompt_seconds : 0.0, g->ids,
           g->ids == 1 ? "" : "s", g->seconds, g->seconds > 0 ? (double)g->ids / g->seconds : 0.0,
           tr_format_bytes((double)all, total, sizeof total),
           tr_format_bytes((double)held, cache, sizeof cache));
}

static tr_status generate(sample *s)
{
    tr_generated done;
    const tr_generation g = {.prompts = s->prompts,
                             .nprompts = s->o->nprompts,
                             .stops = s->stops,
                             .nstops = s->o->nstops,
                             .tokens = s->o->tokens,
                             .below = s->bytes ? 256 : 0, /* of a table that is padded, too */
                             .choice = s->o->choice,
                             .seed = s->o->seeded ? s->o->seed : (uint64_t)s->frame.config->seed,
                             .emit = emit,
                             .end = end,
                             .stop = stop_asked,
                             .ctx = s};
    tr_status st = tr_shown_open(s->o, s->bytes, &s->shown);
    if (st != TR_OK) return st;
    st = tr_generate(s->decoder, &g, &done);
    const tr_error why = *tr_last_error();
    const tr_status shown = tr_shown_flush(s->shown);
    if (tr_shown_left(s->shown)) st = TR_OK; /* as with `head` */
    if (shown != TR_OK && !tr_shown_left(s->shown)) return shown;
    say(s, &done);
    if (st != TR_OK) tr_set_error(&why);
    return st;
}

tr_status tr_sample_by_hand(const tr_arguments *a, tr_comm *comm, const tr_config *c, bool *agreed)
{
    tr_status st;
    sample s = {.a = a,
                .o = a->options,
                .comm = comm,
                .bytes = tr_source_kind(c, &c->data.train) == TR_FORMAT_TEXT,
                .frame = {.comm = comm, .config = c, .quiet = a->quiet, .by_hand = true}};
    *agreed = true;
    TR_NEED(tr_comm_topology(comm)->size == 1, TR_USAGE,
            "sample: one rank makes a sequence id by id, and %d were started: start it without "
            "mpirun",
            tr_comm_topology(comm)->size);
    TR_TRY(tr_chain_load(comm, a->config, a->overrides, a->noverrides, &s.frame.chain));
    TR_TRY(tr_frame_enter_device(&s.frame));
    TR_TRY(open_decoder(&s));
    st = generate(&s);
out:;
    const tr_error why = *tr_last_error();
    tr_shown_close(s.shown);
    tr_decoder_close(s.decoder);
    free_ids(s.prompts, s.o->nprompts);
    free_ids(s.stops, s.o->nstops);
    tr_frame_close(&s.frame);
    tr_set_error(&why);
    return st;
}
