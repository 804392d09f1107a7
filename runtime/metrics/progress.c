/* The progress line: on a terminal a bar and numbers, as many as fit, in one line that is
 * rewritten, wiped before a log line and drawn again after it; elsewhere a plain line now and then.
 * mpirun hands its ranks a pipe, so that whether a terminal is at the end of it is asked of
 * mpirun's own standard error. */
#include "runtime/metrics/internal.h"

#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#define REDRAW_SECONDS 0.1
#define PLAIN_SECONDS  10.0

static void write_all(int fd, const char *text, size_t n)
{
    while (n) {
        ssize_t done = write(fd, text, n);
        if (done <= 0) return; /* nobody listens: not worth a word */
        text += done;
        n -= (size_t)done;
    }
}

/* 0: it does not say. */
static size_t columns_of(int fd)
{
    struct winsize w;
    return ioctl(fd, TIOCGWINSZ, &w) == 0 ? w.ws_col : 0;
}

int tr_progress_terminal(void)
{
    const char *term = getenv("TERM");
    struct stat s;
    char link[64], name[PATH_MAX];
    if (!term || strcmp(term, "dumb") == 0) return -1;
    if (isatty(STDERR_FILENO)) return dup(STDERR_FILENO);
    bool launched = getenv("OMPI_COMM_WORLD_RANK") || getenv("PMIX_RANK") || getenv("PMI_RANK");
    if (!launched || fstat(STDERR_FILENO, &s) != 0 || !S_ISFIFO(s.st_mode)) return -1;
    snprintf(link, sizeof link, "/proc/%ld/fd/2", (long)getppid());
    ssize_t n = readlink(link, name, sizeof name - 1);
    if (n <= 0) return -1;
    name[n] = 0;
    if (strncmp(name, "/dev/pts/", 9) != 0 && strncmp(name, "/dev/tty", 8) != 0) return -1;
    return open(name, O_RDONLY | O_NOCTTY | O_CLOEXEC);
}

void tr_progress_init(tr_progress *p, int fd, bool terminal, int tty, size_t columns,
                      const tr_metrics_options *o)
{
    const char *plain = getenv("NO_COLOR");
    memset(p, 0, sizeof *p);
    pthread_mutex_init(&p->lock, NULL);
    p->fd = fd;
    p->tty = tty;
    p->on = true;
    p->terminal = terminal;
    p->color = terminal && (!plain || !*plain);
    p->columns = columns;
    p->total = o->total_steps;
    p->epochs = o->total_epochs;
    p->first_time = -1;
    p->eval_loss = p->eval_accuracy = NAN;
}

void tr_progress_fini(tr_progress *p)
{
    if (!p->on) return;
    tr_progress_end(p);
    pthread_mutex_destroy(&p->lock);
    if (p->tty >= 0) close(p->tty);
    p->on = false;
}

/* ---- The text -------------------------------------------------------------------------------- */

static void add(tr_progress *p, const char *fmt, ...) TR_PRINTF(2, 3);
static void add(tr_progress *p, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(p->line + p->used, sizeof p->line - p->used, fmt, args);
    va_end(args);
    if (n > 0) p->used += (size_t)n;
    if (p->used >= sizeof p->line) p->used = sizeof p->line - 1;
}

/* Seconds that the steps left will take; NaN: not known yet. */
static double time_left(const tr_progress *p)
{
    const double spent = p->time - p->first_time;
    if (p->total <= p->now.step || p->now.step <= p->first_step || spent <= 0) return NAN;
    return spent / (double)(p->now.step - p->first_step) * (double)(p->total - p->now.step);
}

static int percent(const tr_progress *p)
{
    return (int)((double)p->now.step * 100 / (double)p->total);
}

/* "350 samples/s", or tokens where samples have several. */
static void format_rate(const tr_progress_record *r, char *to, size_t size)
{
    char text[32];
    const bool tokens = r->tokens_per_s > 0;
    const double rate = tokens ? r->tokens_per_s : r->samples_per_s;
    to[0] = 0;
    if (isfinite(rate) && rate > 0)
        snprintf(to, size, "%s %s/s", tr_format_count(rate, text, sizeof text),
                 tokens ? "tokens" : "samples");
}

static void compose_plain(tr_progress *p)
{
    char text[32], rate[64];
    const tr_progress_record *r = &p->now;
    const double left = time_left(p);
    format_rate(r, rate, sizeof rate);
    p->used = 0;
    add(p, "step %llu", (unsigned long long)r->step);
    if (p->total) add(p, "/%llu (%d %%)", (unsigned long long)p->total, percent(p));
    add(p, "  epoch %llu", (unsigned long long)r->epoch);
    if (!isnan(r->loss)) add(p, "  loss %.5g", r->loss);
    if (rate[0]) add(p, "  %s", rate);
    if (!isnan(left)) add(p, "  %s left", tr_format_seconds(left, text, sizeof text));
    p->width = p->used;
}

/* What a terminal's line may have, in the order in which it is shown. */
enum { BAR, EPOCH, STEP, LOSS, ACCURACY, RATE, LEFT, EVAL, PARTS };
enum { CELLS = 16 }; /* of the bar */

static void format_parts(const tr_progress *p, char part[PARTS][64])
{
    char text[32];
    const tr_progress_record *r = &p->now;
    const double left = time_left(p);
    const size_t size = sizeof part[0];
    for (int i = 0; i < PARTS; i++) part[i][0] = 0;
    if (p->total > 0) {
        const int full = percent(p) * CELLS / 100;
        snprintf(part[BAR], size, "[%.*s%.*s] %3d %%", full, "################", CELLS - full,
                 "----------------", percent(p));
        snprintf(part[STEP], size, "step %llu/%llu", (unsigned long long)r->step,
                 (unsigned long long)p->total);
    } else
        snprintf(part[STEP], size, "step %llu", (unsigned long long)r->step);
    if (p->epochs > 0)
        snprintf(part[EPOCH], size, "epoch %llu/%llu", (unsigned long long)r->epoch + 1,
                 (unsigned long long)p->epochs);
    else
        snprintf(part[EPOCH], size, "epoch %llu", (unsigned long long)r->epoch + 1);
    if (!isnan(r->loss)) snprintf(part[LOSS], size, "loss %.5g", r->loss);
    if (!isnan(r->accuracy)) snprintf(part[ACCURACY], size, "accuracy %.1f %%", r->accuracy * 100);
    format_rate(r, part[RATE], size);
    if (!isnan(left))
        snprintf(part[LEFT], size, "%s left", tr_format_seconds(left, text, sizeof text));
    if (!isnan(p->eval_loss) && !isnan(p->eval_accuracy))
        snprintf(part[EVAL], size, "eval %.5g, %.2f %%", p->eval_loss, p->eval_accuracy * 100);
    else if (!isnan(p->eval_loss))
        snprintf(part[EVAL], size, "eval %.5g", p->eval_loss);
}

/* As much as the terminal is wide, what matters most first. The last column stays free: some
 * terminals go on to the next line behind it. */
static void compose_bar(tr_progress *p)
{
    static const int order[PARTS] = {STEP, LOSS, LEFT, EPOCH, BAR, ACCURACY, EVAL, RATE};
    char part[PARTS][64];
    bool taken[PARTS] = {false};
    const size_t most = p->columns > 1 ? p->columns - 1 : 1;
    format_parts(p, part);
    p->used = p->width = 0;
    for (int i = 0; i < PARTS; i++) {
        const size_t n = strlen(part[order[i]]), gap = p->width ? 2 : 0;
        if (n == 0 || (p->width && p->width + gap + n > most)) continue;
        taken[order[i]] = true;
        p->width += gap + n;
    }
    for (int i = 0; i < PARTS; i++) {
        if (!taken[i]) continue;
        const bool color = p->color && i == BAR;
        add(p, "%s%s%s%s", p->used ? "  " : "", color ? "\033[32m" : "", part[i],
            color ? "\033[0m" : "");
    }
    if (p->width > most) p->used = p->width = most; /* not even the first one fits */
}

/* ---- Drawing --------------------------------------------------------------------------------- */

static void measure(tr_progress *p)
{
    const size_t columns = p->tty >= 0 ? columns_of(p->tty) : 0;
    if (columns > 0) p->columns = columns;
}

/* A line that was drawn on a wider terminal stands on several rows now. */
static void wipe(tr_progress *p)
{
    char text[32];
    if (p->shown == 0) return;
    const size_t above = (p->shown - 1) / p->columns;
    const int n = above ? snprintf(text, sizeof text, "\r\033[%zuA\033[J", above)
                        : snprintf(text, sizeof text, "\r\033[K");
    write_all(p->fd, text, (size_t)n);
    p->shown = 0;
}

static void draw(tr_progress *p)
{
    char text[sizeof p->line + 16];
    measure(p);
    p->terminal ? compose_bar(p) : compose_plain(p);
    if (p->shown > p->columns) wipe(p);
    const int length =
        snprintf(text, sizeof text, p->terminal ? "\r%.*s\033[K" : "%.*s\n", (int)p->used, p->line);
    write_all(p->fd, text, (size_t)length);
    p->shown = p->terminal ? p->width : 0;
    p->pending = false;
}

void tr_progress_step(tr_progress *p, double now, const tr_progress_record *r)
{
    if (!p->on) return;
    pthread_mutex_lock(&p->lock);
    bool first = p->first_time < 0;
    if (first) {
        p->first_time = p->last_time = now;
        p->first_step = r->step;
    }
    p->now = *r;
    p->time = now;
    p->pending = true;
    double wait = p->terminal ? REDRAW_SECONDS : PLAIN_SECONDS;
    if ((first && p->terminal) || now - p->last_time >= wait) {
        p->last_time = now;
        draw(p);
    }
    pthread_mutex_unlock(&p->lock);
}

void tr_progress_eval(tr_progress *p, double loss, double accuracy)
{
    if (!p->on) return;
    pthread_mutex_lock(&p->lock);
    p->eval_loss = loss;
    p->eval_accuracy = accuracy;
    pthread_mutex_unlock(&p->lock);
}

void tr_progress_end(tr_progress *p)
{
    if (!p->on) return;
    pthread_mutex_lock(&p->lock);
    if (p->pending) draw(p);
    if (p->shown > 0) write_all(p->fd, "\n", 1);
    p->shown = 0;
    pthread_mutex_unlock(&p->lock);
}

/* Called in pairs, with the log's own lock held: no step is drawn in between. */
void tr_progress_before_log(void *progress)
{
    tr_progress *p = progress;
    pthread_mutex_lock(&p->lock);
    p->hidden = p->shown > 0;
    measure(p);
    wipe(p);
}

void tr_progress_after_log(void *progress)
{
    tr_progress *p = progress;
    if (p->hidden) draw(p);
    pthread_mutex_unlock(&p->lock);
}
