/* Traces: events with room for them, the clocks of ranks, gathering, and the JSON. */
#include "optimize/profile/trace.h"

#include <math.h>
#include <string.h>

#include "optimize/profile/profile.h"
#include "runtime/base/file.h"

tr_status tr_trace_open(tr_trace *t, size_t most)
{
    *t = (tr_trace){.most = most};
    t->v = tr_alloc(TR_MEM_OTHER, most, sizeof *t->v);
    return t->v ? TR_OK : tr_last_status();
}

void tr_trace_free(tr_trace *t)
{
    tr_free(t->v);
    *t = (tr_trace){0};
}

tr_trace_event *tr_trace_add(tr_trace *t, tr_track track, const char *name, double begin,
                             double seconds)
{
    if (t->count == t->most) {
        t->dropped++;
        return NULL;
    }
    tr_trace_event *e = &t->v[t->count++];
    *e = (tr_trace_event){.track = track, .begin = begin, .seconds = seconds};
    snprintf(e->name, sizeof e->name, "%s", name);
    return e;
}

/* ---- Clocks ---------------------------------------------------------------------------------- */

enum { ROUNDS = 16 };

/* Rank 0's side: how far `rank`'s clock is ahead. */
static tr_status ask(tr_comm *c, int rank, double (*now)(void), double *ahead, double *trip)
{
    tr_status st = TR_OK;
    double fastest = INFINITY, theirs = 0;
    for (int i = 0; i < ROUNDS; i++) {
        const double before = now();
        TR_TRY(tr_comm_send(c, &before, sizeof before, rank));
        TR_TRY(tr_comm_receive(c, &theirs, sizeof theirs, rank));
        const double after = now();
        if (after - before >= fastest) continue;
        fastest = after - before;
        *ahead = theirs - (before + after) / 2;
    }
    *trip = fastest;
    TR_TRY(tr_comm_send(c, ahead, sizeof *ahead, rank));
    TR_TRY(tr_comm_send(c, trip, sizeof *trip, rank));
out:
    return st;
}

static tr_status answer(tr_comm *c, double (*now)(void), double *ahead, double *trip)
{
    tr_status st = TR_OK;
    double v;
    for (int i = 0; i < ROUNDS; i++) {
        TR_TRY(tr_comm_receive(c, &v, sizeof v, 0));
        v = now();
        TR_TRY(tr_comm_send(c, &v, sizeof v, 0));
    }
    TR_TRY(tr_comm_receive(c, ahead, sizeof *ahead, 0));
    TR_TRY(tr_comm_receive(c, trip, sizeof *trip, 0));
out:
    return st;
}

tr_status tr_trace_clock(tr_comm *c, double (*now)(void), double *ahead, double *trip)
{
    tr_status st = TR_OK;
    const tr_topology *t = tr_comm_topology(c);
    double other, its;
    *ahead = *trip = 0;
    if (t->rank != 0) return answer(c, now, ahead, trip);
    for (int r = 1; r < t->size; r++) TR_TRY(ask(c, r, now, &other, &its));
out:
    return st;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void print_text(const char *text, FILE *to)
{
    fputc('"', to);
    for (const unsigned char *p = (const unsigned char *)text; *p; p++)
        if (*p == '"' || *p == '\\')
            fprintf(to, "\\%c", *p);
        else if (*p < ' ' || *p >= 0x7f)
            fprintf(to, "\\u%04x", *p);
        else
            fputc(*p, to);
    fputc('"', to);
}

static const char *const tracks[TR_TRACKS] = {"step", "ops", "gradients"};

static void print_names(int rank, FILE *to)
{
    fprintf(to,
            "{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": %d, \"tid\": 0, \"args\": "
            "{\"name\": \"rank %d\"}}",
            rank, rank);
    fprintf(to,
            ",\n{\"name\": \"process_sort_index\", \"ph\": \"M\", \"pid\": %d, \"tid\": 0, "
            "\"args\": {\"sort_index\": %d}}",
            rank, rank);
    for (int t = 0; t < TR_TRACKS; t++)
        fprintf(to,
                ",\n{\"name\": \"thread_name\", \"ph\": \"M\", \"pid\": %d, \"tid\": %d, \"args\": "
                "{\"name\": \"%s\"}}",
                rank, t, tracks[t]);
}

static void print_arguments(const tr_trace_event *e, FILE *to)
{
    fprintf(to, "\"args\": {\"step\": %llu", (unsigned long long)e->step);
    if (e->detail[0]) {
        fputs(", \"detail\": ", to);
        print_text(e->detail, to);
    }
    if (e->flops > 0) fprintf(to, ", \"flops\": %.17g", e->flops);
    if (e->bytes > 0) fprintf(to, ", \"bytes\": %.17g", e->bytes);
    fputc('}', to);
}

/* Microseconds; events that overlap are a pair of asynchronous ones. */
static void print_event(const tr_trace_event *e, int rank, double start, FILE *to)
{
    const double at = (e->begin - start) * 1e6;
    const bool pair = e->track == TR_TRACK_BUCKETS;
    for (int half = 0; half <= (pair ? 1 : 0); half++) {
        fputs(",\n{\"name\": ", to);
        print_text(e->name, to);
        fprintf(to, ", \"cat\": \"%s\", \"ph\": \"%s\", \"pid\": %d, \"tid\": %d, \"ts\": %.3f, ",
                tracks[e->track],
                !pair       ? "X"
                : half == 0 ? "b"
                            : "e",
                rank, e->track, at + (half ? e->seconds * 1e6 : 0));
        if (pair)
            fprintf(to, "\"id\": \"%d.%llu.%llu\", ", rank, (unsigned long long)e->step,
                    (unsigned long long)e->id);
        else
            fprintf(to, "\"dur\": %.3f, ", e->seconds * 1e6);
        print_arguments(e, to);
        fputc('}', to);
    }
}

void tr_trace_print(const tr_trace *t, int ranks, FILE *to)
{
    double start = INFINITY;
    for (int r = 0; r < ranks; r++)
        for (size_t i = 0; i < t[r].count; i++) start = fmin(start, t[r].v[i].begin);
    fputs("{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n", to);
    for (int r = 0; r < ranks; r++) {
        if (r > 0) fputs(",\n", to);
        print_names(r, to);
        for (size_t i = 0; i < t[r].count; i++) print_event(&t[r].v[i], r, start, to);
    }
    fputs("\n]}\n", to);
}

/* ---- All ranks ------------------------------------------------------------------------------- */

/* *Collective.* all: [ranks] on rank 0, the others' events on its clock. */
static tr_status gather(const tr_trace *t, tr_comm *c, double (*now)(void), tr_trace *all)
{
    tr_status st = TR_OK;
    const tr_topology *topology = tr_comm_topology(c);
    uint64_t *counts = tr_alloc(TR_MEM_OTHER, (size_t)topology->size, sizeof *counts),
             mine = t->count;
    double *ahead = tr_alloc(TR_MEM_OTHER, (size_t)topology->size, sizeof *ahead), own, trip;
    TR_TRY(tr_agree(c, counts && ahead ? TR_OK : tr_last_status(), NULL));
    TR_TRY(tr_trace_clock(c, now, &own, &trip));
    TR_TRY(tr_comm_all_gather(c, &mine, counts, sizeof mine));
    TR_TRY(tr_comm_all_gather(c, &own, ahead, sizeof own));
    for (int r = 0; all && r < topology->size && st == TR_OK; r++)
        st = tr_trace_open(&all[r], counts[r]);
    TR_TRY(tr_agree(c, st, NULL));
    if (topology->rank != 0) {
        TR_TRY(tr_comm_send(c, t->v, t->count * sizeof *t->v, 0));
        goto out;
    }
    for (int r = 0; r < topology->size; r++) {
        all[r].count = counts[r];
        if (r == 0)
            memcpy(all[r].v, t->v, t->count * sizeof *t->v);
        else
            TR_TRY(tr_comm_receive(c, all[r].v, counts[r] * sizeof *t->v, r));
        for (size_t i = 0; i < all[r].count; i++) all[r].v[i].begin -= ahead[r];
    }
out:
    tr_free(counts);
    tr_free(ahead);
    return st;
}

tr_status tr_trace_write(const tr_trace *t, tr_comm *c, double (*now)(void), const char *path)
{
    tr_status st = TR_OK;
    const tr_topology *topology = tr_comm_topology(c);
    const bool root = topology->rank == 0;
    tr_text_file f;
    tr_trace *all = root ? tr_alloc(TR_MEM_OTHER, (size_t)topology->size, sizeof *all) : NULL;
    TR_TRY(tr_agree(c, !root || all ? TR_OK : tr_last_status(), NULL));
    TR_TRY(gather(t, c, now, all));
    if (root) tr_comm_busy(c, TR_BUSY_WRITES);
    if (root) st = tr_text_file_open(&f, path);
    if (root && st == TR_OK) tr_trace_print(all, topology->size, f.to);
    if (root) st = tr_text_file_close(&f, st);
    tr_comm_busy(c, TR_BUSY_NOT);
    TR_TRY(tr_agree(c, st, NULL));
out:
    for (int r = 0; all && r < topology->size; r++) tr_trace_free(&all[r]);
    tr_free(all);
    return st;
}
