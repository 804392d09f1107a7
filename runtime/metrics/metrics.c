/* The room's front: what is told goes to metrics.jsonl, to TensorBoard and to the progress line.
 * What cannot be written is said once and never stops training. */
#include "runtime/metrics/internal.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct tr_metrics {
    tr_append json, board;
    tr_progress progress;
    tr_record record;
    unsigned char event[TR_EVENT];
};

static double wall_time(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- Open, close ----------------------------------------------------------------------------- */

static tr_status open_board(tr_metrics *m, const tr_metrics_options *o)
{
    tr_status st = TR_OK;
    char host[64] = "localhost";
    gethostname(host, sizeof host - 1);
    /* names sort by time: a second start within a second comes after the first; the last word is
     * what tells our files from others' */
    int taken = 0;
    do {
        int n = snprintf(m->board.path, sizeof m->board.path,
                         "%s/events.out.tfevents.%010lld.%s.%ld.%d.trireme", o->folder,
                         (long long)time(NULL), host, (long)getpid(), taken);
        TR_NEED(n < (int)sizeof m->board.path, TR_IO, "%s: the path is too long", o->folder);
    } while (access(m->board.path, F_OK) == 0 && ++taken < 1000);
    TR_TRY(tr_append_open(&m->board, true));
    tr_append_write(&m->board, m->event, tr_event_version(m->event, wall_time()));
    if (o->resume)
        tr_append_write(&m->board, m->event, tr_event_restart(m->event, wall_time(), o->step + 1));
out:
    return st;
}

tr_status tr_metrics_open(const tr_metrics_options *o, tr_metrics **out)
{
    tr_status st = TR_OK;
    tr_metrics *m = TR_NEW(TR_MEM_OTHER, tr_metrics);
    if (!m) return tr_last_status();
    m->json.fd = m->board.fd = -1;
    int n = snprintf(m->json.path, sizeof m->json.path, "%s/metrics.jsonl", o->folder);
    TR_NEED(n < (int)sizeof m->json.path, TR_IO, "%s: the path is too long", o->folder);
    if (o->resume) TR_TRY(tr_append_rewind(m->json.path, o->step));
    TR_TRY(tr_append_open(&m->json, !o->resume));
    TR_TRY(open_board(m, o));
    if (!o->quiet) {
        const int tty = tr_progress_terminal();
        tr_progress_init(&m->progress, STDERR_FILENO, tty >= 0, tty, 80, o);
        tr_log_set_guard(tr_progress_before_log, tr_progress_after_log, &m->progress);
    }
out:
    if (st != TR_OK) {
        tr_metrics_close(m);
        return st;
    }
    *out = m;
    return TR_OK;
}

void tr_metrics_close(tr_metrics *m)
{
    if (!m) return;
    if (m->progress.on) {
        tr_log_set_guard(NULL, NULL, NULL);
        tr_progress_fini(&m->progress);
    }
    tr_append_close(&m->json);
    tr_append_close(&m->board);
    tr_free(m);
}

static void move(tr_append *a, const char *folder)
{
    const char *slash = strrchr(a->path, '/'), *name = slash ? slash + 1 : a->path;
    const size_t n = strlen(folder), nbytes = strlen(name) + 1;
    if (n + 1 + nbytes > sizeof a->path) return; /* messages name the place before */
    memmove(a->path + n + 1, name, nbytes);
    memcpy(a->path, folder, n);
    a->path[n] = '/';
}

void tr_metrics_move(tr_metrics *m, const char *folder)
{
    if (!m) return;
    move(&m->json, folder);
    move(&m->board, folder);
}

/* ---- Records --------------------------------------------------------------------------------- */

static tr_status finish(tr_metrics *m)
{
    if (!tr_record_end(&m->record))
        return TR_FAIL(TR_INTERNAL, "a record of more than %d bytes", TR_LINE);
    tr_append_write(&m->json, m->record.text, m->record.used);
    return TR_OK;
}

static tr_status add_value(tr_record *r, const char *key, char type, va_list *args)
{
    switch (type) {
    case 's':
        tr_record_text(r, key, va_arg(*args, const char *));
        break;
    case 'u':
        tr_record_uint(r, key, va_arg(*args, uint64_t));
        break;
    case 'd':
        tr_record_real(r, key, va_arg(*args, double), 0);
        break;
    case 'o':
        tr_record_known(r, key, va_arg(*args, double), 0);
        break;
    case 'b':
        tr_record_bool(r, key, va_arg(*args, int) != 0);
        break;
    default:
        return TR_FAIL(TR_INTERNAL, "metrics: key %s has the unknown type '%c'", key, type);
    }
    return TR_OK;
}

tr_status tr_metrics_event(tr_metrics *m, const char *event, const char *spec, ...)
{
    tr_status st = TR_OK;
    char key[64];
    if (!m) return TR_OK;
    va_list args;
    va_start(args, spec);
    tr_record_begin(&m->record, event);
    for (const char *p = spec; *p;) {
        size_t n = strcspn(p, ":");
        TR_NEED(n > 0 && n < sizeof key && p[n] == ':' && p[n + 1], TR_INTERNAL,
                "metrics: malformed spec at \"%.40s\"", p);
        memcpy(key, p, n);
        key[n] = 0;
        TR_TRY(add_value(&m->record, key, p[n + 1], &args));
        p += n + 2;
        p += strspn(p, " ");
    }
    TR_TRY(finish(m));
out:
    va_end(args);
    return st;
}

static void add_known(tr_scalar *to, size_t *n, const char *tag, double value)
{
    if (!isnan(value)) to[(*n)++] = (tr_scalar){tag, value};
}

tr_status tr_metrics_step(tr_metrics *m, const tr_step_record *s)
{
    if (!m) return TR_OK;
    const tr_scalar scalars[] = {
        {"train/loss", s->loss},
        {"train/lr", s->lr},
        {"train/grad_norm", s->grad_norm},
        {"train/loss_scale", s->loss_scale},
        {"train/epoch", (double)s->epoch},
        {"speed/samples_per_s", s->samples_per_s},
        {"speed/step_ms", s->step_ms},
        {"speed/compute_ms", s->compute_ms},
        {"speed/comm_wait_ms", s->comm_wait_ms},
        {"speed/data_wait_ms", s->data_wait_ms},
    };
    tr_scalar all[TR_COUNT(scalars) + 4];
    size_t n = TR_COUNT(scalars);
    memcpy(all, scalars, sizeof scalars);
    const double tokens = s->tokens_per_s > 0 ? s->tokens_per_s : NAN;
    add_known(all, &n, "speed/tokens_per_s", tokens);
    add_known(all, &n, "speed/idle_ms", s->idle_ms);
    add_known(all, &n, "gpu/memory_mb", s->gpu_memory_mb);
    add_known(all, &n, "gpu/utilization", s->gpu_utilization);
    tr_append_write(&m->board, m->event, tr_event_scalars(m->event, wall_time(), s->step, all, n));
    tr_record *r = &m->record;
    tr_record_begin(r, "step");
    tr_record_uint(r, "step", s->step);
    tr_record_uint(r, "epoch", s->epoch);
    tr_record_real(r, "loss", s->loss, 0); /* every digit: runs are compared by these */
    tr_record_real(r, "lr", s->lr, 0);
    tr_record_real(r, "grad_norm", s->grad_norm, 0);
    tr_record_real(r, "loss_scale", s->loss_scale, 0);
    tr_record_real(r, "samples_per_s", s->samples_per_s, 6);
    tr_record_known(r, "tokens_per_s", tokens, 6);
    tr_record_real(r, "step_ms", s->step_ms, 6);
    tr_record_real(r, "compute_ms", s->compute_ms, 6);
    tr_record_real(r, "comm_wait_ms", s->comm_wait_ms, 6);
    tr_record_real(r, "data_wait_ms", s->data_wait_ms, 6);
    tr_record_known(r, "idle_ms", s->idle_ms, 6);
    tr_record_known(r, "gpu_memory_mb", s->gpu_memory_mb, 6);
    tr_record_known(r, "gpu_utilization", s->gpu_utilization, 6);
    if (s->skipped) tr_record_text(r, "skipped", s->skipped);
    return finish(m);
}

tr_status tr_metrics_eval(tr_metrics *m, const tr_eval_record *e)
{
    if (!m) return TR_OK;
    const struct {
        const char *tag, *key;
        double value;
    } known[] = {{"eval/accuracy", "accuracy", e->accuracy},
                 {"eval/top5", "top5", e->top5},
                 {"eval/f1", "f1", e->f1},
                 {"eval/auc", "auc", e->auc},
                 {"eval/mae", "mae", e->mae},
                 {"eval/r2", "r2", e->r2},
                 {"eval/perplexity", "perplexity", e->perplexity},
                 {"eval/bits_per_byte", "bits_per_byte", e->bits_per_byte}};
    tr_scalar scalars[1 + TR_COUNT(known)] = {{"eval/loss", e->loss}};
    size_t count = 1;
    for (size_t i = 0; i < TR_COUNT(known); i++)
        add_known(scalars, &count, known[i].tag, known[i].value);
    tr_append_write(&m->board, m->event,
                    tr_event_scalars(m->event, wall_time(), e->step, scalars, count));
    tr_progress_eval(&m->progress, e->loss, e->accuracy);
    tr_record *r = &m->record;
    tr_record_begin(r, "eval");
    tr_record_uint(r, "step", e->step);
    tr_record_real(r, "loss", e->loss, 0);
    for (size_t i = 0; i < TR_COUNT(known); i++)
        tr_record_known(r, known[i].key, known[i].value, 0);
    tr_record_uint(r, "samples", e->samples);
    if (e->targets > 0) tr_record_uint(r, "targets", e->targets);
    tr_record_known(r, "seconds", e->seconds, 6);
    return finish(m);
}

tr_status tr_metrics_epoch(tr_metrics *m, const tr_epoch_record *e)
{
    if (!m) return TR_OK;
    tr_scalar scalars[2] = {{"epoch/loss", e->loss}};
    size_t count = 1;
    add_known(scalars, &count, "epoch/accuracy", e->accuracy);
    tr_append_write(&m->board, m->event,
                    tr_event_scalars(m->event, wall_time(), e->step, scalars, count));
    tr_record *r = &m->record;
    tr_record_begin(r, "epoch");
    tr_record_uint(r, "step", e->step);
    tr_record_uint(r, "epoch", e->epoch);
    tr_record_real(r, "loss", e->loss, 0);
    tr_record_known(r, "accuracy", e->accuracy, 0);
    tr_record_uint(r, "samples", e->samples);
    if (e->targets > 0) tr_record_uint(r, "targets", e->targets);
    tr_record_known(r, "seconds", e->seconds, 6);
    return finish(m);
}

void tr_metrics_rewind(tr_metrics *m, uint64_t step)
{
    if (m) tr_append_write(&m->board, m->event, tr_event_restart(m->event, wall_time(), step + 1));
}

/* ---- Progress -------------------------------------------------------------------------------- */

void tr_metrics_progress(tr_metrics *m, const tr_progress_record *r)
{
    if (m) tr_progress_step(&m->progress, tr_now(), r);
}

void tr_metrics_progress_end(tr_metrics *m)
{
    if (m) tr_progress_end(&m->progress);
}
